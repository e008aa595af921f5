"""Reward of an answer to a chat prompt: its order from noise to the best move, and that nothing evades it."""

import math
import random
from dataclasses import dataclass
from functools import cached_property

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookworld_rlvr.board.evals import win_probability
from rookworld_rlvr.rewards.rubric import TierWeights, _by_tier, quality, weights_of
from rookworld_rlvr.stockfish.analysis import Analysis
from rookworld_rlvr.stockfish.move_values import MoveValues, move_values
from rookworld_rlvr.tasks.chat import reward
from rookworld_rlvr.tasks.chat.prompts import (
    AFFIXES,
    ChatPreset,
    ChatPrompt,
    ChatPromptConfig,
    Form,
    Notation,
    chat_prompt,
    parse_chat_prompt,
    write_answer,
)
from rookworld_rlvr.tasks.chat.reader import ChatAnswer, read_answer
from rookworld_rlvr.tasks.chat.reward import (
    ChatRewardConfig,
    ChatTruth,
    ChatWeights,
    chat_move_value,
    score_chat,
    truth_of_chat,
)
from rookworld_rlvr.tasks.chat.task import ChatTask
from rookworld_rlvr.tasks.types import FailureReason, LabelError, ParseFailure

START = chess.STARTING_FEN
POSITIONS = [
    START,
    "r1bqkb1r/pppp1ppp/2n2n2/4p2Q/2B1P3/8/PPPP1PPP/RNB1K1NR w KQkq - 4 4",
    "1n2k3/P6p/8/8/8/8/8/R3K2R w KQ - 0 1",
    "8/8/8/8/8/8/7k/K7 w - - 0 1",
    "r3k2r/pp3ppp/2n5/3pP3/8/8/PPP2PPP/R3K2R w KQkq d6 0 12",
    "8/5k2/8/8/3p4/8/1K6/8 b - - 10 60",
]
MATED = "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3"
STALEMATE = "7k/5K2/6Q1/8/8/8/8/8 b - - 0 1"
TIERS = weights_of(TierWeights())
MALFORMED = -0.3
# Words that say nothing, without the form of a move.
NOISE = (
    "",
    "the",
    "I resign.",
    "e9e4",
    "<answer>",
    "</answer>",
    "<answer>X</answer>",
    "MOVE:",
    "??",
    "12",
    "\n",
    "Zf3",
)
MOVE_LIKE = ("Ng9", "e2e2", "h1a8q", "Qa1xh8", "O-O-O", "b8=N", "Kh1", "hxg8=R")
FEW = settings(derandomize=True, max_examples=150, deadline=None)
# Default weights by the components' full names.
WEIGHTS = _by_tier(ChatTask().tier_weights(ChatRewardConfig()))


@dataclass(frozen=True)
class Case:
    """A prompt with what scores its completions."""

    prompt: ChatPrompt
    text: str
    truth: ChatTruth
    values: MoveValues | None

    def total(self, completion: str, finished: bool = True) -> float:
        return self.scored(completion, finished)[0]

    def scored(self, completion: str, finished: bool = True) -> tuple[float, ParseFailure | None]:
        config = ChatRewardConfig()
        components, failure = score_chat(completion, self.prompt, self.truth, config, self.values, finished)
        assert all(0.0 <= value <= 1.0 for value in components.values())
        if failure is None:
            # The rubric relies on it: what is valid has the whole structure.
            assert all(value == 1.0 for name, value in components.items() if name.startswith("structure/"))
        value = quality(components, WEIGHTS, TIERS, refused=failure is not None)
        return (1 - value) * MALFORMED + value, failure

    @cached_property
    def legal(self) -> list[str]:
        return sorted(self.truth.legal)

    @cached_property
    def illegal(self) -> list[str]:
        squares = ("a1", "a2", "e2", "e4", "e7", "e8", "h8")
        return [
            a + b + p for a in squares for b in squares for p in ("", "q") if a != b and a + b + p not in self.legal
        ]

    def formed(self, move: str, form: Form | None = None) -> str:
        before, after = AFFIXES[form or self.prompt.form]
        return before + move + after

    def value(self, move: str) -> float:
        """Return what a legal move is worth by the source of the case: 1 without a source."""
        if self.values:
            return chat_move_value(move, self.values, ChatRewardConfig())
        return float(self.truth.label is None or move == self.truth.label)


