"""Answers to chat prompts: how moves are written, which answer counts, and which are unread."""

import json

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rookworld_rlvr.tasks.chat.prompts import ChatPrompt, Form, Notation, dump_messages, parse_chat_prompt
from rookworld_rlvr.tasks.chat.reader import ChatAnswer, move_words, own_words, read_answer
from rookworld_rlvr.tasks.types import FailureReason, ParseFailure

START = chess.STARTING_FEN
# White can castle on both sides, promote with and without a capture, and move either rook to d1.
RICH = "1n2k3/P6p/8/8/8/8/8/R3K2R w KQ - 0 1"
F = FailureReason


def asked(form: Form = Form.answer, fen: str = START, *, thinks: bool = False, prefill: str = "") -> ChatPrompt:
    return ChatPrompt(fen, form, Notation.uci, thinks=thinks, reasons=thinks, prefill=prefill)


def move_of(completion: str, fen: str = START) -> str:
    read = read_answer(completion, asked(fen=fen))
    assert isinstance(read, ChatAnswer), read
    return read.move


def reason_of(completion: str, prompt: ChatPrompt, finished: bool = True) -> FailureReason | None:
    read = read_answer(completion, prompt, finished)
    failure = read if isinstance(read, ParseFailure) else read.failure
    return failure.reason if failure else None


@pytest.mark.parametrize(
    ("fen", "written", "move"),
    [
        (START, "e2e4", "e2e4"),
        (START, "E2E4", "e2e4"),
        (START, "e2-e4", "e2e4"),
        (START, "e4", "e2e4"),
        (START, "Nf3", "g1f3"),
        (START, "Ng1f3", "g1f3"),
        (START, "Ng1-f3!", "g1f3"),
        (START, "1. e4", "e2e4"),
        (START, "1.e4", "e2e4"),
        (START, "**e4**", "e2e4"),
        (START, "`Nf3`", "g1f3"),
        (START, '"Nf3."', "g1f3"),
        (START, "“e4”", "e2e4"),
        (START, "__e2e4__", "e2e4"),
        (START, "$e4$", "e2e4"),
        (RICH, "O-O", "e1g1"),
        (RICH, "0-0", "e1g1"),
        (RICH, "o-o-o", "e1c1"),
        (RICH, "0-0-0+", "e1c1"),
        (RICH, "e1g1", "e1g1"),
        (RICH, "e1h1", "e1g1"),
        (RICH, "e1a1", "e1c1"),
        (RICH, "a7a8q", "a7a8q"),
        (RICH, "a7a8=Q", "a7a8q"),
        (RICH, "A7A8Q", "a7a8q"),
        (RICH, "a8=Q", "a7a8q"),
        (RICH, "a8Q", "a7a8q"),
        (RICH, "axb8=N", "a7b8n"),
        (RICH, "a7xb8n+", "a7b8n"),
        (RICH, "axb8=Q+!?", "a7b8q"),
        (RICH, "Rad1", "a1d1"),
        (RICH, "12. Rxh7", "h1h7"),
        (RICH, "Rh7", "h1h7"),
        (RICH.replace(" w KQ ", " b - "), "1...h5", "h7h5"),
    ],
)
def test_move_is_read_as_people_write_it(fen: str, written: str, move: str) -> None:
    read = read_answer(f"<answer>{written}</answer>", asked(fen=fen))
    assert isinstance(read, ChatAnswer) and read.valid
    assert (read.move, read.text, read.is_move) == (move, written, True)


@pytest.mark.parametrize(
    ("fen", "written", "move"),
    [
        (START, "e2e5", "e2e5"),
        (START, "e7e5", "e7e5"),
        (START, "Nf6", ""),
        (START, "O-O", ""),
        (START, "e1g1", "e1g1"),
        (START, "e1h1", "e1h1"),
        (RICH, "a7a8", "a7a8"),
        (RICH, "a8", ""),
        (RICH, "axb8", ""),
        # Ambiguous.
        (RICH.replace("R3K2R", "R6R").replace("8/R6R", "4K3/R6R").replace("KQ", "-"), "Rd1", ""),
    ],
)
def test_illegal_uci_keeps_its_text_and_illegal_san_is_no_move_here(fen: str, written: str, move: str) -> None:
    read = read_answer(f"<answer>{written}</answer>", asked(fen=fen))
    assert isinstance(read, ChatAnswer) and read.valid
    assert (read.move, read.is_move) == (move, True)
    assert read.move not in {legal.uci() for legal in chess.Board(fen).legal_moves}


