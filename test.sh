#!/usr/bin/env bash
# Sets up what is missing, then runs every check; fails if any does. Usage: test.sh [all].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

case "${1:-}" in
    "") ;;
    all) echo "test: no heavier environment exists yet; running the same checks" ;;
    *) echo "test: expected no argument or all, got '$1'" >&2; exit 2 ;;
esac

bash scripts/setup.sh test
failed=()
check() {
    echo "test: $*"
    ".venv/bin/$1" "${@:2}" || failed+=("$1")
}

check ruff check
check mypy
check pytest -q -n 2

if ((${#failed[@]})); then
    echo "test: failed: ${failed[*]}" >&2
    exit 1
fi
