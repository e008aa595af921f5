#!/usr/bin/env bash
# Runs one call of the GPU visit, some minutes on a lent machine without a package index; see --list and --prepare.
# Uses the environment of this clone, or the machine's own Python where there is none. Figures and page: $OUT, or
# outputs/gpu_visit. Exit code 1 where a part failed. Usage: benchmarks/gpu_visit.sh [CALL [--dry] | --list | --prepare].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python
[[ -x "$python" ]] || python=python3
exec "$python" benchmarks/gpu_visit.py "$@"
