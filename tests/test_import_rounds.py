"""Rounds that are censored at their draft length: what is read, estimated and refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_files import FIXTURES, changed, rows_of, written
from statsmodels.duration.survfunc import SurvfuncRight

from simspec.engines.formats import read_import
from simspec.engines.import_kinds import CensoredRounds, Origin, PooledCounts, of_rounds
from simspec.engines.import_report import depth_counts, depth_curve, import_report, length_at
from simspec.engines.source import ImportOptions

ORIGIN = Origin("vllm-requests", "r.jsonl", "0" * 64)


def rounds_of(requests):
    """Rounds from one list of (drafted, accepted) a request."""
    flat = np.array([pair for request in requests for pair in request], np.int64).reshape(-1, 2)
    offset = np.concatenate(([0], np.cumsum([len(request) for request in requests])))
    ids = tuple(str(i) for i in range(len(requests)))
    return CensoredRounds(ORIGIN, ids, offset, flat[:, 0], flat[:, 1])


rounds = st.integers(1, 6).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k)))


@given(st.lists(st.lists(rounds, min_size=1, max_size=12), min_size=1, max_size=5))
def test_acceptance_by_depth_is_kaplan_meiers_estimate(requests):
    result = rounds_of(requests)
    curve = depth_curve(of_rounds(result.offset, result.drafted, result.accepted))
    # A rejection at depth j is an event at time j; a full draft of k tokens is censored after k.
    rejected = result.accepted < result.drafted
    time = np.where(rejected, result.accepted + 1, result.drafted + 0.5)
    known = SurvfuncRight(time, rejected.astype(int))
    survival = dict(zip(known.surv_times, zip(known.surv_prob, known.surv_prob_se)))
    last = 1.0
    for point in curve:
        last, error = survival.get(point.depth, (last, None))
        if point.tried:
            assert point.marginal == pytest.approx(last, abs=1e-12)
        if point.interval == "rounds" and error and 0 < last < 1:
            width = 1.959963984540054 * error / (last * abs(np.log(last)))
            assert point.low == pytest.approx(last ** np.exp(width), abs=1e-9)
            assert point.high == pytest.approx(last ** np.exp(-width), abs=1e-9)


def test_control_counting_censored_rounds_as_rejections_differs():
    result = rounds_of([[(1, 1), (3, 3), (3, 2)]])
    curve = depth_curve(of_rounds(result.offset, result.drafted, result.accepted))
    assert [point.marginal for point in curve] == pytest.approx([1, 1, 0.5])
    assert np.mean(result.accepted >= 3) == pytest.approx(1 / 3)


def test_many_requests_are_resampled_in_groups():
    rng = np.random.default_rng(0)
    accepted = (rng.random(9000) < 0.6).astype(np.int64)
    counts = of_rounds(np.arange(9001), np.ones(9000, np.int64), accepted)
    (point,) = depth_curve(counts)
    assert point.interval == "requests"
    width = 2 * 1.96 * np.sqrt(0.6 * 0.4 / 9000)
    assert point.high - point.low == pytest.approx(width, rel=0.1)
    with pytest.raises(ValueError, match="split the file"):
        of_rounds(np.zeros(1 << 18, np.int64), np.array([255]), np.array([0]))


def test_intervals_resample_requests_where_there_are_eight():
    # Requests differ: all accepted, or nothing. Rounds taken as independent are too sure.
    unequal = [[(2, 2)] * 20, [(2, 0)] * 20] * 6
    result = rounds_of(unequal)
    counts = of_rounds(result.offset, result.drafted, result.accepted)
    over_requests = depth_curve(counts)[0]
    together = of_rounds(np.array([0, len(result.drafted)]), result.drafted, result.accepted)
    over_rounds = depth_curve(together)[0]
    assert over_requests.interval == "requests"
    assert over_rounds.interval == "rounds"
    wide, narrow = (point.high - point.low for point in (over_requests, over_rounds))
    assert wide > 2 * narrow


@pytest.mark.parametrize(
    "name, drafted",
    [
        ("vllm-requests.jsonl", [3, 3, 3, 3, 3, 3, 2]),
        ("sglang-stats.jsonl", [3, 3, 3, 3, 3, 3, 2]),
        ("aiperf.jsonl", [3, 3, 3, 3, 3, 3, 2]),
        ("spec-bench.jsonl", [3] * 7),
        ("angelslim.jsonl", [3] * 7),
    ],
)
def test_rounds_of_every_format(name, drafted):
    format = {"sglang-stats.jsonl": "sglang"}.get(name, name.partition(".")[0])
    result = read_import(format, FIXTURES / name)
    assert isinstance(result, CensoredRounds)
    assert result.offset.tolist() == [0, 4, 7]
    assert result.drafted.tolist() == drafted
    assert result.accepted.tolist() == [3, 1, 0, 2, 0, 3, 1]
    assert import_report(result)["totals"][0]["accepted_length"] == pytest.approx(1 + 10 / 7)


def test_a_last_round_cut_by_the_token_limit_is_censored():
    result = read_import("vllm-requests", FIXTURES / "vllm-requests.jsonl")
    assert result.K == 3
    third = depth_curve(depth_counts(result)["", 3])[2]
    assert (third.tried, third.accepted) == (3, 2)  # the round that drafted 2 is not among them
    assert any("2 of 7 rounds are a request's last" in n for n in import_report(result)["notes"])


def test_per_step_and_per_request_means_differ():
    (total,) = import_report(read_import("aiperf", FIXTURES / "aiperf.jsonl"))["totals"]
    assert total["accepted_length"] == pytest.approx(1 + 10 / 7)
    assert total["accepted_length_per_request"] == pytest.approx((1 + 6 / 4 + 1 + 4 / 3) / 2)


def test_steps_without_drafts_are_named_as_missing():
    notes = read_import("vllm-requests", FIXTURES / "vllm-requests.jsonl").notes
    assert any("steps without drafts are not in the file" in note for note in notes)


def test_varying_draft_lengths_are_given_by_draft_length():
    result = rounds_of([[(3, 3), (1, 1), (3, 0), (1, 0)], [(3, 1), (1, 1), (3, 2)]])
    assert result.K is None
    assert {key: c.tried[:, 0].tolist() for key, c in depth_counts(result).items()} == {
        ("", 1): [2, 1],
        ("", 3): [2, 2],
    }
    assert "acceptance by depth over all rounds" in import_report(result)["not_concluded"]
    with pytest.raises(ValueError, match="the draft length varies"):
        length_at(result, 3)


def test_length_is_known_at_the_draft_length_of_the_rounds_only():
    result = rounds_of([[(3, 3), (3, 0)], [(3, 1)]])
    assert length_at(result, 3) == {"": pytest.approx(1 + 4 / 3)}
    with pytest.raises(ValueError, match="past depth 3 is censored"):
        length_at(result, 4)
    with pytest.raises(ValueError, match="start at other tokens"):
        length_at(result, 2)


@pytest.mark.parametrize(
    "pairs, words",
    [([(2, 3)], "accepted 3 of 2"), ([(256, 1)], "<= 255"), ([], "no round with a draft")],
)
def test_impossible_rounds_are_refused(pairs, words):
    with pytest.raises(ValueError, match=words):
        rounds_of([pairs])


def test_streamed_vllm_responses_are_read(tmp_path):
    rows = rows_of("vllm-requests.jsonl")
    chunks = [{"id": "x", "choices": [{"text": "a"}]}, rows[0]]
    path = tmp_path / "stream.txt"
    path.write_text(
        "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n"
    )
    assert read_import("vllm-requests", path).accepted.tolist() == [3, 1, 0, 2]


def _stats(row):
    return (row["metrics"]["speculative_decoding"] or {}) if "metrics" in row else {}


@pytest.mark.parametrize(
    "key, value, words",
    [
        ("num_spec_steps", 5, "num_spec_steps is 5, expected"),
        ("num_draft_tokens", 99, "num_draft_tokens is 99, expected"),
        ("per_step_accepted", [4, 0, 0, 0], "num_spec_steps|num_accepted|differ|accepted"),
        ("num_spec_steps", None, "num_spec_steps is missing"),
        ("mean_acceptance_length", 1.5, "length with the bonus token"),
        ("draft_acceptance_rate", 0.9, "accepted / drafted"),
    ],
)
def test_vllm_lists_and_counters_must_agree(tmp_path, key, value, words):
    def change(row):
        if _stats(row):
            _stats(row)[key] = value

    with pytest.raises(ValueError, match=words):
        read_import("vllm-requests", changed(tmp_path / "f", "vllm-requests.jsonl", change))


def test_responses_without_metrics_are_refused(tmp_path):
    path = changed(tmp_path / "f", "vllm-requests.jsonl", lambda row: row.pop("metrics"))
    with pytest.raises(ValueError, match="--per-request-spec-decode-metrics"):
        read_import("vllm-requests", path)


def test_summaries_among_details_make_all_of_them_sums(tmp_path):
    rows = rows_of("vllm-requests.jsonl")[:1] + rows_of("vllm-requests-summary.jsonl")[1:]
    result = read_import("vllm-requests", written(tmp_path / "f", rows))
    assert isinstance(result, PooledCounts)
    assert result.rounds == 7


def test_spec_bench_lengths_without_the_bonus_token_are_refused(tmp_path):
    def change(row):
        for choice in row["choices"]:
            choice["accept_lengths"] = [length - 1 for length in choice["accept_lengths"]]

    with pytest.raises(ValueError, match="bonus token is counted"):
        read_import("spec-bench", changed(tmp_path / "f", "spec-bench.jsonl", change))


def test_a_plain_run_is_no_drafters(tmp_path):
    def change(row):
        for choice in row["choices"]:
            choice["accept_lengths"] = [1] * len(choice["accept_lengths"])

    path = changed(tmp_path / "f", "spec-bench.jsonl", change)
    with pytest.raises(ValueError, match="plain run"):
        read_import("spec-bench", path)
    assert read_import("spec-bench", path, ImportOptions(drafted=4)).drafted.tolist() == [4] * 7


def test_stated_draft_length_is_used_and_checked():
    path = FIXTURES / "spec-bench.jsonl"
    assert set(read_import("spec-bench", path, ImportOptions(drafted=5)).drafted.tolist()) == {5}
    with pytest.raises(ValueError, match="--drafted is 2"):
        read_import("spec-bench", path, ImportOptions(drafted=2))


@pytest.mark.parametrize("bonus", [True, False])
@pytest.mark.parametrize("format", ["angelslim", "sglang"])
def test_the_bonus_token_is_found_by_the_tokens(tmp_path, format, bonus):
    def change(row):
        lists = [c for c in row.get("choices", [])] or [
            row["meta_info"]["speculative_decoding_stats"]
        ]
        for holder in lists:
            key = "accept_length" if format == "angelslim" else "accept_lengths"
            # no zeros, so that only the sums tell
            values = [max(value, 2) for value in holder[key]]
            tokens = sum(values)
            holder[key] = values if bonus else [value - 1 for value in values]
            if format == "angelslim":
                holder["new_tokens"] = [tokens]
            else:
                row["meta_info"]["completion_tokens"] = tokens
                holder["verify_lengths"] = [4] * len(values)

    name = "angelslim.jsonl" if format == "angelslim" else "sglang-stats.jsonl"
    result = read_import(format, changed(tmp_path / "f", name, change))
    assert result.accepted.tolist() == [3, 1, 1, 2, 1, 3, 1]
    assert any(("not counted" in note) is not bonus for note in result.notes[:1])


def test_a_bonus_token_that_fits_neither_way_is_refused(tmp_path):
    def change(row):
        row["choices"][0]["new_tokens"] = [40]

    with pytest.raises(ValueError, match="neither with nor without"):
        read_import("angelslim", changed(tmp_path / "f", "angelslim.jsonl", change))


def test_verification_widths_count_the_root():
    result = read_import("sglang", FIXTURES / "sglang-stats.jsonl")
    rows = rows_of("sglang-stats.jsonl")
    widths = [
        w for r in rows for w in r["meta_info"]["speculative_decoding_stats"]["verify_lengths"]
    ]
    assert result.drafted.tolist() == [width - 1 for width in widths]
