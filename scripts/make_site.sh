#!/usr/bin/env bash
# Builds the documentation's site into build/site, or the directory that is its argument; open index.html there.
# Warnings are errors. Nothing is downloaded, except the packages of the docs extra if one of them is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ ! -d .venv ] || export PATH="$PWD/.venv/bin:$PATH"
if ! python -c "import furo, latex2mathml, myst_parser, sphinx, torch" 2>/dev/null; then
    EXTRAS=docs
    source scripts/environment.sh
fi
python -m sphinx -q -E -W --keep-going -b html -d build/doctrees -c docs . "${1:-build/site}"
echo "Site: ${1:-build/site}/index.html"
