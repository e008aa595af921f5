#!/usr/bin/env bash
# Makes the small model from nothing: data by Stockfish, training, export and evaluation. Resumable.
# Usage: bash recipes/tiny_model/run.sh [OUT] [quick] [option=value ...]; OUT is relative to the repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

bash scripts/setup.sh run
PYTHONPATH="recipes${PYTHONPATH:+:$PYTHONPATH}" exec .venv/bin/python -m tiny_model "$@"
