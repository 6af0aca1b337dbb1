"""Figures that others published with their counts, read as they published them."""

import pytest
from import_files import written

from simspec.engines.formats import read_import
from simspec.engines.import_report import depth_counts, depth_curve
from simspec.engines.source import ImportOptions


def marginals(result):
    """Marginals of the only draft length."""
    (counts,) = depth_counts(result).values()
    return [point.marginal for point in depth_curve(counts)]


def test_vllms_documented_summary(tmp_path):
    """vllm docs/features/speculative_decoding/acceptance_metrics.md: 43 steps, 10 of 129."""
    stats = {
        "mean_acceptance_length": 1.2325581395348837,
        "draft_acceptance_rate": 0.07751937984496124,
        "acceptance_histogram": [39, 1, 0, 3],
        "acceptance_histogram_by_draft_length": {"3": [39, 1, 0, 3]},
        "num_spec_steps": 43,
        "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 129,
        "num_spec_tokens": 3,
    }
    row = {"id": "a", "metrics": {"speculative_decoding": stats}}
    result = read_import("vllm-requests", written(tmp_path / "f", [row]))
    assert result.length == pytest.approx(1.2325581395348837)
    assert marginals(result) == pytest.approx([4 / 43, 3 / 43, 3 / 43])


def test_sglangs_details_of_a_request(tmp_path):
    """sglang#33518: 43 rounds of 5 drafts, 63 correct, 106 tokens."""
    meta = {
        "spec_accept_rate": 0.2930232558139535,
        "spec_accept_length": 2.4651162790697674,
        "spec_num_correct_drafts": 63,
        "spec_num_proposed_drafts": 215,
        "spec_verify_ct": 43,
        "spec_correct_drafts_histogram": [11, 14, 11, 4, 0, 3],
        "completion_tokens": 106,
    }
    path = written(tmp_path / "f", [{"meta_info": meta}])
    result = read_import("sglang", path, ImportOptions(drafted=5))
    assert result.length == pytest.approx(1 + 63 / 43)
    assert marginals(result)[0] == pytest.approx(32 / 43)


def test_llamacpps_statistics_line(tmp_path):
    """A line of a log with 134 rounds of 4 drafts, 354 accepted: rates and mean agree."""
    (tmp_path / "f").write_text(
        "0.16 I statistics        draft-mtp: #calls(b,g,a) =    2    134    134, #gen drafts =    "
        "134, #acc drafts =   109, #gen tokens =    536, #acc tokens =   354, "
        "#mean acc len = 3.64, #acc rate/pos = (0.813, 0.716, 0.619, 0.493), "
        "dur(b,g,a) = 0.004, 808.560, 0.264 ms\n"
    )
    result = read_import("llamacpp-log", tmp_path / "f")
    assert round(result.length, 2) == 3.64
    assert [round(m, 3) for m in marginals(result)] == [0.813, 0.716, 0.619, 0.493]


def test_model_optimizers_two_means(tmp_path):
    """NVIDIA/Model-Optimizer#2247: 2.4733 a step and 2.5467 a request on one run."""
    row = {
        "Request_AL": {"0": {"0": 2.54671}},
        "Average_AL": 2.54671,
        "Acceptance_Length_Histogram": {"1": 8611, "2": 7814, "3": 5337, "4": 8891},
    }
    result = read_import("model-optimizer", written(tmp_path / "f", [row]))
    assert round(result.length, 4) == 2.4733
    assert round(result.length_per_request, 4) == 2.5467
