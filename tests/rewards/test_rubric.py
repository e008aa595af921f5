"""The rubric: refused options, the effect of every option, and any accepted weights."""

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, is_dataclass
from functools import reduce
from types import ModuleType
from typing import Any

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookworld_rlvr.rewards import Rubric, RubricConfig
from rookworld_rlvr.rewards.rubric import BOUNDS, MAX_WEIGHT, SHARE, MoveSource
from rookworld_rlvr.stockfish.analysis import Analysis
from rookworld_rlvr.stockfish.move_values import MATE_IN_ONE
from rookworld_rlvr.tasks import parse_prompt
from rookworld_rlvr.tasks.chat import reward as chat_reward
from rookworld_rlvr.tasks.chat.prompts import ChatPromptConfig, chat_prompt
from rookworld_rlvr.tasks.environment import reward as environment_reward
from rookworld_rlvr.tasks.policy import reward as policy_reward

# Scores by labels and rules, without move evaluations.
score = Rubric(RubricConfig()).score

FEN = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
NEXT = "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1"
MATE_FEN = "6k1/5ppp/8/8/8/8/8/R6K w - - 0 1"
P, A, MATE = f"P: {FEN}", f"A: {FEN}+e2e4+e2e4+", f"P: {MATE_FEN}"
P_PERFECT = "M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0.3 0.2 0.1 0.0 -0.1 B: e2e4"
A_PERFECT = f"{NEXT}+0.001+0+0"
CHAT, CHAT_MATE = (chat_prompt(fen, ChatPromptConfig()) for fen in (FEN, MATE_FEN))
LABELS = {P: P_PERFECT, CHAT: "e2e4"}
PROBES = [
    (CHAT, "<answer>e2e4</answer>"),
    (CHAT, "<answer>a2a3</answer>"),
    (CHAT, "MOVE: e2e5"),
    (CHAT, "perhaps g1f3, perhaps e2e4"),
    (CHAT_MATE, "<answer>a1a7</answer>"),
    (P, ""),
    (P, "M: e2e4 E: 0.1"),
    (P, P_PERFECT + " and more"),
    (P, "M: e2e4 x E: y 0.5 B: z"),
    (P, "M: e2e4 E: nan inf B: e9"),
    (P, "M: e2e4 e2e4 d2d4 E: 0.1 0.1 -2.0 B: d2d4"),
    (P, "M: e2e4 E: 0.1 B: g1f3"),
    (P, "M: a2a3 E: 0.1 B: a2a3"),
    (MATE, "M: a1a7 E: 9.9 B: a1a7"),
    (A, f"{NEXT}+0.001"),
    (A, f"{A_PERFECT}+more"),
    (A, "8/8 w - - 0 1+x+0+0"),
    (A, f"{NEXT}+x+2+0"),
    (A, f"{NEXT}+0.001+0+2"),
    (A, f"{FEN}+0.5+0+1"),
    (A, f"{NEXT.replace(' 0 1', ' 1 1')}+0.5+1+0"),
    (A, f"{NEXT.replace('4P3', '8')}+1.0+0+0"),
]


def options(config: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for option in fields(config):
        value = getattr(config, option.name)
        yield from (options(value, path + option.name + ".") if is_dataclass(value) else [(path + option.name, value)])


def configured(changes: dict[str, Any]) -> RubricConfig:
    config = RubricConfig()
    for path, value in changes.items():
        *owners, name = path.split(".")
        setattr(reduce(getattr, owners, config), name, value)
    return config


def analysis(prompt: str) -> Analysis | None:
    """Return the analysis of a probe's position. If ANALYSES has none, all its legal moves are equal."""
    if prompt.startswith("A:"):
        return None
    moves = chess.Board(fen := parse_prompt(prompt).fen).legal_moves
    return ANALYSES.get(fen) or Analysis(fen, tuple((move.uci(), 0.0) for move in moves))


def totals(changes: dict[str, Any]) -> list[float]:
    rubric = Rubric(configured(changes))
    return [rubric.score(prompt, text, LABELS.get(prompt), analysis=analysis(prompt)).total for prompt, text in PROBES]


# Totals of the probes, in their order, by the source of the move values. The `A:` probes have the same with any source.
TOTALS = {
    MoveSource.labels: (
        *(-0.3, -0.18930408630921158, -0.08333333333333334, -0.1475454545454545, -0.1451818181818182),
        *(0.3697338561286518, 0.2709564050352776, 0.3042045454545454, 0.5591304347826086),
    ),
    MoveSource.engine: (
        *(-0.3, -0.19231657714201345, -0.1322135419777177, -0.15051966572706393, -0.14824466572706393),
        *(0.3144734785667195, 0.29135291003609315, 0.2855399250038434, 0.3118357727066139),
    ),
    MoveSource.rules: (
        *(-0.3, -0.18592028985507247, -0.08333333333333334, -0.14166847826086953, -0.13863043478260867),
        *(0.6156521739130434, 0.4531521739130434, 0.5591304347826086, 0.5591304347826086),
    ),
}
TOTALS_A = (
    *(-0.20899999999999996, -0.007499999999999979, -0.16410937500000003, -0.10256249999999997),
    *(-0.09524999999999997, 0.1225, 0.28825, 0.34675),
)


@pytest.mark.parametrize("source", TOTALS)
def test_default_totals_are_the_recorded_ones(source: MoveSource) -> None:
    recorded = [*TOTALS[source], *TOTALS_A]
    assert totals({"source": source})[-len(recorded) :] == pytest.approx(recorded, abs=1e-15)


# Numeric options. The others are words or options of the engine.
OPTIONS = [path for path, _ in options(RubricConfig()) if not path.startswith(("source", "move_evals", "stockfish."))]
# Options of engine evaluations, which labels do not use.
ENGINE_OPTIONS = [path for path in OPTIONS if path.endswith(("halving_loss", "missed_mate"))]
MOVES = [move.uci() for move in chess.Board().legal_moves]
ANALYSES = {
    FEN: Analysis(FEN, tuple((move, 0.5 - 0.3 * place) for place, move in enumerate(MOVES))),
    MATE_FEN: Analysis(
        MATE_FEN,
        tuple((m.uci(), MATE_IN_ONE if m.uci() == "a1a8" else 9.0) for m in chess.Board(MATE_FEN).legal_moves),
    ),
}


@pytest.mark.parametrize("path", OPTIONS)
def test_every_option_changes_some_total(path: str) -> None:
    given: dict[str, Any] = {"source": MoveSource.engine if path in ENGINE_OPTIONS else MoveSource.labels}
    value = dict(options(RubricConfig()))[path] * (0.7 if BOUNDS.get(path) == SHARE else 1.3)
    assert totals(given | {path: value}) != totals(given)


@pytest.mark.parametrize("source", [MoveSource.labels, MoveSource.engine])
@pytest.mark.parametrize("task", [policy_reward, environment_reward, chat_reward])
def test_every_component_changes_some_total(
    task: ModuleType, source: MoveSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, ending = {"source": source}, {MoveSource.labels: "value", MoveSource.engine: "match"}[source]
    before = totals(given)
    for name, (group, weight) in task.CORRECTNESS_WEIGHTS.items():
        with monkeypatch.context() as patch:
            patch.setitem(task.CORRECTNESS_WEIGHTS, name, (group, 1.3 * weight))
            assert (totals(given) != before) is not name.endswith(ending), name


@pytest.mark.parametrize("path", OPTIONS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2e6, "1", None, True])
def test_rubric_option_out_of_range_is_refused_by_name(path: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"expected rubric.{path} to be"):
        Rubric(configured({path: value}))


@pytest.mark.parametrize("path", [path for path in OPTIONS if path != "malformed_reward"])
def test_a_negative_option_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=f"expected rubric.{path} to be"):
        Rubric(configured({path: -1}))