def case_of(
    fen: str = START,
    config: ChatPromptConfig | None = None,
    label: str | None = None,
    pawns: dict[str, float] | None = None,
) -> Case:
    text = chat_prompt(fen, config or ChatPromptConfig())
    prompt = parse_chat_prompt(text)
    truth = truth_of_chat(prompt, label)
    lines = tuple((move, (pawns or {}).get(move, 0.0)) for move in sorted(truth.legal))
    return Case(prompt, text, truth, move_values(Analysis(fen, lines)) if pawns else None)


def cases(forms: tuple[Form, ...] = tuple(Form)) -> st.SearchStrategy[Case]:
    """Return a strategy for any position, form and prefill, scored by the rules, a label or evaluations."""

    @st.composite
    def drawn(draw: st.DrawFn) -> Case:
        fen = draw(st.sampled_from(POSITIONS))
        legal = sorted(move.uci() for move in chess.Board(fen).legal_moves)
        config = ChatPromptConfig(
            draw(st.sampled_from(ChatPreset)),
            draw(st.sampled_from(forms)),
            draw(st.sampled_from(Notation)),
            thinking=draw(st.sampled_from([None, False])),
            prefill=draw(st.sampled_from(["", "", "auto"])),
        )
        source = draw(st.sampled_from(["rules", "label", "engine"]))
        pawns = st.sampled_from([0.0, 0.3, -0.3, 7.5, 999.99, -999.99]) | st.integers(-600, 600).map(float)
        evals = {move: draw(pawns) for move in legal} if source == "engine" else None
        return case_of(fen, config, draw(st.sampled_from(legal)) if source == "label" else None, evals)

    return drawn()


def test_best_move_in_the_form_earns_one_and_noise_the_minimum() -> None:
    for case in (case_of(), case_of(label="e2e4"), case_of(pawns={"e2e4": 1.0})):
        assert case.total("<answer>e2e4</answer>") == case.total("<answer>e4</answer>") == 1.0
        for text in ("", " ", "hello", "<answer></answer>", "</answer>", "<answer>MOVE</answer>", "I resign"):
            assert case.total(text) == case.total(text, finished=False) == MALFORMED


def test_components_of_a_valid_answer_are_as_computed_by_hand() -> None:
    case = case_of(pawns={"e2e4": 1.0, "a2a4": -2.0})
    loss = win_probability(1.0) - win_probability(-2.0)
    components, failure = score_chat(
        "I play <answer>a2a4</answer>", case.prompt, case.truth, ChatRewardConfig(), case.values
    )
    assert failure is None
    assert components == {
        "structure/form": 1.0,
        "structure/one_answer": 1.0,
        "structure/ended": 1.0,
        "parse/move": 1.0,
        "parse/alone": 8 / 10,
        "correctness/legal": 1.0,
        "correctness/value": pytest.approx(0.5 ** (loss / 0.1)),
    }
    value = components["correctness/value"]
    expected = 0.1 + 0.15 * (0.8 + 0.2 * 0.8) + 0.75 * (0.2 + 0.8 * value)
    assert case.total("I play <answer>a2a4</answer>") == pytest.approx(1.3 * expected - 0.3, abs=1e-12)


def test_components_of_a_list_are_as_computed_by_hand() -> None:
    case = case_of(label="g1f3")
    components, failure = score_chat("e2e4 e4 e2e5 Nf3", case.prompt, case.truth, ChatRewardConfig(), None, False)
    assert failure and failure.reason is FailureReason.cut_off
    # Three different moves, of which two are legal; the last in UCI is e2e5. Three words beside the move.
    assert components == {
        "structure/form": 0.28,
        "structure/one_answer": pytest.approx(0.28 / 3),
        "structure/ended": 0.0,
        "parse/move": 0.28,
        "parse/alone": pytest.approx(0.28 * 8 / 11),
        "correctness/legal": pytest.approx(0.28 * 2 / 3),
        "correctness/match": 0.0,
    }


