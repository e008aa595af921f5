"""The declared evaluation metrics are the keys that the suites produce."""

from collections.abc import Iterator

from rookworld_rlvr.evaluation.keys import declared


def evaluation_keys() -> Iterator[str]:
    """Yield every key that a suite can have. Rule players play the games."""
    from contextlib import nullcontext

    import chess
    import torch

    from rookworld_rlvr.board.puzzles import Puzzle
    from rookworld_rlvr.evaluation.acpl import Engines, acpl_suite, planned_games
    from rookworld_rlvr.evaluation.completions import held_out_rows
    from rookworld_rlvr.evaluation.conversion import ConversionConfig, Defender, conversion_suite
    from rookworld_rlvr.evaluation.label_loss import LabelLoss, label_loss_suite
    from rookworld_rlvr.evaluation.legal_choice import choice_values
    from rookworld_rlvr.evaluation.llm_chess import llm_chess_suite
    from rookworld_rlvr.evaluation.match import RULES, IllegalRule, MatchConfig, MatchSetting, kept_open, match_suite
    from rookworld_rlvr.evaluation.mate_in_one import MateInOne, mate_in_one_suite
    from rookworld_rlvr.evaluation.players import RandomPlayer
    from rookworld_rlvr.evaluation.puzzles import puzzle_suite
    from rookworld_rlvr.evaluation.selfplay import SelfplayConfig, selfplay_suite
    from rookworld_rlvr.evaluation.suite import suite_table
    from rookworld_rlvr.model.device import Precision
    from rookworld_rlvr.model.loading import ModelConfig, load_policy
    from rookworld_rlvr.stockfish.analysis import Analysis
    from rookworld_rlvr.tasks import task_named
    from rookworld_rlvr.tasks.corpus import examples_of, read_corpus
    from rookworld_rlvr.tasks.policy.text import parse_policy_prompt
    from rookworld_rlvr.tasks.types import Example
    from rookworld_rlvr.training.data import default_file

    every = read_corpus(default_file("held_out.jsonl")).examples
    # All plain legal moves have the same keys. 400 other rows contain every kind.
    examples = [*every[::40], *[row for row in every if "+0.001+" not in (row.completion or "+0.001+")][-400:]]
    chat = [one for row in examples if row.task == "policy" for one in examples_of(row, [task_named("chat")])]
    examples += chat
    labels = [example.completion or "" for example in examples]
    fen = next(parse_policy_prompt(row.prompt).fen for row in examples if row.task == "policy")
    analysis = Analysis(fen, tuple((move.uci(), 0.0) for move in chess.Board(fen).legal_moves))
    player = RandomPlayer()
    engines = Engines(lambda depth: nullcontext(player), lambda: nullcontext(lambda fens: [0] * len(fens)))
    mate = "7k/5Q2/6K1/8/8/8/8/8 w - - 0 1", "f7g7"
    suites = [
        selfplay_suite(player, SelfplayConfig(games=1, max_plies=2)),
        *(
            match_suite(
                RULES["random"],
                kept_open(RULES["random"]),
                MatchConfig(pairs=4, max_plies=30, illegal=illegal),
                MatchSetting(),
            )
            for illegal in IllegalRule
        ),
        conversion_suite(RandomPlayer, ConversionConfig(positions=1, defenders=[Defender.random])),
        label_loss_suite(lambda chunk: [LabelLoss(1.0, 1)] * len(chunk), examples, facts={}),
        mate_in_one_suite(player, [MateInOne(*mate)]),
        puzzle_suite(player, [Puzzle("one", mate[0], (mate[1],), 1500)]),
        llm_chess_suite(RandomPlayer, games=1),
        acpl_suite(RandomPlayer, engines, planned_games(2)),
    ]
    for suite in suites:
        yield from suite_table(suite, [row for rows in suite.rows(0) for row in rows])
    for row in held_out_rows(0, examples, labels, {fen: analysis}):
        yield from row.values
    policy, found = (
        load_policy(ModelConfig(), torch.device("cpu"), Precision.fp32),
        Analysis(mate[0], ((mate[1], 999.99),)),
    )
    for name in ("policy", "chat"):
        [values] = choice_values(policy, [Example(name, task_named(name).prompt(mate[0]), None)], {mate[0]: found})
        yield from values


def test_declared_metrics_are_exactly_the_keys_of_the_suites() -> None:
    measured = {"/".join(key.split("/")[:2]) for key in evaluation_keys()}
    assert measured == {key for key, entry in declared().items() if entry.meaning}


def test_every_key_of_a_suite_has_a_direction() -> None:
    undeclared = [key for key in evaluation_keys() if not any(f"{key}/".startswith(f"{name}/") for name in declared())]
    assert undeclared == []
