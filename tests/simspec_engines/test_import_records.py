"""Records of engines: what sums and rows determine, the traps of each tool, and what is refused."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from import_files import FIXTURES, FORMAT_OF, changed, read, rows_of, written
from statsmodels.duration.survfunc import SurvfuncRight

from simspec.engines.documents import Source
from simspec.engines.import_report import (
    censored,
    counts_of,
    depth_counts,
    depth_curve,
    import_report,
    length_at,
    outcomes_of_rounds,
)

SOURCE = Source("vllm-requests", "r.jsonl", "0" * 64, "")


def rounds_of(requests):
    """Rounds from one list of (drafted, accepted) a request."""
    flat = np.array([pair for request in requests for pair in request], np.int64).reshape(-1, 2)
    offset = np.concatenate(([0], np.cumsum([len(request) for request in requests])))
    return censored(SOURCE, offset, flat[:, 0], flat[:, 1])


rounds = st.integers(1, 6).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k)))


@given(st.lists(st.lists(rounds, min_size=1, max_size=12), min_size=1, max_size=5))
def test_acceptance_by_depth_is_kaplan_meiers_estimate(requests):
    result = rounds_of(requests)
    curve = depth_curve(counts_of(result.outcomes))
    drafted, accepted = result.outcomes[:, 1], result.outcomes[:, 2]
    # A rejection at depth j is an event at time j; a full draft of k tokens is censored after k.
    rejected = accepted < drafted
    time = np.where(rejected, accepted + 1, drafted + 0.5)
    known = SurvfuncRight(time, rejected.astype(int))
    survival, last = dict(zip(known.surv_times, known.surv_prob)), 1.0
    assert (curve[0].depth, curve[0].tried) == (1, len(drafted))
    for point in curve:
        last = survival.get(point.depth, last)
        if point.tried:
            assert point.marginal == pytest.approx(last, abs=1e-12)


def test_many_requests_are_resampled_in_groups():
    rng = np.random.default_rng(0)
    accepted = (rng.random(9000) < 0.6).astype(np.int64)
    counts = counts_of(outcomes_of_rounds(np.arange(9001), np.ones(9000, np.int64), accepted))
    (point,) = depth_curve(counts)
    width = 2 * 1.96 * np.sqrt(0.6 * 0.4 / 9000)
    assert point.high - point.low == pytest.approx(width, rel=0.1)
    with pytest.raises(ValueError, match="split the file"):
        counts_of(np.array([[1 << 18, 255, 0, 1]]))


def test_intervals_resample_requests_where_there_are_eight():
    # Requests differ: all accepted, or nothing. Rounds taken as independent would be too sure.
    outcomes = rounds_of([[(2, 2)] * 20, [(2, 0)] * 20] * 6).outcomes
    point = depth_curve(counts_of(outcomes))[0]
    width = 2 * 1.96 * np.sqrt(point.marginal * (1 - point.marginal) / len(outcomes))
    assert point.high - point.low > 2 * width
    assert np.isnan(depth_curve(counts_of(outcomes[outcomes[:, 0] < 7]))[0].low)


@pytest.mark.parametrize("name", ["vllm-requests.jsonl", "aiperf.jsonl"])
def test_rounds_of_every_format(name):
    result = read(FORMAT_OF[name], FIXTURES / name)
    assert result.kind == "censored"
    assert result.outcomes.T.tolist() == [
        [0, 0, 0, 0, 1, 1, 1], [3, 3, 3, 3, 3, 3, 2], [3, 1, 0, 2, 0, 3, 1], [1] * 7
    ]  # fmt: skip
    assert import_report(result)["totals"][0]["accepted_length"] == pytest.approx(1 + 10 / 7)


def test_a_last_round_cut_by_the_token_limit_is_censored():
    result = read("vllm-requests", FIXTURES / "vllm-requests.jsonl")
    assert result.draft_length == 3
    third = depth_curve(depth_counts(result)["", 3])[2]
    assert (third.tried, third.accepted) == (3, 2)  # the round that drafted 2 is not among them
    assert any("2 of 7 rounds are a request's last" in n for n in import_report(result)["notes"])


def test_varying_draft_lengths_are_given_by_draft_length():
    result = rounds_of([[(3, 3), (1, 1), (3, 0), (1, 0)], [(3, 1), (1, 1), (3, 2)]])
    assert result.draft_length is None
    assert {key: c.tried[:, 0].tolist() for key, c in depth_counts(result).items()} == {
        ("", 1): [2, 1],
        ("", 3): [2, 2],
    }
    assert "acceptance by depth over all rounds" in import_report(result)["not_concluded"]
    with pytest.raises(ValueError, match="the draft length varies"):
        length_at(result, 3)


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
    assert read("vllm-requests", path).outcomes[:, 2].tolist() == [3, 1, 0, 2]


DEPTH = "acceptance by depth"


NINE = [5 / 9, 3 / 9, 2 / 9]


def marginals(result):
    """{K: marginals} of a result."""
    return {
        K: [point.marginal for point in depth_curve(counts)]
        for (_, K), counts in depth_counts(result).items()
    }


def edited(path, name, *pairs):
    """A fixture's copy with some text replaced."""
    text = (FIXTURES / name).read_text()
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "format, name",
    [
        ("vllm-prometheus", "vllm-prometheus.txt"),
        ("vllm-bench-serve", "vllm-bench-serve.json"),
        ("llamacpp-prometheus", "llamacpp-prometheus.txt"),
        ("sglang-prometheus", "sglang-prometheus.txt"),
    ],
)
def test_totals_of_nine_rounds(format, name):
    result = read(format, FIXTURES / name, drafted=3 if format == "sglang-prometheus" else None)
    assert (result.rounds, result.drafted, result.accepted) == (9, 27, 10)
    assert result.length == pytest.approx(1 + 10 / 9)
    if format == "sglang-prometheus":
        assert depth_counts(result) == {}
        assert DEPTH in result.withheld
    else:
        assert marginals(result)[3] == pytest.approx(NINE)
    assert length_at(result, 3) == {"": pytest.approx(1 + sum(NINE))}
    with pytest.raises(ValueError, match="start at other tokens"):
        length_at(result, 1)


