#!/usr/bin/env bash
# Makes the environment where it is missing, then checks style and types and runs the tests.
EXTRAS=dev
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
ruff check
ruff format --check
mypy
python -m pytest "$@"
