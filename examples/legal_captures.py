"""A task of one's own: name the legal captures of a position. docs/own-task.md explains each part.

    python examples/legal_captures.py train data.tasks=[captures] steps=40

All commands of `rookworld` work in this way, such as smoke, evaluate and report.
"""

from rookworld_rlvr.app.cli import console
from rookworld_rlvr.board.fen import parse_fen
from rookworld_rlvr.board.moves import is_uci
from rookworld_rlvr.tasks import Task, register
from rookworld_rlvr.tasks.keys import FRACTION, higher
from rookworld_rlvr.tasks.types import FailureReason, ParseFailure

NONE = "none"


class LegalCaptures(Task):
    """`P: <FEN, padded>M:` asks for all legal captures in UCI, separated by blanks, or for `none`.

    The model that ships goes on with moves there, so that it begins with something to reward.
    """

    name, prefix, suffix, max_new_tokens = "captures", "P: ", "M:", 48
    weights = {"structure": {"only_moves": 1}, "parse": {"moves": 1}, "correctness": {"captures": 1}}
    keys = {
        "captures/exact": higher("exactly the legal captures are named"),
        "captures/precision": higher("share of the words that are legal captures", scale=FRACTION),
        "captures/recall": higher("share of the legal captures that are named", scale=FRACTION),
    }
    headline, decision_key = tuple(keys), "captures/exact"

    def owns(self, prompt):
        return prompt.startswith(self.prefix) and prompt.endswith(self.suffix)

    def prompt(self, fen):
        return f"{self.prefix}{fen:<90}{self.suffix}"

    def query(self, prompt):
        return super().query(prompt.removesuffix(self.suffix).rstrip())

    def parse(self, completion, query):
        words = completion.text.split()
        bad = [word for word in words if not is_move(word)]
        return words if words and not bad else ParseFailure(FailureReason.bad_move, " ".join(bad[:1]))

    def truth(self, query, label):
        return frozenset(move.uci() for move in parse_fen(query.fen).generate_legal_captures()) or {NONE}

    def components(self, completion, truth, values, options):
        words = completion.text.split()
        moves = sum(map(is_move, words))
        return {
            "structure/only_moves": float(moves == len(words) > 0) or 0.5 * (moves > 0),
            "parse/moves": moves / max(1, len(words)),
            "correctness/captures": 2 * len(truth & set(words)) / (len(words) + len(truth)),
        }

    def values(self, example, completion, analysis):
        words, truth = completion.text.split(), self.truth(self.query(example.prompt), None)
        right = len(truth & set(words))
        return {
            "captures/exact": float(set(words) == truth),
            "captures/precision": right / max(1, len(words)),
            "captures/recall": right / len(truth),
        }


def is_move(word):
    return is_uci(word) or word == NONE


if __name__ == "__main__":
    register(LegalCaptures())
    console()