@pytest.mark.parametrize("format", ["tensorrt-llm", "sglang"])
def test_sums_of_requests_keep_requests(format):
    path = next(FIXTURES.glob(f"{format}.json*"))
    result = read(format, path, drafted=3 if format == "sglang" else None)
    (counts,) = depth_counts(result).values()
    assert counts.tried[:, 0].tolist() == [4, 3]
    assert counts.accepted.tolist() == [[3, 2, 1], [2, 1, 1]]


def test_files_that_released_tools_wrote():
    of_guidellm = read("guidellm", FIXTURES / "guidellm.json")
    of_aiperf = read("aiperf", FIXTURES / "aiperf-released.jsonl")
    assert (of_guidellm.requests, of_guidellm.kind, of_guidellm.draft_length) == (8, "pooled", 3)
    assert (of_aiperf.requests, of_aiperf.kind, of_aiperf.draft_length) == (3, "censored", 3)
    for result in (of_guidellm, of_aiperf):
        assert result.series.at == tuple(sorted(result.series.at))
        assert all(label.startswith("2026-11-28 14:") for label in result.series.at)
        assert result.series.accepted.sum() == result.accepted


# released-FORMAT.*: (rounds, drafted, accepted), and a count that its tool cannot have written
RELEASED = {
    "vllm-requests.jsonl": (26, 73, 39, '"num_accepted_draft_tokens":3', "8"),
    "vllm-bench-serve.json": (34, 93, 49, '"spec_decode_accepted_tokens": 4', "94"),
    "vllm-prometheus.txt": (60, 166, 88, 'tokens_total{engine="0",model_name="smollm2"} 8', "88"),
    "vllm-log.txt": (None, 166, 88, "Accepted: 23", "230"),
    "llamacpp-timings.jsonl": (None, 39, 30, '"draft_n_accepted":3', "63"),
    "llamacpp-prometheus.txt": (13, 39, 30, "accepted_tokens_total 3", "92"),
    "llamacpp-log.txt": (13, 39, 30, "#acc tokens =    3", "9"),
    "tensorrt-llm-stats.json": (45, 135, 49, '"numAcceptedTokens":8', "98"),
}


