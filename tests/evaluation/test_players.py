"""Moves of each player, the inputs that they depend on, and refused engines."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import chess
import pytest
import torch

from rookworld_rlvr.board.openings import OPENINGS, opening_board
from rookworld_rlvr.evaluation.engine_player import EnginePlayer, OpponentConfig, engine_player
from rookworld_rlvr.evaluation.match import MatchConfig
from rookworld_rlvr.evaluation.players import DecodingConfig, RandomPlayer, RetryingPlayer
from rookworld_rlvr.rollout.generator import GeneratorError
from rookworld_rlvr.tasks import task_named

BOARDS = [opening_board(opening) for opening in OPENINGS[:6]]
MATE = chess.Board("7k/5Q2/6K1/8/8/8/8/8 w - - 0 1")


def test_random_player_chooses_legal_moves_uniformly() -> None:
    draws = 4000
    counts = Counter(RandomPlayer().choose([chess.Board()] * draws, range(draws)))
    assert counts.keys() == {move.uci() for move in chess.Board().legal_moves}
    share = 1 / 20
    deviation = (share * (1 - share) / draws) ** 0.5
    assert all(abs(count / draws - share) < 4.5 * deviation for count in counts.values())


def test_random_player_depends_only_on_seed_position_and_game_number() -> None:
    together = RandomPlayer(3).choose(BOARDS, range(6))
    assert [RandomPlayer(3).choose([board], [i])[0] for i, board in enumerate(BOARDS)] == together
    assert RandomPlayer(4).choose(BOARDS, range(6)) != together != RandomPlayer(3).choose(BOARDS, range(6, 12))
    assert RandomPlayer().choose([chess.Board("7k/6Q1/6K1/8/8/8/8/8 b - - 0 1")], [0]) == [""]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("   M: e2e4 d2d4 E: 0.3 0.2 B: d2d4", "d2d4"),
        ("M: e2e4 E: nonsense B: e2e4", "e2e4"),
        ("M: e2e4 E: 0.3 B: Nf3 !", "Nf3 !"),
        ("M: e2e4 E: 0.3 B: e2e4 B: d2d4", "e2e4"),
        ("M: e2e4 E: 0.3", ""),
        ("", ""),
    ],
)
def test_best_move_is_read_after_its_marker_even_if_rest_is_malformed(answer: str, text: str) -> None:
    assert task_named("policy").move(answer, None) == text


def test_greedy_model_plays_its_best_move_independent_of_the_batch(
    small_player: Callable[..., Any],
) -> None:
    player = small_player()
    boards = [opening_board(opening) for opening in OPENINGS[:60]]
    chosen = player.choose(boards, range(60))
    assert chosen == [task_named("policy").move(answer, None) for answer in player.answers(boards, range(60))] and any(
        chosen
    )
    assert [player.choose([board], [9])[0] for board in BOARDS] == chosen[:6]


def test_sampled_answers_repeat_by_seed_and_leave_torch_random_state(
    small_player: Callable[..., Any],
) -> None:
    sampled = DecodingConfig(temperature=1.0)
    torch.manual_seed(5)
    first = small_player(sampled).answers(BOARDS, range(6))
    torch.manual_seed(6)
    state = torch.get_rng_state()
    assert small_player(sampled).answers(BOARDS, range(6)) == first
    assert small_player(sampled, 1).answers(BOARDS, range(6)) != first
    assert small_player(sampled).answers(BOARDS, range(1, 7)) != first
    assert torch.equal(torch.get_rng_state(), state)
    # With one token to draw from, sampling equals greedy decoding.
    assert small_player(DecodingConfig(1.0, 1)).answers(BOARDS, range(6)) == small_player().answers(BOARDS, range(6))


def test_full_strength_engine_is_deterministic_and_finds_a_mate(stockfish: str) -> None:
    boards = [*BOARDS, MATE]
    config = OpponentConfig(nodes=300, skill=20)
    with engine_player(config) as one, engine_player(config) as other:
        chosen = one.choose(boards, range(7))
        assert other.choose(boards[::-1], range(7))[::-1] == chosen
    assert chosen[-1] in ("f7g7", "f7f8", "f7h7", "f7e8")
    assert all(chess.Move.from_uci(uci) in board.legal_moves for uci, board in zip(chosen, boards, strict=True))


def test_random_moves_replaces_the_given_share_of_engine_moves(stockfish: str) -> None:
    boards, numbers = [chess.Board()] * 60, range(60)
    with engine_player(OpponentConfig(nodes=10, random_moves=1.0), seed=2) as player:
        assert player.choose(boards, numbers) == RandomPlayer(2).choose(boards, numbers)
    with engine_player(OpponentConfig(nodes=10, skill=20, random_moves=0.5), seed=2) as player:
        chosen = player.choose(boards, numbers)
    [(_, most)] = Counter(chosen).most_common(1)
    assert 20 <= most <= 45


@pytest.mark.parametrize(("attempts", "legal_at"), [(2, 0), (2, 1), (2, 2), (2, 3), (0, 1), (0, 0)])
def test_mistakes_are_the_illegal_attempts_before_the_first_legal_one(attempts: int, legal_at: int) -> None:
    texts = ["e2e5", "e7e5", "e2e9", "e2e4"]
    texts[legal_at] = "d2d4"

    class Scripted:
        def __init__(self, texts: list[str]) -> None:
            self._texts = texts

        def choose(self, boards: Sequence[chess.Board], numbers: Sequence[int]) -> list[str]:
            return self._texts[: len(boards)]

    player = RetryingPlayer(Scripted(texts), Scripted(texts[1:]), attempts, rescue=False)
    [chosen] = player.choose([chess.Board()], [7])
    forgiven = legal_at <= attempts
    assert chosen == (texts[legal_at] if forgiven else texts[attempts])
    assert player.mistakes[7] == min(legal_at, attempts + 1) and player.illegal[7] == (legal_at > 0)
    assert not player.replaced
    [rescued] = RetryingPlayer(Scripted(texts), Scripted(texts[1:]), attempts).choose([chess.Board()], [7])
    assert rescued == chosen if forgiven else chess.Move.from_uci(rescued) in chess.Board().legal_moves


def test_elo_outside_the_engine_range_is_refused(stockfish: str) -> None:
    with (
        pytest.raises(ValueError, match=r"elo: expected \d+ to \d+ of Stockfish.*, got 99"),
        engine_player(OpponentConfig(elo=99)),
    ):
        pass
    with engine_player(OpponentConfig(elo=1500, skill=3, nodes=10)) as player:
        assert player.engine.options["UCI_Elo"].min <= 1500
        assert chess.Move.from_uci(player.choose([chess.Board()], [0])[0]) in chess.Board().legal_moves


def test_engine_opponent_has_limited_strength_by_default(stockfish: str) -> None:
    assert MatchConfig().stockfish.skill == OpponentConfig().skill == 0
    options_set: list[dict[str, Any]] = []
    for config in (OpponentConfig(), OpponentConfig(elo=1500), OpponentConfig(skill=20)):
        with engine_player(config) as player:
            options_set.append(dict(player.engine.protocol.config))
    assert [options["Skill Level"] for options in options_set] == [0, 20, 20]
    assert [options["UCI_LimitStrength"] for options in options_set] == [False, True, False]
    assert options_set[1]["UCI_Elo"] == 1500


@pytest.mark.parametrize("changes", [{"nodes": 0}, {"elo": -1}, {"skill": 21}, {"random_moves": 1.1}])
def test_invalid_opponent_settings_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected an opponent's nodes from 1"):
        OpponentConfig(**changes)


def test_invalid_decoding_settings_are_refused() -> None:
    for changes in ({"temperature": -0.1}, {"temperature": float("nan")}, {"top_k": -1}):
        with pytest.raises(ValueError, match="expected a finite temperature from 0 and top_k from 0"):
            DecodingConfig(**changes)


def test_killed_engine_is_restarted_and_plays_the_same_moves(stockfish: str) -> None:
    with engine_player(OpponentConfig(nodes=300, skill=20)) as player:
        chosen = player.choose(BOARDS, range(6))
        killed = player.engine.transport.get_pid()
        os.kill(killed, signal.SIGKILL)
        assert player.choose(BOARDS, range(6)) == chosen
        assert player.engine.transport.get_pid() != killed


def test_binary_that_is_not_an_engine_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "engine"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    with (
        pytest.raises(ValueError, match=r"expected a UCI engine like Stockfish, got .*engine"),
        engine_player(OpponentConfig(path=str(script))),
    ):
        pass


def engine_script(path: Path, *, options: str, name: str = "Stockfish_16") -> Path:
    """Write an engine that has these options and exits when it is asked for a move."""
    path.write_text(
        "#!/bin/sh\n"
        "while read -r word rest; do case $word in\n"
        f"uci) for line in id_name_{name} {options} uciok; do echo $line | tr _ ' '; done;;\n"
        "isready) echo readyok;;\n"
        "go|quit) exit 0;;\n"
        "esac; done\n"
    )
    path.chmod(0o755)
    return path


SPIN = "option_name_{}_type_spin_default_1_min_1_max_99"
THREADS_AND_HASH = f"{SPIN.format('Threads')} {SPIN.format('Hash')}"


def test_engine_without_required_options_is_refused(tmp_path: Path) -> None:
    script = engine_script(tmp_path / "engine", options="")
    with pytest.raises(ValueError, match=r"expected a UCI engine like Stockfish, got .*engine: .*Threads"):
        EnginePlayer(OpponentConfig(path=str(script)))


def test_old_stockfish_or_other_engine_is_refused_by_name(tmp_path: Path) -> None:
    for name in ("Stockfish_14.1", "Crafty_25.2"):
        script = engine_script(tmp_path / "engine", options=THREADS_AND_HASH, name=name)
        shown = name.replace("_", " ")
        with pytest.raises(ValueError, match=f"expected Stockfish 15 or newer, got '{shown}' from .*engine"):
            EnginePlayer(OpponentConfig(path=str(script), skill=20))


def test_engine_that_cannot_restart_in_a_game_raises_generator_error(tmp_path: Path) -> None:
    script = engine_script(tmp_path / "engine", options=THREADS_AND_HASH)
    with (
        engine_player(OpponentConfig(path=str(script), skill=20)) as player,
        pytest.raises(GeneratorError, match=r"expected a move of .*engine in rnbqkbnr.*got (FileNotFound|Permission)"),
    ):
        script.unlink()
        player.choose([chess.Board()], [0])
    script = engine_script(tmp_path / "engine", options=THREADS_AND_HASH)
    with (
        engine_player(OpponentConfig(path=str(script), skill=20)) as player,
        pytest.raises(GeneratorError, match=r"got ValueError.*expected a UCI engine like Stockfish"),
    ):
        engine_script(script, options="")
        player.choose([chess.Board()], [0])