@pytest.mark.parametrize("text", ["resign", "", "0000", "e2e2", "--", "e9e4", "Zf3", "(none)", "e2e4e5", "ae4", "4e4"])
def test_other_words_have_no_form_of_a_move(text: str) -> None:
    assert move_words(text, START) == ()
    read = read_answer(f"<answer>{text}</answer>", asked())
    assert isinstance(read, ChatAnswer) and not read.is_move
    assert read.failure and read.failure.reason is F.bad_move


FORMED = {
    Form.answer: "<answer>{}</answer>",
    Form.uci_move: "<uci_move>\n{}\n</uci_move>",
    Form.move: "<MOVE> {} </MOVE>",
    Form.boxed: r"\boxed{{{}}}",
    Form.final_answer: "FINAL_ANSWER: {}",
    Form.move_line: "MOVE: {}",
}


@pytest.mark.parametrize("form", FORMED)
def test_each_form_is_valid_where_it_was_asked_for_and_read_elsewhere(form: Form) -> None:
    text = "The centre matters, as d5 shows. " + FORMED[form].format("e2e4")
    for other in Form:
        read = read_answer(text, asked(other))
        assert isinstance(read, ChatAnswer)
        assert (read.form, read.move, read.valid) == (form, "e2e4", form is other)
        assert reason_of(text, asked(other)) is (None if form is other else F.other_form)


@pytest.mark.parametrize(
    "text",
    [
        "Final Answer: Nf3",
        "Final answer: Nf3.",
        "**Final Answer:** Nf3",
        "**Final Answer**: **Nf3**",
        "### Final Answer:\n\nNf3\n",
        "final answer : Nf3".replace(" :", ":"),
        "FINAL_ANSWER: g1f3\nThank you.",
    ],
)
def test_final_answer_is_read_in_all_its_spellings(text: str) -> None:
    read = read_answer(text, asked(Form.final_answer))
    assert isinstance(read, ChatAnswer) and read.valid and read.move == "g1f3"


def test_boxed_text_is_read() -> None:
    read = read_answer(r"So $\boxed{\text{Nf3}}$.", asked(Form.boxed))
    assert isinstance(read, ChatAnswer) and read.valid and read.move == "g1f3"


def test_bare_text_is_read_by_its_last_move_with_uci_first() -> None:
    assert move_of("I thought of d2d4 and Nf3, but e2e4 wins the square d5.") == "e2e4"
    assert move_of("I thought of d4, but Nf3 is better") == "g1f3"
    assert reason_of("e4 is my move", asked()) is F.other_form
    assert reason_of("e4 is my move", asked(Form.bare)) is F.extra_text
    for text in ("e2e4", " e4.\n", "1. e4", "**e4**"):
        assert reason_of(text, asked(Form.bare)) is None
    assert reason_of("e4 e4", asked(Form.bare)) is F.extra_text
    assert reason_of("e2e4", asked(Form.bare), finished=False) is F.cut_off


def test_only_what_follows_the_thinking_counts() -> None:
    thought = "<think>\nPerhaps <answer>d2d4</answer> or e2e4?\n</think>\n\n"
    for opened in (thought, thought.removeprefix("<think>"), f"{thought}{thought}"):
        assert move_of(f"{opened}<answer>Nf3</answer>") == "g1f3"
        assert move_of(f"{opened}Nf3") == "g1f3"
    assert reason_of(f"{thought}<answer>Nf3</answer>", asked(thinks=True)) is None


def test_move_of_the_thinking_alone_is_no_answer() -> None:
    for text in ("<think>e2e4 it is</think> Well.", "<think><answer>e4</answer></think>"):
        assert read_answer(text, asked()) == ParseFailure(F.no_answer, text[-60:])


def test_thinking_that_does_not_end_is_unread() -> None:
    for text in ("<think> <answer>e2e4</answer>", "<think>a</think> e2e4 <think> e2e4"):
        for finished in (True, False):
            assert reason_of(text, asked(), finished) is F.unfinished_thinking
    # The template has opened it, or the prefill.
    assert reason_of("Perhaps e2e4, or", asked(thinks=True), finished=False) is F.unfinished_thinking
    assert reason_of("Perhaps e2e4.", asked(thinks=True, prefill="<think>")) is F.unfinished_thinking
    # It ended without a thought.
    assert reason_of("<answer>e2e4</answer>", asked(thinks=True)) is None


