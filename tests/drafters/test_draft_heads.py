"""Laws of every draft head and form of drafter: rounds, training, files, and each refusal once."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from test_catch_up import ROUND, _begin, _draft, _round
from test_checkpoint import refused
from test_eagle import Lazy, pair_of
from test_glide import FORMS as GLIDE
from test_glide import grouped
from test_medusa import shaken
from toy_lm import ToyFeatures, toy_decoder, toy_prompts, toy_target, toy_texts
from toy_skips import DECODER, SKIPS, SOME, pair

from real.draft import TrainingBatch
from real.drafters import BUILTIN
from real.drafters.eagle import INPUTS
from real.drafters.early_exit import EarlyExitHead
from real.drafters.glide import GlideDrafter, GlideModel
from real.drafters.self_skip import SelfSkipDrafter, SkipConfig
from real.model.checkpoint import WeightsError
from real.model.draft_head import HASHES, load_draft_head, save_draft_head
from real.model.target import Target

MADE_FOR = {"weights": "a" * 64, "config": "c" * 64, "tokenizer": "t" * 64}
NAMES = ["early_exit", "eagle", "medusa", "hydra", "glide"]
FORMS = [
    *(("early_exit", {"depth": 2, "own_head": own, "layers": layers})
      for own, layers in ((True, 0), (True, 1), (True, 2), (False, 1), (False, 2))),
    *(("eagle", {"inputs": inputs}) for inputs in INPUTS),
    ("eagle", {"layers": 2, "bias": False, "first_norm": True, "norm_eps": 1e-3}),
    ("medusa", {}), ("medusa", {"heads": 2, "blocks": 2, "own_head": True}),
    ("hydra", {}), ("hydra", {"heads": 2, "blocks": 2, "own_head": True}),
    *(("glide", form) for form in GLIDE),
]  # fmt: skip
EACH = pytest.mark.parametrize("name, form", FORMS, ids=str)


def head_of(name, form, make=shaken):
    form = {"depth": 2} | form if name == "early_exit" else form
    return make(BUILTIN[name].recipe.head, toy_target(), **form)


def load(name, folder, target=None, made_for=MADE_FOR):
    """By the drafter's own loader."""
    return BUILTIN[name].load(folder, target or toy_target(), made_for)


def saved(name, folder, form=None):
    """The stem of the files of a head in `folder`."""
    file = BUILTIN[name].recipe.file
    save_draft_head(head_of(name, form or {}), folder, file, MADE_FOR, torch.float64)
    return folder / file


def test_an_early_exit_starts_from_exact_copies():
    """Of a float64 target too: modules are made in float32, which rounds what is copied there."""
    target = toy_decoder(3)
    head = EarlyExitHead(target, 2, own_head=True)
    copies = (head.layers[0], target.layers[-1]), (head.norm, target.norm), (head.head, target.head)
    for ours, theirs in copies:
        for name, value in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[name], value), name


@EACH
def test_saved_heads_load(name, form, tmp_path):
    stem, head = saved(name, tmp_path, form), head_of(name, form)
    loaded = load(name, tmp_path)
    part = loaded.head if hasattr(loaded, "head") else loaded
    assert part.settings == head.settings
    assert form.items() <= part.settings.items()
    assert all(torch.equal(v, part.state_dict()[k]) for k, v in head.state_dict().items())
    assert not any(p.requires_grad for p in part.parameters())
    assert stem.with_suffix(".json").exists()


@EACH
@pytest.mark.parametrize("soft", [True, False])
def test_training_lowers_the_loss_and_keeps_the_target(name, form, soft):
    target, batch = toy_target(), TrainingBatch(toy_texts()[:16])
    before = {k: v.clone() for k, v in target.state_dict().items()}

    def fresh(make, *given, **form):
        torch.manual_seed(0)
        return make(*given, **form)

    head, recipe = head_of(name, form, fresh).requires_grad_(True), BUILTIN[name].recipe
    stored = ToyFeatures(slice(16))
    optimiser, seen = torch.optim.Adam(head.parameters(), lr=0.01), []
    for _ in range(30):
        value = recipe.loss(head, target, batch, soft, torch.Generator().manual_seed(0))
        batch = TrainingBatch(batch.token, stored=stored)  # what the first step has read
        optimiser.zero_grad()
        value.backward()
        assert all(p.grad.isfinite().all() for p in head.parameters() if p.grad is not None)
        optimiser.step()
        seen.append(value.item())
    assert seen[-1] < 0.95 * seen[0]
    assert all(torch.equal(v, before[k]) for k, v in target.state_dict().items())


