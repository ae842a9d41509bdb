#!/usr/bin/env bash
# Makes the environment if it is missing, checks style, types and layers, and runs the tests.
EXTRAS=dev
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
ruff check
ruff format --check
mypy
lint-imports
python -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"  # in two processes, with one thread of torch each
