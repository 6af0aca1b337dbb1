"""vLLM itself with drafters that `simspec export drafter` wrote: every pass as in the replay.

The models are small and random, the heads trained for seconds, so that drafts are accepted often,
not always. `make test-engines` runs it.
"""

import shutil

import pytest
from own_vllm import needs_vllm
from safetensors.torch import load_file, save_file
from served_drafters import DRAFT_TOKENS, make_world, random_prompts

from real.engines import RELEASED, EngineSettings, ModelDraft, Worker, find_environment
from real.engines.compare import compare_rows
from real.engines.export_drafter import export_drafter
from real.engines.rows import read_rows
from real.engines.run import Plan, choose_prompts, run_on_engine

K, BUDGET, PROMPTS = 3, 40, 8
CASES = {
    "model": ("model", {"layers": 2}, (0, 1, K)),
    "model of some tokens": ("model", {"layers": 3, "vocabulary": DRAFT_TOKENS}, (0, K)),
    "eagle": ("eagle", {"bias": False, "steps": 300}, (0, 1, K)),
    "eagle of two layers": ("eagle", {"bias": False, "layers": 2, "steps": 150}, (0, K)),
    "medusa": ("medusa", {"heads": K, "blocks": 2, "steps": 150}, (0, 2, K)),
    "medusa with heads of some": (
        "medusa",
        {"heads": K, "own_head": True, "steps": 150, "vocabulary": DRAFT_TOKENS},
        (0, K),
    ),
}


pytestmark = needs_vllm()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"))


def trained(world, case):
    """(the drafter's folder, its export, its recording), made once."""
    name, settings, _ = CASES[case]
    place = case.replace(" ", "_")
    folder, out = world.folder / place, world.folder / f"served_{place}"
    if not out.exists():
        world.write(name, place=place, **settings)
        export_drafter(folder, world.target, "vllm", out)
    prompts = random_prompts(PROMPTS)
    return folder, out, world.record(name, folder, prompts, K, BUDGET + K)


def ran(world, out, recording, ks, path, concurrent=1):
    """(about, rows) of vLLM on the recording's prompts with the drafter in `out`."""
    engine = RELEASED["vllm"]
    environment = find_environment(engine)
    settings = EngineSettings(world.target, ModelDraft(K, out), 1, batch=concurrent, longest=80)
    plan = Plan(ks, 1, PROMPTS, concurrent)
    requests = choose_prompts(recording, budget=BUDGET)
    run_on_engine(lambda: Worker(engine, environment), settings, requests, plan, path)
    return read_rows(path)


@pytest.mark.parametrize("case", CASES)
def test_every_pass_is_that_of_the_replay(world, tmp_path, case):
    _, out, recording = trained(world, case)
    ks = CASES[case][2]
    about, rows = ran(world, out, recording, ks, tmp_path / "rows.jsonl", 1 + (case == "eagle"))
    result = compare_rows(about, rows, recording)
    assert result.requests == len(ks) * PROMPTS
    assert not result.differences, result.differences[0]
    assert all(result.counters[k]["num_accepted_tokens"][0] > 0 for k in ks[1:])
    other = recording.select(list(reversed(range(PROMPTS))))
    moved = type(recording)(**{**vars(recording), "run": other.run, "rank": None})
    assert compare_rows(about, rows, moved).exceptions  # control: other drafts, other passes


def test_control_a_head_with_a_bias_drafts_otherwise(world, tmp_path):
    """The bias that an export refuses: vLLM drops its tensor without a word."""
    folder = world.write("eagle", place="biased", bias=True, steps=300)
    _, out, _ = trained(world, "eagle")
    recording = world.record("eagle", folder, random_prompts(PROMPTS), K, BUDGET + K)
    with pytest.raises(ValueError, match="a bias of FC"):
        export_drafter(folder, world.target, "vllm", tmp_path / "refused")
    naive = shutil.copytree(out, tmp_path / "naive")
    state, own = load_file(out / "model.safetensors"), load_file(folder / "eagle.safetensors")
    names = {"query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj"}
    names |= {"output": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm"}
    names |= {name: f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    biased = {
        key: own[f"layers.0.{name}.weight"]
        for name, stem in names.items()
        if (key := f"layers.0.{stem}.weight") in state
    }
    assert len(biased) == len(state) - 1
    biased |= {"fc.weight": own["fc.weight"], "fc.bias": own["fc.bias"]}
    save_file(biased, naive / "model.safetensors", {"format": "pt"})
    about, rows = ran(world, naive, recording, (0, K), tmp_path / "rows.jsonl")
    assert compare_rows(about, rows, recording).exceptions
