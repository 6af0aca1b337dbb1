"""The prepacked engine: the same products from another layout of the weights."""

import copy

import pytest
import torch
from torch import nn
from toy_lm import toy_target

from real.decode.engine import attach_engine, make_passes
from real.draft import Drafter
from real.model import prepacked
from real.model.bfloat16 import multiplies_bfloat16
from real.model.prepacked import FEWEST_ROWS, PrepackedLinear, prepack

DTYPES = [torch.float32, *[torch.bfloat16] * multiplies_bfloat16("cpu")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [True, False])
def test_products_equal_those_of_the_plain_layout(dtype, bias):
    torch.manual_seed(0)
    plain = nn.Linear(48, 80, bias=bias).to(dtype)
    packed = PrepackedLinear(plain)
    assert packed.weight is plain.weight
    for rows in (1, FEWEST_ROWS - 1, FEWEST_ROWS, 9, 65):
        for shape in ((rows, 48), (1, rows, 48)):
            x = torch.randn(shape, dtype=dtype)
            with torch.inference_mode():
                torch.testing.assert_close(
                    packed(x),
                    plain(x),
                    rtol=2e-2 if dtype is torch.bfloat16 else 1e-5,
                    atol=1e-2 if dtype is torch.bfloat16 else 1e-6,
                )


def test_passes_of_few_rows_read_the_plain_weight_and_others_the_packed_one():
    packed = PrepackedLinear(nn.Linear(8, 8))
    packed.packed.copy_(torch.ops.mkldnn._reorder_linear_weight(torch.zeros(8, 8), FEWEST_ROWS))
    packed.bias = None
    with torch.inference_mode():
        assert packed(torch.ones(FEWEST_ROWS - 1, 8)).any()
        assert not packed(torch.ones(FEWEST_ROWS, 8)).any()


def test_a_model_is_prepacked_once_and_computes_the_same():
    decoder = copy.deepcopy(toy_target(0)).float()
    token = torch.arange(12)[None] % decoder.config.vocab
    with torch.inference_mode():
        before = decoder(token)
        prepack(decoder)
        layers = [m for m in decoder.modules() if isinstance(m, nn.Linear)]
        prepack(decoder)
        after = decoder(token)
    assert all(type(m) is PrepackedLinear for m in layers)
    assert [m for m in decoder.modules() if isinstance(m, nn.Linear)] == layers
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


def test_other_devices_and_types_are_refused():
    decoder = copy.deepcopy(toy_target(0)).double()
    with pytest.raises(ValueError, match="prepacked: the target is float64 on cpu; expected"):
        attach_engine(make_passes("prepacked", 4, 40), decoder, Drafter())


def test_a_processor_that_emulates_bfloat16_is_refused(monkeypatch):
    monkeypatch.setattr(prepacked, "multiplies_bfloat16", lambda device: False)
    decoder = copy.deepcopy(toy_target(0)).to(torch.bfloat16)
    with pytest.raises(ValueError, match="prepacked: this processor only emulates bfloat16; use"):
        prepack(decoder)
    prepack(decoder.float())
