"""Games that a policy plays while it trains: what they ask, how they go on, what stays out."""

import json
from typing import Any

import chess
import pytest

from rookworld_rlvr.board.fen import parse_fen, position_key
from rookworld_rlvr.board.openings import OPENINGS, opening_board
from rookworld_rlvr.tasks.environment import environment_truth, parse_environment, parse_environment_prompt
from rookworld_rlvr.tasks.prompt_stream import MixtureConfig, PromptStream
from rookworld_rlvr.tasks.self_play_prompts import SelfPlayPrompts, SelfPlayPromptsConfig, SelfPlayRecords
from rookworld_rlvr.tasks.types import Example, Task

STANDARD = f"P: {chess.STARTING_FEN}"
CORPUS = [Example(Task.policy, "P: 8/8/8/8/8/8/8/K1k5 w - - 0 1", None)] * 3 + [
    Example(Task.environment, "A: 8/8/8/8/8/8/8/K1k5 w - - 0 1+a1a2+a1a2+", None)
] * 3


def games(*, fraction: float = 1.0, games: int = 2, opening_fraction: float = 0.0, **settings: Any) -> SelfPlayPrompts:
    config = SelfPlayPromptsConfig(fraction, games)
    return SelfPlayPrompts(config, **{"seed": 0, "opening_fraction": opening_fraction, **settings})


def says(*moves: str) -> list[str]:
    return [f"M: {move} E: 0.0 B: {move}" for move in moves]


def asked(self_play: SelfPlayPrompts) -> str:
    example = self_play.next(Task.policy)
    assert example is not None and example.completion is None
    return example.prompt


def fen_after(*moves: str) -> str:
    board = chess.Board()
    for move in moves:
        board.push_uci(move)
    return board.fen()


def test_the_first_legal_move_of_the_completions_is_played_and_the_position_behind_it_asked_about() -> None:
    self_play = games()
    assert asked(self_play) == STANDARD
    self_play.play(STANDARD, says("e2e5", "g1f3", "e2e4"))
    self_play.start_draw()
    assert sorted([asked(self_play), asked(self_play)]) == sorted([f"P: {fen_after('g1f3')}", STANDARD])


def test_of_games_that_stand_in_one_position_a_draw_asks_one_and_the_next_draw_another() -> None:
    self_play = games(games=3)
    assert asked(self_play) == STANDARD and self_play.next(Task.policy) is None
    self_play.play(STANDARD, says("e2e4"))
    self_play.start_draw()
    assert [asked(self_play), asked(self_play)] == [STANDARD, f"P: {fen_after('e2e4')}"]
    assert self_play.next(Task.policy) is None
    self_play.play(STANDARD, says("e2e4"))
    self_play.start_draw()
    # Two of the three stand behind e2e4 now: one of them waits.
    assert sorted([asked(self_play), asked(self_play)]) == sorted([STANDARD, f"P: {fen_after('e2e4')}"])
    assert self_play.next(Task.policy) is None
    assert [record["game"] for record in self_play.take_records().prompted] == [0, 1, 0, 1, 2]


def test_what_was_written_and_played_is_asked_of_the_environment_with_python_chess_s_answer() -> None:
    self_play = games()
    assert self_play.next(Task.environment) is None
    self_play.play(asked(self_play), says("e2e5", "g1f3", "e2e4"))
    found = [self_play.next(Task.environment), self_play.next(Task.environment)]
    assert self_play.next(Task.environment) is None
    for example, uci, reward in zip(found, ("e2e5", "g1f3"), (-1.0, 0.001), strict=True):
        assert example is not None and example.completion is not None
        prompt, answer = parse_environment_prompt(example.prompt), parse_environment(example.completion)
        assert (prompt.uci, prompt.history) == (uci, (uci,)) and answer == environment_truth(prompt)
        assert answer.reward == reward


def test_a_game_without_a_legal_move_ends_and_another_begins() -> None:
    self_play = games(games=1)
    self_play.play(asked(self_play), says("e2e4"))
    self_play.play(asked(self_play), ["", "M: e7e5", *says("e7e4")])
    assert asked(self_play) == STANDARD and self_play.ends == {"illegal": 1}


