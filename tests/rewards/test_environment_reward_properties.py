"""Properties of the environment reward, for any position, move and completion."""

from itertools import product
from operator import mul

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rookworld_rlvr.board.fen import parse_fen
from rookworld_rlvr.rewards import Rubric, RubricConfig
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.environment.text import (
    environment_truth,
    parse_environment,
    parse_environment_prompt,
    render_environment,
    render_environment_prompt,
)
from rookworld_rlvr.tasks.types import ParseFailure
from rookworld_rlvr.training.data import default_file

from .conftest import mutations

# Scores by labels and rules, without move evaluations.
score = Rubric(RubricConfig()).score

FEW = settings(derandomize=True, max_examples=80, deadline=None)
ROWS = [row.prompt for row in read_corpus(default_file("held_out.jsonl")).examples]
# Positions of random games, down to three pieces, and two special ones.
FENS = [
    *[row[3:].split("+")[0] for row in ROWS if row.startswith("A: ")][::20],
    "7k/5Q2/6K1/8/8/8/8/8 w - - 0 1",
    "4k3/P7/8/8/8/8/8/4K2R w K - 99 1",
]
ILLEGAL = ("0000", "e2e2", "hello", "", "a1h8", "h8a1", "e1e8q")
REWARDS = ("0.001", "0.5", "1.0", "-1.0", "0.25")
GARBAGE = ("nan", "x", "2", "-0.", "1e3", "٠")


@st.composite
def legal_prompts(draw: st.DrawFn) -> str:
    fen = draw(st.sampled_from(FENS))
    return render_environment_prompt(fen, draw(st.sampled_from(list(parse_fen(fen).legal_moves))).uci())


def illegal_prompts() -> st.SearchStrategy[str]:
    prompts = st.builds(render_environment_prompt, st.sampled_from(FENS), st.sampled_from(ILLEGAL))
    return prompts.filter(lambda prompt: environment_truth(parse_environment_prompt(prompt)).truncated)


def prompts() -> st.SearchStrategy[str]:
    return legal_prompts() | illegal_prompts()


def truth(prompt: str) -> list[str]:
    return render_environment(environment_truth(parse_environment_prompt(prompt))).split("+")


def total(prompt: str, fields: list[str] | str) -> float:
    return score(prompt, fields if isinstance(fields, str) else "+".join(fields)).total


@st.composite
def answers(draw: st.DrawFn) -> list[str]:
    """Draw a well-formed answer, which is right only by chance."""
    flags = st.sampled_from(["0", "1"])
    return [draw(st.sampled_from(FENS)), draw(st.sampled_from(REWARDS)), draw(flags), draw(flags)]


@st.composite
def mutilated(draw: st.DrawFn, fen: str) -> str:
    place = draw(st.integers(0, len(fen) - 1))
    return fen[:place] + draw(st.sampled_from(["", "9", "/", "~", "Q~", " ", "x", "e3", "0", "-"])) + fen[place + 1 :]


@FEW
@given(prompts())
def test_correct_environment_answer_earns_exactly_one(prompt: str) -> None:
    assert total(prompt, truth(prompt)) == 1.0


@FEW
@given(legal_prompts())
def test_copied_position_after_legal_move_earns_less_than_half(
    prompt: str,
) -> None:
    copy = [parse_environment_prompt(prompt).fen, *truth(prompt)[1:]]
    assert total(prompt, copy) < 0.5
    assert score(prompt, "+".join(copy)).components["correctness/next_state_similarity"] == 0.0


@FEW
@given(illegal_prompts(), answers())
def test_only_unchanged_position_earns_one_after_illegal_move(prompt: str, other: list[str]) -> None:
    copy = [parse_environment_prompt(prompt).fen, "-1.0", "0", "1"]
    assert total(prompt, copy) == 1.0
    assert other == copy or total(prompt, other) < 1.0
    assert total(prompt, [copy[0], "0.001", "0", "0"]) < 1.0


@FEW
@given(prompts(), answers(), st.sampled_from(GARBAGE), st.integers(1, 3), st.data())
def test_total_never_falls_as_a_field_improves(
    prompt: str, answer: list[str], garbage: str, place: int, data: st.DataObject
) -> None:
    right = truth(prompt)[place]
    wrong = [word for word in (REWARDS if place == 1 else ("0", "1")) if float(word) != float(right)]
    words = [garbage, data.draw(st.sampled_from(wrong)), right]
    totals = [total(prompt, [*answer[:place], word, *answer[place + 1 :]]) for word in words]
    assert max(totals) == totals[2]
    # As a reward, 2 is a number: as wrong as any other, and unlike -1.0 it says that the move was legal.
    assert totals[0] < totals[1] or (garbage == "2" and place == 1)


