#!/usr/bin/env bash
# Measures results/toy/: trains each cell and each score on the built-in corpus, six minutes per run (the
# fixed-context model longer), with a decaying learning rate, and scores the test set. Further arguments go to every
# `seqtool train`.
#     bash scripts/results_toy.sh threads=2
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ ! -d .venv ] || export PATH="$PWD/.venv/bin:$PATH"
mkdir -p results/toy

result() { # NAME SETTING…: train runs/toy-NAME and write results/toy/NAME.json
    local name=$1
    shift
    [ ! -e "results/toy/$name.json" ] || return 0
    seqtool train run="toy-$name" "$@"
    seqtool eval checkpoint="runs/toy-$name" split=test format=json > "runs/toy-$name/scores.json"
    mv "runs/toy-$name/scores.json" "results/toy/$name.json"
}

six_minutes=(experiment=quickstart schedule=inverse_square_root train.epochs=null train.minutes=6)
result rnn-additive "${six_minutes[@]}" model.cell=rnn optim.lr=0.001 "$@"
result gru-dot "${six_minutes[@]}" model.score=dot "$@"
result gru-scaled_dot "${six_minutes[@]}" model.score=scaled_dot "$@"
result gru-general "${six_minutes[@]}" model.score=general "$@"
result lstm-additive "${six_minutes[@]}" model.cell=lstm "$@"
result gru-additive "${six_minutes[@]}" "$@"
result sutskever experiment=toy_sutskever "$@"
result transformer experiment=toy_transformer "$@"