def test_label_is_compared_as_a_move_and_ignored_with_evaluations() -> None:
    case = case_of(POSITIONS[2], label="e1g1")
    for written in ("e1g1", "e1h1", "O-O", "0-0"):
        assert case.total(f"<answer>{written}</answer>") == 1.0
    # quality = 0.25 + 0.75 * 0.2 / 0.8
    assert case.total("<answer>e1e2</answer>") == pytest.approx(1.3 * (0.25 + 0.75 * 0.25) - 0.3)
    both = Case(case.prompt, case.text, case.truth, move_values(Analysis("", (("e1e2", 0.0),))))
    assert both.total("<answer>e1e2</answer>") == 1.0


def test_label_that_is_no_uci_move_is_an_error_and_an_illegal_one_none() -> None:
    prompt = case_of().prompt
    for label in ("Nf3", "", "e2e2", "M: e2e4"):
        with pytest.raises(LabelError, match="expected a label that is a move in UCI"):
            truth_of_chat(prompt, label)
    assert truth_of_chat(prompt, "e2e5").label is None
    assert truth_of_chat(case_of(POSITIONS[2]).prompt, "e1h1").label == "e1g1"


def test_missed_mate_and_halving_loss_change_a_moves_value() -> None:
    values = move_values(Analysis("", (("e2e4", 999.99), ("d2d4", 999.98))))
    assert chat_move_value("e2e4", values, ChatRewardConfig()) == 1.0
    assert chat_move_value("d2d4", values, ChatRewardConfig()) == pytest.approx(0.3, abs=1e-3)
    assert chat_move_value("d2d4", values, ChatRewardConfig(missed_mate=1.0)) == pytest.approx(1.0, abs=1e-3)
    even = move_values(Analysis("", (("e2e4", 1.0), ("d2d4", 0.0))))
    assert chat_move_value("d2d4", even, ChatRewardConfig(halving_loss=0.5)) > chat_move_value(
        "d2d4", even, ChatRewardConfig()
    )
    assert chat_move_value("e2e5", even, ChatRewardConfig()) == 0.0


def test_weights_scale_their_group() -> None:
    config = ChatRewardConfig(weights=ChatWeights(best=0.5, legality=2.0))
    assert ChatTask().tier_weights(config)["correctness"] == {"legal": 0.4, "match": 0.3, "value": 0.4}


@pytest.mark.parametrize("fen", [MATED, STALEMATE])
def test_game_that_is_over_scores_the_format_alone(fen: str) -> None:
    case = case_of(fen)
    components, failure = score_chat("<answer>e2e4</answer>", case.prompt, case.truth, ChatRewardConfig())
    assert failure is None and not [name for name in components if name.startswith("correctness")]
    texts = ("hello", "I play e2e4 or d2d4", "MOVE: e2e4", "<answer>e2e4</answer>")
    totals = [case.total(text) for text in texts]
    assert totals == sorted(set(totals)) and totals[0] == MALFORMED and totals[-1] == 1.0


def quality_at(level: float, ended: float, rest: float, move: float, one: float = 1.0) -> float:
    """Return the quality at a level: `rest` for the words around the move, `move` for its legality and value."""
    content = {"parse/move": 1.0, "parse/alone": rest, "correctness/legal": move, "correctness/value": move}
    found = {"structure/form": 1.0, "structure/one_answer": one, "structure/ended": ended, **content}
    components = {name: level * value for name, value in found.items()}
    valid = level == reward.ASKED_FORM and ended == 1.0
    return quality(components, WEIGHTS, TIERS, refused=not valid)


def test_each_level_lies_above_the_best_of_the_level_below() -> None:
    words = quality_at(reward.MOVE_LIKE, 1, 1, 0)
    legal = quality_at(reward.LEGAL_SOMEWHERE, 0, 0, 0, one=0), quality_at(reward.LEGAL_SOMEWHERE, 1, 1, 1)
    other = quality_at(reward.OTHER_FORM, 0, 0, 0), quality_at(reward.OTHER_FORM, 1, 1, 1)
    cut = quality_at(reward.ASKED_FORM, 0, 0, 0), quality_at(reward.ASKED_FORM, 0, 1, 1)
    assert 0 < words < legal[0] < legal[1] < other[0] < other[1] < cut[0] < cut[1] < quality_at(1.0, 1, 0, 0)


