#!/usr/bin/env bash
# Sets up what is missing, then measures and tests on this machine's CUDA devices all that the documents claim of one,
# in at most 25 minutes; `--dry` tries the same on a CPU in small. Page and figures: outputs/gpu_visit/visit.md and
# visit.json. Exit code 1 where a part failed. Usage: benchmarks/gpu_visit.sh [--dry] [--minutes N] [--only PART...].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

started=$SECONDS
bash scripts/setup.sh test
exec .venv/bin/python benchmarks/gpu_visit.py --spent-s $((SECONDS - started)) "$@"
