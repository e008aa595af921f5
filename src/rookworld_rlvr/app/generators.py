"""Construction of the generator that a configuration names."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..errors import UserError, prefixed
from ..model.device import Precision, is_accelerator
from ..model.policy import Policy
from ..model.weights import is_small
from ..model.world import World
from ..rollout.decode_graph import GraphGenerator
from ..rollout.generator import Generator, GeneratorBaseConfig, GeneratorError, GeneratorKind
from ..rollout.hf_generator import HFGenerator
from ..rollout.native_generator import NativeGenerator

VLLM = (GeneratorKind.vllm, GeneratorKind.vllm_server)
ALONE = World()


def make_generator(policy: Policy, config: GeneratorBaseConfig, world: World = ALONE) -> Generator:
    """Return the configured generator. Raises UserError if it is not available or does not support the model.

    `world` is needed if several ranks sample together.
    """
    if config.cuda_graph and (config.kind is not GeneratorKind.native or policy.device.type != "cuda"):
        got = f"generator.kind={config.kind} on {policy.device.type}"
        raise UserError(f"generator.cuda_graph: expected generator.kind=native on a CUDA device, got {got}")
    if config.kind in VLLM:
        return _vllm_generator(policy, config, world)
    ids = {"eos_id": int(policy.tokenizer.eos_token_id), "pad_id": policy.pad_id}
    if config.kind is GeneratorKind.hf:
        return HFGenerator(policy.model, config, **ids, autocast=policy.autocast)
    if not policy.shares:
        raise UserError(
            "generator.kind=native: expected a model whose attention can be replaced and sees all that came before, "
            f"got {type(policy.model).__name__}; generator.kind=hf samples from any"
        )
    autocast = policy.autocast if is_accelerator(policy.device) or _casts_pay(policy.model) else nullcontext
    kind = GraphGenerator if config.cuda_graph else NativeGenerator
    return kind(policy.model, config, **ids, autocast=autocast)


def _casts_pay(model: nn.Module) -> bool:
    """Return True if bf16's products save more time on a CPU than its casts cost (dev/log.md, entries 7 and 92).

    A pass over a small model has too few products. Weights that are not trained would be cast in every pass, because
    autocast keeps only casts of trained ones.
    """
    return not is_small(model) and all(weight.requires_grad for weight in model.parameters())


def config_for_second_model(config: GeneratorBaseConfig) -> GeneratorBaseConfig:
    """Return the configuration for a second model: `hf` in place of vLLM, which holds a single model."""
    return replace(config, kind=GeneratorKind.hf) if config.kind in VLLM else config


def _vllm_generator(policy: Policy, config: GeneratorBaseConfig, world: World) -> Generator:
    """Return a vLLM generator, in this process or with a server, that computes in the trainer's precision."""
    dtype = torch.bfloat16 if policy.precision is Precision.bf16 else torch.float32
    own: dict[str, Any] = {"eos_id": int(policy.tokenizer.eos_token_id), "dtype": dtype}
    with prefixed(f"generator.kind={config.kind}", GeneratorError, OSError):
        if config.kind is GeneratorKind.vllm_server:
            from ..rollout.vllm_server import VLLMServerGenerator

            if not config.vllm.url:
                raise UserError("generator.vllm.url: expected the server's http://HOST:PORT, got none")
            return VLLMServerGenerator(policy.model, config, **own, world=world)
        from ..rollout.vllm_engine import VLLMGenerator, installed

        if not installed():
            raise UserError(
                "generator.kind=vllm: expected vllm to be installed: bash scripts/setup.sh vllm, "
                "then .venv-vllm/bin/rookworld in place of rookworld"
            )
        return world.barrier(lambda: VLLMGenerator(policy.model, config, ranks=world.size, **own), "the engines")
