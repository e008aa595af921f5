"""The parts of `gpu_visit.py`: commands, their time limits and their requirements."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENVS = {"": ".venv", "peers": ".venv-peers", "vllm": ".venv-vllm"}
# Folder below that of the visit, in which TRL is installed for the environment of vLLM.
TRL_FOLDER = "trl"
# Factor on the time limits, which are meant for a GPU, in a dry visit.
DRY_PATIENCE = 5


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a visit: a row of its table."""

    name: str
    command: Sequence[str]
    """Words of the command; `{out}` stands for the part's folder."""
    limit_s: float
    requirements: Sequence[str] = ()
    """Requirements, which `missing_requirement` checks."""


def cards() -> list[str]:
    """Return name, memory and driver of each CUDA device, as nvidia-smi reports them."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()


def missing_requirement(requirement: str, *, dry: bool) -> str:
    """Return the reason why a part with this requirement cannot run here; empty if it can."""
    match requirement:
        case "CUDA":
            return "" if cards() else "there is no CUDA device"
        case "two cards":
            return "" if len(cards()) > 1 else "it needs two CUDA devices: NCCL refuses two ranks on one"
        case "installation":
            return "a dry visit installs nothing" if dry else ""
        case environment:
            there = (ROOT / VENVS[environment] / f"stamp-{environment}").exists()
            return "" if there else f"there is no {VENVS[environment]} (bash scripts/setup.sh {environment})"


def python(environment: str = "") -> list[str]:
    """Return the interpreter of an environment; that of this program for the main environment (empty name)."""
    return [str(ROOT / VENVS[environment] / "bin/python") if environment else sys.executable]


def rookworld(command: str, *overrides: str, environment: str = "") -> list[str]:
    return [*python(environment), "-m", "rookworld_rlvr", command, *overrides]


def probe(environment: str, *words: str) -> list[str]:
    return [*python(environment), "benchmarks/gpu_probes.py", *words]


def sizes(dry: bool, gpt2: str) -> dict[str, list[str]]:
    """Return the overrides of each model and batch size by name; a dry visit has only one batch size."""
    models = {"3.5M": "tiny", "124M": gpt2}
    batches = {"8×8": (2, 2)} if dry else {"8×8": (8, 8), "64×16": (64, 16)}
    return {
        f"{model} {batch}": [
            f"model.path={path}",
            f"objective.prompts_per_step={prompts}",
            f"objective.group_size={group}",
            *(("generator.max_new_tokens=12",) if dry else ("generator.batch_size=1024",)),
            *(() if model == "124M" else ("optim.micro_batch_size=256",)),
        ]
        for model, path in models.items()
        for batch, (prompts, group) in batches.items()
    }


class Table:
    """The parts of a visit, real or dry."""

    def __init__(self, folder: Path, *, dry: bool) -> None:
        """`folder` is that of the visit, which also gets the model with random weights in GPT-2's shape."""
        self.folder, self.dry, self.gpt2 = folder, dry, str(folder / "gpt2")
        self.patience = DRY_PATIENCE if dry else 1
        self.device = ["device=cpu", "threads=1"] if dry else ["device=cuda"]
        self.sizes, self.rounds = sizes(dry, self.gpt2), "1" if dry else "2"
        self.tiny = [*self.device, *self.sizes["3.5M 8×8"]]
        little = ["steps=2", "evaluation.rows=4", "evaluation.match_pairs=0", "evaluation.sampled_rows=0"]
        # A dry visit tries vLLM and TRL, which take long to start, with only one model.
        self.some_sizes = list(self.sizes)[: 1 if dry else None]
        self.short, self.little = ["debug=short", *little[1:], *little[: int(dry)]], little if dry else []

    def parts(self) -> list[Part]:
        """Return all parts in the order in which they run; those with the fewest requirements come first."""
        weights = probe("", "weights", "--folder", self.gpt2, *(["--small"] if self.dry else []))
        memory = probe("", "out_of_memory", "--json", "{out}/memory.json", *self.device, f"model.path={self.gpt2}")
        parts = [
            *(Part(f"smoke {p}", rookworld("smoke", *self.device, f"precision={p}"), 90) for p in ("fp32", "bf16")),
            Part("tests on CUDA", [*python(), "-m", "pytest", "-q", "tests/device/test_cuda.py"], 150, ["CUDA"]),
            Part("weights of GPT-2's shape", weights, 60),
            # hf takes minutes for the larger model.
            *(self.bench(name, "native,hf" if name.startswith("3.5M") else "native") for name in self.sizes),
            *(self.roofline(name) for name in self.sizes),
            self.train("debug=overfit", 90, "debug=overfit", *self.little),
            Part("out of memory", memory, 90, ["CUDA"]),
            *(self.ranks(kind, count) for count in (1, 2) for kind in ("ddp", "fsdp2")),
            self.turns("generator.batch_size=128", "generator.batch_size=1024"),
            *self.parts_with_vllm(),
            self.train("default run", 300, *self.little),
            *self.parts_with_trl(),
        ]
        return [replace(part, limit_s=self.patience * part.limit_s) for part in parts]

    def parts_with_vllm(self) -> list[Part]:
        sleep = probe("vllm", "sleep", "--json", "{out}/sleep.json", *self.tiny)
        return [
            Part("set up vllm", ["bash", "scripts/setup.sh", "vllm"], 420, ["installation"]),
            *(self.bench(name, "native,vllm", "vllm") for name in self.some_sizes),
            Part("vLLM, sleep and wake", sleep, 150, ["vllm", "CUDA"]),
            self.server(),
        ]

    def parts_with_trl(self) -> list[Part]:
        # TRL is not installed into vLLM's environment, whose transformers is older than that of TRL's environment.
        pip = [*python("vllm"), "-m", "pip", "install", "-q", "--no-deps", "-c", "requirements/peers.txt"]
        pip += ["--target", str(self.folder / TRL_FOLDER), "trl", "accelerate"]
        return [
            Part("set up peers", ["bash", "scripts/setup.sh", "peers"], 240, ["installation"]),
            Part("TRL 3.5M", self.peers("peers", "tiny"), 150, ["peers"]),
            *([] if self.dry else [Part("TRL 124M", self.peers("peers", self.gpt2), 150, ["peers"])]),
            Part("set up TRL for vLLM", pip, 60, ["installation", "vllm"]),
            Part("TRL with vLLM 124M", self.peers("vllm", self.gpt2, "--trl-vllm"), 180, ["vllm", "CUDA"]),
        ]

    def bench(self, name: str, generators: str, environment: str = "") -> Part:
        options = [f"bench.generators=[{generators}]", f"bench.rounds={self.rounds}", "bench.output={out}/bench.json"]
        command = rookworld("bench", *self.device, *self.sizes[name], *options, environment=environment)
        return Part(f"bench {name} {generators}", command, 150, [environment] if environment else [])

    def roofline(self, name: str) -> Part:
        options = ["--generators", "native", "--rounds", self.rounds, "--json", "{out}/roofline.json", "--"]
        command = [*python(), "benchmarks/roofline.py", *options, *self.device, *self.sizes[name]]
        return Part(f"roofline {name}", command, 90)

    def train(self, name: str, limit_s: float, *overrides: str, requirements: Sequence[str] = ()) -> Part:
        command = rookworld("train", *self.device, "output_root={out}", "name=visit", *overrides)
        return Part(name, command, limit_s, requirements)

    def ranks(self, kind: str, count: int) -> Part:
        requirements = ["two cards"] if count > 1 else []
        overrides = [*self.device, "output_root={out}", "name=visit", *self.short, f"distributed={kind}"]
        # Under torchrun a single process has a process group and shards, too.
        torchrun = [*python(), "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
        command = [*torchrun, "-m", "rookworld_rlvr", "train", *overrides]
        return Part(f"{kind}, {count} {'card' if count == 1 else 'cards'}", command, 90, requirements)

    def turns(self, first: str, last: str) -> Part:
        options = ["--rounds", "1" if self.dry else "5", "--warmup-steps", "1" if self.dry else "3"]
        command = [*python(), "benchmarks/turns.py", first, last, *options, "--json", "{out}/turns.json", "--common"]
        return Part(f"{last}, in turns", [*command, *self.tiny], 150)

    def server(self) -> Part:
        command = probe("vllm", "server", "--folder", "{out}", *self.device, *self.short)
        return Part("vLLM server", command, 180, ["vllm"])

    def peers(self, environment: str, model: str, *options: str) -> list[str]:
        prompts, group = (2, 4) if self.dry else (8, 8)
        shape = ["--prompts", f"{prompts}", "--group-size", f"{group}", "--micro-batch", f"{prompts * group}", *options]
        shape += ["--max-new-tokens", "12", "--threads", "1"] if self.dry else ["--device", "cuda"]
        turns = ["--steps", "2", "--rounds", self.rounds, "--json", "{out}/peers.json"]
        return [*python(environment), "benchmarks/peers.py", "--model", model, *shape, *turns]
