#!/usr/bin/env bash
# Measures results/language_models/: nats a character on Tiny Shakespeare by cell, layers and size, after ten minutes of
# training each. Skips rows whose file exists already; further arguments go to every `seqtool train`.
#     bash scripts/results_language_models.sh input.txt threads=2
set -euo pipefail
text=$(realpath "${1:?the text, such as input.txt of Tiny Shakespeare}")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ ! -d .venv ] || export PATH="$PWD/.venv/bin:$PATH"
out=results/language_models
mkdir -p "$out"

for size in 1x256 2x256 2x512; do
    for cell in rnn gru lstm; do
        name=$cell-$size
        [ ! -e "$out/$name.json" ] || continue
        rate=0.003
        [ "$cell" != rnn ] || rate=0.001
        seqtool train run="table-$name" train.resume=auto experiment=shakespeare_lstm data.train="$text" model.cell="$cell" \
            model.layers="${size%x*}" model.hidden="${size#*x}" model.dropout=0.1 optim.lr="$rate" \
            schedule=inverse_square_root schedule.warmup=50 train.epochs=null train.minutes=10 "$@"
        seqtool eval checkpoint="runs/table-$name" format=json > "runs/table-$name/scores.json"
        mv "runs/table-$name/scores.json" "$out/$name.json"
    done
done

echo "| cell | layers × size | nats a character | bits a character |"
echo "|---|---|---|---|"
for file in "$out"/*.json; do
    python - "$file" <<'PYTHON'
import json, sys
from pathlib import Path

scores, name = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[1]).stem
cell, _, size = name.rpartition("-")
print(f"| `{cell}` | {size.replace('x', ' × ')} | {scores['nats_per_character']:.3f} | {scores['bits_per_character']['value']:.3f} |")
PYTHON
done