@pytest.mark.parametrize(
    ("moves", "how"),
    [("f2f3 e7e5 g2g4 d8h4", "won"), ("g1f3 g8f6 f3g1 f6g8 " * 4, "drawn"), ("e2e4 e7e5 g1f3 b8c6 f1c4", "stopped")],
)
def test_a_game_ends_by_rule_and_at_its_limit(moves: str, how: str) -> None:
    self_play = games(games=1, max_plies=5 if how == "stopped" else 200)
    for move in moves.split():
        self_play.play(asked(self_play), says(move))
    assert self_play.ends == {how: 1} and asked(self_play) == STANDARD


def test_held_out_positions_are_never_asked_about() -> None:
    barred = position_key(chess.Board(fen_after("e2e4")))
    self_play = games(games=1, excluded=[barred])
    self_play.play(asked(self_play), says("e2e4"))
    assert asked(self_play) == STANDARD and self_play.ends == {"stopped": 1}
    openings = games(games=8, opening_fraction=0.5, excluded=[position_key(chess.Board())])
    prompts = {asked(openings) for _ in range(4)}
    assert len(prompts) == 4 and STANDARD not in prompts
    with pytest.raises(ValueError, match="starts that are not held out"):
        games(excluded=[position_key(chess.Board())])


def test_openings_begin_their_share_of_the_games() -> None:
    self_play = games(games=400, opening_fraction=0.25)
    starts = [fen_after(*game["moves"]) for game in self_play.state_dict()["games"]]
    lines = {opening_board(opening).fen() for opening in OPENINGS}
    assert set(starts) <= lines | {chess.STARTING_FEN}
    assert 0.17 < sum(start != chess.STARTING_FEN for start in starts) / 400 < 0.33


def test_a_prompt_that_no_game_asked_changes_nothing() -> None:
    self_play = games()
    before = self_play.state_dict()
    self_play.play(f"P: {fen_after('e2e4')}", says("e7e5"))
    # A row of the corpus where games stand, too: their position is theirs to ask.
    self_play.play(STANDARD, says("e2e4"))
    assert self_play.state_dict() == before


def test_a_draw_asks_one_position_of_each_game_at_most_and_the_next_draw_again_what_was_not_answered() -> None:
    self_play = games(games=2, opening_fraction=1.0)
    stream = PromptStream(CORPUS, MixtureConfig(1.0, 0.0), 0, self_play)
    drawn = stream.draw(5)
    assert [example not in CORPUS for example in drawn] == [True, True, False, False, False]
    records = self_play.take_records().prompted
    assert [record["game"] for record in records] == [0, 1]
    first = parse_fen(records[0]["fen"])
    move = min(move.uci() for move in first.legal_moves)
    stream.play(drawn[0], says(move))
    first.push_uci(move)
    again = [example.prompt for example in stream.draw(5) if example not in CORPUS]
    assert again == [f"P: {first.fen()}", drawn[1].prompt]


def test_records_tell_each_position_asked_and_each_game_ended_and_join_on_its_number() -> None:
    self_play = games(games=1)
    for move in ("f2f3", "e7e5", "g2g4", "d8h4"):
        self_play.play(asked(self_play), says(move))
    self_play.play(asked(self_play), says("e2e4"))
    self_play.play(asked(self_play), says("e7e4"))
    records = self_play.take_records()
    line = ["f2f3", "e7e5", "g2g4"]
    assert list(records.prompted) == [
        *({"fen": fen_after(*line[:ply]), "game": 0, "ply": ply} for ply in range(4)),
        {"fen": chess.STARTING_FEN, "game": 1, "ply": 0},
        {"fen": fen_after("e2e4"), "game": 1, "ply": 1},
    ]
    fools = {"game": 0, "opening": chess.STARTING_FEN, "result": "0-1", "reason": "checkmate", "halfmoves": 4}
    # Black wrote no legal move and has lost.
    illegal = {"game": 1, "opening": chess.STARTING_FEN, "result": "1-0", "reason": "illegal_move", "halfmoves": 1}
    assert list(records.ended) == [fools, illegal]
    assert self_play.take_records() == SelfPlayRecords((), ())


