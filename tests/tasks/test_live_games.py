"""Games that a policy plays while it trains: what they ask, how they go on, what stays out."""

import json
from collections.abc import Sequence

import chess
import pytest

from rookworld_rlvr.board.fen import parse_fen, position_key
from rookworld_rlvr.board.openings import OPENINGS, opening_board
from rookworld_rlvr.tasks.environment import environment_truth, parse_environment, parse_environment_prompt
from rookworld_rlvr.tasks.live_games import LiveGames, LiveGamesConfig
from rookworld_rlvr.tasks.sampler import MixtureConfig, Sampler
from rookworld_rlvr.tasks.types import Example, Task

STANDARD = f"P: {chess.STARTING_FEN}"
CORPUS = [Example(Task.policy, "P: 8/8/8/8/8/8/8/K1k5 w - - 0 1", None)] * 3 + [
    Example(Task.environment, "A: 8/8/8/8/8/8/8/K1k5 w - - 0 1+a1a2+a1a2+", None)
] * 3


def games(seed: int = 0, excluded: Sequence[str] = (), **settings: float) -> LiveGames:
    config = LiveGamesConfig(**({"fraction": 1.0, "games": 2, "opening_fraction": 0.0} | settings))  # type: ignore[arg-type]
    return LiveGames(config, seed=seed, excluded=excluded)


def says(*moves: str) -> list[str]:
    return [f"M: {move} E: 0.0 B: {move}" for move in moves]


def asked(live: LiveGames) -> str:
    example = live.next(Task.policy)
    assert example is not None and example.completion is None
    return example.prompt


def fen_after(*moves: str) -> str:
    board = chess.Board()
    for move in moves:
        board.push_uci(move)
    return board.fen()


def test_the_first_legal_move_of_the_completions_is_played_and_the_position_behind_it_asked_about() -> None:
    live = games()
    assert [asked(live), asked(live)] == [STANDARD, STANDARD]
    live.play(STANDARD, says("e2e5", "g1f3", "e2e4"))
    assert sorted([asked(live), asked(live)]) == sorted([f"P: {fen_after('g1f3')}", STANDARD])


def test_what_was_written_and_played_is_asked_of_the_environment_with_python_chess_s_answer() -> None:
    live = games()
    assert live.next(Task.environment) is None
    live.play(STANDARD, says("e2e5", "g1f3", "e2e4"))
    found = [live.next(Task.environment), live.next(Task.environment)]
    assert live.next(Task.environment) is None
    for example, uci, reward in zip(found, ("e2e5", "g1f3"), (-1.0, 0.001), strict=True):
        assert example is not None and example.completion is not None
        prompt, answer = parse_environment_prompt(example.prompt), parse_environment(example.completion)
        assert (prompt.uci, prompt.history) == (uci, (uci,)) and answer == environment_truth(prompt)
        assert answer.reward == reward


def test_a_game_without_a_legal_move_ends_and_another_begins() -> None:
    live = games(games=1)
    live.play(STANDARD, says("e2e4"))
    live.play(asked(live), ["", "M: e7e5", *says("e7e4")])
    assert asked(live) == STANDARD and live.ends == {"illegal": 1}


@pytest.mark.parametrize(
    ("moves", "how"),
    [("f2f3 e7e5 g2g4 d8h4", "won"), ("g1f3 g8f6 f3g1 f6g8 " * 4, "drawn"), ("e2e4 e7e5 g1f3 b8c6 f1c4", "stopped")],
)
def test_a_game_ends_by_rule_and_at_its_limit(moves: str, how: str) -> None:
    live = games(games=1, max_halfmoves=5 if how == "stopped" else 200)
    for move in moves.split():
        live.play(asked(live), says(move))
    assert live.ends == {how: 1} and asked(live) == STANDARD


def test_held_out_positions_are_never_asked_about() -> None:
    barred = position_key(chess.Board(fen_after("e2e4")))
    live = games(games=1, excluded=[barred])
    live.play(STANDARD, says("e2e4"))
    assert asked(live) == STANDARD and live.ends == {"stopped": 1}
    openings = games(games=8, opening_fraction=0.5, excluded=[position_key(chess.Board())])
    assert STANDARD not in {asked(openings) for _ in range(8)}
    with pytest.raises(ValueError, match="starts that are not held out"):
        games(excluded=[position_key(chess.Board())])


def test_openings_begin_their_share_of_the_games() -> None:
    live = games(games=400, opening_fraction=0.25)
    prompts = [asked(live) for _ in range(400)]
    lines = {f"P: {opening_board(opening).fen()}" for opening in OPENINGS}
    assert set(prompts) <= lines | {STANDARD}
    assert 0.17 < sum(prompt != STANDARD for prompt in prompts) / 400 < 0.33


def test_a_prompt_that_no_game_asked_changes_nothing() -> None:
    live = games()
    before = live.state_dict()
    live.play(f"P: {fen_after('e2e4')}", says("e7e5"))
    assert live.state_dict() == before


def test_a_sampler_draws_its_share_from_the_games_of_each_task() -> None:
    live = games(fraction=0.25, games=4)
    sampler = Sampler(CORPUS, MixtureConfig(1.0, 1.0), 0, live)
    for _ in range(40):
        sampler.play(Example(Task.policy, STANDARD, None), says("e2e5"))
    drawn = sampler.draw(80)
    ours = [example for example in drawn if example not in CORPUS]
    assert [sum(example.task is task for example in drawn) for task in Task] == [40, 40]
    assert sum(example.task is Task.policy for example in ours) == 10
    # No more transitions wait than there are games.
    assert sum(example.task is Task.environment for example in ours) == 4
    assert sampler.live_ends() == {"illegal": 40}


def test_games_go_on_where_a_state_was_taken_also_through_json() -> None:
    def go_on(sampler: Sampler, steps: int) -> list[str]:
        prompts = []
        for _ in range(steps):
            for example in sampler.draw(3):
                prompts.append(example.prompt)
                moves = sorted(move.uci() for move in parse_fen(example.prompt.split("+")[0][3:]).legal_moves)
                sampler.play(example, says("e1e1" if len(prompts) % 7 == 0 else moves[len(prompts) % len(moves)]))
        return prompts

    def make() -> Sampler:
        config = LiveGamesConfig(fraction=0.5, games=3, max_halfmoves=6)
        return Sampler(CORPUS, MixtureConfig(1.0, 1.0), 0, LiveGames(config, seed=1))

    whole, resumed = make(), make()
    go_on(whole, 10)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert go_on(resumed, 15) == go_on(whole, 15) and sum(whole.live_ends().values()) > 2
    # A run without games goes on from such a state too.
    Sampler(CORPUS, MixtureConfig(1.0, 1.0), 0).load_state_dict(whole.state_dict())


@pytest.mark.parametrize(
    "changes", [{"fraction": 1.1}, {"fraction": -0.1}, {"opening_fraction": 2}, {"games": 0}, {"max_halfmoves": 0}]
)
def test_shares_and_counts_that_cannot_be_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"data\.live: expected fraction and opening_fraction from 0 to 1"):
        LiveGamesConfig(**changes)  # type: ignore[arg-type]
