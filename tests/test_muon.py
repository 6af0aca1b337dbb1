"""Muon in float32 against its definition and against PyTorch's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import real.train.optimizers
from real.train.optimizers import Float32Muon, TrainSchedule, optimizers, orthogonalized

COEFFICIENTS, STEPS, EPS = (3.4445, -4.775, 2.0315), 5, 1e-7
SIZES = st.integers(1, 9)


def by_singular_values(x, coefficients=COEFFICIENTS):
    """The polynomial of each singular value, in float64."""
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    a, b, c = coefficients
    s = s / max(float(x.norm()), EPS)
    for _ in range(STEPS):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


@settings(deadline=None, derandomize=True, max_examples=60)
@given(SIZES, SIZES, st.integers(0, 99))
def test_orthogonalization_maps_singular_values(rows, columns, seed):
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).double()
    ours = orthogonalized(x, COEFFICIENTS, STEPS, EPS)
    assert torch.allclose(ours, by_singular_values(x), rtol=0, atol=1e-9)
    wrong = by_singular_values(x, (3.4445, -4.775, 2.1))
    assert not torch.allclose(ours, wrong, rtol=0, atol=1e-6)


def trained(muon, shape, nesterov):
    torch.manual_seed(3)
    weight, idle = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.ones(2, 2))
    optimizer = muon(
        [weight, idle],
        lr=0.05,
        weight_decay=0.1,
        momentum=0.9,
        nesterov=nesterov,
        adjust_lr_fn="match_rms_adamw",
    )
    start = weight.detach().clone()
    for _ in range(4):
        weight.grad = torch.randn(shape)
        optimizer.step()
    assert torch.equal(idle, torch.ones(2, 2))  # without a gradient
    return weight.detach() - start, optimizer.state_dict()["state"][0]["momentum_buffer"]


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(24, 24), (16, 40), (40, 16)])
def test_steps_are_those_of_torch_but_for_its_rounding(shape, nesterov):
    (ours, buffer), (theirs, wanted) = (
        trained(muon, shape, nesterov) for muon in (Float32Muon, torch.optim.Muon)
    )
    assert torch.equal(buffer, wanted)  # a state of one serves the other
    assert float((ours - theirs).norm() / theirs.norm()) < 0.02  # of bfloat16: 2 ** -8 a product
    other, _ = trained(Float32Muon, shape, not nesterov)
    assert float((other - theirs).norm() / theirs.norm()) > 0.05


@pytest.mark.parametrize("native, kind", [(True, torch.optim.Muon), (False, Float32Muon)])
def test_devices_that_emulate_bfloat16_multiply_in_float32(monkeypatch, native, kind):
    monkeypatch.setattr(real.train.optimizers, "multiplies_bfloat16", lambda device: native)
    first, _ = optimizers(dict(nn.Linear(3, 2).named_parameters()), TrainSchedule(rate=0.1))
    assert type(first) is kind
    assert first.param_groups[0]["weight_decay"] == TrainSchedule().decay
