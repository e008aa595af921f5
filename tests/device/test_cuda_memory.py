"""Memory that runs out on a CUDA device: the step is repeated with smaller micro-batches. Skipped without a device."""

from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from rookworld_rlvr.app.build import build_unsaved_run
from rookworld_rlvr.evaluation.config import EvaluationConfig
from rookworld_rlvr.model.device import Device
from rookworld_rlvr.model.loading import ModelConfig, tiny_model_folder
from rookworld_rlvr.training.config import RunConfig
from rookworld_rlvr.training.memory import GIB, step_peak_gib
from rookworld_rlvr.training.step import grpo_step

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_micro_batches_are_halved_until_they_fit_into_memory(tmp_path: Path) -> None:
    """Random weights in GPT-2's shape, of which 64 completions at a time took 12.7 GiB (dev/log.md, entry 74)."""
    GPT2LMHeadModel(GPT2Config()).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_model_folder()).save_pretrained(tmp_path)
    model, none = ModelConfig(path=str(tmp_path)), EvaluationConfig(rows=0)
    context = build_unsaved_run(RunConfig(device=Device.cuda, model=model, evaluation=none)).context

    def peak_gib(step: int) -> float:
        torch.cuda.empty_cache()
        report = grpo_step(context, step)
        assert report.fault is None and report.updates
        return step_peak_gib()

    needed_gib = []
    for step, size in enumerate((8, 64)):
        context.config.optim.micro_batch_size = size
        needed_gib.append(peak_gib(step))
    allowed_gib = sum(needed_gib) / 2
    try:
        torch.cuda.set_per_process_memory_fraction(allowed_gib * GIB / torch.cuda.get_device_properties(0).total_memory)
        assert peak_gib(2) <= allowed_gib and context.recovery.halvings > 0
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