@pytest.mark.parametrize("name", RELEASED)
def test_one_servers_files_agree_and_a_damaged_one_is_refused(name, tmp_path):
    """Four requests of curl and six of `vllm bench serve` are all that vLLM's counters hold."""
    *counts, written, digits = RELEASED[name]
    format, path = name.partition(".")[0], FIXTURES / f"released-{name}"
    result = read(format, path)
    assert [result.rounds, result.drafted, result.accepted] == counts
    text, damaged = path.read_text(), tmp_path / name
    assert written in text
    damaged.write_text(text.replace(written, re.sub(r"\d+$", digits, written)))
    with pytest.raises(ValueError) as raised:
        read(format, damaged)
    assert str(raised.value).startswith(str(damaged))
    assert "\n" not in str(raised.value)


def test_llamacpps_log_has_rounds_from_verbosity_4_on(tmp_path):
    detailed = FIXTURES / "released-llamacpp-log.txt"
    known, counted = (
        read(name, detailed.with_name(f"released-{name}.txt"))
        for name in ("llamacpp-log", "llamacpp-prometheus")
    )
    assert marginals(known)[3] == pytest.approx(marginals(counted)[3]) == [12 / 13, 10 / 13, 8 / 13]
    # at the default verbosity
    lines = [line for line in detailed.read_text().splitlines() if "print_timing" in line]
    (tmp_path / "log").write_text("\n".join(lines))
    result = read("llamacpp-log", tmp_path / "log")
    assert (result.requests, result.drafted, result.accepted) == (4, 39, 30)
    assert "from -lv 4 on" in result.withheld["rounds, accepted length, acceptance by depth"]


def test_a_kind_of_source_is_the_task(tmp_path):
    def change(row):
        row["metadata"] |= {"source_kind": "weka_main\x1b[31m", "request_start_ns": 5}

    result = read("aiperf", changed(tmp_path / "f", "aiperf.jsonl", change))
    assert set(result.series.task) == {"weka_main\x1b[31m"}
    assert result.series.depths.accepted.tolist() == [[3, 2, 1], [2, 1, 1]]


def test_sglangs_log_is_weighed_by_the_requests_running(tmp_path):
    result = read("sglang-log", FIXTURES / "sglang-log.txt")
    assert result.length == pytest.approx((2.5 + 3 * 2.1) / 4)
    assert [row["tokens_per_second"] for row in result.by_batch] == [120, 260]
    assert result.series.at == ("2026-11-28 08:00:01", "2026-11-28 08:00:02")
    with pytest.raises(ValueError, match="the draft length varies or is not given"):
        length_at(result, 3)
    stated = read("sglang-log", FIXTURES / "sglang-log.txt", drafted=3)
    assert length_at(stated, 3) == {"": result.length}
    with pytest.raises(ValueError, match="expected --drafted 3"):
        read("sglang-log", FIXTURES / "sglang-log.txt", drafted=5)


def test_iterations_without_a_prefill_are_priced_by_one_loop(tmp_path):
    """Under the overlap scheduler iterLatencyMS is of two: of 24 and 25 ms here."""
    name = "released-tensorrt-llm-stats.json"
    result = read("tensorrt-llm-stats", FIXTURES / name)
    rows = [(row["running_up_to"], round(row["step_ms"])) for row in result.by_batch]
    assert rows == [(2, 12), (4, 13)]
    assert result.notes == ("15 iterations with a draft of 16",)
    host = {"hostStepTimeMS": 7.5}
    path = changed(tmp_path / "f", name, lambda rows: [row.update(host) for row in rows])
    assert {row["step_ms"] for row in read("tensorrt-llm-stats", path).by_batch} == {7.5}


def test_vllm_summaries_are_kept_by_draft_length():
    result = read("vllm-requests", FIXTURES / "vllm-requests-summary.jsonl")
    assert marginals(result)[3] == pytest.approx([4 / 6, 3 / 6, 2 / 6])
    assert marginals(result)[2] == pytest.approx([1, 0])
    with pytest.raises(ValueError, match="draft length varies"):
        length_at(result, 3)


def test_a_histogram_of_several_lengths_is_withheld(tmp_path):
    def change(row):
        stats = row["metrics"]["speculative_decoding"]
        del stats["acceptance_histogram_by_draft_length"]

    path = changed(tmp_path / "f", "vllm-requests-summary.jsonl", change)
    result = read("vllm-requests", path)
    assert depth_counts(result) == {}
    assert "several draft lengths" in result.withheld[DEPTH]
    assert result.length == pytest.approx(1 + 10 / 7)


