"""Prompts of the chat task: what ours say, and what is read from anybody's."""

import json
from itertools import product

import chess
import pytest

from rookworld_rlvr.tasks.chat.prompts import (
    ChatPreset,
    ChatPrompt,
    ChatPromptConfig,
    Form,
    Notation,
    chat_prompt,
    draw_board,
    dump_messages,
    parse_chat_prompt,
    shuffled_legal_moves,
    write_answer,
)
from rookworld_rlvr.tasks.chat.reader import ChatAnswer, move_words, read_answer
from rookworld_rlvr.tasks.chat.task import ChatTask
from rookworld_rlvr.tasks.types import PromptError

# White mates by h5f7, which SAN shows.
FEN = "r1bqkb1r/pppp1ppp/2n2n2/4p2Q/2B1P3/8/PPPP1PPP/RNB1K1NR w KQkq - 4 4"
OTHER_FEN = "8/P6k/8/8/8/8/8/K7 w - - 0 1"
MATED = "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNQBKBNR w KQkq - 1 3"
FORMS = {
    ChatPreset.plain: (Form.answer, Notation.uci, False, False),
    ChatPreset.r1: (Form.answer, Notation.san, True, True),
    ChatPreset.aicrowd: (Form.uci_move, Notation.uci, False, True),
    ChatPreset.c1: (Form.final_answer, Notation.uci, False, True),
    ChatPreset.game_arena: (Form.final_answer, Notation.san, False, True),
}


def messages(config: ChatPromptConfig, fen: str = FEN) -> list[dict[str, str]]:
    loaded = json.loads(chat_prompt(fen, config))
    assert all(message.keys() == {"role", "content"} for message in loaded)
    return list(loaded)


def of_user(text: str, *before: tuple[str, str], prefill: str = "") -> ChatPrompt:
    loaded = [{"role": role, "content": content} for role, content in (*before, ("user", text))]
    return parse_chat_prompt(
        dump_messages([*loaded, *([{"role": "assistant", "content": prefill}] if prefill else [])])
    )


def test_plain_prompt_is_one_user_message_with_position_side_and_legal_moves() -> None:
    [message] = messages(ChatPromptConfig())
    assert message["role"] == "user"
    lines = message["content"].splitlines()
    assert lines[0] == f"Chess position in FEN: {FEN}"
    assert lines[1] == "Side to move: White"
    assert set(lines[2].removeprefix("Legal moves: ").split()) == {move.uci() for move in chess.Board(FEN).legal_moves}
    assert lines[3] == (
        "Choose the best move for White. Write only <answer>X</answer>, where X is the move in UCI notation."
    )


@pytest.mark.parametrize("preset", ChatPreset)
def test_preset_is_read_as_what_it_asks_for(preset: ChatPreset) -> None:
    prompt = parse_chat_prompt(chat_prompt(FEN, ChatPromptConfig(preset)))
    assert (prompt.form, prompt.notation, prompt.thinks, prompt.reasons) == FORMS[preset]
    assert (prompt.fen, prompt.prefill) == (FEN, "")


@pytest.mark.parametrize("preset", ChatPreset)
def test_options_override_every_preset(preset: ChatPreset) -> None:
    for form, notation, legal, board, thinking in product(Form, Notation, *[(False, True)] * 3):
        config = ChatPromptConfig(preset, form, notation, legal, board, thinking, prefill="auto")
        text = "\n".join(message["content"] for message in messages(config))
        prompt = parse_chat_prompt(chat_prompt(FEN, config))
        assert (prompt.form, prompt.notation) == (form, notation)
        assert prompt.thinks is prompt.reasons is thinking
        assert (draw_board(chess.Board(FEN)) in text) is board
        assert (" ".join(shuffled_legal_moves(chess.Board(FEN), notation)) in text) is legal


