"""The campaign on a fake GPU: no call mixes devices, and captures reject reads and copies."""

import json
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_gpu import Misplaced, fake_gpu
from torch import nn

from real.campaign.config import TOY
from real.campaign.scheduler import advance
from real.campaign.stages import stages
from real.campaign.workspace import Workspace
from real.model.captured_passes import CapturedPasses
from real.model.cuda_graphs import WARM
from real.model.target import Target
from real.record import Settings
from real.sampling import Rule
from real.train.generate import generate_together
from real.train.optimizers import TrainSchedule
from real.train.train_predictor import generate_one_by_one, train_predictor
from real.train.training_loop import Paused, fit

WORDS = [
    "the", "drafter", "proposes", "and", "the", "target", "disposes", "of", "every", "token", "it",
    "is", "shown",
]  # fmt: skip


def test_mixed_devices_raise():
    with fake_gpu():
        there, here = torch.zeros(3, device="cuda"), torch.ones(3)
        assert there.is_cuda
        assert there[1:].device.type == (there + 1).device.type == "cuda"
        assert here.device.type == "cpu"
        assert here.to("cuda").is_cuda
        assert not there.cpu().is_cuda
        assert nn.Linear(3, 2).to("cuda").weight.is_cuda
        assert (there + torch.tensor(1.0)).is_cuda
        assert there[torch.tensor([0, 2])].is_cuda
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
def test_reads_and_copies_in_a_capture_raise(planted):
    with fake_gpu() as there:
        import real.model.captured_passes

        held, constant = torch.zeros(2, device="cuda"), torch.ones(2)

        def function():
            if planted == "read" and held.sum() > 1:
                return (held,)
            return (
                held
                + (
                    constant.to("cuda")
                    if planted == "copy"
                    else constant
                    if planted == "host tensor"
                    else 1
                ),
            )

        with pytest.raises(Misplaced):
            real.model.captured_passes.capture(function, held.device)
        assert real.model.captured_passes.capture(lambda: (held + 1,), held.device)()[
            0
        ].tolist() == [1, 1]
        assert there.calls["add"] > WARM


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fake_gpu")
    for name, count in (("text.txt", 4000), ("held.txt", 400)):
        (folder / name).write_text(" ".join(WORDS[i * i % len(WORDS)] for i in range(count)))
    rows = [
        {
            "id": f"p{i}",
            "task": "ab"[i % 2],
            "text": f"the target {WORDS[i]} the target {WORDS[i]} the",
        }
        for i in range(8)
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_campaign_runs_on_a_fake_gpu(inputs, few_replicates, short_predictors, bare_axes):
    """Trains, records and measures all drafters, then runs EAGLE by every command on "fast"."""
    config = replace(
        TOY,
        engine="fast",
        recording=replace(TOY.recording, K=3),
        policies=replace(TOY.policies, chains=("beta_ts", "confidence:0.5")),
    )
    last = {f"record-{d}-coupled" for d in ("model", "early_exit", "medusa", "prompt_lookup")}
    last |= {f"{what}-eagle" for what in ("equal", "forced", "audit", "drive")} | {
        "ladder-8b",
        "wait",
        "card",
    }
    known = {part.name: part for part in stages()}
    wanted, left = set(), sorted(last)
    while left:
        wanted.add(name := left.pop())
        left += known[name].needs
    with fake_gpu() as there:
        text, held, prompts = (inputs / name for name in ("text.txt", "held.txt", "prompts.jsonl"))
        folder = Workspace(inputs / "out", config, (text,), (held,), (prompts,), "cuda")
        folder.open()
        states = advance(
            folder, [part for part in stages() if part.name in wanted], 3600, say=lambda *_: None
        )
        assert {status.state for status in states} == {"done"}, [
            status.why for status in states if status.state != "done"
        ]
        assert (
            folder.result("equal-eagle")["failures"] == 0 < folder.result("equal-eagle")["rounds"]
        )
        assert folder.result("drive-eagle")["replay_equal"]
        assert json.loads((inputs / "out" / "campaign.json").read_text())["device"] == "fake GPU"
        assert all(
            isinstance(pair.target.passes, CapturedPasses)
            and pair.target.decoder.embed.weight.is_cuda
            for pair in folder._loaded.values()
        )
    assert there.calls["scaled_dot_product_attention"]
    assert there.waits["synchronize"]


def test_resumed_training_restores_optimizer_state_on_the_gpu(tmp_path):
    """A fused optimizer reads its step count on the GPU: resuming must restore it there."""

    def learnt(folder, stop=None):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).to("cuda")

        def progress(label, done, total, note=""):
            if done == stop:
                raise Paused("stop")

        def loss(step):
            return (model(torch.full((2, 4), step / 10, device="cuda")) - 1).square().mean()

        try:
            fit(folder, model, loss, TrainSchedule(steps=30), progress)
        except Paused:
            return learnt(folder)
        return [p.tolist() for p in model.parameters()]

    with fake_gpu():
        assert learnt(tmp_path / "once") == learnt(tmp_path / "twice", 10)


