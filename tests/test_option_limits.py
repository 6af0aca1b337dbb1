"""Numbers too large for any purpose are refused in one line, before anything is read."""

import pytest
from shell import refused
from typer.main import get_command

from simspec.cli import app
from simspec.policies import BUILTIN, make

HUGE = 10**9
TRACE = "absent.parquet"

OPTIONS = [
    ("record", "absent.jsonl", "--out", "x.parquet", "-k", HUGE),
    ("record", "absent.jsonl", "--out", "x.parquet", "--budget", HUGE),
    ("record", "absent.jsonl", "--out", "x.parquet", "--longest", HUGE),
    ("record", "absent.jsonl", "--out", "x.parquet", "--batch", HUGE),
    ("measure", "--out", "x.json", "-k", HUGE),
    ("measure", "--out", "x.json", "--batch", HUGE),
    ("measure", "--out", "x.json", "--context", 1, "--context", HUGE),
    ("measure", "--out", "x.json", "--repeats", HUGE),
    ("run", TRACE, "--policy", "fixed:1", "--prompts", 10**30),
    ("demo", "--prompts", 10**30),
    ("measure", "--out", "x.json", "--threads", HUGE),
    ("measure", "--out", "x.json", "--rows", HUGE),
]


@pytest.mark.parametrize("arguments", OPTIONS, ids=lambda a: " ".join(map(str, a)))
def test_huge_number_is_refused_before_files_are_read(tmp_path, arguments):
    """None of the files exists: the line is about the number."""
    option = {"-k": "-"}.get(arguments[-2], arguments[-2])
    refused(tmp_path, *arguments, words=f"{arguments[-1]}")
    refused(tmp_path, *arguments, words=option)


SEEDED = [
    *((name, TRACE) for name in (
        "run",
    )),
    ("check", TRACE),
    ("record", "absent.jsonl", "--out", "x.parquet"), ("measure", "--out", "x.json"),
    ("train", "eagle", "--out", "m"),
    ("advise", "vllm", "--model", "absent", "--prompts", "absent", "--out", "a"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", SEEDED, ids=lambda a: a[0])
@pytest.mark.parametrize("seed", [-1, 10**30])
def test_seed_of_no_draw_is_refused_before_files_are_read(tmp_path, arguments, seed):
    refused(tmp_path, *arguments, f"--seed={seed}", words=f"seed is {seed}, expected")


def test_every_seed_is_checked():
    """Control: the commands above are all that have one."""
    seeded = {name for name, c in get_command(app).commands.items() for p in c.params
              if p.name == "seed"}  # fmt: skip
    assert seeded - {"sweep", "tune", "report"} == {arguments[0] for arguments in SEEDED}


LEVELLED = [
    ("sweep", TRACE), ("report", TRACE),
    ("import", "absent", "absent"),
    ("export", "vllm", TRACE, "--out", "x.json"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", LEVELLED, ids=lambda a: a[0])
@pytest.mark.parametrize("level", ["nan", "0.0", "1.0", "inf", "-1e+308"])
def test_level_of_no_interval_is_refused_before_files_are_read(tmp_path, arguments, level):
    refused(tmp_path, *arguments, f"--level={level}", words=f"level is {level}, expected ")


@pytest.mark.parametrize("shape", ["1000000000", "63x1", "1x1000000000", "8x8x8", "64"])
def test_static_tree_over_budget_is_refused_before_it_is_built(shape):
    with pytest.raises(ValueError, match="over budget: expected at most 63"):
        make(f"static:{shape}", None, None)


def test_largest_static_trees_are_built():
    """Control: the budget itself is allowed."""
    assert len(make("static:32", None, None).tree.parent) == 32
    assert len(make("static:1" + "x1" * 62, None, None).tree.parent) == 63


def test_memory_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    def allocate(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 68 TB")

    monkeypatch.setattr("simspec.trace.recordings.locate", allocate)
    refused(tmp_path, "sweep", TRACE, words="out of memory")
    monkeypatch.setattr("simspec.trace.recordings.locate", lambda *_: [0] * (1 << 60))
    refused(tmp_path, "sweep", TRACE, words="out of memory")


def test_every_policy_is_bounded():
    """A parameter of a billion is refused, or costs no more than a parameter of one."""
    import inspect

    for name, factory in BUILTIN.items():
        for parameter in inspect.signature(factory).parameters:
            try:
                policy = factory(**{parameter: HUGE})
                state = policy.start()[1] if hasattr(policy, "start") else ()
            except (TypeError, ValueError):
                continue
            assert getattr(state, "size", 0) < 100_000, (name, parameter)
