"""SGLang's scheduler of verified DSpark drafts."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simspec.policy.arguments import (
    check_integer,
    check_number,
    check_option,
    policy_name,
)  # fmt: skip
from simspec.policy.batch import (
    BatchPolicy,
    BatchRule,
    BatchStart,
    BatchStep,
    Lagged,
    admit,
    best_budget,
    survival,
)
from simspec.policy.policy import PolicyError
from simspec.policy_kind import PolicyKind

Integers = NDArray[np.int64]
_LEAST = 1e-6
FORMS = ("sum", "sps")


class _Dspark(BatchRule):
    def __init__(self, settings: dict[str, Any], start: BatchStart) -> None:
        super().__init__(start)
        self.stale = Lagged(start.batch, start.K, settings["lag"])
        self.temperature, self.form = settings["temperature"], settings["form"]
        rows = len(start.seconds.verify) - 1
        # Larger probes are never reached; with none below, the first is as flat as the last row.
        self.probes = np.array([p for p in settings["probed"] if p <= rows] or [rows])

    def submit(self, step: BatchStep) -> Integers:
        confidence = step.confidence.astype(np.float32)  # and so their products, as released
        if self.temperature != 1.0:
            odds = (np.log(confidence) - np.log1p(-confidence)) / self.temperature
            confidence = (1.0 / (1.0 + np.exp(-odds))).astype(np.float32)
        held = self.stale.replace(step, confidence).astype(np.float32)
        stale = survival(held, step.computed)
        scores = -np.sort(-stale[stale >= _LEAST].astype(np.float64))
        budget = best_budget(scores, len(step.slot), self.seconds(len(step.slot), len(scores)))
        today = survival(confidence, step.computed)
        return admit(np.where(today >= _LEAST, today, -np.inf), budget)

    def seconds(self, requests: int, most: int) -> NDArray[np.float64]:
        """float64[most + 1]: of a step that verifies 0 to `most` drafted tokens."""
        table, rows = self.start.seconds, requests + np.arange(most + 1)
        if self.form == "sps":
            place = np.searchsorted(self.probes, rows, side="right") - 1
            rows = self.probes[np.maximum(place, 0)]
        seconds: NDArray[np.float64] = (
            table.overhead + table.draft[self.start.K, requests] + table.verify[rows]
        )
        return seconds


def dspark(
    k: int | None = None,
    lag: int = 2,
    form: str = "sum",
    probes: str = "1/2/4/8/16/32/64/128/256/512",
    temperature: float = 1.0,
) -> BatchPolicy:
    """SGLang's confidence scheduler of DSpark: k tokens are drafted always, and fewer verified.

    As `adaptive_verification`, with these differences:

    | part | rule |
    | --- | --- |
    | acceptance | c = sigmoid(logit(max q) / temperature), nothing is learned |
    | candidates | tokens whose survival is at least 1e-6, in budget and allocation |
    | lag | 2 drafts (as released); 1 for the first `lag` drafts of a request |
    | seconds, form sum | bias + alpha(R) + theta(R + x): overhead, drafting and pass |
    | seconds, form sps | of the largest of `probes` rows <= R + x; below all: of the first |

    The released scheduler reads a confidence head of the drafter; here the drafter's max q takes
    its place. Padding of the budget to captured sizes is left out. PolicyError for values outside
    their ranges.

    Source: SGLang 0.5.23, srt/speculative/dspark_components and
    kernels/ops/speculative/dspark/dspark_schedule.py.
    """
    if k is not None:
        check_integer("dspark", "k", k, 0, 255)
    check_integer("dspark", "lag", lag, 1, 16)
    check_option("dspark", "form", form, FORMS)
    check_number("dspark", "temperature", temperature, 1e-3, 1e3)
    settings = {
        "k": k, "lag": lag, "form": form, "probes": str(probes), "temperature": temperature,
    }  # fmt: skip
    name = policy_name("dspark", settings, dspark)
    rule = partial(_Dspark, settings | {"probed": _rows(str(probes))})
    return BatchPolicy(name, rule, k, ("confidence",))


def _rows(probes: str) -> list[int]:
    parts = probes.split("/")
    rows = [int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < 9]
    if len(rows) < len(parts) or rows[0] < 1 or any(b <= a for a, b in zip(rows, rows[1:])):
        raise PolicyError(
            f"dspark: probes is {probes[:40]!r}, expected ascending rows from 1 on such as 8/64/512"
        )
    return rows


BATCH_POLICIES = (
    PolicyKind(
        dspark, "batches", "SGLang 0.5.23", "max q of all drafts, and a table of costs",
        "verify the tokens of most expected tokens a second",
        "all K drafted; confidences two drafts old", "max q for the confidence head",
        examples=("dspark", "dspark:k=2,form=sps,probes=2/4,temperature=2.0,lag=1"),
    ),
)  # fmt: skip