def test_two_different_answers_are_unread() -> None:
    for text in (
        "<answer>e4</answer><answer>d4</answer>",
        "<answer>e4 d4</answer>",
        "<answer>e4, or d2d4</answer>",
        "<answer>e4</answer>\nMOVE: d4",
        "<answer>e4</answer><answer>Nf6</answer>",
        "<answer>e2e4 d2d4 g1f3",
    ):
        assert isinstance(read_answer(text, asked()), ParseFailure)
        assert reason_of(text, asked()) is F.two_answers


def test_one_answer_twice_is_read_but_not_valid() -> None:
    for text in ("<answer>e4</answer> <answer>e2e4</answer>", "MOVE: e2e4\n<answer>e4</answer>"):
        assert move_of(text) == "e2e4"
        assert reason_of(text, asked()) is F.two_answers


def test_line_followed_by_another_move_is_read_but_not_valid() -> None:
    prompt = asked(Form.final_answer, prefill="FINAL_ANSWER:")
    for text in (" e2e4\nd2d4\ng1f3", " e2e4\nThen Nf3 follows."):
        read = read_answer(text, prompt)
        assert isinstance(read, ChatAnswer) and read.move == "e2e4"
        assert reason_of(text, prompt) is F.extra_text
    assert reason_of(" e2e4\nThe move e4 is the best.", prompt) is None
    # A tag marks its answer wherever it is.
    assert reason_of("<answer>e4</answer> prepares Nf3.", asked()) is None


def test_form_that_is_only_named_does_not_count_beside_an_answer() -> None:
    assert move_of("I write <answer></answer> tags: <answer>e4</answer>") == "e2e4"
    assert move_of("<answer>e4</answer> was in <answer>X</answer>") == "e2e4"


def test_words_beside_the_move_in_a_form_are_read_but_not_valid() -> None:
    assert move_of("<answer>The move is e4, of course</answer>") == "e2e4"
    assert reason_of("<answer>The move is e4, of course</answer>", asked()) is F.bad_move


def test_tag_that_is_not_closed_is_read_but_not_valid() -> None:
    for finished in (True, False):
        read = read_answer("<answer>e2e4", asked(), finished)
        assert isinstance(read, ChatAnswer) and read.move == "e2e4"
        assert read.failure == ParseFailure(F.other_form, "no </answer>")
    assert move_of("I think <answer> that <answer>e4</answer>") == "e2e4"


def test_completion_without_its_end_is_not_valid() -> None:
    read = read_answer("<answer>e2e4</answer> because", asked(), finished=False)
    assert isinstance(read, ChatAnswer) and read.move == "e2e4"
    assert read.failure and read.failure.reason is F.cut_off
    # A list that reached the limit has no last move.
    assert isinstance(read_answer("e2e4 d2d4 g1f", asked(), finished=False), ParseFailure)
    assert reason_of("e2e4 d2d4 g1f", asked(), finished=False) is F.cut_off


def test_text_without_a_move_has_no_answer() -> None:
    assert reason_of("I resign.", asked()) is F.no_answer
    assert reason_of("", asked()) is F.empty
    assert reason_of(" \n", asked(prefill="<answer>")) is F.empty


def test_prefill_belongs_to_the_answer_but_gives_none_by_itself() -> None:
    prompt = asked(prefill="<answer>")
    assert reason_of("e2e4</answer>", prompt) is None
    assert reason_of("e2e4", prompt) is F.other_form
    assert reason_of("e2e4 d2d4 g1f3", prompt) is F.two_answers
    assert reason_of("hello", asked(prefill="Not <answer>d2d4</answer>, but")) is F.no_answer
    assert reason_of("<answer>e2e4</answer>", asked(prefill="Not <answer>d2d4</answer>, but")) is None
    bare = asked(Form.bare, prefill="My move: 1.")
    assert reason_of(" e4", bare) is reason_of("e4", bare) is None
    assert reason_of("e4", asked(Form.bare, prefill="After d4 comes e2")) is None


