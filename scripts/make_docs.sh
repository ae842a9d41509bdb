#!/usr/bin/env bash
# The pictures of docs/, made again: everything (about two hours on two cores), or those of the pages named. Runs that
# exist already are used again.
#     bash scripts/make_docs.sh gradients sequence_to_sequence
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ ! -d .venv ] || export PATH="$PWD/.venv/bin:$PATH"
out=docs/pictures
mkdir -p "$out"
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

trained() { # NAME SETTING…: train runs/NAME unless it is there
    local name=$1
    shift
    [ -e "runs/$name" ] || seqtool train run="$name" "$@"
}

gradients() {
    trained rnn-0.8 experiment=gradients initialisation_gain=0.8
    trained rnn-1.1 experiment=gradients initialisation_gain=1.1
    trained gru experiment=gradients model.cell=gru
    trained lstm experiment=gradients model.cell=lstm forget_bias=4
    seqtool inspect runs/rnn-0.8 runs/rnn-1.1 runs/gru runs/lstm plot="$made/flow"
    cp "$made/flow/gradient_flow.png" "$out/gradient_flow.png"
    trained free experiment=gradients_clipping train.clip_norm=null
    trained clipped experiment=gradients_clipping train.clip_norm=1
    seqtool inspect runs/free runs/clipped plot="$made/clipping"
    cp "$made/clipping/learning_curves.png" "$out/clipping.png"
}

language_models() {
    trained grammar model=language_model data=text model.embedding=64 model.hidden=256 train.minutes=2 \
        train.validate_every=100 train.show=2
    cp runs/grammar/learning_curves.png "$out/language_model.png"
}

gates_and_cells() {
    local cell
    for cell in rnn gru lstm; do
        trained "cell-$cell" model.cell=$cell model=language_model data=text model.embedding=64 model.hidden=256 \
            model.layers=1 train.minutes=2 train.validate_every=100
    done
    seqtool inspect runs/cell-rnn runs/cell-gru runs/cell-lstm plot="$made/cells"
    cp "$made/cells/learning_curves.png" "$out/cells.png"
}

sequence_to_sequence() {
    local name
    for name in attention transformer fixed; do
        trained "long-$name" experiment="long_$name"
        [ -e "runs/long-$name/test.es" ] || seqtool eval checkpoint="runs/long-$name" output="runs/long-$name/test.es" \
            beam=1 ter=false
        cp "runs/long-$name/test.es" "$made/$name"
    done
    local cache
    cache=$(grep -l '"longest": 100' cache/toy-*/summary.json | head -1)
    seqtool eval hypotheses="$made/fixed" references="$(dirname "$cache")/test.target.txt" \
        sources="$(dirname "$cache")/test.source.txt" "length_bins=[20,40,60,80]" ter=false \
        plot="$made/length" plot_beside="$made/attention,$made/transformer"
    cp "$made/length/bleu_by_length.png" "$out/bleu_by_length.png"
}

translated() { # RUN PICTURE: the sentence of the lectures
    echo "I have a big cat but a small house." | seqtool translate checkpoint="runs/$1" plot="$made/$1" end=true
    cp "$made/$1/alignment-0001.png" "$out/$2.png"
}

attention() {
    trained first experiment=quickstart
    translated first attention
}

transformers() {
    trained transformer experiment=toy_transformer
    translated transformer transformer_attention
}

pages=("$@")
[ $# -gt 0 ] || pages=(gradients language_models gates_and_cells attention transformers sequence_to_sequence)
for page in "${pages[@]}"; do
    "$page"
done
