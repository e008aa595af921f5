"""`python -m tiny_model.make_examples [OUT] [quick] examples=FILE [option=value …]`: make the examples of a training.

The options are those of the recipe, and the data are made first if OUT has none. FILE then has the examples of all
`training.steps` in their order, so that the recipe with the same options needs nothing else. `processes` of them are
made at a time.
"""

import math
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rookworld_rlvr.errors import BAD_INPUT, DONE, UserError
from rookworld_rlvr.files import check_output_file

from .__main__ import RecipeConfig, drawn_examples, make_data, parse
from .drawing import DrawnExamples
from .packed import pack, settings_of, write
from .policy_examples import Array

# Number of parts for each process, so that all of them end at about the same time.
PARTS_PER_PROCESS = 8
_drawn: list[DrawnExamples] = []


def main(arguments: Sequence[str]) -> int:
    """Make the data if there are none, then the file, and return the exit code."""
    try:
        folder, config = parse(arguments)
        if not config.examples:
            raise UserError("examples: expected the file to write, got none")
        file = Path(config.examples).expanduser()
        check_output_file(file, "examples")
        folder.mkdir(parents=True, exist_ok=True)
        make_data(folder, config)
        start = time.perf_counter()
        count = make(file, drawn_examples(folder, config), config)
    except (UserError, OSError) as error:
        print(f"tiny_model: {error}", file=sys.stderr)
        return BAD_INPUT
    size = file.stat().st_size
    print(f"{file}: {count} examples, {size / count:.1f} bytes each, in {time.perf_counter() - start:.0f} s")
    return DONE


def make(file: Path, drawn: DrawnExamples, config: RecipeConfig) -> int:
    """Write the examples of all steps and return their number."""
    steps = config.training.steps
    length = max(1, math.ceil(steps / (config.processes * PARTS_PER_PROCESS)))
    ranges = [range(begin, min(begin + length, steps)) for begin in range(0, steps, length)]
    # A forked process has the data in memory already.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(config.processes, context, initializer=_drawn.append, initargs=(drawn,)) as pool:
        parts = list(pool.map(_packed, ranges))
    settings = settings_of(config.training, config.seed)
    write(file, parts, {**settings, "steps": steps, "source": drawn.source})
    return steps * (config.training.policy_examples + config.training.environment_examples)


def _packed(steps: range) -> dict[str, Array]:
    return pack(_drawn[0], steps)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
