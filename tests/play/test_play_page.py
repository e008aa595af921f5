"""The page in a browser: whole games, castling, promotion, and the board that the model predicts."""

import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import chess
import pytest

from rookworld_rlvr.play.api import PlayApi
from rookworld_rlvr.play.server import Server

CASTLING_AND_PROMOTION = "7k/P5pp/8/8/8/8/8/4K2R w K - 0 1"


@pytest.fixture
def opened(browser: Any, server: Server) -> Iterator[Callable[[int], Any]]:
    """Yield a function that opens the page. A message on its console fails the test."""
    pages = []

    def open_page(width: int) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900})
        # A busy machine may take longer than the 30 s that are the default.
        page.set_default_timeout(120_000)
        page.console = []
        page.on("console", lambda message: page.console.append(message.text))
        page.on("pageerror", lambda error: page.console.append(str(error)))
        page.goto(server.address)
        await_status(page, "Your move, White")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        assert page.console == []
        page.close()


def await_status(page: Any, pattern: str) -> str:
    from playwright.sync_api import expect

    expect(page.locator("#status")).to_contain_text(re.compile(pattern), timeout=60_000)
    text: str = page.inner_text("#status")
    return text


def click(page: Any, square: str) -> None:
    page.locator(f"#board [data-square={square}]").first.click(force=True)


def move(page: Any, uci: str) -> None:
    """Click a move, and the piece of a promotion in the dialog."""
    page.wait_for_timeout(250)
    click(page, uci[:2])
    click(page, uci[2:4])
    if len(uci) == 5:
        page.locator(f".promotion-dialog-button[data-piece=w{uci[4]}]").click()


def set_up(page: Any, fen: str) -> chess.Board:
    from playwright.sync_api import expect

    page.fill("#fen", fen)
    page.click("#start button")
    # The status alone does not tell: it is the same before the new position is shown.
    expect(page.locator("#position")).to_contain_text(fen.split()[0], timeout=60_000)
    await_status(page, "Your move")
    return chess.Board(fen)


def moves_shown(page: Any, start: chess.Board) -> chess.Board:
    """Return the position after the moves that the page shows."""
    board = start.copy()
    for word in page.inner_text("#moves").replace("…", ".").split():
        if not word.endswith("."):
            board.push_san(word)
    return board


def await_moves(page: Any, start: chess.Board, wanted: int) -> chess.Board:
    """Wait until the page shows the wanted number of moves, and return the position."""
    for _ in range(300):
        shown = moves_shown(page, start)
        if len(shown.move_stack) >= wanted:
            return shown
        page.wait_for_timeout(100)
    raise AssertionError(f"expected {wanted} moves, got {page.inner_text('#moves')}")


def strong_move(board: chess.Board) -> str:
    """Return a mate in one or two, or the move with the fewest replies without a capture, stalemate or repetition."""

    def worth(candidate: chess.Move) -> tuple[bool, bool, bool, int]:
        after = board.copy()
        after.push(candidate)
        if after.is_checkmate():
            return False, False, False, 0
        replies = list(after.legal_moves)
        bad = not replies or any(map(after.is_capture, replies)) or after.is_repetition(2)
        return True, bad, bad or not all(mates_behind(after, reply) for reply in replies), len(replies)

    return min(board.legal_moves, key=worth).uci()


def mates_behind(board: chess.Board, reply: chess.Move) -> bool:
    after = board.copy(stack=False)
    after.push(reply)
    return any(is_mate(after, answer) for answer in after.legal_moves)


def is_mate(board: chess.Board, answer: chess.Move) -> bool:
    board.push(answer)
    mate = board.is_checkmate()
    board.pop()
    return mate


