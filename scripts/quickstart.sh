#!/usr/bin/env bash
# From a fresh checkout to a trained translator: environment, a translation by a built-in model, then corpus, training,
# translations, score, alignments. Each call trains a new run; everything else is done once.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

echo "== Translate with a built-in model: which English words each Spanish word attended to"
seqtool translate checkpoint=builtin/words words=marks format=grid <<< "I have a big cat but a small house."

echo "== Prepare the built-in English-Spanish corpus"
seqtool prepare

echo "== Train an attention model (Bahdanau et al. 2015)"
run=quickstart
number=1
while [ -e "runs/$run" ]; do number=$((number + 1)); run=quickstart-$number; done
seqtool train experiment=quickstart run="$run"

echo "== Translate"
out=runs/$run/output
mkdir -p "$out"
printf '%s\n' "I have a big cat but a small house." "She does not want the red car." "Do you see the old dogs?" > "$out/sentences.en"
seqtool translate checkpoint="runs/$run" input="$out/sentences.en" output="$out/sentences.es" \
    alignments="$out/sentences.align" plot="$out/alignments"
paste -d '\n' "$out/sentences.en" "$out/sentences.es"

echo "== Score the test set"
seqtool eval checkpoint="runs/$run" split=test output="$out/test.es" | tee "$out/scores.txt"

cat <<TEXT

Files
  the run, its checkpoints and learning curves   runs/$run
  translations and scores                        $out
  the alignments, as pictures                    $out/alignments
Translate more:  .venv/bin/seqtool translate checkpoint=runs/$run beam=5
TEXT