def test_counters_since_an_earlier_scrape():
    early, late = (FIXTURES / f"vllm-prometheus{name}.txt" for name in ("-before", ""))
    result = read("vllm-prometheus", late, before=early)
    assert (result.rounds, result.drafted, result.accepted) == (5, 15, 6)
    assert marginals(result)[3] == pytest.approx([3 / 5, 2 / 5, 1 / 5])
    with pytest.raises(ValueError, match="counts more than"):
        read("vllm-prometheus", early, before=late)


def test_counters_of_two_engines_add_up_and_of_two_models_do_not(tmp_path):
    text = (FIXTURES / "vllm-prometheus.txt").read_text()
    path = tmp_path / "two.txt"
    path.write_text(text + text.replace('engine="0"', 'engine="1"'))
    assert read("vllm-prometheus", path).rounds == 18
    path.write_text(text + text.replace('"llama"', '"other"'))
    with pytest.raises(ValueError, match="2 models"):
        read("vllm-prometheus", path)


def test_few_short_drafts_are_noted(tmp_path):
    path = edited(
        tmp_path / "f", "vllm-prometheus.txt", ("} 9.0", "} 900.0"), ("} 27.0", "} 2691.0")
    )  # 900 rounds, 9 tokens short
    result = read("vllm-prometheus", path)
    assert result.draft_length == 3
    assert any("9 drafted tokens fewer" in note and "0.0100" in note for note in result.notes)


@pytest.mark.parametrize("drafted", [39, 37])
def test_log_lines_are_summed(tmp_path, drafted):
    """A last draft that was cut short is a round too."""
    cut = ("Drafted: 12 tokens", f"Drafted: {drafted - 27} tokens")
    result = read("vllm-log", edited(tmp_path / "f", "vllm-log.txt", cut))
    assert (result.rounds, result.drafted, result.accepted) == (13, drafted, 14)
    if drafted == 39:
        assert marginals(result)[3] == pytest.approx([7 / 13, 4 / 13, 3 / 13])


def test_log_lines_of_varying_draft_lengths_give_the_rate_only(tmp_path):
    path = edited(tmp_path / "f", "vllm-log.txt", ("length: 2.11", "length: 1.77"))
    result = read("vllm-log", path)
    assert (result.rounds, result.length) == (None, None)
    assert (result.drafted, result.accepted) == (39, 14)
    assert any(DEPTH in key for key in result.withheld)


def test_sglangs_proposed_drafts_are_not_believed():
    result = read("sglang", FIXTURES / "sglang.jsonl")
    assert result.drafted is None
    assert set(result.withheld) == {DEPTH, "acceptance rate"}
    (total,) = import_report(result)["totals"]
    assert total["acceptance_rate"] is None
    with pytest.raises(ValueError, match="expected 4 a round as --drafted says"):
        read("sglang", FIXTURES / "sglang.jsonl", drafted=4)


@pytest.mark.parametrize(
    "name, rounds", [("sglang.jsonl", 4), ("tensorrt-llm.jsonl", 4), ("llamacpp-timings.jsonl", 12)]
)
def test_chunks_of_one_stream_count_once(tmp_path, name, rounds):
    row = rows_of(name)[0] | {"id": "x"}
    path = tmp_path / "stream"
    written(path, [row, row, row])
    format = name.partition(".")[0]
    result = read(format, path)
    assert result.requests == 1
    assert (result.drafted if format.startswith("llama") else result.rounds) == rounds


def test_tensorrt_under_a_schedule_has_no_depths(tmp_path):
    def change(row):
        row["choices"][0]["speculative_decoding"]["num_spec_tokens"] = None

    result = read("tensorrt-llm", changed(tmp_path / "f", "tensorrt-llm.jsonl", change))
    assert depth_counts(result) == {}
    assert DEPTH in result.withheld
    assert result.length == pytest.approx(1 + 10 / 7)


def test_llamacpps_passes_are_not_rounds():
    result = read("llamacpp-timings", FIXTURES / "llamacpp-timings.jsonl")
    assert result.rounds is None
    assert (result.drafted, result.accepted) == (21, 10)
    assert result.length == pytest.approx(24 / 14)
    assert "rounds without a draft and the prefill's token" in result.length_means
    with pytest.raises(ValueError, match="not in the file"):
        length_at(result, 3)


def test_aiperfs_rounds_of_llamacpp_are_refused(tmp_path):
    def change(row):
        row["spec_decode_acceptance"]["engine"] = "llama.cpp"

    with pytest.raises(ValueError, match="they were not measured"):
        read("aiperf", changed(tmp_path / "f", "aiperf.jsonl", change))


