#!/usr/bin/env bash
# Sets up what is missing, then runs every check; fails if any does. Usage: test.sh [all].
# With `all` also the comparisons with other libraries and the runs with vLLM, each in an environment of its own.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

case "${1:-}" in
    "" | all) ;;
    *) echo "test: expected no argument or all, got '$1'" >&2; exit 2 ;;
esac

bash scripts/setup.sh test
failed=()
check() {
    echo "test: ${*:2}"
    "$1/bin/$2" "${@:3}" || failed+=("${*:2}")
}

# Without git, ruff does not read .gitignore, and knows only .venv by name.
check .venv ruff check --extend-exclude .venv-peers --extend-exclude .venv-vllm --extend-exclude .venv-verifiers
check .venv mypy
if [[ "${1:-}" == all ]]; then
    check .venv pytest -q -n 2 --durations=10
else
    check .venv pytest -q -n 2 --durations=10 -m "not slow"
fi

if [[ "${1:-}" == all ]]; then
    if bash scripts/setup.sh peers; then
        # All skipped counts as a failure: pytest then exits with 5.
        check .venv-peers pytest -q tests/peers
    else
        failed+=("setup.sh peers")
    fi
    if bash scripts/setup.sh vllm; then
        check .venv-vllm pytest -q tests/vllm
    else
        failed+=("setup.sh vllm")
    fi
    if bash scripts/setup.sh verifiers; then
        check .venv-verifiers pytest -q tests/verifiers
    else
        failed+=("setup.sh verifiers")
    fi
fi

if ((${#failed[@]})); then
    printf 'test: failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