# Examples in the forms that the public prompts and their readers document, in our words.
PUBLIC = [
    # Chess-R1: the prompt has opened the thinking; the answer in SAN with blanks around it.
    (
        [
            {"role": "system", "content": "Put the reasoning in <think> </think> and the move in <answer> </answer>."},
            {"role": "user", "content": f"Current FEN string: {START}\nLegal moves: Nf3 e4 d4"},
        ],
        "The knight controls e5 and d4.\n</think>\n<answer> Nf3 </answer>",
        ("g1f3", Form.answer),
    ),
    # AIcrowd: one sentence, then UCI in a tag.
    (
        [{"role": "user", "content": f"FEN: {START}. Answer by <rationale></rationale> and <uci_move></uci_move>."}],
        "<rationale>Takes the centre with e4 and frees Bf1.</rationale>\n<uci_move>e2e4</uci_move>",
        ("e2e4", Form.uci_move),
    ),
    # C1: free text, and a last line.
    (
        [{"role": "user", "content": f"Position: {START}\nLegal: e2e4 g1f3\nEnd with `FINAL_ANSWER: <uci>`."}],
        "Candidates are e2e4 and g1f3. After e2e4 e7e5 I stand well.\n\nFINAL_ANSWER: g1f3",
        ("g1f3", Form.final_answer),
    ),
    # Game Arena: free text, and SAN behind a label, in markdown or not.
    (
        [{"role": "user", "content": f'Game state in FEN:\n{START}\nFormat: "Final Answer: X" with X in SAN.'}],
        "I look at 1. e4 e5 2. Nf3.\n\n**Final Answer: e4**",
        ("e2e4", Form.final_answer),
    ),
    # Epoch: four characters behind a label.
    (
        [{"role": "user", "content": f'A FEN string is below. Conclude with the move as "MOVE: b1c3".\n\n{START}'}],
        "White develops the knight to c3 and holds d5.\n\nMOVE: b1c3",
        ("b1c3", Form.move_line),
    ),
    # Answers to mathematics, whose form many models keep.
    (
        [{"role": "user", "content": rf"{START}: best move? Put your final answer within \boxed{{}}."}],
        r"Therefore the move is \boxed{\text{e4}}.",
        ("e2e4", Form.boxed),
    ),
]


@pytest.mark.parametrize(("messages", "completion", "expected"), PUBLIC)
def test_public_format_is_read_as_its_authors_mean_it(
    messages: list[dict[str, str]], completion: str, expected: tuple[str, Form]
) -> None:
    prompt = parse_chat_prompt(dump_messages(messages))
    read = read_answer(completion, prompt)
    assert prompt.form is expected[1]
    assert isinstance(read, ChatAnswer) and read.valid, read
    assert (read.move, read.form) == expected
    assert json.loads(dump_messages(messages)) == messages


def test_aicrowd_resignation_is_no_move() -> None:
    read = read_answer("<uci_move>resign</uci_move>", asked(Form.uci_move))
    assert isinstance(read, ChatAnswer) and not read.is_move and read.text == "resign"


def test_words_are_counted_without_forms() -> None:
    assert own_words("<answer> e2e4 </answer>") == own_words(r"\boxed{e4}") == own_words("MOVE: e4") == 1
    assert own_words("I play e4") == 3


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.sampled_from([START, RICH]), st.data())
def test_every_legal_move_is_read_in_uci_and_in_san(fen: str, data: st.DataObject) -> None:
    board = chess.Board(fen)
    move = data.draw(st.sampled_from(list(board.legal_moves)))
    left, right = data.draw(st.sampled_from([("", ""), ("**", "**"), ("1. ", ""), ('"', '."'), ("\n", "\n")]))
    for written in (move.uci(), board.san(move), board.san(move).rstrip("+#"), board.lan(move)):
        assert move_of(f"So <answer>{left}{written}{right}</answer>", fen) == move.uci()


@pytest.mark.parametrize(
    "unit",
    [
        "<answer>",
        "<answer><move>",
        "e2e4 ",
        "MOVE: ",
        "MOVE: e4\n",
        "Final Answer:",
        "\\boxed{",
        "<think>",
        " ",
        "1.",
        "*",
        "x",
    ],
)
def test_a_hundred_thousand_characters_are_read(unit: str) -> None:
    heap = unit * (100_000 // len(unit))
    for text in (heap, f"<answer>{heap}", f"{heap}<answer>e4</answer>", f"<answer>{heap}</answer>"):
        read_answer(text, asked())
