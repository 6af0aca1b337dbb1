"""An EAGLE head inside vLLM: its rounds are those of its recording."""

from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toy_lm import recorded
from vllm_double import VllmDouble, read_rounds

from real.decode.features import drafter_features
from real.drafters.eagle import EagleDrafter, EagleHead
from real.engines import EngineSettings, PolicyDraft, Request
from real.engines.compare import compare_rows
from real.engines.hosted_proposer import EagleProposer
from real.engines.rows import read_rows
from real.engines.run import Plan, run_on_engine
from real.model.checkpoint import WeightsError
from real.model.draft_head import save_draft_head
from real.model.stored_weights import made_for
from real.pair import TINY, load_pair
from real.record import Settings
from real.sampling import Rule
from simspec import CostModel

K, BUDGET = 3, 12
TARGET, HEAD = TINY / "target", TINY / "eagle"
COST = CostModel.from_ratio(0.2, K)
POLICIES = "confidence:0.2", "cost_ts"


@lru_cache
def pair():
    """The tiny target with its EAGLE head, in float64."""
    return load_pair(TINY, "eagle", dtype="float64")


def features(tokens):
    """The target's final features after each token."""
    return pass_over(tuple(tokens))


@lru_cache(None)
def pass_over(tokens):
    decoder = pair().target.decoder
    token, place = torch.tensor([tokens]), torch.arange(len(tokens))
    mask = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    hidden = decoder.run(
        decoder.embed(token), range(len(decoder.layers)), decoder.rotation(place), mask
    )
    return decoder.norm(hidden)[0]


@lru_cache
def world_of(drafter):
    """([(request, future past its end)], the recording of longer texts)."""
    target, ends, count = pair().target, pair().end_tokens, 4
    rng = np.random.default_rng(0)
    prompts = [rng.integers(300, 1300, n + 1).tolist() for n in range(count)]
    shown = drafter_features(drafter)[:2]
    asked = Settings(K + 1, BUDGET + 2 * K, Rule(), ends, shown)
    trace, world = recorded(target, drafter, asked, prompts), []
    for i, prompt in enumerate(prompts):
        text = trace.token[trace.offset[i] : trace.offset[i + 1]].tolist()
        world.append((Request(str(i), tuple(prompt), BUDGET), [*text, *[999] * 2 * K]))
    return world, trace


def make(config):
    config.model_config = SimpleNamespace(model=str(TARGET), dtype=torch.float64)
    return EagleProposer(config)


def restricted(folder):
    """The head, drafting from a third of the vocabulary."""
    target, head = pair().target.decoder, EagleHead(pair().target.decoder)
    head.load_state_dict(pair().drafter.head.state_dict())
    head.restrict(target, torch.arange(0, target.config.vocab, 3))
    folder.mkdir()
    hashes = made_for(TARGET, target, pair().tokenizer)
    save_draft_head(head, folder, "eagle", hashes, torch.float64)
    return EagleDrafter(target, head)


def run(path, world, head, policies, concurrent=1, **double):
    """(about, rows, the double) of a run."""
    draft = PolicyDraft(K, cost=COST.to_dict(), eagle=head)
    held = EngineSettings(Path("target"), draft, batch=3, seed=5)
    plan = Plan((0, K), 1, 3, concurrent, policies=policies)
    made = double.pop("make", make)
    engine = VllmDouble(world, made, pair().end_tokens, features=features, **double)
    run_on_engine(lambda: engine, held, [request for request, _ in world], plan, path)
    return *read_rows(path), engine


@pytest.mark.parametrize(("concurrent", "chunked"), [(1, False), (3, True)])
def test_policies_over_a_hosted_head_make_the_passes_of_their_replay(tmp_path, concurrent, chunked):
    world, recording = world_of(pair().drafter)
    about, rows, double = run(
        tmp_path / "r.jsonl", world, HEAD, POLICIES, concurrent, chunked=chunked
    )
    result = compare_rows(about, rows, recording)
    assert result.requests == len(world) * (2 + len(POLICIES))
    assert not result.differences, result.differences[0]
    drafted, accepted = (
        {name: held[key][0] for name, held in result.counters.items()}
        for key in ("num_draft_tokens", "num_accepted_tokens")
    )
    assert 0 < drafted["confidence:0.2"] < drafted[K]
    assert 0 < accepted[K] < drafted[K]
    assert not double.drafter.held
    assert not double.drafter.rows


def test_a_draft_vocabulary_and_preempted_requests(tmp_path):
    """Every round is that of the recording's row, drafts that the scheduler drops apart."""
    drafter, log = restricted(tmp_path / "head"), tmp_path / "rounds.jsonl"
    world, recording = world_of(drafter)

    def logging(config):
        config.additional_config["simspec"] |= {"rounds": str(log)}
        return make(config)

    about, rows, _ = run(
        tmp_path / "r.jsonl", world, tmp_path / "head", ("fixed:3",), 3,
        make=logging, chunked=True, preempted=4,
    )  # fmt: skip
    assert len({row.finished.tokens for row in rows}) == len(world)
    dropped = checked = 0
    for s, (request, _) in enumerate(world):
        for row, computed, drafted, accepted in read_rounds(log)[f"{request.id}-0badcafe"]:
            at = recording.offset[s] + row
            left = BUDGET - row
            dropped += computed > drafted
            if drafted:
                checked += 1
                assert computed == drafted == min(K, recording.depth[at])
                assert accepted == min(drafted, recording.run[at], left)
    assert dropped
    assert checked > 5
    assert (recording.run > 0).any()
    # control: the whole vocabulary drafts otherwise
    assert recording.run.tolist() != world_of(pair().drafter)[1].run.tolist()


def test_a_request_met_in_the_middle_is_not_drafted_for(tmp_path):
    world, _ = world_of(pair().drafter)
    _, rows, double = run(tmp_path / "r.jsonl", world[:2], HEAD, ())
    drafter = double.drafter
    drafter.rows["x"] = 5, features([400])
    drafter.learn("x", np.array([401, 402], np.int32), 0, [403])
    assert "x" not in drafter.held
    assert list(drafter.steps("x", np.zeros(3, np.int32), ())) == []


def test_rows_that_a_preemption_undid_are_forgotten():
    """A prompt of five tokens in parts; between two of them the request starts anew."""
    proposer = EagleProposer.__new__(EagleProposer)
    proposer.rows, whole = {}, torch.arange(5.0)[:, None]
    for place, end in ((0, 3), (0, 2), (2, 4), (4, 5)):
        request = SimpleNamespace(num_computed_tokens=place)
        runner = SimpleNamespace(
            input_batch=SimpleNamespace(req_ids=["a"]), requests={"a": request}
        )
        scheduled = SimpleNamespace(num_scheduled_tokens={"a": end - place})
        shown = {"self": runner, "scheduler_output": scheduled, "hidden_states": whole[place:end]}
        proposer.look(shown)
        first, rows = proposer.rows["a"]
        assert (first, rows.tolist()) == (0, whole[:end].tolist())
    request.num_computed_tokens = 9  # a prefix cache held what is before
    proposer.look(shown)
    assert proposer.rows["a"][0] == 9


def test_a_head_of_another_target_is_refused(tmp_path):
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=K),
        additional_config={"simspec": {"eagle": str(tmp_path)}},
    )
    with pytest.raises(WeightsError, match="eagle.json") as error:
        make(config)
    assert "\n" not in str(error.value)