@pytest.mark.parametrize("preset", ChatPreset)
@pytest.mark.parametrize("form", Form)
def test_best_completion_is_valid_behind_any_prefill(preset: ChatPreset, form: Form) -> None:
    beginnings = ("", "auto", "<think>", "<think>\n\n</think>\n\n<answer>", "The answer is", "<")
    for thinking, prefill, move in product((None, True, False), beginnings, ("h5f7", "Qxf7#")):
        config = ChatPromptConfig(preset, form, thinking=thinking, prefill=prefill)
        prompt = parse_chat_prompt(chat_prompt(FEN, config))
        if form is not Form.answer and "<answer>" in prompt.prefill:
            continue  # What follows would be within another form.
        read = read_answer(write_answer(prompt, move), prompt)
        assert isinstance(read, ChatAnswer) and read.valid and read.move == "h5f7", (config, read)


@pytest.mark.parametrize("preset", ChatPreset)
@pytest.mark.parametrize("notation", Notation)
def test_instructions_show_no_move_in_a_form(preset: ChatPreset, notation: Notation) -> None:
    for form in set(Form) - {Form.bare}:
        config = ChatPromptConfig(preset, form, notation)
        text = "\n".join(message["content"] for message in messages(config))
        read = read_answer(text, parse_chat_prompt(chat_prompt(FEN, config)))
        assert not (isinstance(read, ChatAnswer) and read.is_move and read.form is not Form.bare)
        how = text.rpartition("X is the move")[0].rpartition("\n")[2]
        assert move_words(how, FEN) == ()


def test_auto_prefill_is_what_the_prompt_asks_for_first() -> None:
    def prefill(**options: object) -> str:
        return parse_chat_prompt(chat_prompt(FEN, ChatPromptConfig(prefill="auto", **options))).prefill  # type: ignore[arg-type]

    assert prefill() == "<answer>"
    assert prefill(form=Form.final_answer) == "FINAL_ANSWER:"
    assert prefill(form=Form.bare) == ""
    assert prefill(thinking=True) == prefill(preset=ChatPreset.r1) == "<think>"
    assert prefill(preset=ChatPreset.aicrowd) == "<rationale>"
    assert prefill(preset=ChatPreset.c1) == ""


def test_answers_with_words_before_them_may_be_long() -> None:
    def limit(**options: object) -> int:
        return ChatTask(ChatPromptConfig(**options)).max_new_tokens  # type: ignore[arg-type]

    assert (limit(), limit(prefill="auto"), limit(thinking=True), limit(preset=ChatPreset.r1)) == (24, 16, 512, 512)
    assert limit(prefill="auto", thinking=True) == 512


def test_prefill_that_ends_with_a_blank_is_refused() -> None:
    with pytest.raises(ValueError, match=r"chat\.prefill: expected no blank at its end, got 'My move: '"):
        ChatPromptConfig(prefill="My move: ")


def test_prompt_of_an_impossible_position_is_refused() -> None:
    with pytest.raises(ValueError, match="impossible position"):
        chat_prompt("8/8/8/8/8/8/8/8 w - - 0 1", ChatPromptConfig())


def test_prompt_of_a_mate_has_no_line_of_legal_moves() -> None:
    [message] = messages(ChatPromptConfig(), MATED)
    assert "Legal moves" not in message["content"]


def test_order_of_legal_moves_depends_on_the_position_alone() -> None:
    board = chess.Board(FEN)
    ucis = shuffled_legal_moves(board, Notation.uci)
    assert [board.parse_san(san).uci() for san in shuffled_legal_moves(board, Notation.san)] == ucis
    assert ucis != sorted(ucis) and ucis != [move.uci() for move in board.legal_moves]
    later = chess.Board(FEN.replace("4 4", "9 30"))
    assert shuffled_legal_moves(later, Notation.uci) == ucis


def test_place_of_a_move_is_not_related_to_its_squares() -> None:
    # Mean place of the alphabetically first move over 200 positions: 0.5 of the list, with a standard error of 0.02.
    board, places = chess.Board(), []
    for number in range(200):
        moves = shuffled_legal_moves(board, Notation.uci)
        places.append(moves.index(min(moves)) / max(1, len(moves) - 1))
        board.push_uci(moves[number % len(moves)])
        if board.is_game_over():
            board.reset()
    assert abs(sum(places) / len(places) - 0.5) < 0.08