def glide_pair(**form):
    target = grouped(2)
    return Target(target, capacity=32), GlideDrafter(target, shaken(GlideModel, target, **form))


def gap(make, seed, rounds, fresh=None):
    """How far a drafter's next chain and cache are, after rounds, from those of a fresh one."""
    (target, drafter), (other, anew) = make(), (fresh or make)()
    text = list(toy_prompts(1, seed)[0])
    _begin(drafter, target, text)
    for computed, drop, accepted, miss in rounds:
        drafted = computed - 1 if drop and computed else computed
        text += _round(target, drafter, text, computed, drafted, min(accepted, drafted), miss)
    tokens, logits = _draft(drafter, 4)
    _begin(anew, other, text)
    _, expected = _draft(anew, 4)
    caches = (
        (drafter.cache, anew.cache) if hasattr(drafter, "cache") else (target.cache, other.cache)
    )
    rows, far = len(text) - 1, [(logits - expected).abs().max()]
    for side in ("key", "value"):
        a, b = (getattr(cache, side)[:, :, :, :rows] for cache in caches)
        far.append((a - b).abs().max() if a.numel() else a.new_zeros(()))
    return float(torch.stack(far).max())


@settings(deadline=None, max_examples=80)
@given(
    st.one_of(
        st.sampled_from(INPUTS).map(lambda inputs: lambda: pair_of(inputs)),
        st.sampled_from(GLIDE).map(lambda form: lambda: glide_pair(**form)),
        SKIPS.map(lambda skips: lambda: pair(skips)),
    ),
    st.integers(0, 99),
    st.lists(ROUND, min_size=1, max_size=8),
)
def test_cache_and_chain_after_rounds_equal_fresh_ones(make, seed, rounds):
    assert gap(make, seed, rounds) < 1e-11


@pytest.mark.parametrize("inputs", INPUTS)
def test_control_accepted_rows_need_true_features(inputs):
    """What reads no feature has nothing to correct."""
    rounds = [(4, False, 3, 9), (0, False, 0, 7)]
    far = gap(lambda: pair_of(inputs, Lazy), 3, rounds, lambda: pair_of(inputs))
    assert far < 1e-12 if inputs == "token" else far > 1e-3


def test_control_two_layers_without_rebuild_depend_on_history():
    form = {"layers": 2, "rebuild": False}
    assert not glide_pair(**form)[1].history_free
    for free in (form | {"rebuild": True}, form | {"layers": 1}, form | {"cross": False}):
        assert glide_pair(**free)[1].history_free
    rounds = [(4, False, 3, 9), (4, False, 2, 8)]
    far, near = (
        gap(lambda f=f: glide_pair(**f), 3, rounds) for f in (form, form | {"rebuild": True})
    )
    assert far > 1e-6 > 1e-11 > near