@pytest.mark.parametrize("width", [390, pytest.param(1280, marks=pytest.mark.slow)])
def test_whole_game_with_castling_and_promotion_can_be_played(opened: Callable[[int], Any], width: int) -> None:
    page = opened(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    start = set_up(page, CASTLING_AND_PROMOTION)
    for planned in count():
        board = moves_shown(page, start)
        uci = ["e1g1", "a7a8q"][planned] if planned < 2 else strong_move(board)
        san = board.san(chess.Move.from_uci(uci))
        move(page, uci)
        shown = await_moves(page, start, len(board.move_stack) + 1)
        assert shown.move_stack[len(board.move_stack)] == chess.Move.from_uci(uci), san
        status = await_status(page, r"Your move|Game over")
        if "Game over" in status:
            break
        await_moves(page, start, len(board.move_stack) + 2)
        assert planned < 40
    assert status == "Game over: 1-0 checkmate"
    assert page.inner_text("#moves").startswith("1. O-O") and "=Q" in page.inner_text("#moves")


def test_predicted_board_is_marked_where_the_model_is_wrong(opened: Callable[[int], Any], api: PlayApi) -> None:
    board = chess.Board("r1b1k2r/pp1nbppp/2p1pn2/q7/2BP1B2/2N1PN2/PP3PPP/R2QK2R w KQkq - 4 9")
    predictions = (
        (move, api.predict_board({"start": board.fen(), "moves": [move.uci()]})) for move in board.legal_moves
    )
    found = ((move.uci(), told) for move, told in predictions if told["squares"] and told["predicted"])
    wrong = next(found, None)
    if wrong is None:
        pytest.skip("the model that ships predicts the right board behind every move of this position")
    uci, response = wrong
    page = opened(1280)
    page.select_option("#black", "you")
    set_up(page, board.fen())
    move(page, uci)
    await_status(page, "Your move, Black")
    page.locator("#prediction .bad").wait_for()
    assert page.inner_text("#prediction .bad") == f"wrong: {', '.join(response['wrong'])}"
    marked = page.locator("#predicted .marker-wrong")
    assert marked.count() == len(response["squares"]) and page.locator("#true .marker-wrong").count() == 0
    for shown, placement in (("predicted", response["predicted"]), ("true", response["true"])):
        pieces = page.eval_on_selector_all(
            f"#{shown} [data-piece]", "all => all.map(one => one.dataset.square + one.dataset.piece)"
        )
        placed = chess.BaseBoard(placement).piece_map().items()
        assert set(pieces) == {
            chess.square_name(square) + ("w" if piece.color else "b") + piece.symbol().lower()
            for square, piece in placed
        }


@pytest.mark.slow
def test_game_of_two_models_can_be_paused_and_taken_back(opened: Callable[[int], Any]) -> None:
    page = opened(1280)
    page.select_option("#white", "0")
    page.select_option("#black", "1")
    page.locator("#moves", has_text="3.").wait_for(timeout=60_000)
    page.click("#pause")
    page.wait_for_timeout(1500)
    before = page.inner_text("#moves")
    page.wait_for_timeout(1500)
    assert page.inner_text("#moves") == before and page.inner_text("#pause") == "Go on"
    page.click("#back")
    page.wait_for_timeout(500)
    assert before.startswith(page.inner_text("#moves")) and page.inner_text("#moves") != before
    assert page.locator("#answer table tbody tr, #answer table tr").count() > 1


def test_game_taken_back_to_a_model_move_says_that_it_is_paused(opened: Callable[[int], Any]) -> None:
    page = opened(1280)
    page.select_option("#black", "you")
    page.select_option("#white", "0")
    await_status(page, "Your move, Black")
    page.click("#back")
    await_status(page, "Paused, White to move")
    page.click("#pause")
    await_status(page, "Your move, Black")


def test_a_bad_fen_and_an_illegal_move_change_nothing(opened: Callable[[int], Any]) -> None:
    from playwright.sync_api import expect

    page = opened(1280)
    page.fill("#fen", "nonsense")
    page.click("#start button")
    page.locator("#error", has_text="expected a FEN").wait_for()
    # The console reports the refused request.
    assert len(page.console) == 1 and "400" in page.console[0]
    page.console.clear()
    move(page, "e2e5")
    page.wait_for_timeout(300)
    assert page.inner_text("#moves") == "" and "Your move, White" in page.inner_text("#status")
    move(page, "e2e4")
    await_moves(page, chess.Board(), 2)
    await_status(page, "Your move, White")
    page.click("#back")
    expect(page.locator("#moves")).to_have_text("", timeout=60_000)
