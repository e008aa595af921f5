import pytest, torch, time
pytest.importorskip("trl")
from rookworld_rlvr.objective import *
from rookworld_rlvr.training.context import StepConfig
from rookworld_rlvr.training.kl_control import KLConfig

def test_probe(ours, sample, make_theirs):
    r = sample()
    t = time.time()
    theirs = make_theirs(r, loss_type="grpo")
    print("build", time.time() - t)
    inputs = theirs.inputs()
    print({k: getattr(v, "shape", v) for k, v in inputs.items()})
    b = ours.batch(r, inputs["advantages"])
    lp = ours.logprobs(b)
    tl = torch.cat(theirs.logprobs(inputs))
    print("logp diff", (lp - tl).abs().max(), lp.mean(), lp.std())
    g = torch.Generator().manual_seed(3)
    old = lp + 0.4 * torch.randn(lp.shape, generator=g)
    inputs = theirs.inputs(old)
    b = ours.batch(r, inputs["advantages"], old)
    d = (inputs["ref_per_token_logps"][inputs["completion_mask"].bool()] - lp)
    print("delta ref", d.abs().mean(), d.abs().max())
    a = theirs.loss(inputs)
    o = ours.loss(b, StepConfig(loss=LossKind.grpo), KLConfig(coef=0.05, form=KLForm.ratio_corrected))
    print(a.loss, o.loss, a.clipped, o.clipped, a.gradient_max, a.distance(o))
    print(theirs.trainer._metrics["train"])
