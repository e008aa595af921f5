"""Every command that the documents show is run with settings as small as possible, in one folder of a user.

Folders and files that a document presupposes are created first, if possible by rookworld's own commands.
"""

import io
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import chess
import chess.pgn
import pytest

from rookworld_rlvr.app.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
UNFILLED = "@@"
LITTLE = {
    "train": (
        *("debug=short", "steps=2", "threads=1", "objective.prompts_per_step=2", "objective.group_size=4"),
        *("evaluation.rows=4", "evaluation.sampled_rows=2", "evaluation.match_pairs=1", "evaluation.match_plies=4"),
        # Some completions of each task must be malformed, because `rollouts --failed` shows them.
        *("generator.temperature=3", "generator.max_new_tokens=32"),
    ),
    "smoke": ("threads=1",),
    "bench": ("threads=1", "bench.rounds=1", "objective.prompts_per_step=2", "objective.group_size=2"),
    "evaluate": (
        *("threads=1", "evaluation.rows=4", "selfplay.games=2"),
        *("selfplay.max_plies=4", "evaluation.match_pairs=1", "evaluation.match_plies=4"),
        *("conversion.positions=1", "conversion.defenders=[random]"),
    ),
    "sft": ("threads=1", "steps=2", "batch_size=4"),
}
# Replaced values of options of `rookworld data`, so that a command takes seconds.
FEW = {"--rows": "8", "--games": "4", "--processes": "1", "--held-out": "0.2"}
# Commands that need something missing here or that do not end by themselves, each with what tests it instead.
ELSEWHERE = {
    "rookworld play": "tests/play",
    "rookworld inspect": "tests/app/test_inspect.py",
    "rookworld train experiment=rookworld_124m": "tests/app/test_conf.py composes it; the hub is not reached",
    "rookworld train resume=": "tests/training, and the folder of a run here has ended",
    "xboard": "played by hand: dev/log.md, entry 23",
    "git clone": "what has been done before this runs",
    "cat": "a file of a run that failed",
    "bash test.sh": "what runs this",
    "bash scripts/setup.sh": "tests/contract/test_scripts.py",
    "bash recipes/smollm2/run.sh": "fetches a model: dev/log.md, entry 86",
    ".venv/bin/python examples/legal_captures.py": "tests/examples",
    "accelerate launch": "tests/peers/test_trl_processes.py",
    "python -c from rookworld_rlvr.interop.verl import write_rows": "tests/interop/test_verl_rewards.py",
    "python -m verl.trainer.main_ppo": "needs GPUs; its reward function: tests/peers/test_verl.py",
    "uv run rl": "needs GPUs; its file: tests/verifiers/test_prime_rl.py",
}


def shown() -> list[list[str]]:
    """Return the words of each documented command once; `bash train.sh` becomes `rookworld train`."""
    commands: dict[tuple[str, ...], None] = {}
    blocks = (re.findall(r"```bash\n(.*?)```", document.read_text("utf-8"), re.S) for document in DOCUMENTS)
    for line in (line for of_document in blocks for block in of_document for line in block.splitlines()):
        words = shlex.split(line, comments=True)
        words = ["rookworld", "train", *words[2:]] if words[:2] == ["bash", "train.sh"] else words
        if words and not any(UNFILLED in word for word in words):
            commands[tuple(words)] = None
    return [list(words) for words in commands]


def is_elsewhere(words: list[str]) -> bool:
    return any(" ".join(words).startswith(start) for start in ELSEWHERE)


SHOWN = [words for words in shown() if not is_elsewhere(words)]


@pytest.fixture(scope="module")
def home(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a user's folder with the files that the documents mention."""
    from rookworld_rlvr.model.loading import tiny_model_folder
    from rookworld_rlvr.training.data import default_file

    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        shutil.copytree(tiny_model_folder(), "my/folder")
        shutil.copytree(chat_model, "MODEL")
        lines = default_file("train.txt").read_text("utf-8").splitlines(keepends=True)
        Path("my/rows.txt").write_text("".join([*lines[:12], *lines[-12:]]), "utf-8")
        Path("my/other_held_out.txt").write_text("".join(lines[12:16]), "utf-8")
        mate = {"fen": "6k1/5ppp/8/8/8/8/8/R6K w - - 0 1", "best": "a1a8"}
        Path("mates.jsonl").write_text(json.dumps(mate) + "\n", "utf-8")
        puzzle = "PuzzleId,FEN,Moves,Rating\none,7k/p4Q2/6K1/8/8/8/8/8 b - - 0 1,a7a6 f7g7,600\n"
        Path("lichess_db_puzzle.csv").write_text(puzzle, "utf-8")
        Path("my/games.pgn").write_text(game(), "utf-8")
        for words in (
            ["train", *LITTLE["train"]],
            ["evaluate", "output=a.json", *LITTLE["evaluate"]],
            ["evaluate", "output=b.json", "model.path=my/folder", *LITTLE["evaluate"]],
            ["evaluate", "output=table.json", *LITTLE["evaluate"]],
            *(["data", "generate", "--rows", "40", "--out", f"outputs/{name}"] for name in ("data", "rows")),
            ["data", "evals", "my/rows.txt", "--nodes", "100", "--out", "outputs/my.tsv.gz"],
            ["sft", "corpus=[my/rows.txt]", "output=outputs/sft", "steps=2", "batch_size=4"],
        ):
            assert main(words) == 0, words
    return folder


def game() -> str:
    """Return the first moves of an open game as PGN."""
    board = chess.Board()
    for san in ("e4", "e5", "Nf3", "Nc6", "Bb5", "a6", "Ba4", "Nf6", "O-O", "Be7"):
        board.push_san(san)
    return str(chess.pgn.Game.from_board(board)) + "\n\n"


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_documented_command_runs(
    words: list[str], home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setattr(sys, "stdin", io.StringIO("uci\nquit\n"))
    code = main(made_small(words[1:], tmp_path))
    printed = capfd.readouterr()
    assert code == 0, printed.err[-2000:]
    assert "Traceback" not in printed.err


def made_small(words: list[str], own: Path) -> list[str]:
    """Return a command's arguments with small settings, and with outputs in the folder `own`."""
    if words[0] == "report":
        # The documents show dates and names of a user's runs; the latest run here takes their place.
        [latest] = (path for path in Path("outputs").glob("latest"))
        return ["report", str(latest), *words[words.index("--output") if "--output" in words else len(words) :]]
    if words[0] in LITTLE and words[:2] != ["evaluate", "compare"]:
        overrides = [word for word in words if not word.startswith("output=")]
        outputs = {"evaluate": "output={}/table.json", "sft": "output={}/model"}
        written = [outputs[words[0]].format(own)] if words[0] in outputs else []
        given = {word.split("=")[0] for word in overrides}
        groups = [word for word in LITTLE[words[0]] if word != "debug=short" or "debug" not in given]
        return [*overrides, *groups, *written]
    return [
        FEW.get(before, str(own / "written.tsv.gz" if word.endswith(".gz") else own / "written"))
        if before in (*FEW, "--out", "--to", "--json")
        else word
        for before, word in zip(["", *words], words, strict=False)
    ]


def test_commands_tested_elsewhere_are_documented() -> None:
    assert [start for start in ELSEWHERE if not any(" ".join(words).startswith(start) for words in shown())] == []
