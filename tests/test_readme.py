"""The README: its examples run, its figures are those of files and pages, its commands exist."""

import json
import lzma

import msgspec
import numpy as np
import pytest
from documents import README, ROOT, blocks, output_of

from real.engines.summary import cost_of_rows, run_summary
from simspec.cost.table import load_cost
from simspec.engines.served import Prices, lengths_of, served_at
from simspec.engines.server import Wave
from simspec.engines.steps import lengths_at_batches, read_steps, round_seconds

pytestmark = pytest.mark.docs

BLOCKS = blocks(README)
TEXT = README.read_text(encoding="utf-8")
ENGINES = ROOT / "traces" / "smollm2" / "engines"


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_readme_examples_run(number):
    assert output_of(BLOCKS[number]).strip()


def test_first_example_prints_the_output_shown():
    assert output_of(BLOCKS[0]) == blocks(README, "text")[-1]


def test_readme_has_at_most_900_words():
    assert 600 <= len(TEXT.split()) <= 900


def test_readme_figures_of_engines_are_those_of_their_files():
    errors = []
    for engine in ("vllm", "llamacpp", "transformers"):
        path = ENGINES / f"{engine}-ngram.rows.jsonl.xz"
        errors += run_summary(path).errors
        c = load_cost(cost_of_rows(path))
        cells = (f"{(c.draft[k] + c.verify[k] + c.overhead) / c.baseline:.2f}" for k in (1, 3, 7))
        assert (f"n-grams | {' | '.join(cells)} |" in TEXT) == (engine != "transformers")
    assert f"{len(errors)} draft lengths" in TEXT
    assert f"{np.median(errors):.1%} in the median" in TEXT
    assert f"{np.quantile(errors, 0.9):.1%} at the 90th" in TEXT


def test_readme_rounds_of_a_gpu_are_those_of_the_bundled_table_and_its_page():
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    for batch, cost in zip((1, 8, 64), load_cost("h200-vllm-0.26").known):
        row = " | ".join(f"{cost.verify[k] / cost.baseline:.2f}" for k in (1, 3, 7))
        assert f"| {batch} | {1000 * cost.baseline:.2f} | {row} |" in page
        assert (f"| {row} |" in TEXT) == (batch != 8)


def test_figures_of_a_running_server_are_those_of_its_log_and_of_the_bench_client(tmp_path):
    page = (ROOT / "docs" / "advise.md").read_text(encoding="utf-8")
    folder, log = ROOT / "traces" / "smollm2" / "served", tmp_path / "steps.jsonl"
    log.write_bytes(lzma.decompress((folder / "steps-ngram-5.jsonl.xz").read_bytes()))
    found = {(row.k, row.requests): row.speedup for row in lengths_at_batches(read_steps(log))}
    *runs, _, once, _ = json.loads((folder / "measured.json").read_text())["runs"]

    def pace(blocks):
        return sum(b["tokens"] for b in blocks) / sum(b["seconds"] for b in blocks)

    def gain(run):
        return pace(run["served"]) / pace(run["plain"])

    for run in runs:
        start, figures = (
            f"| {run['in_flight']} | {run['K']}",
            found[run["K"], run["in_flight"]].text(),
        )
        (row,) = (line for line in page.splitlines() if line.startswith(start))
        assert f"| {figures} | {gain(run):.2f}" in row
    measured = [f"{gain(run):.2f}" for run in runs[:3]]
    for figures in ([f"{found[5, n].value:.2f}" for n in (1, 4, 8)], measured):
        assert "{}, {} and {}".format(*figures) in TEXT
    assert f"K = 2 then measured {gain(once):.2f} at 4" in page


@pytest.mark.parametrize("k,requests", [(4, 1), (2, 4), (1, 4), (2, 8), (1, 8)])
def test_figures_of_servers_by_turns_are_those_of_their_answers_and_log(tmp_path, k, requests):
    page = " ".join((ROOT / "docs" / "advise.md").read_text(encoding="utf-8").split())
    files = [tmp_path / f"url-{k}-at-{requests}.{kind}.jsonl" for kind in ("steps", "waves")]
    for file in files:
        packed = ROOT / "traces" / "smollm2" / "served" / f"{file.name}.xz"
        file.write_bytes(lzma.decompress(packed.read_bytes()))
    log, waves = files
    rounds = round_seconds(log, requests)
    answers = [msgspec.json.decode(line, type=Wave) for line in waves.read_bytes().splitlines()[1:]]
    prices = Prices(rounds[:, 0], rounds, str(log))
    row = lengths_of(served_at(answers, requests), prices)[-1]
    assert k == row.K
    first = k, requests, row.predicted.value
    told = "K = {} at {}, {:.2f} and" if k < 4 else "K = {} at {}, predicted {:.2f}, measured"
    assert f"{told.format(*first)} {row.measured.text()}" in page


def test_control_a_broken_example_is_noticed():
    with pytest.raises(AssertionError, match="NameError"):
        output_of("simspec.load_trace('x')")