@FEW
@given(prompts(), answers(), st.data())
def test_total_never_falls_as_the_next_fen_improves(prompt: str, answer: list[str], data: st.DataObject) -> None:
    broken = data.draw(mutilated(answer[0]))
    judged = score(prompt, "+".join([broken, *answer[1:]]))
    if judged.components["parse/next_fen"] < 1.0:
        assert judged.total < total(prompt, answer)
    assert max(judged.total, total(prompt, answer)) <= total(prompt, [truth(prompt)[0], *answer[1:]])


@settings(FEW, max_examples=300)
@given(prompts(), answers(), answers(), st.data())
def test_malformed_completion_earns_less_than_its_repair(
    prompt: str, repair: list[str], accepted: list[str], data: st.DataObject
) -> None:
    mutated = data.draw(mutations("+".join(repair)) | mutations("+".join(truth(prompt))))
    assume(isinstance(parse_environment(mutated), ParseFailure))
    assert total(prompt, mutated) < min(total(prompt, repair), total(prompt, accepted))


@FEW
@given(prompts(), st.text(min_size=1).filter(lambda text: text.replace("+", "").strip()))
def test_correct_answer_with_extra_text_is_refused(prompt: str, text: str) -> None:
    right = "+".join(truth(prompt))
    for extra in (text, right, right.replace("+", " "), "and now a long story"):
        for joint in (" ", "+", "\n"):
            assert score(prompt, extra + joint + right).failure and score(prompt, right + joint + extra).failure
    for glued in (right + "0", right.replace("+0.001", " so+0.001"), right.replace(" - ", " - and ", 1)):
        assert glued == right or score(prompt, glued).failure


@settings(FEW, max_examples=20)
@given(st.sampled_from(FENS), st.data())
def test_contradictory_answer_never_maximises_expected_reward(fen: str, data: st.DataObject) -> None:
    """The move is illegal or one of two legal ones, with any probabilities. A completion bets on one of them."""
    legal = st.sampled_from([move.uci() for move in parse_fen(fen).legal_moves])
    moves = [data.draw(legal), data.draw(legal), data.draw(st.sampled_from(ILLEGAL[:2]))]
    queried = [render_environment_prompt(fen, move) for move in moves]
    bets = list(product([fen, truth(queried[0])[0]], [*REWARDS, "-0.5"], "01", "01"))
    earned = {bet: [total(prompt, list(bet)) for prompt in queried] for bet in bets}
    for doubt, skill in product(range(0, 21), range(0, 5)):
        odds = ((20 - doubt) * skill, (20 - doubt) * (4 - skill), doubt * 4)
        expected = {bet: sum(map(mul, odds, rewards)) for bet, rewards in earned.items()}
        coherent = [bet for bet in bets if (bet[1] == "-1.0") == (bet[3] == "1") == (bet[0] == fen)]
        assert max(expected.values()) <= max(expected[bet] for bet in coherent) + 1e-9


@FEW
@given(prompts(), answers(), answers(), st.text(min_size=1).filter(str.strip))
def test_extra_text_lowers_the_total_of_a_well_formed_answer(
    prompt: str, answer: list[str], other: list[str], text: str
) -> None:
    whole = "+".join(answer)
    for extra in (text, "+".join(other), "+".join(truth(prompt)), truth(prompt)[0]):
        for joint in (" ", "+", "\n"):
            assert total(prompt, extra + joint + whole) < total(prompt, whole)
            assert total(prompt, whole + joint + extra) < total(prompt, whole)


@FEW
@given(prompts(), answers(), st.lists(st.sampled_from(["", " ", "\n", "\t  ", "\u00a0"]), min_size=8, max_size=8))
def test_whitespace_around_fields_has_no_effect(prompt: str, answer: list[str], blanks: list[str]) -> None:
    padded = [before + field + after for before, field, after in zip(blanks, answer, blanks[4:], strict=False)]
    assert total(prompt, padded) == total(prompt, answer)
