"""KL of whole texts, and the part of its gradient that per-token forms leave out.

The true gradient is autograd through the enumerated KL(policy‖reference) = Σ over texts of p·(log p - log q).
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from rookworld_rlvr.objective import (
    LOSSES,
    ClipConfig,
    KLForm,
    KLInputs,
    LossKind,
    LossSizes,
    kl_k2,
    kl_k3,
    kl_penalty,
    sequence_kl,
    weighted_sum,
)

# Norm of the missing part as a share of the true gradient's norm. It is small if later states differ little (4.7 % was
# measured), but here the first token chooses between the end of the text and a state far from the reference.
SHARE_LEFT_OUT = 1.5243


def true_kl(policy: Any, reference: Any) -> tuple[float, Tensor]:
    log_ratio_B = ((policy.logprobs_BT() - reference.logprobs_BT()) * policy.loss_mask_BT).sum(-1)
    value = (policy.probabilities_B() * log_ratio_B).sum()
    return value.item(), torch.autograd.grad(value, policy.logits)[0]


def per_token(form: KLForm, policy: Any, reference: Any, old: Any) -> tuple[float, Tensor]:
    """Return the summed penalty expected over the old policy's texts, and its gradient."""
    rows = torch.log_softmax(policy.logits, -1)
    exact_by_state = (rows.exp() * (rows - torch.log_softmax(reference.logits, -1))).sum(-1)
    logprobs_BT, old_BT = policy.logprobs_BT(), old.logprobs_BT().detach()
    inputs = KLInputs(
        logprobs_BT,
        reference.logprobs_BT(),
        log_ratio=logprobs_BT - old_BT,
        kl_exact=exact_by_state[policy.states_BT],
    )
    term_BT = kl_penalty(form, inputs, loss_mask=policy.loss_mask_BT)
    value = (old.probabilities_B().detach() * term_BT.sum(-1)).sum()
    return value.item(), torch.autograd.grad(value, policy.logits)[0]


def in_reward(policy: Any, reward_B: Tensor) -> Tensor:
    """Return the gradient of a policy-gradient loss whose reward is -reward_B and whose loss sizes are all 1."""
    loss_mask, loss = policy.loss_mask_BT, LOSSES[LossKind.dr_grpo]
    logprobs = policy.logprobs_BT()
    terms = loss.surrogate(logprobs, logprobs.detach(), advantages_B=-reward_B, loss_mask=loss_mask, clip=ClipConfig())
    likely = policy.probabilities_B().detach().unsqueeze(-1)
    sizes = LossSizes(completions=1, tokens_per_update=1.0, max_tokens=1)
    total = weighted_sum(likely * terms.per_token, loss.token_weights(loss_mask, sizes), loss_mask)
    return torch.autograd.grad(total, policy.logits)[0]


@pytest.mark.parametrize("form", [KLForm.k2_straight_through, KLForm.exact])
def test_per_token_kl_has_exact_value_but_incomplete_gradient(form: KLForm, policy: Any, reference: Any) -> None:
    true_value, true = true_kl(policy, reference)
    value, gradient = per_token(form, policy, reference, policy)
    assert value == pytest.approx(true_value, abs=1e-12)
    # The gradient is exact for the last token. For the first one, its effect on the next state is missing.
    torch.testing.assert_close(gradient[1:], true[1:], rtol=0, atol=1e-12)
    assert ((gradient - true).norm() / true.norm()).item() == pytest.approx(SHARE_LEFT_OUT, abs=1e-4)


def test_missing_gradient_is_later_kl_as_reward_of_first_token(policy: Any, reference: Any) -> None:
    rows, ref_rows = torch.log_softmax(policy.logits, -1), torch.log_softmax(reference.logits, -1)
    later_kl = (rows.exp() * (rows - ref_rows)).sum(-1).detach()
    later_kl = torch.where(torch.arange(3) == 0, 0.0, later_kl)
    (missing,) = torch.autograd.grad((rows[0].exp() * later_kl).sum(), policy.logits)
    gradient = per_token(KLForm.exact, policy, reference, policy)[1]
    torch.testing.assert_close(gradient + missing, true_kl(policy, reference)[1], rtol=0, atol=1e-12)


def test_k1_in_reward_is_exact_for_sequence_kl(policy: Any, reference: Any) -> None:
    kl_B = sequence_kl(policy.logprobs_BT(), reference.logprobs_BT(), policy.loss_mask_BT)
    true_value, true = true_kl(policy, reference)
    assert (policy.probabilities_B() * kl_B).sum().item() == pytest.approx(true_value, abs=1e-12)
    torch.testing.assert_close(in_reward(policy, kl_B), true, rtol=0, atol=1e-9)


def test_constant_baseline_leaves_sequence_kl_gradient_unchanged(policy: Any, reference: Any) -> None:
    kl_B = sequence_kl(policy.logprobs_BT(), reference.logprobs_BT(), policy.loss_mask_BT)
    true = true_kl(policy, reference)[1]
    torch.testing.assert_close(in_reward(policy, kl_B - 0.7), true, rtol=0, atol=1e-9)


def test_k3_in_reward_has_wrong_sequence_kl_gradient(policy: Any, reference: Any) -> None:
    k3_B = (kl_k3(policy.logprobs_BT(), reference.logprobs_BT()).detach() * policy.loss_mask_BT).sum(-1)
    true = true_kl(policy, reference)[1]
    assert (in_reward(policy, k3_B) - true).norm() > 0.5 * true.norm()


def test_k2_of_summed_log_ratio_has_exact_sequence_kl_gradient(policy: Any, reference: Any) -> None:
    def summed(tree: Any) -> Tensor:
        total: Tensor = (tree.logprobs_BT() * tree.loss_mask_BT).sum(-1)
        return total

    value = (policy.probabilities_B().detach() * kl_k2(summed(policy), summed(reference))).sum()
    got = torch.autograd.grad(value, policy.logits)[0]
    torch.testing.assert_close(got, true_kl(policy, reference)[1], rtol=0, atol=1e-12)


def test_token_ratio_corrects_kl_of_the_token_but_not_of_its_prefix(
    policy: Any, reference: Any, old_policy: Any
) -> None:
    on_policy = per_token(KLForm.k2_straight_through, policy, reference, policy)[1]
    off_policy = per_token(KLForm.k2_straight_through, policy, reference, old_policy)[1]
    torch.testing.assert_close(off_policy[0], on_policy[0], rtol=0, atol=1e-12)
    start = [torch.softmax(tree.logits.detach()[0], -1)[1:] for tree in (policy, old_policy)]
    prefix_ratio = (start[1] / start[0]).unsqueeze(-1)
    torch.testing.assert_close(off_policy[1:], on_policy[1:] * prefix_ratio, rtol=0, atol=1e-12)


def test_sequence_kl_of_equal_policies_is_zero_and_ignores_padding() -> None:
    logprobs = torch.tensor([[-0.5, -3.0, float("nan")], [-1.0, -2.0, -4.0]])
    loss_mask = torch.tensor([[True, True, False], [True, True, True]])
    assert sequence_kl(logprobs, logprobs.clone(), loss_mask).tolist() == [0.0, 0.0]
    shifted = sequence_kl(logprobs + 0.5, logprobs, loss_mask)
    assert shifted.tolist() == pytest.approx([1.0, 1.5])
