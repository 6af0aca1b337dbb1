"""GLIDE: which target keys a row attends to in training and drafting, and its drafted rows."""

from dataclasses import replace

import pytest
import torch
from test_medusa import accept_exact, shaken
from toy_lm import VOCAB, toy_target

from real.draft import TrainingBatch
from real.draft.losses import read_target
from real.drafters.glide import GlideDrafter, GlideModel, blockwise_mask, glide_loss
from real.model.decoder import Decoder
from real.model.target import Target


def grouped(kv_heads: int, seed: int = 0) -> Decoder:
    """A toy target with grouped-query attention (multi-head if `kv_heads` is the head count)."""
    torch.manual_seed(seed)
    shape = replace(toy_target().config, heads=4, kv_heads=kv_heads)
    decoder = Decoder(shape).double().requires_grad_(False)
    for p in decoder.parameters():
        p.add_(0.2 * torch.randn(p.shape, dtype=p.dtype))
    return decoder


FORMS = [
    {}, {"layers": 2}, {"cross": False}, {"reads": [0]}, {"shared": False, "width": 8},
    {"layers": 3, "reads": [2, 0, 1]},
]  # fmt: skip


def read_keys(part, target, token):
    """The target's keys and values at whole sequences, for the layers that the part reads."""
    return part.keys(list(read_target(target, token, part.features).values()))


def before(rows, late=0):
    """The mask of a round's first step at every row: keys before its own, shifted by `late`."""
    return torch.arange(rows) < torch.arange(rows)[:, None] + late


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_training_equals_a_first_step(form, kv_heads):
    target, prompt = grouped(kv_heads), [5, 9, 11]
    part = shaken(GlideModel, target, **form)
    text = torch.randint(4, VOCAB, (12,), generator=torch.Generator().manual_seed(1)).tolist()
    shown = accept_exact(target, GlideDrafter(target, part), prompt, text, 1)
    whole = torch.tensor([[*prompt, *text]])
    keys = read_keys(part, target, whole)

    def gaps(late):
        sees = before(whole.shape[1], late)
        logits = part.logits(target, part.run(target, whole, keys, sees))[0]
        return [
            float((row[0] - logits[len(prompt) - 1 + t]).abs().max()) for t, row in enumerate(shown)
        ]

    assert max(gaps(0)) < 1e-10
    if part.cross:  # controls: one key more, or fewer
        assert min(gaps(1)) > 1e-9
        assert min(gaps(-1)) > 1e-9


@pytest.mark.parametrize("rows, block", [(1, 1), (12, 5), (11, 5), (7, 1), (6, 9)])
def test_blockwise_mask_equals_its_definition(rows, block):
    mask = blockwise_mask(rows, block)
    for j in range(rows):
        for k in range(rows):
            assert bool(mask[j, k]) == (k // block < j // block)
    if block < rows:
        assert not torch.equal(mask, before(rows, 1))
        assert not torch.equal(mask, blockwise_mask(rows, block + 1))


def test_steps_attend_to_keys_of_committed_rows():
    """Every slot equals a whole pass over the committed keys; other keys are poisoned."""
    target, prompt = grouped(2), [5, 9, 11, 4, 8]
    part = shaken(GlideModel, target)
    drafter, engine = GlideDrafter(target, part), Target(target, capacity=32)
    drafter.begin(engine, prompt, engine.prefill(prompt[:-1]), lambda logits, slot, *_: 6 + slot)
    engine.cache.key[:, :, :, engine.length :] = float("nan")
    engine.cache.value[:, :, :, engine.length :] = float("nan")
    shown = [drafter.next().logits for _ in range(4)]
    whole = torch.tensor([[*prompt, 6, 7, 8]])
    keys = read_keys(part, target, whole)
    sees = torch.arange(8) < torch.arange(8).clamp(max=4)[:, None]
    logits = part.logits(target, part.run(target, whole, keys, sees))[0]
    torch.testing.assert_close(torch.stack(shown), logits[4:], rtol=0, atol=1e-10)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_one_token_prompts_give_no_nan(form):
    target, text = grouped(2), [7, 5, 6]
    part = shaken(GlideModel, target, **form)
    drafter, engine = GlideDrafter(target, part), Target(target, capacity=32)
    drafter.begin(
        engine,
        text[:1],
        engine.prefill([]),
        lambda logits, slot, *_: text[slot + 1] if slot < 2 else 4,
    )
    shown = torch.stack([drafter.next().logits for _ in range(3)])
    keys = read_keys(part, target, torch.tensor([text]))
    blind = part.logits(
        target, part.run(target, torch.tensor([text]), keys, torch.zeros(3, 3, dtype=torch.bool))
    )[0]
    assert shown.isfinite().all()
    torch.testing.assert_close(shown, blind, rtol=0, atol=1e-10)


@pytest.mark.parametrize("block", [0, -5, 2.5, "five"])
def test_empty_blocks_are_refused(block):
    with pytest.raises(ValueError, match=f"block is {block!r}"):
        glide_loss(
            shaken(GlideModel, toy_target()),
            toy_target(),
            TrainingBatch(torch.zeros(1, 9, dtype=torch.long)),
            block=block,
        )


def test_loss_masks_keys_of_the_own_block():
    """Poisoned keys of a row's own and later blocks do not reach it; earlier ones do (control)."""
    target = toy_target()
    part = shaken(GlideModel, target)
    token = torch.randint(4, VOCAB, (1, 12), generator=torch.Generator().manual_seed(2))
    keys = read_keys(part, target, token)
    base = part.teacher_forced(target, token, keys, 5)
    for k in range(12):
        moved = [(key.clone(), value.clone()) for key, value in keys]
        for _, value in moved:
            value[:, :, k] += 1.0
        changed = (
            (part.teacher_forced(target, token, moved, 5) - base).abs().amax(-1)[0] > 1e-9
        ).tolist()
        assert changed == [j // 5 > k // 5 for j in range(12)]