LLAMACPP = (
    "I statistics      draft-simple: #calls(b,g,a) =    5    386    386, #gen drafts =    386, "
    "#acc drafts =    63, #gen tokens =   {drafted}, #acc tokens =    78, #mean acc len = 1.20, "
    "#acc rate/pos = (0.163, 0.039), dur(b,g,a) = 0.004, 8.560, 0.264 ms\n"
)


def log_of(path, drafted):
    path.write_text(LLAMACPP.format(drafted=drafted))
    return path


def test_llamacpps_rates_end_at_the_deepest_accepted_position(tmp_path):
    result = read("llamacpp-log", log_of(tmp_path / "log", 1501))
    assert (result.rounds, result.drafted, result.accepted) == (386, 1501, 78)
    assert "several draft lengths" in result.withheld[DEPTH]
    assert result.length == pytest.approx(1 + 78 / 386)


def test_llamacpps_positions_without_an_accepted_token_count_as_rejected(tmp_path):
    result = read("llamacpp-log", log_of(tmp_path / "log", 4 * 386))
    assert result.draft_length == 4
    assert depth_counts(result)["", 4].accepted.tolist() == [[63, 15, 0, 0]]
    assert any("K = 4 is the least" in note for note in result.notes)
    stated = read("llamacpp-log", log_of(tmp_path / "log", 4 * 386), drafted=4)
    assert not any("is the least" in note for note in stated.notes)
    longer = read("llamacpp-log", log_of(tmp_path / "log", 4 * 386), drafted=5)
    assert depth_counts(longer) == {}
    with pytest.raises(ValueError, match="at most 3 each"):
        read("llamacpp-log", log_of(tmp_path / "log", 4 * 386), drafted=3)


def test_a_vllm_request_without_a_verify_step_is_left_out(tmp_path):
    rows = rows_of("vllm-requests.jsonl")
    one_token = {
        "id": "one",
        "metrics": {
            "speculative_decoding": {
                "num_spec_tokens": 3, "num_spec_steps": 0, "num_draft_tokens": 0,
                "num_accepted_draft_tokens": 0, "acceptance_histogram": [0, 0, 0, 0],
            }
        },
    }  # fmt: skip
    alone = read("vllm-requests", FIXTURES / "vllm-requests.jsonl")
    result = read("vllm-requests", written(tmp_path / "f", [one_token, *rows]))
    assert result.kind == alone.kind
    assert result.outcomes.tolist() == alone.outcomes.tolist()
    assert "requests left out, without a verify step: 1" in result.notes
    with pytest.raises(ValueError, match="no round with a draft"):
        read("vllm-requests", written(tmp_path / "f", [one_token]))


def openai_response(sequences):
    return {
        "id": "cmpl-1",
        "choices": [{"index": i, "text": "..."} for i in range(sequences)],
        "sglext": {
            "spec_tokens_details": [
                {"spec_verify_ct": 40, "spec_num_correct_drafts": 60 + i,
                 "spec_num_proposed_drafts": 120, "spec_accept_rate": (60 + i) / 120}
                for i in range(sequences)
            ]
        },
    }  # fmt: skip


@pytest.mark.parametrize("chunks", [1, 3])
def test_all_sequences_of_an_sglang_response_count_once(tmp_path, chunks):
    result = read("sglang", written(tmp_path / "f", [openai_response(2)] * chunks))
    assert (result.requests, result.rounds, result.accepted) == (2, 80, 121)


def holder(value, key):
    """The object that holds the key, in a row of JSON."""
    if isinstance(value, dict) and value.get(key) is not None:
        return value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for part in parts if (found := holder(part, key)) is not None), None)


def shifted(counts):
    """A histogram of emitted tokens: the bonus token is counted."""
    if isinstance(counts, dict):
        return {str(int(j) + 1): n for j, n in counts.items()}
    return [0, *counts[:-1]]


