"""Every option of `rookworld evaluate` has an effect that can be observed outside the configuration, or is refused.

The first test fails until a new option has an entry in OPTIONS.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from rookworld_rlvr.app.config import EvaluateConfig
from rookworld_rlvr.app.evaluate import _evaluate
from rookworld_rlvr.app.generators import make_generator
from rookworld_rlvr.app.hydra_command import to_dataclass
from rookworld_rlvr.app.suites import Evaluated, build_suites, load_model
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.rollout.generator import GeneratorConfig
from rookworld_rlvr.stockfish.engine import EngineOptions
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.data import load_evaluation_data


@dataclass(frozen=True)
class Option:
    """A changed option value, and the observer that must see its effect."""

    value: Any
    beside: tuple[str, ...] = ()
    """Overrides of both evaluations that make the effect observable."""
    observer: str = "command"


def leaves(config: Any, path: str = "") -> Iterator[str]:
    for option in fields(config):
        value = getattr(config, option.name)
        yield from leaves(value, f"{path}{option.name}.") if is_dataclass(value) else [path + option.name]


# The shipped model plays legal moves; the small model does not.
PLAYS = ("model.path=tiny", "generator.max_new_tokens=100")
POLICY = ("suites=[policy]",)
# The small model has no room for a chat prompt.
CHAT = ("data.tasks=[chat]", "suites=[chat]", "model.path={chat}", "generator.max_new_tokens=4")
MEASURED = (*POLICY, "evaluation.nodes=50", "stockfish.path={measuring}")
MATES = ("suites=[mate_in_one]", "evaluation.mates={mates}")
PUZZLES = ("suites=[puzzles]", "evaluation.puzzles={puzzles}")
SELFPLAY = ("suites=[selfplay]", "selfplay.games=2", "selfplay.max_plies=2", *PLAYS)
CONVERSION = ("suites=[conversion]", "conversion.positions=1", "conversion.defenders=[random]", *PLAYS)
GAMES = ("suites=[match]", "evaluation.match_pairs=2", "evaluation.match_plies=4", *PLAYS)
ENGINE = (*GAMES, "match.opponent=stockfish", "stockfish.path={opponent}")
SERVER = ("generator.kind=vllm_server", "generator.vllm.url=http://127.0.0.1:1")
OPTIONS = {
    "suites": Option("[environment]"),
    "seed": Option(1, SELFPLAY),
    "device": Option("cuda", (), "device"),
    "precision": Option("bf16", (*POLICY, "generator.kind=hf"), "passes"),
    "threads": Option(2),
    "evaluation.rows": Option(2),
    "evaluation.nodes": Option(77, MEASURED),
    "output": Option("other.json"),
    "model.path": Option("tiny", (), "passes"),
    "data.train": Option("{held_out}"),
    "data.held_out": Option("default"),
    "data.limit": Option(3, ("evaluation.rows=99", "generator.max_new_tokens=1")),
    "data.exclude": Option("[{held_out}]", ("evaluation.rows=99", "generator.max_new_tokens=1")),
    "data.tasks": Option("[environment]", ("suites=[]",)),
    "data.chat.preset": Option("r1", CHAT, "passes"),
    "data.chat.form": Option("boxed", CHAT, "passes"),
    "data.chat.notation": Option("san", CHAT, "passes"),
    "data.chat.legal_moves": Option(False, CHAT, "passes"),
    "data.chat.board": Option(True, CHAT, "passes"),
    "data.chat.thinking": Option(True, CHAT, "passes"),
    "data.chat.prefill": Option("auto", CHAT, "passes"),
    "generator.kind": Option("vllm_server"),
    "generator.max_new_tokens": Option(3, ("model.path=tiny",), "passes"),
    "generator.batch_size": Option(1, ("evaluation.rows=2",), "passes"),
    "generator.cuda_graph": Option(True),
    "generator.vllm.kv_cache_gib": Option(2.0, (), "engines"),
    "generator.vllm.gpu_memory_fraction": Option(0.5, (), "engines"),
    "generator.vllm.url": Option("http://127.0.0.1:2", SERVER, "server"),
    "stockfish.path": Option("/nope", MEASURED),
    "stockfish.processes": Option(2, (), "verdicts"),
    "evaluation.mates": Option("/nope", MATES),
    "evaluation.puzzles": Option("/nope", PUZZLES),
    "selfplay.games": Option(1, SELFPLAY),
    "selfplay.start": Option("openings", SELFPLAY),
    "selfplay.max_plies": Option(1, SELFPLAY),
    "selfplay.decoding.temperature": Option(9.0, SELFPLAY),
    "selfplay.decoding.top_k": Option(1, SELFPLAY),
    "selfplay.pgn": Option("games.pgn", SELFPLAY),
    "move_evals": Option("/nope", POLICY),
    "match.opponent": Option("capture", GAMES),
    "evaluation.match_pairs": Option(1, GAMES),
    "evaluation.match_plies": Option(1, GAMES),
    "evaluation.decoding": Option("text", GAMES),
    "match.illegal": Option("loses", GAMES),
    "match.attempts": Option(0, (*GAMES, "evaluation.decoding=text", "match.decoding.temperature=9")),
    "match.decoding.temperature": Option(9.0, GAMES),
    "match.decoding.top_k": Option(1, (*GAMES, "match.decoding.temperature=3")),
    "match.pgn": Option("games.pgn", GAMES),
    "match.stockfish.nodes": Option(5, ENGINE),
    "match.stockfish.elo": Option(1501, ENGINE),
    "match.stockfish.skill": Option(7, ENGINE),
    "match.stockfish.random_moves": Option(1.0, ENGINE),
    "conversion.positions": Option(0, CONVERSION),
    "conversion.defenders": Option("[]", CONVERSION),
}
OPPONENT = """#!{python}
'''A UCI engine whose move follows from its settings and its limit.'''
import sys
import chess

