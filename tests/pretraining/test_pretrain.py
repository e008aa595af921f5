"""A model from verdicts: targets by hand, the same function exported, resumable, and clear of what is held out."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import chess
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rookworld_rlvr.app.cli import main
from rookworld_rlvr.app.config import PretrainRunConfig
from rookworld_rlvr.app.pretrain import load
from rookworld_rlvr.board.evals import win_probability
from rookworld_rlvr.errors import UserError
from rookworld_rlvr.model.chess_tokenizer import build_tokenizer, placed_pieces
from rookworld_rlvr.pretraining import run as pretraining
from rookworld_rlvr.pretraining.encoder import Encoder
from rookworld_rlvr.pretraining.environment_rows import NUMBERS, SHARES, EnvironmentRows, TransitionPool, renumbered
from rookworld_rlvr.pretraining.muon import Muon, orthogonal
from rookworld_rlvr.pretraining.run import PretrainConfig, Pretraining
from rookworld_rlvr.pretraining.soft_targets import BOARD_AT, SoftRows, attacks_of, coarse, collate_boards
from rookworld_rlvr.pretraining.student import Shape, Student, export, token_features
from rookworld_rlvr.tasks.classes import TransitionClass
from rookworld_rlvr.tasks.corpus import read_corpus
from rookworld_rlvr.tasks.environment import (
    environment_truth,
    parse_environment_prompt,
    render_environment,
    render_environment_prompt,
)
from rookworld_rlvr.tasks.move_evals import MoveEvals, mirrored, render_move_evals
from rookworld_rlvr.tasks.transitions import transition_kind
from rookworld_rlvr.tasks.types import Example, Task
from rookworld_rlvr.training.data import default_file

CPU = torch.device("cpu")
TOKENIZER: Any = build_tokenizer()
SMALL = PretrainConfig(
    layers=2, width=32, heads=2, board_layer=1, steps=12, policy_rows=4, environment_rows=2, warmup_steps=2,
    save_every=5, log_every=4, average=0.5,
)  # fmt: skip
# Two moves win, the mate more; the king's moves draw.
FEN = "6k1/5ppp/8/8/8/8/8/R6K w - - 0 1"


def verdict(fen: str = FEN) -> MoveEvals:
    evals = {move.uci(): 0.0 for move in chess.Board(fen).legal_moves} | {"a1a8": 999.99, "a1a7": 5.0}
    return MoveEvals(fen, "test", evals if fen == FEN else dict.fromkeys(sorted(evals.keys() - {"a1a8", "a1a7"}), 0.1))


def environment_row(fen: str, uci: str) -> Example:
    prompt = render_environment_prompt(fen, uci, [uci])
    return Example(Task.environment, prompt, render_environment(environment_truth(parse_environment_prompt(prompt))))


def positions(count: int) -> list[MoveEvals]:
    rng, found = random.Random(0), []
    while len(found) < count:
        board = chess.Board()
        for _ in range(rng.randint(1, 30)):
            board.push(rng.choice(list(board.legal_moves)))
        evals = {move.uci(): round(rng.gauss(0, 2), 2) for move in board.legal_moves}
        if evals:
            found.append(MoveEvals(board.fen(), "test", evals))
    return found


@pytest.fixture(scope="module")
def transitions(make_lines: Callable[[int, int], list[str]], tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    file = tmp_path_factory.mktemp("pretrain") / "rows.txt"
    file.write_text("".join(f"{line}\n" for line in make_lines(5, 20)))
    return [row for row in read_corpus(file).examples if row.task is Task.environment]


def test_targets_follow_the_verdicts_and_leave_out_what_was_named_before() -> None:
    rows = SoftRows(TOKENIZER)
    for seed in range(20):
        row = rows.row(verdict(), random.Random(seed))
        words = TOKENIZER.convert_ids_to_tokens(row.tokens)
        asked = [(words[at].strip(), first, shares) for at, first, shares in row.soft]
        named = ["".join(pair) for pair in zip([w for w, *_ in asked[::2]], [w for w, *_ in asked[1::2]], strict=True)]
        assert named[-1] == "a1a8" and len(set(named[:-1])) == 5
        first_shares = asked[0][2]
        # The mate is worth 0.12 more than 0.999, the other win 0.863: at a temperature of 0.04 nothing else counts.
        assert first_shares[chess.A1] > 0.99 and first_shares.sum() == pytest.approx(1.0)
        for (word, _, shares), place in zip(asked[::2], range(5), strict=False):
            left = set(verdict().evals_pawns) - set(named[:place])
            assert {square for square in chess.SQUARES if shares[square] > 0} <= {
                chess.parse_square(move[:2]) for move in left
            }
            assert shares[chess.parse_square(word)] > 0
        hard = {at for at, _ in row.hard}
        assert not hard & {at for at, _, _ in row.soft} and len(row.tokens) - 1 in hard
        assert row.board.legal.sum() == len(verdict().evals_pawns) and row.board.moves.sum() == pytest.approx(1.0)
        board = row.board
        rook = board.squares.index(chess.A1, board.movers_at)
        assert board.moves[rook, chess.A8] > 0.9 and board.legal[rook].sum() == 13
        assert not board.legal[: board.movers_at].any()
        assert words[row.value_at] == " 1" and words[row.value_at + 1].strip() != "1"


def test_the_board_s_tokens_stand_where_the_heads_look() -> None:
    row = SoftRows(TOKENIZER).board(verdict())
    words = TOKENIZER.convert_ids_to_tokens(row.tokens)[BOARD_AT : BOARD_AT + len(row.squares)]
    men = (chess.A8, chess.G8, chess.F7, chess.G7, chess.H7, chess.A1, chess.H1)
    rivals, movers = (chess.G8, chess.F7, chess.G7, chess.H7), (chess.A1, chess.H1)
    assert row.squares == (*men, *rivals, *movers) and row.movers_at == len(men) + len(rivals)
    assert [word[0] for word in words[1:]] == list("kpppRKkpppRK")


def test_a_move_s_worth_is_halved_for_each_tenth_of_win_probability_given_away() -> None:
    wins = {move: win_probability(pawns) for move, pawns in verdict().evals_pawns.items()}
    row = SoftRows(TOKENIZER).board(verdict())
    assert row.again_at == len(placed_pieces(FEN.split()[0])) and not row.worth[: row.movers_at].any()
    for move, win in wins.items():
        mover = row.squares.index(chess.parse_square(move[:2]), row.movers_at)
        found = row.worth[mover, chess.parse_square(move[2:4])]
        assert found == pytest.approx(0.5 ** ((max(wins.values()) - win) / 0.1), abs=1e-6)
    assert np.count_nonzero(row.worth) == len(wins)


def test_attacks_are_asked_of_the_men_that_are_listed_again_alone() -> None:
    rows = [SoftRows(TOKENIZER).board(verdict()), SoftRows(TOKENIZER).board(mirrored(verdict()))]
    batch = collate_boards(rows)
    assert batch.again_BM.sum(1).tolist() == [len(row.squares) - row.again_at for row in rows]
    assert batch.mover_BM.sum(1).tolist() == [len(row.squares) - row.movers_at for row in rows]
    assert not (batch.mover_BM & ~batch.again_BM).any()


def test_attacks_are_python_chess_s() -> None:
    board = chess.Board(FEN)
    squares = (chess.A8, chess.G8, chess.A1)
    for origin, found in zip(squares, attacks_of(board, squares), strict=True):
        assert {square for square in chess.SQUARES if found[square]} == set(board.attacks(origin))


@pytest.mark.parametrize(
    ("pawns", "expected"), [(0.04, 0.0), (-0.26, -0.3), (2.6, 2.5), (-7.4, -7.0), (999.97, 999.97), (-0.01, 0.0)]
)
def test_evals_are_rounded_to_a_grid_that_grows(pawns: float, expected: float) -> None:
    assert coarse(pawns) == expected and str(coarse(pawns)) != "-0.0"


def test_the_fast_encoder_gives_the_tokenizer_s_ids(make_lines: Callable[[int, int], list[str]]) -> None:
    encode = Encoder(TOKENIZER)
    for line in make_lines(3, 60):
        assert encode(line) == TOKENIZER(line).input_ids and TOKENIZER.decode(encode(line)) == line


def test_prompt_and_completion_tokenise_alike_apart_and_together(make_lines: Callable[[int, int], list[str]]) -> None:
    for line in make_lines(4, 30):
        if line.startswith("P: "):
            prompt = line[: line.index("M:")].rstrip()
            assert TOKENIZER(prompt).input_ids + TOKENIZER(line[len(prompt) :]).input_ids == TOKENIZER(line).input_ids


def test_what_is_exported_is_the_same_function_in_a_stock_qwen3() -> None:
    torch.manual_seed(0)
    student = Student(Shape(2, 32, 2, 1), token_features(TOKENIZER))
    for parameter in student.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tokens = torch.tensor([TOKENIZER(f"P: {FEN}").input_ids])
    embeddings = student.embeddings()
    ours = student(tokens, embeddings)[1] @ embeddings.T
    theirs = export(student, TOKENIZER)(tokens).logits
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=1e-4)


def test_squares_of_a_move_share_what_they_are_about_with_the_pieces_on_them() -> None:
    ids, features = TOKENIZER.get_vocab(), token_features(TOKENIZER)
    shared = features[ids[" e4"]] * features[ids["e4"]]
    assert shared.sum() >= 6 and (features[ids[" e4"]] * features[ids["d5"]]).sum() < shared.sum()
    assert len(torch.unique(features[features.sum(1) > 0], dim=0)) == int((features.sum(1) > 0).sum())


def test_orthogonal_brings_singular_values_near_one_whatever_the_shape() -> None:
    torch.manual_seed(0)
    for shape in ((3, 16, 16), (2, 64, 16), (2, 16, 64)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
        assert values.min() > 0.3 and values.max() < 1.3


def test_muon_s_first_step_is_the_orthogonal_gradient_scaled() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(8, 2))
    weight.grad = torch.randn(8, 2)
    expected = orthogonal(weight.grad[None])[0] * 2 * -0.1
    Muon([weight], lr=0.1).step()
    torch.testing.assert_close(weight.detach(), expected)


Told = list[dict[str, float]]


def learn(folder: Path, rows: list[Example], config: PretrainConfig = SMALL) -> tuple[Pretraining, Told]:
    folder.mkdir(exist_ok=True)
    training, verdicts = Pretraining(config, seed=3, device=CPU), positions(8)
    training.resume(folder, verdicts, rows)
    return training, list(training.run(verdicts, rows, folder))


def test_losses_of_every_part_fall(transitions: list[Example], tmp_path: Path) -> None:
    config = PretrainConfig(
        layers=2, width=32, heads=2, board_layer=1, steps=80, policy_rows=4, environment_rows=2, warmup_steps=2,
        log_every=20,
    )  # fmt: skip
    _, told = learn(tmp_path / "out", transitions, config)
    assert [entry["step"] for entry in told] == [20, 40, 60, 80]
    for part in ("tokens", "moves", "legal", "attacks", "environment", "outcome", "targets"):
        assert told[-1][part] < told[0][part]


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    transitions: list[Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = learn(tmp_path / "whole", transitions)
    train_step = Pretraining._train_step

    def interrupted(training: Pretraining, *rows: Any) -> dict[str, float]:
        if training.step == 7:
            raise KeyboardInterrupt
        return train_step(training, *rows)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Pretraining, "_train_step", interrupted)
        learn(tmp_path / "cut", transitions)
    again, _ = learn(tmp_path / "cut", transitions)
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert all(map(torch.equal, whole._average, again._average))


def test_a_step_does_not_depend_on_its_threads_and_its_parts_add_up(
    transitions: list[Example], monkeypatch: pytest.MonkeyPatch, threads: Callable[[int], None]
) -> None:
    def step(count: int) -> tuple[dict[str, float], list[torch.Tensor]]:
        threads(count)
        training = Pretraining(SMALL, seed=3, device=CPU)
        return training._train_step(positions(4), TransitionPool(transitions)), list(training.model.parameters())

    one, weights = step(1)
    two, same = step(2)
    assert one == two and all(map(torch.equal, weights, same))
    monkeypatch.setattr(pretraining, "PARTS", 1)
    whole, _ = step(1)
    assert whole == pytest.approx(one, rel=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_compiled_blocks_learn_the_same(transitions: list[Example]) -> None:
    def step(config: PretrainConfig) -> tuple[dict[str, float], list[torch.Tensor]]:
        training = Pretraining(config, seed=3, device=CPU)
        return training._train_step(positions(4), TransitionPool(transitions)), list(training.model.parameters())

    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    plain, weights = step(SMALL)
    assert graphs["unique_graphs"] == before
    fast, theirs = step(replace(SMALL, compile=True))
    assert graphs["unique_graphs"] > before
    assert fast == pytest.approx(plain, rel=1e-4)
    for one, other in zip(weights, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_compiling_is_refused_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookworld_rlvr.model.compiled.COMPILERS", ("no-such-compiler",))
    with pytest.raises(UserError, match=r"model\.compile: expected a C\+\+ compiler, no-such-compiler, found none"):
        Pretraining(replace(SMALL, compile=True), seed=3, device=CPU)


def test_bare_boards_are_asked_by_the_heads_alone_and_cost_only_the_layers_before_them(
    transitions: list[Example],
) -> None:
    def told(board_rows: int) -> dict[str, float]:
        training = Pretraining(replace(SMALL, board_rows=board_rows), seed=3, device=CPU)
        return training._train_step(positions(40), TransitionPool(transitions))

    without, with_boards = told(0), told(8)
    assert {part for part in without if without[part] != with_boards[part]} == {"moves", "legal", "attacks", "worth"}
    assert with_boards["legal"] == pytest.approx(without["legal"], rel=0.3)
    training = Pretraining(SMALL, seed=3, device=CPU)
    losses = training._bare_board_losses([SoftRows(TOKENIZER).board(verdict())], 1)
    torch.stack(list(losses.values())).sum().backward()
    first, last = training.model.blocks
    assert all(weight.grad is not None for weight in first.parameters())
    assert all(weight.grad is None for weight in last.parameters())


def test_another_run_s_state_is_refused_by_name(transitions: list[Example], tmp_path: Path) -> None:
    learn(tmp_path / "out", transitions)
    other = Pretraining(SMALL, seed=4, device=CPU)
    with pytest.raises(UserError, match="seed: expected 3"):
        other.resume(tmp_path / "out", positions(8), transitions)
    with pytest.raises(UserError, match="verdicts, transitions, exclude"):
        Pretraining(SMALL, seed=3, device=CPU).resume(tmp_path / "out", positions(7), transitions)


def test_a_run_that_begins_with_another_s_weights_and_momenta_continues_it(
    transitions: list[Example], tmp_path: Path
) -> None:
    constant = replace(SMALL, decay_fraction=0.0)
    begun, told = learn(tmp_path / "begun", transitions, constant)
    assert told[-1]["lr"] == 1.0
    later = Pretraining(SMALL, seed=3, device=CPU, init_from=tmp_path / "begun")
    assert later.step == 0
    for one, other in zip(begun.model.parameters(), later.model.parameters(), strict=True):
        assert torch.equal(one, other)
    momenta = [[state["momentum"] for state in run._optimizers[0].state.values()] for run in (begun, later)]
    assert len(momenta[0]) == len(momenta[1]) > 0 and all(map(torch.equal, *momenta))
    with pytest.raises(UserError, match=r"init_from: expected a model of Shape\(layers=1"):
        Pretraining(replace(SMALL, layers=1), seed=3, device=CPU, init_from=tmp_path / "begun")
    with pytest.raises(UserError, match="init_from: expected the state"):
        Pretraining(SMALL, seed=3, device=CPU, init_from=tmp_path)


def test_a_run_goes_on_from_a_state_that_knew_fewer_tokens(transitions: list[Example], tmp_path: Path) -> None:
    learn(tmp_path / "begun", transitions)
    path, fewer = tmp_path / "begun" / "training_state.pt", 100
    saved = torch.load(path, weights_only=True)
    student = Student(Shape(2, 32, 2, 1), token_features(TOKENIZER))
    place = [name for name, _ in student.named_parameters()].index("own_VH")
    saved["model"]["own_VH"] = saved["model"]["own_VH"][:-fewer]
    saved["average"][place] = saved["average"][place][:-fewer]
    for values in saved["optimizers"][1]["state"].values():
        for name, value in values.items():
            values[name] = value[:-fewer] if value.ndim and len(value) == len(TOKENIZER) else value
    torch.save(saved, path)
    later = Pretraining(SMALL, seed=3, device=CPU, init_from=tmp_path / "begun")
    assert later.model.own_VH.shape == (len(TOKENIZER), 32)
    assert torch.equal(later.model.own_VH[:-fewer], saved["model"]["own_VH"])
    assert not later.model.own_VH[-fewer:].any()
    assert np.isfinite(list(later._train_step(positions(4), TransitionPool(transitions)).values())).all()


def test_transitions_are_drawn_by_the_share_of_their_class_and_illegal_ones_by_kind() -> None:
    start = chess.STARTING_FEN
    prompts = {"quiet": 9, "illegal geometry": 3, "illegal blocked": 1}
    moves = {"quiet": "e2e4", "illegal geometry": "e2e5", "illegal blocked": "a1a3"}
    rows = [environment_row(start, moves[kind]) for kind, count in prompts.items() for _ in range(count)]
    pool, rng = TransitionPool(rows), random.Random(0)
    drawn = Counter(transition_kind(pool.draw(rng).prompt) for _ in range(2000))
    quiet, rest = SHARES[TransitionClass.quiet], 1 - sum(SHARES.values())
    assert drawn["quiet"] / 2000 == pytest.approx(quiet / (quiet + rest), abs=0.04)
    assert drawn["illegal geometry"] == pytest.approx(drawn["illegal blocked"], rel=0.2)


def test_a_row_with_another_full_move_number_has_the_answer_that_is_true_then(transitions: list[Example]) -> None:
    for row in transitions:
        again = renumbered(row, 1)
        was, asked = parse_environment_prompt(row.prompt), parse_environment_prompt(again.prompt)
        assert asked.fen.split()[:-1] == was.fen.split()[:-1] and asked.fen.split()[-1] == "1"
        assert (asked.uci, asked.history) == (was.uci, was.history)
        assert again.completion == render_environment(environment_truth(asked))
        assert renumbered(again, int(was.fen.split()[-1])) == row
    pool, rng = TransitionPool(transitions), random.Random(5)
    drawn = [parse_environment_prompt(pool.draw(rng).prompt).fen.split()[-1] for _ in range(2000)]
    assert {str(number) for number in range(1, NUMBERS + 1)} <= set(drawn), "early positions are rare in the files"


@pytest.mark.parametrize(
    ("fen", "uci", "outcome"),
    [(chess.STARTING_FEN, "e2e5", 0), (chess.STARTING_FEN, "e2e4", 1), (FEN, "a1a8", 2),
     ("7k/8/6K1/5Q2/8/8/8/8 w - - 0 1", "f5f7", 3)],
)  # fmt: skip
def test_an_environment_row_s_outcome_and_the_men_that_stay(fen: str, uci: str, outcome: int) -> None:
    row = EnvironmentRows(TOKENIZER).row(environment_row(fen, uci))
    assert row.outcome == outcome
    answer = TOKENIZER.convert_ids_to_tokens(row.tokens[row.prompt_length :])
    moved = {
        word[0] for word, same in zip(answer, row.copied, strict=True) if not same and "\ue000" <= word[-1] < "\ue040"
    }
    assert moved == {0: set(), 1: {"P"}, 2: {"\ue100", "R"}, 3: {"Q"}}[outcome] - (
        {"\ue100"} if outcome == 2 else set()
    )


@pytest.mark.parametrize(
    ("fen", "uci", "targets"),
    [(chess.STARTING_FEN, "e2e5", {"e3", "e4"}), (chess.STARTING_FEN, "a1a3", set()),
     (chess.STARTING_FEN, "e7e5", set()), (chess.STARTING_FEN, "e4e5", set()),
     ("4r2k/8/8/8/8/8/4R3/4K3 w - - 0 1", "e2d2", {f"e{n}" for n in range(3, 9)})],
)  # fmt: skip
def test_an_environment_row_asks_where_the_man_may_go_at_the_square_that_it_leaves(
    fen: str, uci: str, targets: set[str]
) -> None:
    row = EnvironmentRows(TOKENIZER).row(environment_row(fen, uci))
    assert TOKENIZER.convert_ids_to_tokens(row.tokens[row.origin_at]) == uci[:2]
    assert TOKENIZER.convert_ids_to_tokens(row.tokens[row.origin_at - 1]) == "+"
    assert {chess.square_name(square) for square in row.targets.nonzero()[0]} == targets


def test_the_saved_folder_loads_with_the_plain_auto_classes(transitions: list[Example], tmp_path: Path) -> None:
    training, _ = learn(tmp_path / "out", transitions)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").get_vocab() == TOKENIZER.get_vocab()
    tokens = torch.tensor([TOKENIZER(f"P: {FEN}").input_ids])
    # Saved in bfloat16.
    torch.testing.assert_close(model(tokens).logits, training.exported()(tokens).logits, atol=0.1, rtol=0.05)


def test_positions_held_out_or_excluded_are_not_learned_from(transitions: list[Example], tmp_path: Path) -> None:
    held_out = next(row for row in read_corpus(default_file("held_out.jsonl")).examples if row.task is Task.policy)
    fens = [held_out.prompt.removeprefix("P: "), FEN, *(found.fen for found in positions(2))]
    file, rows, excluded = (tmp_path / name for name in ("v.tsv", "rows.txt", "excluded.fen"))
    file.write_text("".join(f"{render_move_evals(MoveEvals(fen, 'test', {'a1a8': 0.0}))}\n" for fen in fens))
    rows.write_text("".join(f"{row.prompt}{row.completion}\n" for row in transitions))
    excluded.write_text(f"{FEN}\n")
    config = PretrainRunConfig(verdicts=[str(file)], transitions=[str(rows)], exclude=[str(excluded)])
    found, _ = load(config)
    assert [verdict.fen for verdict in found] == fens[2:]


def test_the_command_makes_a_model_and_goes_on_where_it_stopped(
    transitions: list[Example], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "v.tsv").write_text("".join(f"{render_move_evals(found)}\n" for found in positions(6)))
    (tmp_path / "rows.txt").write_text("".join(f"{row.prompt}{row.completion}\n" for row in transitions))
    given = [f"verdicts=[{tmp_path}/v.tsv]", f"transitions=[{tmp_path}/rows.txt]", f"output={tmp_path}/out"]
    small = ["model.layers=1", "model.width=16", "model.heads=2", "model.board_layer=1", "model.steps=3"]
    rows = ["model.policy_rows=2", "model.environment_rows=1", "model.log_every=1"]
    assert main(["pretrain", *given, *small, *rows]) == 0
    assert "step 3/3" in capsys.readouterr().out and (tmp_path / "out" / "model.safetensors").is_file()
    assert main(["pretrain", *given, *small, *rows]) == 0
    assert "going on from step 3" in capsys.readouterr().out
    later = [*given[:2], f"output={tmp_path}/later", f"init_from={tmp_path}/out", "model.decay_fraction=1"]
    assert main(["pretrain", *later, *small, *rows]) == 0
    assert "step 3/3" in capsys.readouterr().out and (tmp_path / "later" / "model.safetensors").is_file()
    assert main(["pretrain", *later, *small, *rows, f"init_from={tmp_path}/none"]) == 2
    assert "init_from: expected the state of a training" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [{"layers": 0}, {"width": 31}, {"board_layer": 7}, {"lr": 0.0}, {"average": 1.0}, {"decay_fraction": -0.1},
     {"legal_weight": -1.0}],
    ids=str,
)  # fmt: skip
def test_settings_that_train_nothing_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="model"):
        PretrainConfig(**changes)


def test_every_weight_changes_the_losses(transitions: list[Example]) -> None:
    def told(**changes: float) -> dict[str, float]:
        config = PretrainConfig(**{**{"layers": 1, "width": 16, "heads": 2, "board_layer": 1, "policy_rows": 2,
                                      "environment_rows": 1}, **changes})  # type: ignore[arg-type]  # fmt: skip
        return Pretraining(config, seed=0, device=CPU)._train_step(positions(4), TransitionPool(transitions))

    plain = told()
    for part in ("moves", "legal", "attacks", "worth", "value", "outcome", "targets"):
        changed = told(**{f"{part}_weight": 2 * getattr(PretrainConfig(), f"{part}_weight")})
        assert changed[part] == pytest.approx(2 * plain[part], rel=1e-4)
    assert told(copy_weight=0.5)["environment"] < plain["environment"]
    assert np.isfinite(list(plain.values())).all()
