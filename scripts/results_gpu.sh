#!/usr/bin/env bash
# Measures results/gpu/ on one GPU: every benchmark against JoeyNMT or the captioning loops, and models trained and
# scored on Multi30k and Flickr8k, with the seconds that each training run took. Takes the directories of
# Multi30k and Flickr8k; further arguments go to the runs on Flickr8k. Skips results whose file exists already.
#     bash scripts/results_gpu.sh data/multi30k data/flickr8k model.encoder.weights=WEIGHTS
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ ! -d .venv ] || export PATH="$PWD/.venv/bin:$PATH"
multi30k=${1:?name the directory of Multi30k} flickr8k=${2:?name the directory of Flickr8k, after that of Multi30k}
shift 2
mkdir -p results/gpu

benchmark() { # NAME SCRIPT SETTING…: results/gpu/NAME.json
    local name=$1 script=$2
    shift 2
    [ -e "results/gpu/$name.json" ] || python "scripts/benchmarks/benchmark_$script.py" --device cuda --output "results/gpu/$name.json" "$@"
}

result() { # NAME SPLIT SETTING…: train runs/gpu-NAME and write results/gpu/NAME.json and NAME.seconds
    local name=$1 split=$2 start=$SECONDS
    shift 2
    [ ! -e "results/gpu/$name.json" ] || return 0
    seqtool train experiment="$name" run="gpu-$name" device=cuda precision=bf16 "$@"
    echo $((SECONDS - start)) > "results/gpu/$name.seconds"
    seqtool eval checkpoint="runs/gpu-$name" split="$split" device=cuda format=json > "runs/gpu-$name/scores.json"
    mv "runs/gpu-$name/scores.json" "results/gpu/$name.json"
}

for batch in 64 512; do
    for sizes in small papers; do
        benchmark "training-$sizes-$batch" training --peers joeynmt --sizes "$sizes" --batch "$batch"
    done
done
benchmark decoding decoding --peers joeynmt --input "$multi30k/test_2016_flickr.en.gz"
benchmark captioning captioning
result multi30k_bahdanau test data.directory="$multi30k"
result multi30k_sutskever test data.directory="$multi30k"
result flickr8k_soft valid data.directory="$flickr8k" "$@"
result flickr8k_hard valid data.directory="$flickr8k" "$@"