def test_unknown_rubric_option_raises_attribute_error() -> None:
    with pytest.raises(AttributeError):
        RubricConfig().policy.weights.best_move = 1.0  # type: ignore[attr-defined]


def test_tier_without_weights_and_wrong_config_type_are_refused() -> None:
    with pytest.raises(ValueError, match=r"above 0 among those of rubric.environment.weights"):
        Rubric(configured({path: 0 for path, _ in options(RubricConfig()) if path.startswith("environment.weights.")}))
    with pytest.raises(ValueError, match=r"expected rubric.tiers to be a TierWeights, got {}"):
        Rubric(configured({"tiers": {}}))


def test_later_changes_to_a_config_have_no_effect() -> None:
    config = RubricConfig()
    rubric = Rubric(config)
    config.malformed_reward = -5.0
    config.policy.weights.legality = 9.0
    assert rubric.score(P, "").total == -0.3
    assert rubric.score(*PROBES[5]) == score(*PROBES[5])


def test_group_of_weight_zero_does_not_change_the_total() -> None:
    rubric = Rubric(configured({"policy.weights.evals": 0.0}))
    judged = rubric.score(P, P_PERFECT.replace("0.3 0.2 0.1", "3.0 2.0 1.0"), P_PERFECT)
    assert judged.components["correctness/evals_match"] < 0.5
    assert judged.total == 1.0


def test_correctness_by_labels_alone_is_skipped_without_a_label() -> None:
    rubric = Rubric(configured({f"policy.weights.{group}": 0.0 for group in ("legality", "best")}))
    assert rubric.score(P, "M: e2e5 E: 0.1 B: e2e5").total == 1.0
    assert rubric.score(P, "M: e2e5 E: 0.1 B: e2e5", P_PERFECT).total == pytest.approx(1.3 * 0.25 - 0.3)


def test_a_score_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        score(P, P_PERFECT).total = 2.0  # type: ignore[misc]


@st.composite
def accepted_configs(draw: st.DrawFn) -> RubricConfig:
    changes: dict[str, Any] = {}
    for path in OPTIONS:
        low, high = BOUNDS.get(
            path, (1e-300 if path.endswith(("markers", "fields", ".reward", "best")) else 0.0, MAX_WEIGHT)
        )
        changes[path] = draw(st.sampled_from([low, high]) | st.floats(low, high))
    changes["policy.weights.legality"] = draw(st.floats(1e-300, MAX_WEIGHT))
    return configured(changes)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(accepted_configs())
def test_accepted_options_keep_totals_in_range_and_extremes_reachable(config: RubricConfig) -> None:
    rubric = Rubric(config)
    for prompt, text in PROBES:
        assert config.malformed_reward <= rubric.score(prompt, text).total <= 1.0
    for prompt, perfect, bad in ((P, P_PERFECT, "M: e2e5 E: 0.0 B: e2e5"), (A, A_PERFECT, f"{FEN}+0.5+1+1")):
        assert rubric.score(prompt, perfect).total == 1.0
        assert rubric.score(prompt, "").total == config.malformed_reward
        assert rubric.score(prompt, bad + " x").total <= rubric.score(prompt, bad).total <= 1.0


def test_importing_rewards_does_not_import_torch() -> None:
    code = "import sys, rookworld_rlvr.rewards; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