board, given = chess.Board(), {{}}
for line in sys.stdin:
    words = line.split()
    if words[0] == 'uci':
        print('id name Stockfish 16')
        print('option name Threads type spin default 1 min 1 max 8')
        print('option name Hash type spin default 16 min 1 max 1024')
        print('option name Skill Level type spin default 20 min 0 max 20')
        print('option name UCI_LimitStrength type check default false')
        print('option name UCI_Elo type spin default 1500 min 1300 max 2000')
        print('uciok', flush=True)
    elif words[0] == 'isready':
        print('readyok', flush=True)
    elif words[0] == 'setoption':
        given[' '.join(words[2:words.index('value')])] = words[-1]
    elif words[0] == 'position':
        at = words.index('moves') if 'moves' in words else len(words)
        board = chess.Board() if words[1] == 'startpos' else chess.Board(' '.join(words[2:at]))
        for move in words[at + 1:]:
            board.push_uci(move)
    elif words[0] == 'go':
        moves = sorted(move.uci() for move in board.legal_moves)
        number = int(given.get('Skill Level', 20)) + int(given.get('UCI_Elo', 0)) + int(words[words.index('nodes') + 1])
        chosen = moves[number % len(moves)]
        print('info depth 1 multipv 1 score cp 0 pv', chosen)
        print('bestmove', chosen, flush=True)
    elif words[0] == 'quit':
        break
"""
MATE = {"fen": "6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", "best": "a1a8", "themes": ["mateIn1"]}
PUZZLE = "PuzzleId,FEN,Moves,Rating\none,7k/p4Q2/6K1/8/8/8/8/8 b - - 0 1,a7a6 f7g7,600\n"
OTHER_MATE = {"fen": "7k/5Q2/6K1/8/8/8/8/8 w - - 0 1", "best": "f7g7", "themes": ["fork"]}


def as_run(config: EvaluateConfig) -> RunConfig:
    """Return a run's configuration with the same model, rows, generator and engine, for the observers of runs."""
    run = RunConfig(seed=config.seed, device=config.device, precision=config.precision)
    run.model.path, run.data.train, run.data.held_out = config.model.path, config.data.train, config.data.held_out
    run.objective.prompts_per_step, run.objective.group_size = 2, 4
    run.generator = GeneratorConfig(
        **{option.name: getattr(config.generator, option.name) for option in fields(config.generator)}
    )
    run.rubric.stockfish = EngineOptions(**asdict(config.stockfish))
    return run


