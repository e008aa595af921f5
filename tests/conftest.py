"""Fixtures: a corpus and a small model trained on it, made once per session, runs in temporary folders, and engines.

torch is imported only by the fixtures that need it, so that tests without a model start in a second.
"""

import gc
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chess
import pytest

# A shell's background job ignores SIGINT. The commands that tests start and interrupt would inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Set before torch is imported. The tensors are too small for several threads, and one thread gives reproducible bits.
os.environ["OMP_NUM_THREADS"] = "1"
# No test may contact a model hub or a tracker's server.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"

# What is collected here, modules and tests, lives as long as the process, so looking for garbage among it is in vain.
gc.disable()

ROWS_PER_TASK, HELD_OUT_PER_TASK = 32, 4
WANDB_PATIENCE_S = 60
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow tests first in each half, one half per worker: a slow test at the end would leave a worker idle.

    The longest of all, `slow(minutes=...)`, come before the others, since a worker does not give away its next two.
    """
    slow = [item for item in items if item.get_closest_marker("slow")]
    fast = [item for item in items if not item.get_closest_marker("slow")]
    longest = sorted(filter(_minutes, slow), key=_minutes, reverse=True)
    slow = [item for item in slow if item not in longest]
    middle, first_half = len(slow) // 2, (len(items) - len(slow) - len(longest)) // 2
    items[:] = [
        *longest[::2],
        *slow[:middle],
        *fast[:first_half],
        *longest[1::2],
        *slow[middle:],
        *fast[first_half:],
    ]


def pytest_collection_finish() -> None:
    """Look for garbage again, but not among what lives as long as the process."""
    gc.freeze()
    gc.enable()


def _minutes(item: pytest.Item) -> float:
    marker = item.get_closest_marker("slow")
    return float(marker.kwargs.get("minutes", 0)) if marker else 0.0


def labelled(board: chess.Board) -> Any:
    """Return a label made without an engine: the first legal moves in alphabetical order, the last of them best."""
    from rookworld_rlvr.tasks.types import PolicyCompletion

    moves = sorted(move.uci() for move in board.legal_moves)[:5]
    return PolicyCompletion(tuple(moves), tuple(0.25 * i - 0.5 for i in range(len(moves))), moves[-1])


# Games from which the corpora are made: the fraction of moves that follow the labels, the approximate fraction of
# prompts with an illegal move, and the fraction of common moves that are kept.
GUIDED_FRACTION, ILLEGAL_FRACTION, COMMON_FRACTION = 0.7, 0.08, 0.15


def guided_game(
    rng: random.Random, start: chess.Board, label: Callable[[chess.Board], Any]
) -> Iterator[tuple[chess.Board, Any]]:
    """Play a game from `start`; yield each position (the same board object, changed in place) with its label."""
    game = start.copy()
    while game.ply() < 160 and game.outcome(claim_draw=False) is None:
        answer = label(game)
        yield game, answer
        guided = rng.random() < GUIDED_FRACTION
        game.push_uci(rng.choice(answer.moves) if guided else rng.choice(list(game.legal_moves)).uci())


def policy_line(rng: random.Random, board: chess.Board, answer: Any) -> str:
    """Return a line in the published `P:` format, with the candidates in shuffled order."""
    from rookworld_rlvr.tasks.policy.text import render_policy, render_policy_prompt
    from rookworld_rlvr.tasks.types import PolicyCompletion

    order = rng.sample(range(len(answer.moves)), len(answer.moves))
    shuffled = PolicyCompletion(
        tuple(answer.moves[i] for i in order), tuple(answer.evals_pawns[i] for i in order), answer.best
    )
    return render_policy_prompt(board.fen()) + render_policy(shuffled, board.fen())


def wrong_move(rng: random.Random, board: chess.Board) -> str:
    """Return an illegal UCI move: half of the time from a square of an own piece, otherwise from any square."""
    pieces = list(chess.SquareSet(board.occupied_co[board.turn]))
    while True:
        origin = rng.choice(pieces) if rng.random() < 0.5 else rng.choice(chess.SQUARES)
        uci = chess.square_name(origin) + chess.square_name(rng.choice(chess.SQUARES))
        if uci[:2] != uci[2:] and chess.Move.from_uci(uci) not in board.legal_moves:
            return uci


def environment_lines(rng: random.Random, start: chess.Board) -> Iterator[str]:
    """Yield `A:` lines of one random game from `start` to its end: all rare moves and a few common ones."""
    from rookworld_rlvr.generation.transitions import environment_line

    game = start.copy()
    while game.outcome(claim_draw=False) is None:
        uci = _eager_move(rng, game).uci()
        fen, played = game.fen(), [move.uci() for move in game.move_stack]
        if rng.random() < ILLEGAL_FRACTION * COMMON_FRACTION * 2:
            wrong = wrong_move(rng, game)
            yield environment_line(fen, wrong, [*played, wrong])
        rare = _is_rare(game, chess.Move.from_uci(uci))
        game.push_uci(uci)
        if rare or game.is_game_over(claim_draw=False) or rng.random() < COMMON_FRACTION:
            yield environment_line(fen, uci, [*played, uci])


def _eager_move(rng: random.Random, game: chess.Board) -> chess.Move:
    """Return a random move, or half of the time a mate if there is one: random games otherwise seldom end in mate."""
    moves = list(game.legal_moves)
    if rng.random() < 0.5:
        for move in moves:
            if game.gives_check(move) and _is_mate(game, move):
                return move
    return rng.choice(moves)


def _is_mate(game: chess.Board, move: chess.Move) -> bool:
    game.push(move)
    mate = game.is_checkmate()
    game.pop()
    return mate


def _is_rare(game: chess.Board, move: chess.Move) -> bool:
    return game.is_castling(move) or game.is_en_passant(move) or move.promotion is not None


def corpus_lines(seed: int, per_task: int) -> list[str]:
    """Return alternating rows of both tasks, in the format of `rookworld data generate`, made without an engine."""
    from rookworld_rlvr.generation.sources import start_board

    rng, policy, environment = random.Random(seed), [], []
    while min(len(policy), len(environment)) < per_task:
        start = start_board(rng)
        game = guided_game(rng, start, labelled)
        policy += [policy_line(rng, board, answer) for board, answer in game]
        environment += list(environment_lines(rng, start))
    rows = zip(rng.sample(policy, per_task), rng.sample(environment, per_task), strict=True)
    return [line for pair in rows for line in pair]


@dataclass(frozen=True)
class Corpus:
    train: Path
    held_out: Path


@pytest.fixture(scope="session")
def make_lines() -> Callable[[int, int], list[str]]:
    return corpus_lines


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """32 training rows and 4 held-out rows per task."""
    folder = tmp_path_factory.mktemp("corpus")
    files = Corpus(folder / "train.txt", folder / "held_out.txt")
    files.train.write_text("".join(f"{line}\n" for line in corpus_lines(1, ROWS_PER_TASK)))
    files.held_out.write_text("".join(f"{line}\n" for line in corpus_lines(2, HELD_OUT_PER_TASK)))
    return files


def save_new_gpt2(folder: Path, seed: int) -> None:
    """Save an untrained GPT-2 of one layer and width 32, without dropout, with the project's tokenizer."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from tiny_model.tokenizer import POSITIONS, build_tokenizer

    tokenizer = build_tokenizer()
    shape = {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": POSITIONS, "vocab_size": len(tokenizer)}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ids = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = GPT2Config(**shape, **dropout, **ids, pad_token_id=tokenizer.pad_token_id)
    # Draws in float32 differ in their last bits from one kind of CPU to another.
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(seed)
        model: Any = GPT2LMHeadModel(config)
    finally:
        torch.set_default_dtype(torch.float32)
    model.float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def new_model() -> Callable[[Path, int], None]:
    return save_new_gpt2


SMALL_MODEL = Path(__file__).parent / "small_model"


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer and width 32, fine-tuned until its rewards differ. Its config has GPT-2's dropout of 0.1.

    Its weights are files, because a model that is trained anew is another one on another kind of CPU, and so are its
    rewards. `tests/recipes/test_small_model.py` trains it again.
    """
    from tiny_model.tokenizer import build_tokenizer

    folder = tmp_path_factory.mktemp("small_model")
    shutil.copytree(SMALL_MODEL, folder, dirs_exist_ok=True)
    build_tokenizer().save_pretrained(folder)
    return folder


CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def save_new_chat_model(folder: Path) -> None:
    """Save a random Llama with a chat template and room for a chat prompt."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tiny_model.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a random Llama with a chat template and room for a chat prompt."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    save_new_chat_model(folder)
    return folder


@pytest.fixture(scope="session")
def small_overrides(corpus: Corpus, small_model: Path) -> list[str]:
    """Overrides for a fast run of the small model: two prompts per step, four completions each, float32."""
    return [
        f"model.path={small_model}",
        f"data.train={corpus.train}",
        f"data.held_out={corpus.held_out}",
        "objective.prompts_per_step=2",
        "objective.group_size=4",
        "optim.lr=0.003",
        "optim.warmup_steps=0",
        "generator.max_new_tokens=48",
        "evaluation.rows=1",
        "evaluation.sampled_rows=0",
        # The evaluation cache lacks these positions, and Stockfish would be used if installed.
        "rubric.source=labels",
        "evaluation.match_pairs=0",
        "evaluation.curve_every=0",
        "precision=fp32",
        "device=cpu",
        "threads=1",
    ]


def training_in(folder: Path, small_overrides: list[str]) -> Callable[..., Path]:
    from rookworld_rlvr.app.cli import main

    def run(*overrides: str, root: str = "outputs", exit_code: int = 0) -> Path:
        assert main(["train", *small_overrides, f"output_root={folder / root}", *overrides]) == exit_code
        return (folder / root / "latest").resolve()

    return run


@pytest.fixture
def train(small_overrides: list[str], tmp_path: Path) -> Callable[..., Path]:
    """Return a function that trains through the command line, in this process, and returns the run's folder."""
    return training_in(tmp_path, small_overrides)


@pytest.fixture(scope="module")
def train_once(small_overrides: list[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Like `train`, for runs that several tests of a module read and none of them changes."""
    return training_in(tmp_path_factory.mktemp("trained"), small_overrides)


@pytest.fixture(scope="session")
def forked() -> Callable[[Callable[[], int]], int]:
    """Return a function that runs `work` in a forked process, which has torch in memory already.

    It returns the exit code, or minus the signal that killed the process.
    """

    def run(work: Callable[[], int]) -> int:
        pid = os.fork()
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        code = 70
        try:
            code = work()
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            # This process is a copy of the test runner, which must not continue here.
            os._exit(code)

    return run


def read_wandb_records(log: Path) -> list[Any]:
    """Return the records of an offline run: a LevelDB-like log of 32 KiB blocks, with a 7-byte header per record."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, pending, records = log.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        pending += data[at + 7 : at + 7 + length]
        at += 7 + length
        # Kind 1 is a whole record, 2 and 3 are pieces that continue, 4 is the last piece.
        if kind in (1, 4):
            records.append(Record())
            records[-1].ParseFromString(pending)
            pending = b""
    return records


def finished_wandb_records(log: Path) -> list[Any]:
    """Wait until wandb has written the end of the run, which may be after `finish` returns; return its records."""
    deadline = time.monotonic() + WANDB_PATIENCE_S
    records = read_wandb_records(log)
    while not any(record.WhichOneof("record_type") == "exit" for record in records):
        assert time.monotonic() < deadline, f"expected a log with an end: {log}"
        time.sleep(0.05)
        records = read_wandb_records(log)
    return records


@pytest.fixture(scope="session")
def wandb_records() -> Callable[[Path], list[Any]]:
    return finished_wandb_records


FAKE_STOCKFISH = """#!{python}
'''Speaks UCI as told by its environment; evals follow from nodes and hash. Hangs or dies on some positions.'''
import os, sys, time
import chess

print('Fake engine by nobody', flush=True)
board, nodes, hash_mib = chess.Board(), 0, 0
for line in sys.stdin:
    words = line.split()
    if words[0] == 'uci':
        print('id name', os.environ.get('FAKE_NAME', 'Stockfish 15.1'))
        print('option name EvalFile type string default fake.nnue')
        print('option name Hash type spin default 16 min 1 max 1024')
        print('uciok', flush=True)
    elif words[0] == 'isready':
        print('readyok', flush=True)
    elif words[:3] == ['setoption', 'name', 'Hash']:
        hash_mib = int(words[-1])
    elif words[0] == 'position':
        board = chess.Board(' '.join(words[2:]))
    elif words[0] == 'go':
        if os.environ.get('FAKE_HANGS', 'never') in board.fen():
            time.sleep(3600)
        if os.environ.get('FAKE_DIES', 'never') in board.fen():
            sys.exit(1)
        for place, move in enumerate(board.legal_moves):
            score = 'cp %d' % (int(words[2]) + 7 * hash_mib - 11 * place)
            print('info depth 1 multipv', place + 1, 'score', score, 'nodes 1 pv', move.uci())
        if os.environ.get('FAKE_ENDS_IN_A_WINDOW'):
            first, second = [move.uci() for move in board.legal_moves][:2]
            print('info depth 2 multipv 1 score cp 99 lowerbound nodes 9 pv', second)
            print('info depth 1 multipv 2 score cp 5 nodes 9 pv', first)
        print('bestmove', move.uci(), flush=True)
"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium. Skips the test if no browser is installed."""
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def stockfish() -> str:
    """Path of the real engine's binary. Skips the test if there is none."""
    from rookworld_rlvr.stockfish.engine import EngineUnusableError, find_engine

    try:
        return find_engine()
    except EngineUnusableError as error:
        pytest.skip(str(error))


def pids_of(pool: Any) -> list[int]:
    # Each process is looked up once, because another thread may be replacing it.
    processes = [engine._process for engine in pool._engines]
    return [process._process.pid for process in processes if process]


@pytest.fixture(scope="session")
def engine_pids() -> Callable[[Any], list[int]]:
    """Return a function that returns the process ids of a pool's started engines."""
    return pids_of


@pytest.fixture(scope="session")
def fake_stockfish(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of a fake engine that hangs, dies and answers on demand; see its text."""
    path = tmp_path_factory.mktemp("fake") / "stockfish"
    path.write_text(FAKE_STOCKFISH.format(python=sys.executable))
    path.chmod(0o755)
    return path


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Return a function that sets torch's number of threads until the end of the test."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