def test_generated_sequences_and_predictors_are_equal_on_gpu_and_host():
    from toy_lm import END, toy_decoder, toy_model

    from real.train.train_predictor import acceptance_examples

    record_settings = [Settings(4, 8, rule, END) for rule in (Rule(), Rule("coupled", 0.8, 5))]
    prompts = [[5, 6, 7 + i] for i in range(5)]

    def generated(device):
        decoder = toy_decoder(0).to(device)
        lm = toy_model(decoder, 0).lm.to(device)
        by_one, at_once = (
            how(Target(decoder), record_settings, prompts, 3)
            for how in (generate_one_by_one, generate_together)
        )
        assert [w.new_tokens.tolist() for w in by_one] == [w.new_tokens.tolist() for w in at_once]
        predictor, card = train_predictor(acceptance_examples(at_once, lm), 2, steps=20)
        return (
            [w.new_tokens.tolist() for w in at_once],
            card,
            [p.tolist() for p in predictor.parameters()],
            predictor.bias.device.type,
        )

    with fake_gpu():
        there = generated("cuda")
    here = generated("cpu")
    assert (there[3], here[3]) == ("cuda", "cpu")
    assert there[:2] == here[:2]
    assert all(np.allclose(a, b) for a, b in zip(there[2], here[2]))


def test_compiled_layers_are_few_and_keep_the_tokens():
    """At most four graphs a kind of layer, for all widths: a GPU takes seconds for each."""
    from torch._dynamo.utils import counters
    from toy_lm import toy_pair

    from real.decode.engine import attach_engine
    from real.decode.loop import decode
    from real.decode.plan import chain_plan
    from real.model import captured_passes, runner
    from simspec import CostModel, policies

    def texts(fixed):
        target, drafter = deepcopy(toy_pair("eagle"))
        target = Target(target.decoder, drafter.taps, 96, fixed or runner.EAGER)
        if fixed:
            attach_engine(fixed, target.decoder, drafter)
        drives = [
            chain_plan(policies.BUILTIN["fixed"](k), 16, 0, CostModel.from_ratio(0.1, 16))
            for k in (0, 1, 4, 16)
        ]
        return [
            decode(target, drafter, drive, Rule(), [5, 6, 7, 8, 9], 40).token.tolist()
            for drive in drives
        ]

    class Compiled(CapturedPasses):
        def _replayed(self, graph):
            # no tape: it would keep the compiler out
            with captured_passes.compiled_layers(backend="aot_eager") as layer_forward:
                return graph.function(layer_forward)

    torch._dynamo.reset()
    before, fixed = counters["stats"]["unique_graphs"], Compiled((1, 2, 17), 96, smallest=48)
    plain = texts(None)
    assert texts(fixed) == plain
    fixed.warm()
    assert (
        0 < counters["stats"]["unique_graphs"] - before <= 8
    )  # EAGLE's first layer is another kind: it has no norm in front