def test_way_up_from_lists_has_no_step_down() -> None:
    """Each completion is a small change of the one before, as a model would make it."""
    case = case_of(pawns={"e2e4": 1.0, "g1f3": 0.9, "a2a3": -1.0})
    steps = [
        ("the the the the", False),
        ("the Nh6 the the", False),
        ("the Nh6 e2e5 a2a3 a2a4", False),
        ("a2a3 h2h3 b2b3 g2g3 e2e3", False),
        ("a2a3 h2h3 b2b3", False),
        ("a2a3 h2h3 b2b3", True),
        ("a2a3 h2h3", True),
        ("I play a2a3", True),
        ("I play <move>a2a3</move>", False),
        ("I play <move>a2a3</move>", True),
        ("a2a3", True),
        ("<answer>a2a3", True),
        ("<move>g1f3</move>", True),
        ("<answer>a2a3</answer> and so", False),
        ("<answer>g1f3</answer>", False),
        ("<answer>e2e5</answer>", True),
        ("So here I play <answer>a2a3</answer>", True),
        ("<answer>a2a3</answer>", True),
        ("<answer>g1f3</answer>", True),
        ("<answer>e2e4</answer>", True),
    ]
    totals = [case.total(*step) for step in steps]
    # A move alone and a tag that is not closed are worth the same.
    assert totals.pop(11) == totals[10]
    assert totals == sorted(set(totals)), totals


@FEW
@given(cases(), st.data())
def test_order_from_noise_to_a_legal_move_holds_for_any_ends_and_words(case: Case, data: st.DataObject) -> None:
    def draw(*words: str) -> str:
        return data.draw(st.sampled_from(words))

    def wordy(text: str) -> str:
        filler = ("so", "the", "move", "wins", "12", "quickly!")
        front, back = (" ".join(data.draw(st.lists(st.sampled_from(filler), max_size=12))) for _ in range(2))
        # A word before a lone move, so that it is no answer by itself.
        return f"well {front} {text}\n{back}"

    others = [form for form in Form if form not in (case.prompt.form, Form.bare)]
    illegal, legal = draw(*case.illegal), draw(*case.legal)
    legal_words = " ".join(data.draw(st.lists(st.sampled_from(case.legal), min_size=1, max_size=30)))
    free = Case(
        ChatPrompt(case.prompt.fen, case.prompt.form, case.prompt.notation, False, case.prompt.reasons, ""),
        case.text,
        case.truth,
        case.values,
    )
    asked = free.formed(illegal) if case.prompt.form is Form.bare else wordy(free.formed(illegal))
    ends = data.draw(st.lists(st.booleans(), min_size=4, max_size=4))
    lower = [
        free.total(wordy(draw("e9e4", "and", "<answer>X</answer>")), ends[0]),
        free.total(wordy(draw(*(word for word in (*case.illegal, "Ng9", "hxg9") if word[-1] != "9"))), ends[1]),
        free.total(wordy(legal_words), ends[2]),
        free.total(wordy(free.formed(draw(illegal, legal), data.draw(st.sampled_from(others)))), ends[3]),
        free.total(asked),
    ]
    assert lower[0] == MALFORMED and lower == sorted(set(lower)), lower
    best = max(case.legal, key=case.value)
    upper = [free.formed(illegal), free.formed(legal), free.formed(best)]
    totals = [free.total(text) for text in upper]
    assert totals[0] < totals[1] <= totals[2] == 1.0
    assert (totals[1] == totals[2]) is (case.value(legal) == case.value(best))


@FEW
@given(cases(), st.data())
def test_of_two_legal_moves_the_more_valuable_earns_more(case: Case, data: st.DataObject) -> None:
    one, two = (data.draw(st.sampled_from(case.legal)) for _ in range(2))
    totals = [case.total(write_answer(case.prompt, move)) for move in (one, two)]
    assert (totals[0] < totals[1]) is (case.value(one) < case.value(two))


