"""Memory of one training step of a GPT-2 with 124M parameters.

    python benchmarks/gpt2_memory.py
    python benchmarks/gpt2_memory.py --bound 6 optim.micro_batch_size=64

The step is that of `rookworld train`, with 8 prompts and 8 completions each, in a process of its own. The model has
random weights in GPT-2's shape (`GPT2Config()`, 50,257 tokens) and our small tokenizer; the process also holds a
reference model and AdamW's moments. Such a model never ends a completion, so each has max_new_tokens tokens, and no
step needs more memory. The micro-batch is that of `experiment=rookworld_124m`. The figure is the peak of resident
memory of the whole process, imports included. The exit code is 1 if it is above the bound.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

# A module in this folder.
import sides

STEP = ("objective.prompts_per_step=8", "objective.group_size=8", "optim.micro_batch_size=16", "optim.lr=1e-6")


def save_random_model(folder: str, config: Any) -> None:
    """Write the folder of a model of this configuration with random weights, and of our small tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    from rookworld_rlvr.model.loading import tiny_model_folder

    transformers_logging.disable_progress_bar()
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model_folder()).save_pretrained(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bound", type=float, default=6.0, help="GiB")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("override", nargs="*", help="of the configuration, as in optim.micro_batch_size=32")
    given = parser.parse_args()
    from transformers import GPT2Config

    with tempfile.TemporaryDirectory() as folder:
        save_random_model(folder, GPT2Config())
        with sides.started([(sides.ours, [f"model.path={folder}", *STEP, *given.override])]) as ends:
            ((row,),) = sides.take_turns(ends, rounds=1, steps=1, warmup_steps=0)
    print(f"{row['completions']:.0f} completions of {row['length']:.1f} tokens on average in {row['wall_s']:.1f} s")
    print(f"peak {row['peak_gib']:.2f} GiB, {row['grown_gib']:.2f} of it over the imports; at most {given.bound:g}")
    if given.json:
        given.json.write_text(json.dumps(row, indent=2))
    return 0 if row["peak_gib"] <= given.bound else 1


if __name__ == "__main__":
    sys.exit(main())
