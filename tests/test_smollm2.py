"""The prompts of the SmolLM2 exhibit: whole, of known sets, and apart from those trained on."""

import json
from collections import Counter
from pathlib import Path

import cut_prompts
import pytest

ROOT = Path(__file__).parent.parent
PROMPTS = ROOT / "traces" / "smollm2" / "prompts.jsonl"


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_twenty_prompts_of_each_of_six_tasks():
    rows = read(PROMPTS)
    assert Counter(row["task"] for row in rows) == dict.fromkeys(cut_prompts.TASKS.values(), 20)
    assert len({row["id"] for row in rows}) == len({row["turns"][0] for row in rows}) == 120
    assert all(row["source"] for row in rows)


@pytest.fixture
def sets(tmp_path):
    """Sets of 50 prompts each; the first and the third of each are one text."""
    for name in (*cut_prompts.TASKS, *cut_prompts.MORE):
        rows = [
            {"id": f"{name}-{i}", "task": "t", "source": "s", "turns": [f"{name} {i} " + "x" * 99]}
            for i in range(50)
        ]
        rows[2]["turns"] = rows[0]["turns"]
        rows[7]["turns"] = ["too short"]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines)
    return tmp_path


def test_no_prompt_is_shown_and_trained_on(sets, tmp_path):
    shown, learned = tmp_path / "out" / "a.jsonl", tmp_path / "out" / "b.jsonl"
    cut_prompts.main(sets, shown, learned)
    held, rest = read(shown), read(learned)
    assert len(held) == 120
    assert not {r["turns"][0] for r in held} & {r["turns"][0] for r in rest}
    assert not any(row["turns"] == ["too short"] for row in held)
    assert len(rest) > 9 * 50 - 120 - 6 * 2
