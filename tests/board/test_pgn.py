"""PGN as programs and people write it is read as python-chess replays it, or refused with game and line."""

import io
from collections.abc import Callable
from pathlib import Path

import chess
import chess.pgn
import pytest

from rookworld_rlvr.board.pgn import read_pgn
from rookworld_rlvr.board.positions import count_games, games_from_pgn, positions_from_pgn
from rookworld_rlvr.tasks.audit import audit

PAWN_ENDING = "4k3/8/8/8/8/8/3P4/4K3 w - - 0 1"
KNIGHTS = "rnbqkb1r/pppp1ppp/5n2/4p3/4P3/2N5/PPPP1PPP/R1BQKBNR w KQkq - 2 3"
SAME_AS_PYTHON_CHESS = {
    "ChessBase": b"""[Event "M\xfcnchen op"]
[Site "?"]
[Date "1998.??.??"]
[Round "?"]
[White "M\xfcller, Karl"]
[Black "Huzman, A."]
[Result "1/2-1/2"]
[ECO "B22"]
[WhiteElo "2405"]
[EventDate "1998.03.12"]

{[%evp 0,6,19,25,-12] An old idea.} 1. e4 c5 2. c3 $5 {[%cal Gd2d4,Rd8h4][%csl Ge4]
} 2... Nf6 (2... d5 {main} 3. exd5 Qxd5 (3... Nf6 $6 4. Bb5+ $1 Nc6) (2... -- {a threat} 3. d4) 4. d4)
3. e5 Nd5 4. d4 $14 cxd4 $146 5. Nf3 Nc6 6. cxd4 d6 7. Bc4 Nb6 1/2-1/2

""",
    "Scid": b"""[Event "Club"]
[Site "?"]
[Date "????.??.??"]
[Round "?"]
[White "?"]
[Black "?"]
[Result "*"]

1.e4 e5 2.Nf3
  ( 2.f4 exf4
    ( 2...d5!? )
  3.Nf3 )
2...Nc6 $2 ; a remark up to the end of the line with 3. Qh5
3.Bb5 a6 4.Bxc6 dxc6 5.O-O f6 6.d4 *
\x1a
""",
    "TWIC": b"""[Event "Masters"]\r
[Site "London ENG"]\r
[Date "2024.01.05"]\r
[Round "1.1"]\r
[White "One,A"]\r
[Black "Two,B"]\r
[Result "0-1"]\r
[WhiteTitle "GM"]\r
[Opening "Fool's mate"]\r
\r
1.f3 e5 2.g4 Qh4# 0-1\r
\r
[Event "Masters"]\r
[Result "1-0"]\r
\r
1-0\r
""",
    "Lichess": b"""\xef\xbb\xbf[Event "Rated Blitz game"]
[Site "https://lichess.org/abcdefgh"]
[Result "1-0"]
[UTCDate "2024.02.01"]
[Variant "Standard"]
[TimeControl "180+2"]
[Termination "Normal"]

1. e4 { [%eval 0.3] [%clk 0:03:00] } 1... e5 { [%eval 0.25] [%clk 0:03:00] } 2. Bc4?! { (0.25 -> -0.3) Inaccuracy. } \
2... Nc6 { [%clk 0:02:58] } 3. Qh5 Nf6?? { [%eval #1] } 4. Qxf7# { [%clk 0:02:50] } { White wins. } 1-0


[Event "From a position"]
[Variant "From Position"]
[FEN "4k3/8/8/8/8/8/3P4/4K3 w - - 0 1"]
[SetUp "1"]
[Result "*"]

1. d4 Kd7 2. d5 *


""",
    "chess.com": b"""[Event "Live Chess"]
[Site "Chess.com"]
[Date "2023.05.06"]
[Result "0-1"]
[CurrentPosition "rnbqkbnr/pppp1ppp/8/4p3/4P3/8/PPPP1PPP/RNBQKBNR w KQkq -"]
[Timezone "UTC"]
[Link "https://www.chess.com/game/live/1"]

1. e4 {[%clk 0:09:59.9]} 1... e5 {[%clk 0:09:58]} 0-1

[Event "Live Chess - Chess"]
[Result "1-0"]

1-0
""",
    "missing results, and a comment that looks like tags": b"""[Event "One"]

1. d4 {see
[Event "Not a game"]

there} d5 2. c4

[Event "Two"]

1. c4 c5 2. Nf3 ( 2. g3 )
""",
    "escapes, old castling and no spaces": b"""% exported
[Event "Quoted \\"name\\""]
[White "with a "quote" inside"]

% 1. Nf3 is no move
1.e4e5 2.Nf3 Nc6 3.Bc4 Bc5 4.0-0 Nf6 5.d3 0-0 *
""".replace(b"1.e4e5", b"1.e4 e5"),
    "long notation, en passant and promotion": b"""[FEN "4k3/P6p/8/4Pp2/8/8/8/4K3 w - f6 0 40"]

40. e5xf6 e.p. Ke8-f7 41. a7-a8=Q+- Kxf6!? 42. Qa8-f3+ *
""",
    "no tags, and several games": b"""1. e4 e5 2. Nf3 1-0

1. d4 d5 0-1

1. c4 *
""",
    "null moves": b"""[Event "Training"]
[Result "*"]

1. e4 e5 2. Nf3 Nc6 3. d4 exd4 4. Nxd4 Nxd4 5. Qxd4 -- 6. c4 Z0 7. Nc3 @@@@ 8. Be3 d6 9. 0000 Nf6 10. O-O-O *
""",
}
Writer = Callable[[str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "games.pgn"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


def replayed(text: bytes) -> list[str]:
    """Return the positions of all games as python-chess replays them, except those in which the game is over."""
    file, fens = io.StringIO(text.decode("utf-8", errors="replace")), list[str]()
    while game := chess.pgn.read_game(file):
        assert not game.errors
        nodes = [game, *game.mainline()]
        fens += [node.board().fen() for node in nodes if node.board().outcome(claim_draw=False) is None]
    return fens


@pytest.mark.parametrize("name", SAME_AS_PYTHON_CHESS)
def test_exports_of_common_programs_give_the_positions_of_python_chess(name: str, write: Writer) -> None:
    text = SAME_AS_PYTHON_CHESS[name]
    path = write(text)
    positions = list(positions_from_pgn(path))
    assert positions == replayed(text) and positions
    audited = audit(path)
    assert (audited.rows, audited.valid) == (len(positions), len(positions))
    assert all(chess.Board(fen).is_valid() for fen in positions)


def test_null_move_passes_the_turn(write: Writer) -> None:
    path = write("1. e4 e5 2. Nf3 Nc6 3. Bc4 -- 4. d4 exd4 5. O-O d6 1-0\n")
    [game] = games_from_pgn(path)
    before, after = game.parts()
    assert before[-1] == "r1bqkbnr/pppp1ppp/2n5/4p3/2B1P3/5N2/PPPP1PPP/RNBQK2R b KQkq - 3 3"
    assert after[0] == "r1bqkbnr/pppp1ppp/2n5/4p3/2B1P3/5N2/PPPP1PPP/RNBQK2R w KQkq - 4 4"
    assert after[-1] == "r1bqkbnr/ppp2ppp/2np4/8/2BpP3/5N2/PPP2PPP/RNBQ1RK1 w kq - 0 6"
    assert list(positions_from_pgn(path)) == [*before, *after]
    [line] = count_games(path).warnings()
    assert line == "1 game has null moves, the first at line 1 in game 1: the turn passes, and the game goes on"


def test_null_moves_of_variations_are_neither_counted_nor_read(write: Writer) -> None:
    path = write("1. e4 e5 (1... -- 2. Qh5 Z0 3. Qxe5) 2. Nf3 1-0\n")
    assert len(list(positions_from_pgn(path))) == 4 and count_games(path).warnings() == []


@pytest.mark.parametrize(
    ("text", "last"),
    [
        # Without a blank line between the games; on the line of the result; with indented tags.
        ('[Event "One"]\n\n1. d4 1-0\n[Event "Two"]\n[FEN "{fen}"]\n\n1. d4 *\n', 2),
        ('[Event "One"]\n\n1. d4 1-0 [Event "Two"] [FEN "{fen}"] 1. d4 *\n', 2),
        ('  [Event "Two"]\n  [FEN "{fen}"]\n\n1. d4 *\n', 1),
        # Blank lines between tags and moves, inside the tags, and inside the moves.
        ('[Event "Two"]\n[FEN "{fen}"]\n\n\n1. d4 *\n', 1),
        ('[Event "Two"]\n\n\n[FEN "{fen}"]\n\n1. d4 *\n', 1),
        # No blank line at all, several tags in a line, and another spelling.
        ('[Event "Two"]\n[FEN "{fen}"]\n1. d4 *\n', 1),
        ('[Event "Two"] [FEN "{fen}"]\n\n1. d4 *\n', 1),
        ('[event "Two"]\n[Fen "{fen}"]\n\n1. d4 *\n', 1),
        # A game that has tags alone before it, which may have a FEN of its own.
        ('[Event "One"]\n[FEN "{other}"]\n\n[Event "Two"]\n[FEN "{fen}"]\n\n1. d4 *\n', 2),
    ],
)
def test_a_fen_tag_counts_wherever_the_blank_lines_are(text: str, last: int, write: Writer) -> None:
    games = list(games_from_pgn(write(text.replace("{fen}", PAWN_ENDING).replace("{other}", KNIGHTS))))
    assert len(games) == last
    assert [fen for part in games[-1].parts() for fen in part] == [PAWN_ENDING, "4k3/8/8/8/3P4/8/8/4K3 b - - 0 1"]


def test_files_that_were_put_together_are_read_with_their_marks(write: Writer) -> None:
    one = '\ufeff[Event "One"]\n\n1. e4 *\n\n'
    assert len(list(games_from_pgn(write(one + one)))) == 2


@pytest.mark.parametrize("black", ["1... e5", "1. ... e5", "1 … e5", "...e5", "1.…e5"])
def test_dots_before_a_move_of_black_may_stand_anywhere(black: str, write: Writer) -> None:
    [game] = games_from_pgn(write(f"1. e4 {{a comment}} {black} 2. Nf3 *\n"))
    assert [move.uci() for move in game.moves] == ["e2e4", "e7e5", "g1f3"]


@pytest.mark.parametrize("null", ["--", "Z0", "0000", "@@@@", "0000!?", "--?"])
def test_every_spelling_of_a_null_move_is_read(null: str, write: Writer) -> None:
    [game] = games_from_pgn(write(f"1. e4 {null} 2. d4 *\n"))
    assert [move.uci() for move in game.moves] == ["e2e4", "0000", "d2d4"]


def test_a_game_without_a_fen_tag_begins_anew_after_one_with_tags_alone(write: Writer) -> None:
    games = list(games_from_pgn(write(f'[Event "One"]\n[FEN "{PAWN_ENDING}"]\n\n[Event "Two"]\n\n1. e4 *\n')))
    assert [game.start.fen() for game in games] == [PAWN_ENDING, chess.STARTING_FEN]


def test_blank_lines_inside_the_moves_do_not_end_a_game(write: Writer) -> None:
    path = write('[Event "One"]\n\n1. e4 e5\n\n2. Nf3 Nc6\n\n(2... d6)\n\n3. Bb5 1-0\n')
    assert len(list(games_from_pgn(path))) == 1
    assert list(positions_from_pgn(path))[-1] == "r1bqkbnr/pppp1ppp/2n5/1B2p3/4P3/5N2/PPPP1PPP/RNBQK2R b KQkq - 3 3"


@pytest.mark.parametrize("between", ["\n", " "])
def test_the_moves_after_a_result_are_those_of_another_game(between: str, write: Writer) -> None:
    games = list(games_from_pgn(write(f"1. e4 e5 1-0{between}1. d4 d5 0-1\n")))
    assert [[move.uci() for move in game.moves] for game in games] == [["e2e4", "e7e5"], ["d2d4", "d7d5"]]


def test_figurines_and_castling_in_small_letters_are_read(write: Writer) -> None:
    [game] = games_from_pgn(write("1. e4 e5 2. ♘f3 ♞c6 3. ♗c4 ♝c5 4. o-o *\n"))
    assert [move.uci() for move in game.moves][2:] == ["g1f3", "b8c6", "f1c4", "f8c5", "e1g1"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_a_byte_order_mark_tells_the_encoding(encoding: str, write: Writer) -> None:
    assert len(list(positions_from_pgn(write('[Event "Ä"]\n\n1. e4 e5 *\n'.encode(encoding))))) == 3


@pytest.mark.parametrize(
    ("text", "named"),
    [
        # python-chess reads the pawn moves f3 and f6, and castles for the wrong side.
        ("1. Sf3 Sf6 *\n", "a move in English notation, got 'Sf3', game 1, {}:1"),
        ("1. e4 e5\n2. nf3 *\n", "a move in English notation, got 'nf3', game 1, {}:2"),
        ("1. e4 e5 2. Nf3 Nzc6? 3. d4 *\n", "'Nzc6?', game 1, {}:1"),
        ("1. e4 — 2. d4 *\n", "'—', game 1, {}:1"),
        ("1. e4 e5 2. Nf3 ??? 3. Bb5 *\n", "a move of Black, got 3., game 1, {}:1"),
        ("1. e4 e5 2. Nf3 3. d3 *\n", "a move of Black, got 3., game 1, {}:1"),
        ("1. e4 e5 2... Nc6 *\n", "a move of White, got 2..., game 1, {}:1"),
        ("1. e4 e5 *\n\n23. Qd4 Kf8 1-0\n", "to begin with move 1, got 23., game 2, {}:3"),
        ("1. e4 e5\n1. d4 d5 *\n", "move 2, or a result or a blank line before another game, got 1., game 1, {}:2"),
        ("1. e4 e5 2. Qh5 Nc6 3. Qxf7+ -- 4. d4 *\n", "a null move in check"),
        ('[FEN "8/8/8/8"\n[Event "?"]\n\n1. e4 *\n', """a tag [Name "value"], got '[FEN "8/8/8/8"', game 1, {}:1"""),
        ("[FEN 8/8]\n\n1. e4 *\n", "a tag [Name"),
        (f'[Event "x] [FEN "{PAWN_ENDING}"]\n\n1. d4 *\n', "a tag [Name"),
        (f'[FEN "{PAWN_ENDING}"]\n[FEN "{KNIGHTS}"]\n\n1. d4 *\n', "one value of the tag 'fen'"),
        ('[Event "a"]\n\n1. e4 {open\n1... e5 *\n\n[Event "b"]\n\n1. d4 *\n', "comment that begins in line 3 to end"),
        (
            '1. e4 {open\n\n[Event "b"]\n\n1. d4 {closed} *\n',
            "comment that begins in line 1 to end before the next",
        ),
        ('1. e4 (1. d4\n\n[Event "b"]\n\n1. d4 *\n', "variation that begins in line 1 to end before the next game"),
        ("1. e4 {a {b} c} e5 *\n", "'c'"),
        ("1. e4 ) e5 *\n", "an opening bracket before the closing one, got ')', game 1, {}:1"),
        (
            '[FEN "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1;"]\n\n1. e4 Ke7 *\n',
            "invalid fullmove number in fen: '4k3/8/8/8/8/8/4P3/4K3 w - - 0 1;', game 1, {}:1",
        ),
        (
            '[FEN "4k3/8/8/8/8/8/4P3/4K3 b - - 0 999999"]\n\n999999... Ke7 *\n',
            "counters of one to five digits, got 4k3/8/8/8/8/8/4P3/4K3 b - - 0 999999, game 1, {}:1",
        ),
        ('[Variant "Crazyhouse"]\n\n1. e4 *\n', "standard chess from a valid position"),
    ],
)
def test_text_that_cannot_be_read_for_sure_is_refused_with_game_and_line(text: str, named: str, write: Writer) -> None:
    path = write(text)
    with pytest.raises(ValueError) as caught:
        list(positions_from_pgn(path))
    assert str(caught.value).startswith("expected ") and named.format(path) in str(caught.value)


@pytest.mark.parametrize("end", ["3. B", "3. Bb5 {an open", "3. Bb5 (3. d4", "3. Bb5 1-", "3. Bb5 1/2-"])
def test_a_game_that_is_cut_off_has_no_result(end: str, write: Writer) -> None:
    counts = count_games(write(f"1. d4 *\n\n1. e4 e5 2. Nf3 Nc6 {end}"))
    assert counts.games == 2 and counts.without_result == ((2, 3),)


def test_games_are_read_from_a_text_in_memory() -> None:
    [game] = read_pgn(["1. e4\n", "1... e5 *\n"], "text")
    assert (game.number, game.line, game.has_result, len(game.moves)) == (1, 2, True, 2)
