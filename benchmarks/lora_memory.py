"""Memory with LoRA and without: of known shapes by arithmetic, and of a step of a model with 135M parameters.

    python benchmarks/lora_memory.py --computed
    python benchmarks/lora_memory.py
    python benchmarks/lora_memory.py --rank 16 optim.micro_batch_size=64

`--computed` prints a table of bytes that follow from shapes alone, in float32, without activations, the framework, and
what a sampler holds. Full fine-tuning holds weights, gradients, two moments of AdamW, a reference model and, during an
update, the weights before it, six numbers per parameter. With LoRA there is one number per parameter and five per
weight of the adapter, which is in all linear layers of the blocks.

Without `--computed`, steps as those of `rookworld train` are measured, each side in a process of its own and in turns:
8 prompts, 8 completions each. The model has SmolLM2-135M's shape, random weights and our small tokenizer. It never ends
a completion. The peak is that of resident memory of the whole process, imports included.
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

# A module in this folder.
import sides
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedModel, Qwen2Config
from transformers.utils import logging as transformers_logging

from rookworld_rlvr.model.loading import tiny_model_folder
from rookworld_rlvr.model.sharded import transformer_blocks

GIB, BYTES = 2**30, 4
FULL_COPIES, ADAPTER_COPIES = 6, 5
STEP = ("objective.prompts_per_step=8", "objective.group_size=8", "optim.micro_batch_size=16", "optim.lr=1e-6",
        "generator.max_new_tokens=32")  # fmt: skip


def qwen(hidden: int, intermediate: int, layers: int, heads: tuple[int, int], **others: Any) -> Qwen2Config:
    """Return a config of Qwen2.5's family; `heads` are those of queries and of keys."""
    return Qwen2Config(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        **others,
    )


SMOLLM2 = LlamaConfig(
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    vocab_size=49152,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
)
SHAPES = {
    "SmolLM2-135M": SMOLLM2,
    "Qwen2.5-0.5B": qwen(896, 4864, 24, (14, 2), vocab_size=151936, tie_word_embeddings=True),
    "Qwen2.5-1.5B": qwen(1536, 8960, 28, (12, 2), vocab_size=151936, tie_word_embeddings=True),
    "Qwen2.5-7B": qwen(3584, 18944, 28, (28, 4), vocab_size=152064, tie_word_embeddings=False),
}
HEADER = [
    "| model | parameters | weights | gradients | moments | reference | update | full | adapter | LoRA |",
    "|---|---|---|---|---|---|---|---|---|---|",
]


@dataclass(frozen=True)
class Counts:
    """Numbers of weights of a model, and of an adapter of its blocks' linear layers."""

    model: int
    adapter: int

    @property
    def full_gib(self) -> float:
        return FULL_COPIES * BYTES * self.model / GIB

    @property
    def lora_gib(self) -> float:
        return BYTES * (self.model + ADAPTER_COPIES * self.adapter) / GIB


def counts(config: Any, rank: int) -> Counts:
    """Return the counts of a shape; no weight is made."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    layers = {id(own): own for block in transformer_blocks(model) for own in block.modules()}.values()
    linear = [own for own in layers if isinstance(own, torch.nn.Linear)]
    return Counts(
        sum(own.numel() for own in model.parameters()),
        sum(rank * (own.in_features + own.out_features) for own in linear),
    )


def table(rank: int) -> list[str]:
    """Return the lines of the computed table, in GiB."""
    lines = list(HEADER)
    for name, config in SHAPES.items():
        own = counts(config, rank)
        once = BYTES * own.model / GIB
        parts = (once, once, 2 * once, once, once, own.full_gib)
        shown = " | ".join(f"{part:.1f}" for part in parts)
        lines.append(f"| {name} | {own.model / 1e6:,.0f}M | {shown} | {own.adapter / 1e6:.1f}M | {own.lora_gib:.1f} |")
    return lines


def random_model(folder: str) -> None:
    """Write the folder of a model with random weights in SmolLM2's shape, with our tokenizer."""
    transformers_logging.disable_progress_bar()
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(SMOLLM2).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model_folder()).save_pretrained(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--computed", action="store_true", help="print the computed table alone")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2, help="of one step for each side, after one to warm up")
    parser.add_argument("override", nargs="*", help="of the configuration, as in optim.micro_batch_size=32")
    given = parser.parse_args()
    if given.computed:
        print("\n".join(table(given.rank)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        random_model(folder)
        settings = {name: [f"model.path={folder}", *STEP, f"model.lora.rank={rank}", *given.override]
                    for name, rank in (("full", 0), ("LoRA", given.rank))}  # fmt: skip
        with sides.started([(sides.ours, own) for own in settings.values()]) as ends:
            measured = sides.take_turns(ends, rounds=given.rounds, steps=1, warmup_steps=1)
    for name, rows in zip(settings, measured, strict=True):
        row = sides.medians(rows)
        print(
            f"{name}: peak {row['peak_gib']:.2f} GiB, {row['grown_gib']:.2f} of it over the imports; "
            f"{row['wall_s']:.1f} s for a step of {row['completions']:.0f} completions of {row['length']:.1f} tokens"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
