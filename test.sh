#!/usr/bin/env bash
# Sets up what is missing, then runs every check; fails if any check fails. Usage: test.sh [all].
# `all` adds the slow tests, the site, the comparisons with other libraries and the runs with vLLM, each in its own environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

case "${1:-}" in
    "" | all) ;;
    *) echo "test: expected no argument or all, got '$1'" >&2; exit 2 ;;
esac

bash scripts/setup.sh test
failed=()
check() { # environment, module, arguments
    echo "test: ${*:2}"
    "$1/bin/python" -m "${@:2}" || failed+=("${*:2}")
}

# Without git, ruff does not read .gitignore, and knows only .venv by name.
others=(--extend-exclude .venv-peers --extend-exclude .venv-vllm --extend-exclude .venv-verifiers)
check .venv ruff check "${others[@]}"
check .venv ruff format --check "${others[@]}"
# Beside the tests, some of which wait for processes of their own.
echo "test: mypy" && .venv/bin/python -m mypy & types=$!
if [[ "${1:-}" == all ]]; then
    check .venv pytest -q -n 2 --dist worksteal --durations=30
    if bash scripts/setup.sh docs; then check .venv mkdocs build --strict --quiet; else failed+=("setup.sh docs"); fi
    for name in peers vllm verifiers; do
        # All skipped counts as a failure: pytest then exits with 5.
        if bash scripts/setup.sh "$name"; then
            check ".venv-$name" pytest -q -n 2 --dist loadfile --durations=5 "tests/$name"
        else
            failed+=("setup.sh $name")
        fi
    done
else
    check .venv pytest -q -n 2 --dist worksteal --durations=10 -m "not slow"
fi

wait "$types" || failed+=(mypy)
if ((${#failed[@]})); then
    printf 'test: failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
