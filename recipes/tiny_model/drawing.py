"""The examples of each training step, drawn from the data by seed and step alone, as batches of similar length."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

from transformers import PreTrainedTokenizerFast

from rookworld_rlvr.provenance import digest
from rookworld_rlvr.stockfish.move_evals import MoveEvals
from rookworld_rlvr.tasks.types import Example

from .batches import EnvironmentBatch, PolicyBatch, collate, collate_environment
from .config import TrainingConfig
from .data import Positions, mirrored
from .environment_examples import EnvironmentExample, EnvironmentExamples, TransitionPool
from .policy_examples import PolicyExample, PolicyExamples
from .tokenizer import POSITIONS

# Number of parts into which a task's examples in a step are split, by length, to be computed on several cores.
PARTS = 2
# Share of positions whose colours are exchanged.
MIRRORED = 0.5
Row = TypeVar("Row")
DrawnPolicy = tuple[MoveEvals, PolicyExample]


class Examples(Protocol):
    """The examples of a training."""

    @property
    def source(self) -> str:
        """Digest of the data that the examples are made from."""

    def batches(self, step: int) -> tuple[list[PolicyBatch], list[EnvironmentBatch]]:
        """Return the `P:` and the `A:` examples of a step, counted from 0; each task in PARTS batches by length."""


class DrawnExamples:
    """`Examples` that are made when a step needs them."""

    def __init__(
        self,
        config: TrainingConfig,
        seed: int,
        tokenizer: PreTrainedTokenizerFast,
        positions: Positions,
        transitions: Sequence[Example],
    ) -> None:
        """`positions` have a legal move, `transitions` are labelled `A:` rows; there is at least one of each."""
        self._config, self._seed, self._pad_id = config, seed, int(tokenizer.pad_token_id)
        self._policy, self._environment = PolicyExamples(tokenizer), EnvironmentExamples(tokenizer)
        self._positions, self._pool = positions, TransitionPool(transitions)
        self.source = digest([*positions.lines, *(row.prompt for row in transitions)])

    def batches(self, step: int) -> tuple[list[PolicyBatch], list[EnvironmentBatch]]:
        drawn, environment = self.draw(step)
        policy = [example for _, example in drawn]
        return (
            [collate(rows, self._pad_id) for rows in _parts(policy, [len(row.tokens) for row in policy])],
            [
                collate_environment(rows, self._pad_id)
                for rows in _parts(environment, [len(row.tokens) for row in environment])
            ],
        )

    def draw(self, step: int) -> tuple[list[DrawnPolicy], list[EnvironmentExample]]:
        """Return the step's `P:` examples, each with its position, and its `A:` examples."""
        rng, config = random.Random(f"{self._seed}:{step}"), self._config
        policy = _fitting(lambda: self._policy_example(rng), lambda row: row[1].tokens, config.policy_examples)
        environment = _fitting(
            lambda: self._environment.example(self._pool.sample(rng)),
            lambda row: row.tokens,
            config.environment_examples,
        )
        return policy, environment

    def _policy_example(self, rng: random.Random) -> DrawnPolicy:
        evals = self.sample(rng)
        return evals, self._policy.example(evals)

    def sample(self, rng: random.Random) -> MoveEvals:
        """Return a position, with colours exchanged half of the time."""
        positions, config = self._positions, self._config
        shares = config.check_share, config.mate_share, config.ending_share, config.bare_king_share
        slices = (kind or positions for kind in (positions.checks, positions.mates, positions.endings))
        kind = rng.choices((*slices, None, positions), (*shares, 1 - sum(shares)))[0]
        evals = positions.bare_king(rng) if kind is None else rng.choice(kind)
        return mirrored(evals) if rng.random() < MIRRORED else evals


def by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers of the rows of PARTS parts of about equal size, shorter rows first."""
    ordered = sorted(range(len(lengths)), key=lengths.__getitem__)
    cuts = [len(lengths) * number // PARTS for number in range(PARTS + 1)]
    return (ordered[begin:end] for begin, end in pairwise(cuts) if begin < end)


def _parts(rows: Sequence[Row], lengths: Sequence[int]) -> list[list[Row]]:
    return [[rows[number] for number in part] for part in by_length(lengths)]


def _fitting(make: Callable[[], Row], tokens: Callable[[Row], list[int]], count: int) -> list[Row]:
    """Return `count` examples that fit into the model's positions."""
    rows: list[Row] = []
    while len(rows) < count:
        row = make()
        if len(tokens(row)) <= POSITIONS:
            rows.append(row)
    return rows
