"""Medusa and Hydra: inputs and predicted token of every head, and the published formats."""

import pytest
import torch
from safetensors.torch import save_file
from test_checkpoint import refused
from toy_lm import toy_target

from real.draft import TrainingBatch
from real.draft.losses import multi_head_loss, read_target
from real.drafters import medusa
from real.drafters.hydra import HydraDrafter, HydraHeads
from real.drafters.medusa import MedusaDrafter, MedusaHeads
from real.model.target import Target

MADE_FOR = {"weights": "a" * 64, "config": "c" * 64, "tokenizer": "t" * 64}
KINDS = {"medusa": (MedusaHeads, MedusaDrafter), "hydra": (HydraHeads, HydraDrafter)}
ROWS = 24


def shaken(make, target, seed=0, **settings):
    """A part whose every weight is random, so that all it reads counts."""
    torch.manual_seed(seed)
    part = make(target, **settings).requires_grad_(False)
    for p in part.parameters():
        p.add_(0.2 * torch.randn(p.shape, dtype=p.dtype))
    return part


def accept_exact(target, drafter, prompt, text, K, pick=None):
    """Logits of every slot at every row, with drafts forced to `pick` or to the sequence."""
    engine = Target(target, capacity=64)
    shown, t = [], 0

    def forced(logits, slot, *_):
        return int(text[t + slot]) if pick is None else pick(logits, slot)

    drafter.begin(engine, prompt, engine.prefill(prompt[:-1]), forced)
    last = prompt[-1]
    for t in range(len(text) - K):
        shown.append([None if (step := drafter.next()) is None else step.logits for _ in range(K)])
        drafter.rollback(0)
        output = engine.verify([last], [-1])
        engine.commit([0])
        drafter.rollback(0)
        last = int(text[t])
        drafter.catch_up([last], output, [0])
    return shown


def taught(part, target, prompt, text, shift=0):
    """Logits [heads, rows] of the parallel training pass, read at an offset of `shift` rows."""
    whole = torch.tensor([[*prompt, *map(int, text)]])
    feature = read_target(target, whole, ["feature"])["feature"]
    heads, outputs = len(part.stacks), []
    for j in range(heads):
        rows = feature[:, : whole.shape[1] - 1 - j]
        outputs.append(part.logits(target, j, part.teacher_forced(target, rows, whole, j))[0])
    # row i of head j predicts t_{i + 2 + j}; at row t the drafter reads feature
    # len(prompt) - 2 + t
    return lambda t, j: outputs[j][len(prompt) - 2 + t + shift]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocks, own_head", [(1, False), (2, True)])
def test_teacher_forcing_equals_drafting(kind, blocks, own_head):
    make, drafter = KINDS[kind]
    target, prompt = toy_target(), [5, 9, 11, 4]
    part = shaken(make, target, blocks=blocks, own_head=own_head)
    text = torch.randint(4, 24, (ROWS,), generator=torch.Generator().manual_seed(1)).tolist()
    shown = accept_exact(target, drafter(target, part), prompt, text, 4)
    right, late = taught(part, target, prompt, text), taught(part, target, prompt, text, 1)
    gaps = [
        [
            float((shown[t][j] - where(t, j)).abs().max())
            for t in range(len(shown))
            for j in range(4)
        ]
        for where in (right, late)
    ]
    assert max(gaps[0]) < 1e-10
    assert min(gaps[1]) > 1e-6  # control: one row off is another thing everywhere


@pytest.mark.parametrize("kind", KINDS)
def test_heads_read_the_drafts_before_them(kind):
    """Draft j changes only later heads in Hydra, and none in Medusa; only Hydra reads x_t."""
    make, drafter = KINDS[kind]
    target, prompt = toy_target(), [5, 9, 11, 4]
    shaken_drafter = drafter(target, shaken(make, target))

    def logits(drafts, prompt=prompt):
        engine = Target(target, capacity=32)
        shaken_drafter.begin(
            engine, prompt, engine.prefill(prompt[:-1]), lambda logits, slot, *_: drafts[slot]
        )
        return torch.stack([shaken_drafter.next().logits for _ in range(4)])

    base = logits([6, 7, 8, 9])
    for j in range(4):
        drafts = [6, 7, 8, 9]
        drafts[j] = 20
        changed = (logits(drafts) - base).abs().amax(-1) > 1e-9
        assert changed.tolist() == [kind == "hydra" and i > j for i in range(4)]
    assert ((logits([6, 7, 8, 9], [5, 9, 11, 20]) - base).abs().amax(-1) > 1e-9).tolist() == [
        kind == "hydra"
    ] * 4


def test_loss_equals_its_definition():
    """The loss equals its row-by-row definition, and the strided losses average to it."""
    target = toy_target()
    part = shaken(MedusaHeads, target, heads=2)
    token = torch.randint(4, 24, (2, 13), generator=torch.Generator().manual_seed(3))
    expected = 0.0
    for j in range(2):
        terms = []
        for row in token:
            hidden = read_target(target, row[None, :-1], ["feature"])["feature"][0]
            for i in range(12 - 1 - j):
                logprob = part.logits(target, j, part.stacks[j](hidden[i])).log_softmax(-1)
                terms.append(-logprob[row[i + 2 + j]])
        expected += 0.8**j * torch.stack(terms).mean()
    loss = multi_head_loss(part, target, TrainingBatch(token), soft=False, stride=1)
    assert float(loss) == pytest.approx(float(expected), abs=1e-5)


def medusa_state(part, blocks=1):
    names = {
        f"stacks.{h}.{b}.linear.{k}": f"{h}.{b}.linear.{k}"
        for h in range(4)
        for b in range(blocks)
        for k in ("weight", "bias")
    }
    names |= {f"head.{h}.weight": f"{h}.{blocks}.weight" for h in range(4)}
    return {names[k]: v.clone() for k, v in part.state_dict().items()}


def test_published_heads_load_onto_a_matching_target(tmp_path):
    target, file = toy_target(), tmp_path / "medusa_lm_head.safetensors"
    part = shaken(MedusaHeads, target, own_head=True)
    state = medusa_state(part)
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 2, "medusa_num_layers": 1}')
    save_file(state, file)
    drafter = medusa.KIND.load(tmp_path, target, MADE_FOR)
    assert all(torch.equal(v, drafter.head.state_dict()[k]) for k, v in part.state_dict().items())
    assert drafter.head.settings == part.settings

    odd = next(iter(state))
    save_file({k: v for k, v in state.items() if k != odd}, file)
    refused("lacks the tensor", medusa.published, tmp_path, target)
    save_file(state | {odd: torch.ones(3)}, file)
    refused(r"is \[3\]", medusa.published, tmp_path, target)
    save_file(state | {"surplus": torch.ones(3)}, file)
    refused("surplus", medusa.published, tmp_path, target)
    file.unlink()
    file.with_suffix(".pt").write_bytes(b"never opened")
    refused("is a pickle", medusa.published, tmp_path, target)
    (tmp_path / "config.json").write_text("{")
    refused("config.json", medusa.published, tmp_path, target)


@pytest.mark.parametrize("text", ["Infinity", "1e400", "NaN", "-1", "1.5", "9" * 30, '"2"', "null"])
def test_published_heads_of_absurd_numbers_of_blocks_are_refused(text, tmp_path):
    (tmp_path / "config.json").write_text(f'{{"medusa_num_layers": {text}}}')
    save_file({"lm_heads.0.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    words = "blocks .* expected (an integer of at most 64|integers, 1 or more)"
    refused(words, medusa.published, tmp_path, toy_target())