@pytest.mark.parametrize(
    ("moves", "settings", "result", "reason"),
    [
        ("g1f3 g8f6 f3g1 f6g8 " * 4, {}, "1/2-1/2", "fivefold_repetition"),
        ("e2e4 e7e5", {"max_plies": 2}, "*", "cut"),
        ("e2e4", {"excluded": [position_key(parse_fen(fen_after("e2e4")))]}, "*", "excluded"),
    ],
)
def test_a_game_that_nobody_won_is_told_as_drawn_or_without_a_result(
    moves: str, settings: dict[str, Any], result: str, reason: str
) -> None:
    self_play = games(games=1, **settings)
    for move in moves.split():
        self_play.play(asked(self_play), says(move))
    [ended] = self_play.take_records().ended
    assert (ended["result"], ended["reason"], ended["halfmoves"]) == (result, reason, len(moves.split()))


def test_a_game_behind_an_opening_counts_its_own_plies_and_tells_where_it_began() -> None:
    self_play = games(games=1, opening_fraction=1.0)
    first = asked(self_play)
    self_play.play(first, ["no move"])
    records = self_play.take_records()
    fen = first.removeprefix("P: ")
    assert records.ended[0]["opening"] == fen == records.prompted[0]["fen"] and fen != chess.STARTING_FEN
    assert records.ended[0]["halfmoves"] == 0 and records.prompted[0]["ply"] == parse_fen(fen).ply() > 2
    assert records.ended[0]["result"] == ("0-1" if " w " in fen else "1-0")


def test_a_stream_draws_its_share_from_the_games_of_each_task() -> None:
    self_play = games(fraction=0.25, games=4)
    stream = PromptStream(CORPUS, MixtureConfig(1.0, 1.0), 0, self_play)
    for _ in range(40):
        self_play.start_draw()
        while (example := self_play.next(Task.policy)) is None:
            continue
        stream.play(example, says("e2e5"))
    drawn = [example for _ in range(10) for example in stream.draw(8)]
    ours = [example for example in drawn if example not in CORPUS]
    assert [sum(example.task is task for example in drawn) for task in Task] == [40, 40]
    assert sum(example.task is Task.policy for example in ours) == 10
    # No more transitions wait than there are games.
    assert sum(example.task is Task.environment for example in ours) == 4
    assert stream.self_play_ends() == {"illegal": 40}


def test_games_go_on_where_a_state_was_taken_also_through_json() -> None:
    def go_on(stream: PromptStream, steps: int) -> list[str]:
        prompts = []
        for _ in range(steps):
            for example in stream.draw(3):
                prompts.append(example.prompt)
                moves = sorted(move.uci() for move in parse_fen(example.prompt.split("+")[0][3:]).legal_moves)
                stream.play(example, says("e1e1" if len(prompts) % 7 == 0 else moves[len(prompts) % len(moves)]))
        return prompts

    def make() -> PromptStream:
        config = SelfPlayPromptsConfig(fraction=0.5, games=3)
        return PromptStream(CORPUS, MixtureConfig(1.0, 1.0), 0, SelfPlayPrompts(config, seed=1, max_plies=6))

    whole, resumed = make(), make()
    go_on(whole, 10)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    whole.take_self_play_records()
    assert go_on(resumed, 15) == go_on(whole, 15) and sum(whole.self_play_ends().values()) > 2
    records = whole.take_self_play_records()
    assert resumed.take_self_play_records() == records and len(records.ended) >= 2
    # Taken back to a state, games go on that had ended since: only what was asked is still told.
    state = whole.state_dict()
    go_on(whole, 15)
    whole.load_state_dict(state)
    records = whole.take_self_play_records()
    assert len(records.prompted) > 5 and not records.ended
    # A run without games goes on from such a state too.
    PromptStream(CORPUS, MixtureConfig(1.0, 1.0), 0).load_state_dict(whole.state_dict())


@pytest.mark.parametrize("changes", [{"fraction": 1.1}, {"fraction": -0.1}, {"games": 0}])
def test_shares_and_counts_that_cannot_be_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"data\.self_play: expected fraction from 0 to 1"):
        SelfPlayPromptsConfig(**changes)  # type: ignore[arg-type]