@FEW
@given(cases(), st.data())
def test_lists_copies_and_second_answers_earn_less_than_one_wrong_move(case: Case, data: st.DataObject) -> None:
    wrong = case.total(write_answer(case.prompt, data.draw(st.sampled_from(case.illegal))))
    moves = [*case.legal, *case.illegal]
    first, second = data.draw(st.lists(st.sampled_from(moves), min_size=2, max_size=2, unique=True))
    form = data.draw(st.sampled_from([form for form in Form if form is not Form.bare]))
    best = max(case.legal, key=case.value)
    hacks = [
        " ".join(case.legal) + " x",
        "\n".join(case.legal) + "\nx",
        case.formed(" ".join([*case.legal, "e2e4", "e2e5"])),
        " ".join(map(case.formed, [*case.legal, "e2e4", "e2e5"])),
        f"{case.formed(first)}\n{case.formed(second)}",
        f"{case.formed(second, form)}\n{case.formed(first)}",
        case.text,
        case.text + case.text,
        f"<think>{case.formed(best)}",
        f"{best} <think> {case.formed(best)}",
        case.formed(best) * 2,
    ]
    for hack, finished in ((hack, finished) for hack in hacks for finished in (True, False)):
        total, failure = case.scored(hack, finished)
        assert failure is not None and total < wrong, hack


@FEW
@given(cases(), st.data())
def test_ending_and_brevity_earn_more(case: Case, data: st.DataObject) -> None:
    text = data.draw(
        st.sampled_from([*case.legal, "e2e4 d2d4 e2e5", "I play e2e4", "MOVE: e2e4", "<answer>e2e4</answer>"])
    )
    assert case.total(text, finished=False) < case.total(text)
    if not case.prompt.reasons and case.prompt.form is not Form.bare:
        answer = write_answer(case.prompt, data.draw(st.sampled_from(case.legal)))
        words = [f"{answer}\n{'word ' * count}" for count in range(4)]
        totals = [case.total(text) for text in words]
        assert totals == sorted(set(totals), reverse=True)


def test_brevity_counts_only_if_no_words_were_asked_for() -> None:
    texts = ("Because it is good: <answer>e2e4</answer>", "<answer>e2e4</answer>")
    for thinking in (False, True):
        case = case_of(config=ChatPromptConfig(thinking=thinking))
        assert (case.total(texts[0]) == case.total(texts[1])) is thinking


def test_prefilled_answer_needs_only_the_move_and_its_end() -> None:
    case = case_of(config=ChatPromptConfig(prefill="<answer>"))
    assert case.total("e2e4</answer>") == 1.0
    texts = [("the", False), ("e2e4 d2d4 g1f3", False), ("e2e4 d2d4", True), ("e2e4", True), ("e2e5</answer>", True)]
    totals = [case.total(*text) for text in texts]
    assert totals == sorted(set(totals))
    bare = case_of(config=ChatPromptConfig(form=Form.bare, prefill="My move:"))
    assert bare.total(" e2e4") == bare.total("Nf3.") == 1.0
    assert bare.total(" e2e4 it is") < bare.total(" e2e5")


def test_thinking_is_no_way_around_the_answer() -> None:
    case = case_of(config=ChatPromptConfig(thinking=True, prefill="auto"))
    assert case.total("e2e4 is good.</think><answer>e2e4</answer>") == 1.0
    cut = case.scored("e2e4 is good, so I", finished=False)
    assert cut[1] and cut[1].reason is FailureReason.unfinished_thinking
    totals = [
        case.total("well", False),
        case.total("e2e4 is good, so I", False),
        case.total("e2e4 is good.</think>the", True),
        case.total("e2e4 is good.</think>e2e4", True),
        case.total("e2e4 is good.</think><answer>e2e5</answer>", True),
    ]
    assert totals == sorted(set(totals))


# Pieces that edits put into a completion.
SPLINTERS = (
    *(text for affixes in AFFIXES.values() for text in affixes if text),
    *(
        "<think>",
        "</think>",
        "Final Answer:",
        " ",
        "\n",
        "**",
        "`",
        ".",
        "1.",
        "e2e4",
        " Nf3 ",
        "e4",
        "O-O",
        "a7a8",
        "x",
    ),
    *("}", "{", "<", ">", "=Q", "q", "+", "#", " so ", "e1h1", "\\text{", "9" * 50, "\ud800", "é", "\xa0"),
)