TESTED = "accepted / drafted tokens"
WRONG_FIGURES = [
    ("vllm-requests.jsonl", "draft_acceptance_rate", 0.9, TESTED),
    ("vllm-requests.jsonl", "mean_acceptance_length", 1.5, "length with the bonus token"),
    ("vllm-requests.jsonl", "num_spec_steps", 5, "by the counts"),
    ("vllm-requests.jsonl", "num_spec_steps", None, "num_spec_steps is missing"),
    ("vllm-requests.jsonl", "num_draft_tokens", 99, "by the counts"),
    ("vllm-requests.jsonl", "num_draft_tokens", True, "expected `int`, got `bool`"),
    ("vllm-requests.jsonl", "per_step_accepted", [1, 1, 1, 1], "is the bonus token counted"),
    ("vllm-requests.jsonl", "per_step_accepted", [3, 1, 0], "two lists differ in length"),
    ("vllm-requests-summary.jsonl", "acceptance_histogram", shifted, "bonus token"),
    ("aiperf.jsonl", "draft_acceptance_rate", 0.9, TESTED),
    ("tensorrt-llm.jsonl", "acceptance_rate", 0.9, TESTED),
    ("tensorrt-llm.jsonl", "acceptance_histogram", shifted, "bonus token"),
    ("sglang.jsonl", "spec_accept_rate", 6 / 9, TESTED),
    ("sglang.jsonl", "spec_accept_rate", float("nan"), "spec_accept_rate is nan"),
    ("sglang.jsonl", "spec_correct_drafts_histogram", shifted, "bonus token"),
    ("vllm-bench-serve.json", "spec_decode_acceptance_rate", 50.0, TESTED),
    ("guidellm.json", "num_spec_steps", 5, "by the counts"),
]


@pytest.mark.parametrize("name, key, value, words", WRONG_FIGURES, ids=range(len(WRONG_FIGURES)))
def test_figures_that_disagree_with_the_counts_are_refused(tmp_path, name, key, value, words):
    rows = rows_of(name)
    found = holder(rows[0], key)
    found[key] = value(found[key]) if callable(value) else value
    with pytest.raises(ValueError, match=words):
        read(FORMAT_OF[name], written(tmp_path / "f", rows))


CONDITIONAL = ("0.556, 0.333, 0.222", "0.556, 0.600, 0.667")
NO_DRAFTS = "Accepted: 0 tokens, Drafted: 0 tokens"
WRONG_TEXTS = [
    ("vllm-log", CONDITIONAL, "positions sum to|rises with depth"),
    (
        "released-llamacpp-log",
        ("0.769, 0.615", "0.833, 0.800"),
        "positions sum to|rises with depth",
    ),
    ("released-llamacpp-log", ("#acc rate/pos", "#rate"), "in another form than llama-server's"),
    ("vllm-log", ("SpecDecoding metrics", "metrics"), "no line holds SpecDecoding metrics"),
    ("vllm-log", (r"Accepted: \d+ tokens, Drafted: \d+ tokens", NO_DRAFTS), "no drafted token"),
    ("vllm-prometheus", ('position="0"', 'position="7"'), "at some position"),
    ("vllm-prometheus", (r"} 9.0", "} 9.5"), "is no counter"),
    ("sglang-prometheus", ("spec_verify_calls_total", "x"), "gauges hold the last interval"),
    ("sglang-prometheus", (r"} 9.0", "} 20.0"), "ran without speculation"),
    ("sglang-log", ("accept rate: ", "rate "), "in another form than SGLang's"),
    ("sglang-log", (r"accept len: \d.\d+", "accept len: 1.00"), "no round with a draft"),
]


@pytest.mark.parametrize("format, change, words", WRONG_TEXTS, ids=range(len(WRONG_TEXTS)))
def test_wrong_logs_and_counters_are_refused(tmp_path, format, change, words):
    text = (FIXTURES / f"{format}.txt").read_text()
    (tmp_path / "f").write_text(re.sub(*change, text))
    assert (tmp_path / "f").read_text() != text
    with pytest.raises(ValueError, match=words):
        read(format.removeprefix("released-"), tmp_path / "f")


def test_counters_of_varying_draft_lengths_have_no_depths(tmp_path):
    change = (r"draft_tokens_total(.*) 27.0", r"draft_tokens_total\1 20.0")
    (tmp_path / "f").write_text(re.sub(*change, (FIXTURES / "vllm-prometheus.txt").read_text()))
    result = read("vllm-prometheus", tmp_path / "f")
    assert (result.rounds, result.drafted, result.accepted) == (9, 20, 10)
    assert (result.draft_length, depth_counts(result)) == (None, {})
    assert "several draft lengths" in result.withheld[DEPTH]
