"""Properties of the policy reward, for any position and completion, and any label or move evaluations."""

from dataclasses import dataclass, replace

import chess
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rookworld_rlvr.board.evals import win_probability
from rookworld_rlvr.rewards import Rubric, RubricConfig
from rookworld_rlvr.rewards.rubric import MoveSource
from rookworld_rlvr.stockfish.analysis import Analysis
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.numbers import parse_number
from rookworld_rlvr.tasks.policy.text import parse_policy
from rookworld_rlvr.tasks.types import ParseFailure
from rookworld_rlvr.training.data import default_file

from .conftest import mutations

# Scores by labels and rules, without move evaluations.
score = Rubric(RubricConfig()).score

FEW = settings(derandomize=True, max_examples=80, deadline=None)
ROWS = [row.prompt for row in read_corpus(default_file("held_out.jsonl")).examples]
# Positions of random games, down to three pieces, and two special ones.
POSITIONS = [
    *[row[3:].split("+")[0] for row in ROWS if row.startswith("A: ")][::20],
    "8/8/8/8/8/8/7k/K7 w - - 0 1",
    "4k3/P7/8/8/8/8/8/4K2R w K - 0 1",
]
GARBAGE_MOVES = ("0000", "e2e2", "E2E4", "e2", "e2e4x", "+", "１２", "Nf3", "??")
GARBAGE_EVALS = ("nan", "inf", "1e3", "0.1.2", "1_0", "-", "٣", "9" * 400)
BY_ENGINE, BY_RULES = (Rubric(RubricConfig(source=source)) for source in (MoveSource.engine, MoveSource.rules))
BY_CACHE, BY_LABELS = (Rubric(RubricConfig(source=source)) for source in (MoveSource.cached, MoveSource.labels))
BLANKS = ("", " ", "   ", "\n", "\t ", "\u00a0")


@dataclass(frozen=True)
class Completion:
    moves: tuple[str, ...]
    evals: tuple[str, ...]
    best: str

    def __str__(self) -> str:
        return f"M: {' '.join(self.moves)} E: {' '.join(self.evals)} B: {self.best}"


@dataclass(frozen=True)
class Case:
    fen: str
    answer: Completion
    label: str | Analysis | None
    """Reference completion, or analysis by an engine."""

    def total(self, answer: Completion | str) -> float:
        if isinstance(self.label, Analysis):
            return BY_ENGINE.score("P: " + self.fen, str(answer), analysis=self.label).total
        return score("P: " + self.fen, str(answer), self.label).total


def legal_moves(fen: str) -> list[str]:
    return [move.uci() for move in chess.Board(fen).legal_moves]


def illegal_moves(fen: str) -> list[str]:
    legal = set(legal_moves(fen))
    squares = ("a1", "a2", "e2", "e4", "e7", "e8", "h8")
    return [a + b + p for a in squares for b in squares for p in ("", "q") if a != b and a + b + p not in legal]


def numbers() -> st.SearchStrategy[str]:
    pawns = st.sampled_from([0.0, 0.3, -0.3, 999.99, -999.99, 123456.5]) | st.integers(-600, 600).map(
        lambda centipawns: centipawns / 100
    )
    return pawns.map(str)


def labels(fen: str) -> st.SearchStrategy[str]:
    moves = st.lists(st.sampled_from(legal_moves(fen)), min_size=1, max_size=5, unique=True)
    return moves.flatmap(
        lambda moves: st.builds(
            lambda evals, best: str(Completion(tuple(moves), tuple(evals), best)),
            st.lists(numbers(), min_size=len(moves), max_size=len(moves)),
            st.sampled_from(moves),
        )
    )


def analyses(fen: str) -> st.SearchStrategy[Analysis]:
    """Return a strategy for any evaluations of the legal moves, many of which may be equal."""
    moves, pawns = legal_moves(fen), st.sampled_from([0.0, 0.3, -0.3, 7.5, 999.99, -999.99]) | st.integers(-600, 600)
    evals = st.lists(pawns.map(float), min_size=len(moves), max_size=len(moves))
    return evals.map(lambda evals: Analysis(fen, tuple(zip(moves, evals, strict=True))))


def verdicts(fen: str) -> st.SearchStrategy[str | Analysis | None]:
    return st.none() | labels(fen) | analyses(fen)