def mutated(text: str, source: random.Random) -> str:
    """Return a text after one to three random edits: spans deleted, repeated, moved, replaced by splinters."""
    for _ in range(source.randint(1, 3)):
        start = source.randint(0, len(text))
        # Half of the edits are small, so that many completions stay near an answer.
        end = source.randint(start, len(text) if source.random() < 0.5 else min(start + 3, len(text)))
        before, span, after = text[:start], text[start:end], text[end:]
        splinter = source.choice(SPLINTERS)
        edits = (before + after, before + span + span + after, before + after + span, text + " " + span)
        text = source.choice([*edits, before + splinter + span + after, before + splinter + after, splinter + text])
    return text


def random_case(source: random.Random) -> Case:
    fen = source.choice(POSITIONS)
    legal = sorted(move.uci() for move in chess.Board(fen).legal_moves)
    config = ChatPromptConfig(
        source.choice(list(ChatPreset)),
        source.choice([None, *Form]),
        thinking=source.choice([None, True, False]),
        prefill=source.choice(["", "", "auto", "<answer>"]),
    )
    kind = source.choice(["rules", "label", "engine"])
    pawns = {move: source.choice([0.0, 0.5, -2.0, 999.99, -999.99, 1.5]) for move in legal}
    return case_of(fen, config, source.choice(legal) if kind == "label" else None, pawns if kind == "engine" else None)


def seeds(case: Case, source: random.Random) -> str:
    """Return a completion to mutate: an answer in any form, with words, thinking, lists, or a part of the prompt."""
    move = source.choice([*case.legal, *case.illegal[:5]])
    board = chess.Board(case.prompt.fen)
    if move in case.legal and source.random() < 0.5:
        move = board.san(chess.Move.from_uci(move))
    asked, other = write_answer(case.prompt, move), case.formed(move, source.choice(list(Form)))
    words = source.choice(["I like this move. ", "<think>e2e4 or d2d4?</think>", " ".join(case.legal[:9]) + "\n"])
    return source.choice([asked, asked, words + asked, f"{asked}\n{words}", other, words + other, case.text[-120:]])


def assert_no_mutation_pays(count: int, seed: int) -> None:
    """Assert that no mutated completion earns more than its repair.

    The repair is the shortest completion with the move that the reader finds in it, or with a wrong one if it finds
    none. What is refused earns less than a wrong move.
    """
    source, refused, changed = random.Random(seed), 0, 0
    for number in range(count):
        if number % 20 == 0:
            case = random_case(source)
            wrong = case.illegal[0]
            # The repair behind no prefill, which another form's prefill could spoil.
            free = Case(
                ChatPrompt(case.prompt.fen, case.prompt.form, case.prompt.notation, False, case.prompt.reasons, ""),
                case.text,
                case.truth,
                case.values,
            )
            floor = free.total(free.formed(wrong))
        text = mutated(seeds(case, source), source)
        finished = source.random() < 0.8
        total, failure = case.scored(text, finished)
        read = read_answer(text, case.prompt, finished)
        move = read.move if isinstance(read, ChatAnswer) and read.move else wrong
        assert math.isfinite(total) and MALFORMED <= total <= free.total(free.formed(move)), (case, text)
        if failure:
            assert total < floor, (case, text)
        refused += failure is not None
        changed += isinstance(read, ChatAnswer)
    # The edits reach all kinds of completions.
    assert 0.3 * count < refused < 0.95 * count and changed > 0.2 * count


def test_no_mutated_completion_earns_more_than_its_repair() -> None:
    assert_no_mutation_pays(600, seed=1)


@pytest.mark.slow
def test_none_of_20000_mutated_completions_earns_more_than_its_repair() -> None:
    assert_no_mutation_pays(20_000, seed=0)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(cases(), st.text() | st.binary().map(lambda data: data.decode(errors="surrogateescape")), st.booleans())
def test_any_text_is_scored(case: Case, text: str, finished: bool) -> None:
    assert MALFORMED <= case.total(text, finished) <= 1.0


@pytest.mark.parametrize("unit", ["<answer>", "e2e4 ", "Nf3", "MOVE: ", "\\boxed{", "<think>", " ", "x"])
def test_a_hundred_thousand_characters_are_scored(unit: str) -> None:
    heap = unit * (100_000 // len(unit))
    for text in (heap, f"<answer>{heap}</answer>", f"{heap} <answer>e2e4</answer>"):
        assert MALFORMED <= case_of().total(text) <= 1.0