def passes(config: EvaluateConfig) -> Any:
    """Return shape and type of the first layer's output in each pass."""
    policy, lengths = load_model(config, config.model.path), []
    layer = policy.model.base_model
    attention = layer.h[0].attn.c_attn if hasattr(layer, "h") else layer.layers[0].self_attn.q_proj
    attention.register_forward_hook(lambda *call: lengths.append((tuple(call[2].shape), call[2].dtype)))
    data = load_evaluation_data(config.data, seed=config.seed)
    for suite in build_suites(Evaluated(config, data, policy, make_generator(policy, config.generator))):
        list(suite.rows(0))
    return lengths


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, small_model: Path, chat_model: Path, corpus: Any) -> dict[str, str]:
    """Return the paths that overrides may contain as placeholders."""
    folder = tmp_path_factory.mktemp("options")
    (folder / "opponent").write_text(OPPONENT.format(python=sys.executable))
    (folder / "opponent").chmod(0o755)
    (folder / "mates.jsonl").write_text("".join(f"{json.dumps(mate)}\n" for mate in (MATE, OTHER_MATE)))
    (folder / "puzzles.csv").write_text(PUZZLE)
    return {
        "small": str(small_model),
        "chat": str(chat_model),
        "opponent": str(folder / "opponent"),
        "mates": str(folder / "mates.jsonl"),
        "puzzles": str(folder / "puzzles.csv"),
        "held_out": str(corpus.held_out),
        "dataset": str(corpus.train.parent),
    }


@pytest.fixture
def observe(
    files: dict[str, str],
    fake_stockfish: Path,
    small_overrides: list[str],
    observers: dict[str, Callable[[Any], Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Any]:
    """Return a function that observes an evaluation with the given overrides."""
    known = {**files, "measuring": str(fake_stockfish)}
    common = ("model", "data", "precision", "device", "threads")
    given = [override for override in small_overrides if override.startswith(common)]
    given += ["evaluation.rows=1", "generator.max_new_tokens=16", "output=table.json"]
    runs: list[Path] = []

    def command(config: EvaluateConfig, raw: Any) -> Any:
        """Return the error or the tables and rows, the files written, and the number of threads."""
        runs.append(tmp_path / f"run-{len(runs)}")
        runs[-1].mkdir()
        monkeypatch.chdir(runs[-1])
        monkeypatch.setenv("XDG_CACHE_HOME", str(runs[-1] / "cache"))
        result: Any = None
        try:
            _evaluate(config, raw)
            output = json.loads(Path(config.output).read_text())
            result = [(name, suite["table"]) for name, suite in output["suites"].items()]
            result.append(Path(output["rows"]).read_text().splitlines()[1:])
        except UserError as error:
            result = str(error)
        observed = (
            result,
            sorted(str(path.relative_to(runs[-1])) for path in runs[-1].rglob("*")),
            torch.get_num_threads(),
        )
        torch.set_num_threads(1)
        return observed

    def run(observer: str, *overrides: str) -> Any:
        filled = [override.format(**known) for override in (*given, *overrides)]
        raw = OmegaConf.merge(OmegaConf.structured(EvaluateConfig), OmegaConf.from_dotlist(filled))
        config = to_dataclass(raw)  # type: ignore[arg-type]
        if observer == "command":
            # Only the observers of engines need a fake engine that dies.
            monkeypatch.setenv("FAKE_DIES", "never")
            return command(config, raw)
        return passes(config) if observer == "passes" else observers[observer](as_run(config))

    return run


@pytest.fixture(scope="module")
def unchanged() -> dict[Any, Any]:
    """Return a cache of observations without the change, by observer and overrides. Many options share one."""
    return {}


def test_every_evaluate_option_is_in_the_table() -> None:
    assert OPTIONS.keys() == set(leaves(EvaluateConfig()))


# The quick checks change the first option of each observer.
QUICK = {option.observer: path for path, option in reversed(OPTIONS.items())}.values()


@pytest.mark.parametrize(
    "path", [path if path in QUICK else pytest.param(path, marks=pytest.mark.slow) for path in OPTIONS]
)
def test_changed_evaluate_option_has_an_observable_effect(
    path: str, observe: Callable[..., Any], unchanged: dict[Any, Any]
) -> None:
    option = OPTIONS[path]
    key = option.observer, option.beside
    if key not in unchanged:
        unchanged[key] = observe(option.observer, *option.beside)
    assert unchanged[key] != observe(option.observer, *option.beside, f"{path}={option.value}")


@pytest.mark.parametrize(("observer", "beside"), [("command", SELFPLAY), ("command", ENGINE), ("passes", ())])
def test_repeated_evaluation_gives_the_same_observation(
    observer: str, beside: tuple[str, ...], observe: Callable[..., Any], unchanged: dict[Any, Any]
) -> None:
    unchanged.setdefault((observer, beside), observe(observer, *beside))
    assert observe(observer, *beside) == unchanged[observer, beside]
