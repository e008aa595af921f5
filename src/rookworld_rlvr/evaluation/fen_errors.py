"""Where the next position of an environment completion is wrong: strictly, leniently, field by field."""

from ..board.fen import FenField, parse_fen, position_key
from ..tasks.environment import environment_fields, environment_truth, parse_environment_prompt
from ..tasks.types import Example


def score_next_fen(example: Example, completion: str) -> dict[str, float]:
    """What is right and wrong in the completion's first field, whatever follows it; each 1.0 or 0.0.

    - `fen_strict`: it is python-chess's FEN, character by character.
    - `fen_lenient`: it parses and is the same position, as splits and exclusions know positions: placement, turn,
      castling rights and legal en-passant square are right, as python-chess reads them; counters are not asked.
    - `fen_error_<field>`: the field of that name differs as text, or is missing. Here 1.0 is an error.

    A completion without a first field has all six errors. Which values there are depends on nothing. Raises
    PromptError for a malformed prompt.
    """
    truth = environment_truth(parse_environment_prompt(example.prompt)).next_fen
    written = environment_fields(completion)[0]
    words, true_words = written.split(" "), truth.split(" ")
    errors = {name: place >= len(words) or words[place] != true_words[place] for place, name in enumerate(FenField)}
    return {
        "fen_strict": float(written == truth),
        "fen_lenient": float(_same_position(written, truth)),
        **{f"fen_error_{name}": float(wrong) for name, wrong in errors.items()},
    }


def _same_position(fen: str, other: str) -> bool:
    try:
        return position_key(parse_fen(fen)) == position_key(parse_fen(other))
    except ValueError:
        return False