@st.composite
def cases(draw: st.DrawFn, *, well_formed: bool = False) -> Case:
    """Draw a position, an answer and perhaps a label or an analysis.

    The answer has legal and illegal moves and, unless `well_formed`, malformed words.
    """
    fen = draw(st.sampled_from(POSITIONS))
    kinds = [st.sampled_from(legal_moves(fen)), st.sampled_from(illegal_moves(fen))]
    word = st.one_of(*kinds) if well_formed else st.one_of(*kinds, st.sampled_from(GARBAGE_MOVES))
    number = numbers() if well_formed else numbers() | st.sampled_from(GARBAGE_EVALS)
    moves = draw(st.lists(word, min_size=1, max_size=5))
    evals = draw(st.lists(number, min_size=len(moves) if well_formed else 0, max_size=len(moves)))
    best = draw(st.sampled_from(moves) | word)
    return Case(fen, Completion(tuple(moves), tuple(evals), best), draw(verdicts(fen)))


def swapped(words: tuple[str, ...], place: int, word: str) -> tuple[str, ...]:
    return (*words[:place], word, *words[place + 1 :])


@FEW
@given(cases(), st.data())
def test_total_never_falls_as_a_move_improves(case: Case, data: st.DataObject) -> None:
    place = data.draw(st.integers(-1, len(case.answer.moves) - 1))
    ladder = [GARBAGE_MOVES, illegal_moves(case.fen), legal_moves(case.fen)]
    totals = []
    for tier in ladder:
        word = data.draw(st.sampled_from(tier))
        moves = swapped(case.answer.moves, place, word)
        changed = replace(case.answer, best=word) if place < 0 else replace(case.answer, moves=moves)
        totals.append(case.total(changed))
    assert totals == sorted(totals)


@FEW
@given(cases(), numbers(), st.sampled_from(GARBAGE_EVALS), st.data())
def test_total_never_falls_as_an_eval_becomes_a_number(
    case: Case, number: str, garbage: str, data: st.DataObject
) -> None:
    assume(case.answer.evals)
    place = data.draw(st.integers(0, len(case.answer.evals) - 1))
    broken = case.total(replace(case.answer, evals=swapped(case.answer.evals, place, garbage)))
    assert broken <= case.total(replace(case.answer, evals=swapped(case.answer.evals, place, number)))


@FEW
@given(cases(), st.integers(0, 2))
def test_total_never_falls_as_marker_order_is_corrected(case: Case, turn: int) -> None:
    m, e, b = (
        f"{n}: {t} "
        for n, t in zip(
            "MEB", (" ".join(case.answer.moves), " ".join(case.answer.evals), case.answer.best), strict=True
        )
    )
    assert case.total((e + m + b, b + e + m, m + b + e)[turn]) <= case.total(case.answer)


@settings(FEW, max_examples=300)
@given(cases(well_formed=True), st.data())
def test_malformed_completion_earns_less_than_its_repair(case: Case, data: st.DataObject) -> None:
    mutated = data.draw(mutations(str(case.answer)) | mutations(perfect(case)))
    assume(isinstance(parse_policy(mutated), ParseFailure))
    worst = illegal_moves(case.fen)[0]
    accepted = case.answer, Completion((worst,), ("0.0",), worst)
    assert case.total(mutated) < min(map(case.total, accepted))


@FEW
@given(cases(well_formed=True), st.text(min_size=1).filter(str.strip), st.data())
def test_extra_text_lowers_the_total_of_a_well_formed_answer(case: Case, text: str, data: st.DataObject) -> None:
    other = data.draw(cases(well_formed=True))
    for extra in (text, str(other.answer), "M: " + case.answer.best, case.answer.best):
        assert case.total(f"{extra} {case.answer}") < case.total(case.answer)
        assert case.total(f"{case.answer} {extra}") < case.total(case.answer)


@FEW
@given(cases(), st.lists(st.sampled_from(BLANKS), min_size=30, max_size=30))
def test_extra_whitespace_has_no_effect(case: Case, blanks: list[str]) -> None:
    words = str(case.answer).split()
    padded = blanks[0] + " ".join(word + blank for word, blank in zip(words, blanks[1:], strict=False))
    assert case.total(padded) == case.total(case.answer)


@FEW
@given(st.sampled_from(POSITIONS), st.data())
def test_repeated_good_move_earns_less_than_five_distinct_legal_moves(fen: str, data: st.DataObject) -> None:
    assume(len(legal_moves(fen)) >= 5)
    label = data.draw(verdicts(fen))
    best, eval_of_best = best_of(label)
    move = best or data.draw(st.sampled_from(legal_moves(fen)))
    moves = data.draw(st.lists(st.sampled_from(legal_moves(fen)), min_size=5, max_size=5, unique=True))
    evals = data.draw(st.lists(numbers(), min_size=5, max_size=5))
    distinct = Completion(tuple(moves), tuple(evals), data.draw(st.sampled_from(moves)))
    case = Case(fen, distinct, label)
    assert case.total(Completion((move,) * 5, (eval_of_best,) * 5, move)) < case.total(distinct)


