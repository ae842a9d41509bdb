#!/usr/bin/env bash
# Makes the pictures and tables of all pages of docs/ (about three hours on two cores), or of the pages in the arguments.
# Existing runs are reused; tables are printed.
#     bash scripts/make_docs.sh gradients sequence_to_sequence
# PRECISION=bf16 trains the captioners in bf16, which is faster on processors that support it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ ! -d .venv ] || export PATH="$PWD/.venv/bin:$PATH"
out=docs/pictures
mkdir -p "$out"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

train() { # NAME SETTING…: start or continue runs/NAME, unless it is finished
    local name=$1
    shift
    seqtool train run="$name" train.resume=auto "$@"
}

gradients() {
    train rnn-0.8 experiment=gradients initialisation_gain=0.8
    train rnn-1.1 experiment=gradients initialisation_gain=1.1
    train gru experiment=gradients model.cell=gru
    train lstm experiment=gradients model.cell=lstm forget_bias=4
    seqtool inspect runs/rnn-0.8 runs/rnn-1.1 runs/gru runs/lstm plot="$scratch/flow"
    cp "$scratch/flow/gradient_flow.png" "$out/gradient_flow.png"
    train free experiment=gradients_clipping train.clip_norm=null
    train clipped experiment=gradients_clipping train.clip_norm=1
    seqtool inspect runs/free runs/clipped plot="$scratch/clipping"
    cp "$scratch/clipping/learning_curves.png" "$out/clipping.png"
}

language_models() {
    train grammar model=language_model data=text model.embedding=64 model.hidden=256 train.minutes=2 \
        train.validate_every=100 train.show=2
    cp runs/grammar/learning_curves.png "$out/language_model.png"
}

gates_and_cells() {
    local cell
    for cell in rnn gru lstm; do
        set -- model.cell=$cell model=language_model data=text model.embedding=64 model.hidden=256 model.layers=1 \
            train.validate_every=100
        train "cell-$cell" "$@" train.minutes=2
        train "brief-$cell" "$@" train.steps=600 train.minutes=null
    done
    seqtool inspect runs/cell-rnn runs/cell-gru runs/cell-lstm plot="$scratch/cells"
    cp "$scratch/cells/learning_curves.png" "$out/cells.png"
    python scripts/connectivity.py runs/brief-rnn runs/brief-gru runs/brief-lstm --output "$out/connectivity.png"
}

sequence_to_sequence() {
    local name
    for name in attention transformer fixed; do
        train "long-$name" experiment="long_$name"
    done
    for name in attention transformer; do
        [ -e "runs/long-$name/$name.es" ] || seqtool eval checkpoint="runs/long-$name" \
            output="runs/long-$name/$name.es" ter=false
    done
    seqtool eval checkpoint=runs/long-fixed ter=false "length_bins=[20,40,60,80]" plot="$scratch/length" \
        beside=runs/long-attention/attention.es,runs/long-transformer/transformer.es
    cp "$scratch/length/bleu_by_length.png" "$out/bleu_by_length.png"
}

draw_alignment() { # CHECKPOINT PICTURE: the alignment of one sentence
    echo "I have a big cat but a small house." | seqtool translate checkpoint="$1" plot="$scratch/$2" words=marks end=true
    cp "$scratch/$2/alignment-0001.png" "$out/$2.png"
}

attention() {
    draw_alignment builtin/words attention
}

transformers() {
    train transformer experiment=toy_transformer
    draw_alignment runs/transformer transformer_attention
    train ordered experiment=toy_transformer data.train=20000 train.epochs=6 train.minutes=null train.average_last=1 \
        validation.sentences=200
    seqtool inspect runs/ordered plot="$scratch/heads" \
        pair="I have a big cat but a small house. ||| Tengo un gato grande pero una casa pequeña."
    cp "$scratch/heads/encoder-self-attention-0001.png" "$out/transformer_heads.png"
    python scripts/attention_entropy.py "$out/attention_entropy.png"
}

draw_attention() { # CHECKPOINT PICTURE SETTING…: where the words of one scene's caption looked
    local checkpoint=$1 picture=$2
    shift 2
    [ -e data/scenes/test/00007.png ] || seqtool prepare data=scenes
    seqtool caption checkpoint="$checkpoint" images=data/scenes/test/00007.png plot="$scratch/$picture" \
        length_penalty=none "$@"
    cp "$scratch/$picture/caption-0001-00007.png" "$out/$picture.png"
}

train_captioner() { # NAME SETTING…
    train "$@" train.minutes=20 precision="${PRECISION:-fp32}"
}

pictures_to_words() {
    draw_attention builtin/soft pictures_to_words
}

hard_attention() {
    train_captioner scenes experiment=scenes_soft
    train_captioner hard experiment=scenes_hard
    train_captioner printed experiment=scenes_hard_printed
    draw_attention builtin/hard hard_attention hard_attention=argmax
    seqtool inspect runs/hard runs/printed plot="$scratch/curves"
    cp "$scratch/curves/learning_curves.png" "$out/hard_attention_curves.png"
    local run
    for run in scenes hard printed; do # the page's table
        python scripts/evaluate_scenes.py checkpoint="runs/$run" length_penalty=none
        seqtool eval checkpoint="runs/$run" bound=64 length_penalty=none
    done
}

search_and_scores() { # the page's table
    train young experiment=quickstart train.minutes=1
    local penalty beam
    for penalty in average none; do
        for beam in 1 2 5 20; do
            echo "length_penalty=$penalty beam=$beam"
            seqtool eval checkpoint=runs/young length_penalty=$penalty beam=$beam ter=false | grep -E "BLEU|brevity"
        done
    done
}

screenshots() { # of the demo and of a report: needs Chromium and Playwright
    python scripts/development/screenshots.py --folder "$out"
    python scripts/development/make_gif.py --output "$out/demo.gif"
}

pages=("$@")
[ $# -gt 0 ] || pages=(gradients language_models gates_and_cells attention transformers sequence_to_sequence
    pictures_to_words hard_attention search_and_scores screenshots)
for page in "${pages[@]}"; do
    "$page"
done