@pytest.mark.parametrize(
    "name, form, words",
    [
        *(("eagle", form, "expected") for form in (
            {"inputs": "tokens"}, {"layers": 0}, {"layers": 1.5}, {"norm_eps": -1.0},
            {"norm_eps": "x"})),
        *((name, form, "expected integers") for name in ("medusa", "hydra")
          for form in ({"heads": 0}, {"blocks": 0}, {"heads": 1.5})),
        ("glide", {"layers": 0}, "layers is 0"),
        ("glide", {"layers": 9}, "layers is 9"),
        ("glide", {"reads": [7]}, r"reads is \[7\]"),
        ("glide", {"layers": 2, "reads": [1]}, "expected 2 target layers"),
        ("glide", {"width": 8}, "width is 8"),
        ("glide", {"shared": False, "width": 9}, "width is 9"),
        ("glide", {"cross": "no"}, "cross is 'no'"),
        ("early_exit", {"depth": 9}, "exit after 9 layers of 4"),
        ("early_exit", {"layers": -1}, "layers"),
        ("early_exit", {"own_head": False, "layers": 0}, "leave a norm alone to train"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(name, form, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        head_of(name, form)
    stem = saved(name, tmp_path)
    content = {
        "settings": {"depth": 2} | form if name == "early_exit" else form,
        "target": MADE_FOR,
    }
    stem.with_suffix(".json").write_text(json.dumps(content))
    refused("has settings that this target cannot have", load, name, tmp_path)


SPOILT = {
    "lacks the tensor": lambda state, first: state.pop(first),
    r"does not fit this target: .* is \[3\]": lambda state, first: state.update(
        {first: torch.ones(3)}
    ),
    "has a tensor another.one": lambda state, first: state.update({"another.one": torch.ones(1)}),
    "not of finite numbers": lambda state, first: state[first].view(-1)[:1].fill_(float("nan")),
}


@pytest.mark.parametrize("name", NAMES)
def test_damaged_weights_are_refused(name, tmp_path):
    file = saved(name, tmp_path).with_suffix(".safetensors")
    whole, first = file.read_bytes(), sorted(load_file(file))[0]
    for words, change in SPOILT.items():
        state = load_file(file)
        change(state, first)
        save_file(state, file)
        refused(words, load, name, tmp_path)
        file.write_bytes(whole)
    load(name, tmp_path)
    file.write_bytes(whole[:-1])
    refused("damaged", load, name, tmp_path)
    file.unlink()
    refused("no such file", load, name, tmp_path)
    file.with_suffix(".bin").write_bytes(b"never opened")
    refused(".bin is a pickle, which is never opened", load, name, tmp_path)


@pytest.mark.parametrize("name", [*NAMES, "self_skip"])
def test_settings_files_of_others_are_refused(name, tmp_path):
    if name == "self_skip":
        path, content = tmp_path / "self_skip.json", {"settings": {"mlp": [1]}, "target": MADE_FOR}
        path.write_text(json.dumps(content))
    else:
        path = saved(name, tmp_path).with_suffix(".json")
        content = json.loads(path.read_text())
    load(name, tmp_path)
    for what in HASHES:
        words = (
            f"was made for a target with {what} {MADE_FOR[what][:12]}, this one has bbbbbbbbbbbb"
        )
        refused(words, load, name, tmp_path, None, MADE_FOR | {what: "b" * 64})
    for text in ("{", "[1, 2]", '{"settings": {}}', '{"settings": 3, "target": {}}', "[" * 200_000,
                 json.dumps(content | {"target": "0" * 64})):  # fmt: skip
        path.write_text(text)
        refused(f"holds no drafter '{path.stem}'", load, name, tmp_path)
    path.write_text(json.dumps(content | {"settings": {"x" * 20_000: 1}}))
    with pytest.raises(WeightsError, match="has settings that this target cannot have") as caught:
        load(name, tmp_path)
    assert len(str(caught.value)) < 1000
    refused(f"holds no drafter '{path.stem}'", load, name, tmp_path / "nowhere")


@pytest.mark.parametrize(
    "chosen, words",
    [
        ({"attention": [4], "mlp": []}, "attention skips layer 4 of 4"),
        ({"attention": [], "mlp": [0, 9]}, "mlp skips layer 9"),
        ({"attention": [-1]}, "integer >= 0"),
        ({"attention": [1, 1]}, "different"),
        ({"attention": [[]]}, "integer"),
        ({"attention": [True]}, "integer"),
        ({"mlp": 3}, "list"),
        ({"depth": 2}, "depth"),
    ],
)
def test_skips_that_cannot_be_are_refused(tmp_path, chosen, words):
    path = tmp_path / "self_skip.json"
    path.write_text(json.dumps({"settings": {"attention": [1], "mlp": []}, "target": MADE_FOR}))
    assert SelfSkipDrafter.load(tmp_path, DECODER, MADE_FOR).skips == SkipConfig((1,)) != SOME
    path.write_text(json.dumps({"settings": chosen, "target": MADE_FOR}))
    refused(f"cannot have.*{words}", SelfSkipDrafter.load, tmp_path, DECODER, MADE_FOR)


def test_settings_of_no_head_are_refused_before_it_is_made(tmp_path):
    stored = {"settings": {"blocks": 10**6}, "target": MADE_FOR}
    (tmp_path / "heads.json").write_text(json.dumps(stored))
    with pytest.raises(WeightsError, match="blocks is 1000000, expected an integer of at most"):
        load_draft_head(lambda *_, **__: pytest.fail("made"), tmp_path, "heads", None, MADE_FOR)


def test_an_exit_of_a_head_alone_starts_as_the_targets():
    target = toy_decoder(0).float()
    alone = EarlyExitHead(target, 2, layers=0)
    assert alone.settings == {"depth": 2, "own_head": True, "layers": 0}
    assert torch.equal(alone.head.weight, target.head.weight)
    assert EarlyExitHead(target, 2, layers=2).settings["own_head"] is False
