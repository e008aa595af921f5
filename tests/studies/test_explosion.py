"""The reproduced KL explosion: each cause has its named effect, and the preflight check for it refuses the run."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rookworld_rlvr.objective import ClipConfig

STEPS = 2
SMALL = (f"steps={STEPS}", "objective.prompts_per_step=2", "objective.group_size=4", "generator.max_new_tokens=24")


@pytest.fixture
def measured(studies: SimpleNamespace, small_model: Path, tmp_path: Path) -> Any:
    """Return a function that measures a short run of the cause whose name begins with a given text."""

    def of(name: str) -> dict[str, Any]:
        [cause] = [cause for cause in studies.explosion.CAUSES if cause.name.startswith(name)]
        cause = replace(cause, overrides=(*cause.overrides, *SMALL))
        result: dict[str, Any] = studies.explosion.measured(cause, small_model, tmp_path, recovery=False)
        assert len(result["steps"]) == STEPS and not result["ended"]
        return result

    return of


def test_run_without_a_cause_passes_preflight_and_starts_at_kl_0(measured: Any) -> None:
    result = measured("none")
    assert result["refused"] == [] and result["kl_0"] == 0


def test_dropout_gives_kl_before_the_first_update(measured: Any) -> None:
    result = measured("dropout 0.1")
    assert result["kl_0"] > 0 and {"kl_step_0", "dropout_off"} <= set(result["refused"])


def test_positions_counted_from_padding_are_refused(measured: Any) -> None:
    result = measured("positions")
    assert "padding_neutral" in result["refused"] and result["kl_0"] == 0


@pytest.mark.slow
def test_loss_summed_over_tokens_multiplies_the_gradient(measured: Any) -> None:
    norms = [measured(name)["steps"][0]["optim/grad_norm"] for name in ("none", "the same without clipping")]
    assert norms[1] > 20 * norms[0]


@pytest.mark.slow
def test_warped_old_logprobs_give_ratios_above_1(measured: Any) -> None:
    ratios = [measured(name)["steps"][0]["policy/ratio_max"] for name in ("none", "old log-probs at")]
    assert ratios[0] == pytest.approx(1) and ratios[1] > 1.1


def test_equal_rewards_of_minus_1_give_zero_advantages(measured: Any) -> None:
    step = measured("every reward -1")["steps"][0]
    assert step["reward/mean"] == -1 and step["advantage/abs_max"] == 0


def test_old_logprobs_as_sums_give_huge_ratios(measured: Any) -> None:
    assert measured("old log-probs as sums")["steps"][0]["policy/ratio_max"] > 1000


def test_old_logprobs_as_sums_give_nan_at_advantage_0(studies: SimpleNamespace) -> None:
    logprobs, mask = torch.full((1, 64), -5.0), torch.ones(1, 64, dtype=torch.bool)
    loss = studies.explosion.mean_against_sum(
        logprobs, logprobs, advantages_B=torch.zeros(1), loss_mask=mask, clip=ClipConfig()
    )
    assert loss.per_token.isnan().all() and loss.ratio.isinf().all()
