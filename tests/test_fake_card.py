"""The campaign's code rehearsed on a card that is not there: nothing on the host meets what is on the card, captures keep their rules."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from card import Misplaced, card
from torch import nn

from real.campaign import advance
from real.examples import learn, write
from real.folder import Folder
from real.graph import WARM
from real.passes import Fixed
from real.parts import parts
from real.rows import Settings
from real.sampling import Rule
from real.scribe import together
from real.size import TOY
from real.target import Target
from real.train import Paused, Plan, fit

WORDS = "the drafter proposes and the target disposes of every token it is shown ".split()


def test_what_a_card_refuses_is_refused():
    with card():
        there, here = torch.zeros(3, device="cuda"), torch.ones(3)
        assert there.is_cuda and there[1:].device.type == (there + 1).device.type == "cuda" and here.device.type == "cpu"
        assert here.to("cuda").is_cuda and not there.cpu().is_cuda and nn.Linear(3, 2).to("cuda").weight.is_cuda
        assert (there + torch.tensor(1.0)).is_cuda and there[torch.tensor([0, 2])].is_cuda  # a number, or an index, may be the host's
        for wrong in (
            lambda: there + here,
            lambda: torch.cat((there, here)),
            lambda: nn.Linear(3, 2)(there),
            lambda: here[there.long()],
            lambda: there.numpy(),
            lambda: np.asarray(there),
            lambda: torch.rand(3, device="cuda", generator=torch.Generator()),
        ):
            with pytest.raises(Misplaced):
                wrong()


@pytest.mark.parametrize("planted", ["host tensor", "read", "copy"])
def test_what_a_capture_refuses_is_refused(planted):
    with card() as there:
        import real.passes

        held, constant = torch.zeros(2, device="cuda"), torch.ones(2)

        def function():
            if planted == "read" and held.sum() > 1:
                return (held,)
            return (held + (constant.to("cuda") if planted == "copy" else constant if planted == "host tensor" else 1),)

        with pytest.raises(Misplaced):
            real.passes.capture(function, held.device)
        assert real.passes.capture(lambda: (held + 1,), held.device)()[0].tolist() == [1, 1] and there.calls["add"] > WARM
