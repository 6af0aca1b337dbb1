"""Requests of exports: recordings with a chosen draft length for each batch size."""

from dataclasses import replace

from hypothesis import strategies as st

from simspec import CostModel, synthetic
from simspec.engines.choice import Choice, Evidence, Schedule
from simspec.engines.request import Request, Settings
from simspec.numerics.stats import Estimate

SETTINGS = Settings(method=None, model="a draft's path", engine_version="1.3.0", captured=512)
TRACE = synthetic.iid(0.6, 2, 20, 12, seed=1)
GAIN = Estimate(1.0, 1.0, 1.0, 0.95, 9)


@st.composite
def schedules(draw, most=12):
    batch = tuple(sorted(draw(st.sets(st.integers(1, 600), min_size=1, max_size=6))))
    lengths = st.lists(st.integers(0, most), min_size=len(batch), max_size=len(batch))
    return Schedule(batch, tuple(draw(lengths)))


def evidence(trace, batch=(1,), cost=None, drafter="model"):
    trace = replace(trace, meta=replace(trace.meta, drafter=drafter))
    cost = cost or CostModel.from_ratio(0.1, trace.K)
    return Evidence({"t": trace}, tuple(batch), {"t": (cost,) * len(batch)})


def request(schedule, trace=None, drafter="model", options=SETTINGS):
    trace = trace or TRACE
    names = tuple(f"fixed:{k}" for k in schedule.length)
    choice = Choice(names, schedule, (GAIN,) * len(schedule.batch))
    return Request(evidence(trace, schedule.batch, drafter=drafter), choice, options)