def perfect(case: Case) -> str:
    """Return the completion that earns most. Without evaluations or a label it has any legal moves."""
    if isinstance(case.label, str):
        return case.label
    lines = case.label.lines if case.label else [(move, 0.0) for move in legal_moves(case.fen)]
    moves, pawns = zip(*sorted(lines, key=lambda line: -line[1])[:5], strict=True)
    return str(Completion(moves, tuple(map(str, pawns)), moves[0]))


def best_of(label: str | Analysis | None) -> tuple[str, str]:
    """Return the move that earns most, and its eval."""
    if isinstance(label, Analysis):
        move, pawns = max(label.lines, key=lambda line: line[1])
        return move, str(pawns)
    words = label.split() if label else []
    return (words[-1], words[words.index("E:") + words.index(words[-1])]) if words else ("", "0.0")


@FEW
@given(cases())
def test_reward_is_invariant_under_colour_mirroring(case: Case) -> None:
    def mirrored(text: str) -> str:
        return " ".join(mirrored_word(word) for word in text.split(" "))

    label, fen = case.label, chess.Board(case.fen).mirror().fen()
    if isinstance(label, Analysis):
        label = Analysis(fen, tuple((mirrored_word(move), pawns) for move, pawns in label.lines))
    elif label:
        label = mirrored(label)
    total = Case(fen, case.answer, label).total(mirrored(str(case.answer)))
    assert total == pytest.approx(case.total(case.answer), abs=1e-12)


def mirrored_word(word: str) -> str:
    if len(word) not in (4, 5) or not set(word[:4:2]) <= set("abcdefgh") or not set(word[1:4:2]) <= set("12345678"):
        return word
    squares = (chess.square_mirror(chess.parse_square(word[place : place + 2])) for place in (0, 2))
    return "".join(map(chess.square_name, squares)) + word[4:]


@FEW
@given(st.sampled_from(POSITIONS), st.data())
def test_copy_of_the_label_earns_less_against_a_changed_label(fen: str, data: st.DataObject) -> None:
    label = data.draw(labels(fen))
    words = label.split()
    moves, evals = words[1 : words.index("E:")], words[words.index("E:") + 1 : -2]
    spare = [move for move in legal_moves(fen) if move not in moves]
    number = data.draw(numbers())
    assume(spare and parse_number(number) != parse_number(evals[0]))
    changed = (
        Completion(tuple(moves), tuple(evals), data.draw(st.sampled_from(spare))),
        Completion((spare[0], *moves[1:]), tuple(evals), words[-1]),
        Completion(tuple(moves), (number, *evals[1:]), words[-1]),
    )
    same = score("P: " + fen, label, label).total
    assert all(score("P: " + fen, label, str(other)).total < same for other in changed)


@FEW
@given(cases(), st.data())
def test_each_source_uses_only_its_own_label_or_analysis(case: Case, data: st.DataObject) -> None:
    label, verdict = data.draw(labels(case.fen)), data.draw(analyses(case.fen))
    prompt, text = "P: " + case.fen, str(case.answer)
    judged = BY_ENGINE.score(prompt, text, analysis=verdict)
    assert BY_ENGINE.score(prompt, text, label, analysis=verdict) == judged
    # The default source prefers an analysis, then a label.
    assert BY_CACHE.score(prompt, text, label, analysis=verdict) == judged
    assert BY_CACHE.score(prompt, text, label) == BY_LABELS.score(prompt, text, label)
    plain = score(prompt, text)
    assert BY_RULES.score(prompt, text, label, analysis=verdict) == plain
    assert BY_LABELS.score(prompt, text, analysis=verdict) == plain


@FEW
@given(st.sampled_from(POSITIONS), st.data())
def test_best_move_of_higher_engine_evaluation_earns_more(fen: str, data: st.DataObject) -> None:
    verdict = data.draw(analyses(fen))
    lines = sorted(verdict.lines, key=lambda line: -line[1])
    (good, high), (bad, low) = lines[0], lines[-1]
    # Beyond ten pawns only a mate has a higher win probability.
    assume(win_probability(high) > win_probability(low))
    moves = tuple(move for move, _ in lines)

    def total(best: str, verdict: Analysis) -> float:
        # The answer has no evals, so that only the move's value depends on which move is best.
        return Case(fen, Completion(moves[:5], (), best), verdict).total(Completion(moves[:5], (), best))

    if good in moves[:5] and bad in moves[:5]:
        assert total(bad, verdict) < total(good, verdict)
    swapped_evals = {good: low, bad: high}
    turned = Analysis(fen, tuple((move, swapped_evals.get(move, pawns)) for move, pawns in verdict.lines))
    assert total(good, turned) < total(good, verdict)
