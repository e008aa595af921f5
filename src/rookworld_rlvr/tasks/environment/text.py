"""Text format of the environment task `A:`.

A: <FEN>+<UCI>+<history>+<next FEN>+<reward>+<terminated>+<truncated>
"""

from collections.abc import Sequence

import chess

from ...board.fen import LARGEST_COUNTER, parse_fen
from ...board.transition import Transition, step
from ..numbers import parse_number
from ..types import EnvironmentPrompt, FailureReason, ParseFailure, PromptError

PREFIX = "A: "
SEPARATOR = "+"
FIELDS = ("next_fen", "reward", "terminated", "truncated")
# The environment prompt ends with its third separator.
PROMPT_SEPARATORS = 3
HISTORY_MOVES = 10
FLAGS = {"0": False, "1": True}


def render_environment_prompt(fen: str, uci: str, history: Sequence[str] = ()) -> str:
    """Render the prompt for a move from a position. `history` ends with `uci`; its last ten moves are shown.

    Raises ValueError for a FEN that does not parse, and for counters so large that no FEN can follow.

    >>> render_environment_prompt("8/8/8/8/8/8/8/K1k5 w - - 0 1", "a1a2", ["c2c1", "a1a2"])
    'A: 8/8/8/8/8/8/8/K1k5 w - - 0 1+a1a2+c2c1 a1a2+'
    """
    shown = " ".join(list(history)[-HISTORY_MOVES:])
    return PREFIX + SEPARATOR.join((_before_a_move(fen).fen(), uci, shown, ""))


def parse_environment_prompt(prompt: str) -> EnvironmentPrompt:
    """Parse the position, move and history of a prompt. Raises PromptError.

    Published rows have positions without a king, so any position that parses is allowed. `data audit` counts the
    impossible ones.
    """
    fields = prompt.removeprefix(PREFIX).split(SEPARATOR)
    if not prompt.startswith(PREFIX) or len(fields) != 4 or fields[3].strip():
        raise PromptError(f"expected 'A: <FEN>+<UCI>+<history>+', got {prompt!r}")
    fen, uci, history = fields[0], fields[1], tuple(fields[2].split())
    try:
        _before_a_move(fen)
    except ValueError as error:
        raise PromptError(f"expected 'A: <FEN>+<UCI>+<history>+', got {prompt!r}: {error}") from error
    if history and history[-1] != uci:
        raise PromptError(f"expected a history that ends with {uci!r}, got {prompt!r}")
    return EnvironmentPrompt(fen, uci, history)


def _before_a_move(fen: str) -> chess.Board:
    """Return the position. Raises ValueError if it does not parse, or if a FEN after a move could not be written."""
    board = parse_fen(fen)
    if max(board.halfmove_clock, board.fullmove_number) >= LARGEST_COUNTER:
        raise ValueError(f"expected counters below {LARGEST_COUNTER}, since a move raises them, got {fen!r}")
    return board


def render_environment(completion: Transition) -> str:
    """Render a completion as text.

    >>> render_environment(Transition("8/8/8/8/8/8/8/K1k5 w - - 0 1", 0.001, False, True))
    '8/8/8/8/8/8/8/K1k5 w - - 0 1+0.001+0+1'
    """
    flags = (str(int(completion.terminated)), str(int(completion.truncated)))
    return SEPARATOR.join((completion.next_fen, str(completion.reward), *flags))


def environment_truth(prompt: EnvironmentPrompt) -> Transition:
    """Return the true completion according to python-chess."""
    return step(prompt.fen, prompt.uci)


def environment_fields(completion: str) -> tuple[str, ...]:
    """Split a completion into its fields without surrounding blanks. A well-formed completion has four."""
    return tuple(field.strip() for field in completion.split(SEPARATOR))


def split_environment(line: str) -> tuple[str, str]:
    """Split a published line into prompt and completion. The prompt ends with its third `+`."""
    prompt = SEPARATOR.join([*line.split(SEPARATOR)[:PROMPT_SEPARATORS], ""])[: len(line)]
    return prompt, line[len(prompt) :]


def parse_environment(completion: str) -> Transition | ParseFailure:
    """Parse an environment completion, or return why it is malformed.

    >>> parse_environment("8/8/8/8/8/8/8/K1k5 w - - 0 1+0.5+1+0")
    Transition(next_fen='8/8/8/8/8/8/8/K1k5 w - - 0 1', reward=0.5, terminated=True, truncated=False)
    >>> parse_environment("8/8 w - - 0 1+0.5+1+0").reason
    <FailureReason.bad_fen: 'bad_fen'>
    """
    fields = environment_fields(completion)
    if not completion.strip():
        return ParseFailure(FailureReason.empty, "")
    if len(fields) != len(FIELDS):
        reason = FailureReason.missing_field if len(fields) < len(FIELDS) else FailureReason.extra_text
        return ParseFailure(reason, f"{len(fields)} fields")
    next_fen, reward, *flags = fields
    failure = fen_failure(next_fen) or _numbers_failure(reward, flags)
    return failure or Transition(next_fen, float(reward), FLAGS[flags[0]], FLAGS[flags[1]])


def fen_failure(fen: str) -> ParseFailure | None:
    """Return why a next FEN is malformed; None if it parses."""
    try:
        parse_fen(fen)
    except ValueError as error:
        return ParseFailure(FailureReason.bad_fen, str(error))
    return None


def _numbers_failure(reward: str, flags: Sequence[str]) -> ParseFailure | None:
    if parse_number(reward) is None:
        return ParseFailure(FailureReason.bad_reward, reward)
    bad_flag = next((flag for flag in flags if flag not in FLAGS), None)
    return ParseFailure(FailureReason.bad_flag, bad_flag) if bad_flag is not None else None
