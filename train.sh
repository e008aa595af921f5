#!/usr/bin/env bash
# Sets up what is missing, tries one batch, then trains. Every argument is passed on to both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

bash scripts/setup.sh run
.venv/bin/rookworld smoke "$@"
exec .venv/bin/rookworld train "$@"
