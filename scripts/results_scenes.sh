#!/usr/bin/env bash
# Measures results/scenes/: trains each captioner on the built-in pictures, at most ten minutes, and evaluates on the
# test set whether captions are true and where attention lies. Captions are ranked by their probability, since a mean over
# words would favour long ones, such as those with left or right. Further arguments go to every `seqtool train`.
#     bash scripts/results_scenes.sh threads=2 precision=bf16
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ ! -d .venv ] || export PATH="$PWD/.venv/bin:$PATH"
mkdir -p results/scenes

result() { # NAME SETTING…: train runs/scenes-NAME and write results/scenes/NAME.json
    local name=$1
    shift
    [ ! -e "results/scenes/$name.json" ] || return 0
    seqtool train run="scenes-$name" "$@"
    python scripts/evaluate_scenes.py checkpoint="runs/scenes-$name" length_penalty=none output="results/scenes/$name.json"
}

result soft experiment=scenes_soft "$@"
result hard experiment=scenes_hard "$@"
result show_tell experiment=scenes_show_tell "$@"
result transformer experiment=scenes_transformer "$@"
