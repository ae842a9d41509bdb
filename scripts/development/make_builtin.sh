#!/usr/bin/env bash
# Makes the models of seqtool/builtin: trains each for a fixed number of epochs, and exports its best checkpoint in half
# precision. record.json says how they were made and what they score. On one machine with the same versions, two calls
# write the same weights and the same record. It takes an hour or two on one core.
#     bash scripts/development/make_builtin.sh [DIRECTORY]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[ ! -d .venv ] || export PATH="$PWD/.venv/bin:$PATH"
output=$(realpath -m "${1:-seqtool/builtin}")
mkdir -p "$output"
record=$PWD/scripts/development/record_builtin.py
cd "$(mktemp -d)" # for the runs and caches

make() { # NAME SETTING…: train a run, and export it
    seqtool train run="$1" device=cpu threads=1 train.minutes=null "${@:2}"
    rm -rf "${output:?}/$1"
    seqtool export "runs/$1" output="$output/$1" licence=Apache-2.0
}

make words experiment=quickstart
make text data=text model=language_model schedule=cosine model.embedding=64 model.hidden=256 train.epochs=8 \
    optim.lr=0.003 schedule.warmup=50
make soft experiment=scenes_soft precision=bf16
make hard experiment=scenes_hard precision=bf16
python "$record" "$output"