def test_notation_san_shows_the_mate() -> None:
    assert "Qxf7#" in shuffled_legal_moves(chess.Board(FEN), Notation.san)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("Write <answer>e4</answer>.", Form.answer),
        ("First <answer>, or rather <uci_move>e2e4</uci_move>.", Form.uci_move),
        ("Your <move>.", Form.move),
        (r"Put it into \boxed{}.", Form.boxed),
        ('End with "Final Answer: X".', Form.final_answer),
        ("End with FINAL_ANSWER: <uci>.", Form.final_answer),
        ("End with FINAL_ANSWER: <move>.", Form.final_answer),
        ("End with FINAL_ANSWER: <move>e2e4</move>.", Form.move),
        ("End with **MOVE**: b1c3", Form.move_line),
        ("Side to move: White. Which move would you play?", Form.bare),
    ],
)
def test_last_known_form_of_the_instructions_is_the_one_asked_for(text: str, form: Form) -> None:
    assert of_user(f"{text}\n{FEN}").form is form
    assert of_user(FEN, ("system", text)).form is form


@pytest.mark.parametrize(
    ("text", "notation"),
    [
        ("Answer in SAN, such as Nf3.", Notation.san),
        ("Answer in standard algebraic notation.", Notation.san),
        ("Answer in UCI. Do not use SAN.", Notation.uci),
        ("Legal moves in SAN: Qxf7+ Qxf7# d3 Nf3", Notation.san),
        ("Not in SAN. Legal moves: h5f7, d2d3", Notation.uci),
        ("What do you play?", Notation.uci),
    ],
)
def test_notation_is_that_of_the_moves_shown_else_the_first_one_named(text: str, notation: Notation) -> None:
    assert of_user(f"{FEN}\n{text}").notation is notation


def test_fen_is_the_first_valid_one_of_the_last_user_message_with_one() -> None:
    impossible = "8/8/8/8/8/8/8/8 w - - 0 1"
    assert of_user(f"'{impossible}' was a joke. FEN: `{FEN}`, then {OTHER_FEN}.").fen == FEN
    shots = (("user", f"FEN: {OTHER_FEN}"), ("assistant", "<answer>a7a8q</answer>"))
    assert of_user(f"FEN: {FEN}", *shots).fen == FEN
    assert of_user("That was illegal. Again, please.", *shots).fen == OTHER_FEN


def test_fen_without_counters_is_completed() -> None:
    assert of_user(FEN.removesuffix(" 4 4")).fen == FEN.replace("4 4", "0 1")


def test_thinking_is_asked_for_by_the_instructions_or_begun_by_the_prefill() -> None:
    assert of_user(f"{FEN} Use <think> and </think>.").thinks
    assert of_user(FEN, prefill="<think>\nWell").thinks
    # An empty thinking, by which a template turns it off.
    assert not of_user(FEN, prefill="<think>\n\n</think>").thinks
    assert not of_user(f"{FEN} Think step by step.").thinks


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (f"P: {FEN}", "expected chat messages as JSON"),
        ("{}", "expected a list of chat messages"),
        ("[]", "expected a list of chat messages"),
        ("[" * 100_000, "expected chat messages as JSON"),
        ('["text"]', "exactly role and content"),
        ('[{"role": "user", "content": "x", "name": "y"}]', "exactly role and content"),
        ('[{"role": "user", "content": [{"type": "text", "text": "x"}]}]', "role and content to be texts"),
        ('[{"role": "user", "content": "no position"}]', "FEN of a possible position"),
        (dump_messages([{"role": "assistant", "content": FEN}]), "a user message before the answer"),
        (dump_messages([{"role": "system", "content": FEN}]), "a user message before the answer"),
    ],
)
def test_anything_but_messages_with_a_position_is_a_prompt_error(prompt: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        parse_chat_prompt(prompt)
