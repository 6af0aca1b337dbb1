"""CostModel: seconds of every part of a round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import methodcaller
from os import PathLike
from typing import Annotated, Any, ClassVar

import numpy as np
from msgspec import Meta

from simspec.cost.provenance import LISTS, CostOrigin, CostPrecision, Finite, read_origin
from simspec.cost.rounds import CostTables, backlogs
from simspec.output.files import check_keys, convert_fields, converted, read_json, write_json

_TERMS = ("node", "kv_verify", "kv_draft", "context")
_ROUNDING = 1 + 1e-9
_OPTIONAL = ("origin", "precision", "predictor", *_TERMS)
"""Keys that a file leaves out where they say nothing."""
PREDICTED = "theta", "theta_low_rank"
"""Features that a learned predictor gives (EESD Eq. 5)."""
MOST_SECONDS = 1e9
"""Limit of a time: sums over a recording stay finite, and their ratios keep their digits."""
LEAST_SECONDS = 1e-15
"""Limit of a plain step, from below."""
Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]
_PLAIN = dict.fromkeys(LISTS, list[float]) | {"name": str, "device": str}
"""Types of a file's values; others are numbers."""


@dataclass(frozen=True, eq=False)
class CostModel:
    """Seconds of every part of a round; K is the longest draft it prices.

    | field     | dtype, shape   | meaning                                                         |
    | --------- | -------------- | --------------------------------------------------------------- |
    | draft     | float64[K + 1] | to draft j tokens, cumulative; draft[0] = 0                     |
    | verify    | float64[R + 1] | one target pass over j draft tokens and the input, j + 1 rows   |
    | catch_up  | float64[B + 1] | for the drafter to read a backlog of b rows; catch_up[0] = 0    |
    | overhead  | float          | per round, whatever is drafted                                  |
    | baseline  | float          | one plain decoding step of the target                           |
    | name      | str            | label in tables                                                 |
    | device    | str            | the device it was measured on                                   |
    | feature   | float          | the features of one computed token, for policies that read some |
    | node      | float          | each row beyond the first in a drafter's pass over a tree       |
    | predictor | float, None    | theta_M of one computed token, for policies that read it alone  |
    | origin    | CostOrigin     | device, threads, dtype and engines; None: unknown               |
    | precision | CostPrecision  | intervals and replicates; None: unknown, or derived             |
    | kv_verify | float          | each cached token that a pass of the target reads               |
    | kv_draft  | float          | each cached token that a draft step reads                       |
    | context   | float          | cached tokens at which the lists and `baseline` hold            |

    R >= K, since trees submit more than K tokens. A backlog beyond B costs catch_up[B].
    predictor None: not measured, `feature` is charged in its place; PREDICTED are its names.
    All times are finite and >= 0, baseline > 0. The lists include the last three fields' terms:
    `at` moves them to another context, `simspec.cost.batch` to a batch. ValueError otherwise.
    """

    draft: np.ndarray
    verify: np.ndarray
    catch_up: np.ndarray
    overhead: Seconds
    baseline: Annotated[float, Meta(ge=LEAST_SECONDS, le=MOST_SECONDS)]
    name: str = "cost"
    device: str = ""
    feature: Seconds = 0.0
    node: Seconds = 0.0
    origin: CostOrigin | None = None
    precision: CostPrecision | None = None
    kv_verify: Seconds = 0.0
    kv_draft: Seconds = 0.0
    context: Finite = 0.0
    predictor: Seconds | None = None
    _parent: ClassVar[tuple[Callable[..., "CostModel"], tuple["CostModel", ...]] | None] = None

    def __post_init__(self) -> None:
        for field in LISTS:
            array = np.ascontiguousarray(getattr(self, field), dtype=np.float64)
            # a comparison with nan is false
            if (
                array.ndim != 1
                or not len(array)
                or not ((array >= 0) & (array <= MOST_SECONDS)).all()
            ):
                raise self._error(
                    f"{field} is not a non-empty list of finite seconds >= 0, at most "
                    f"{MOST_SECONDS:g}: correct it"
                )
            object.__setattr__(self, field, array)
        convert_fields(self, f"cost {self.name!r}")
        if len(self.draft) > len(self.verify):
            raise self._error(
                f"draft has {len(self.draft)} entries and verify {len(self.verify)}, "
                "expected as many or more of verify"
            )
        for field in ("draft", "catch_up"):
            first = getattr(self, field)[0]
            if first != 0:
                raise self._error(f"{field}[0] is {first}, expected 0: no work, no time")
        self._check_terms()
        if self.precision is not None:
            sizes = {field: len(getattr(self, field)) for field in LISTS}
            if wrong := self.precision.misfit(sizes, self.predictor is not None):
                raise self._error(wrong)
            _ = self.replicates  # an invalid one is the file's error, not that of a later table

    def _check_terms(self) -> None:
        """ValueError where the terms are more than what the lists hold."""
        cached = self.kv_verify * self.context
        read = self.kv_draft * self.context * np.arange(self.K + 1)
        within = (
            (self.verify * _ROUNDING >= cached).all()
            and self.baseline * _ROUNDING > cached
            and (self.draft * _ROUNDING >= read).all()
        )
        if not within:
            raise self._error(
                f"{self.context:g} cached tokens cost more than draft, verify or baseline: state "
                "smaller terms"
            )

    def _error(self, reason: str) -> ValueError:
        return ValueError(f"cost {self.name!r}: {reason}")

    @cached_property
    def replicates(self) -> tuple["CostModel", ...]:
        """Bootstrap replicates of these costs, at this cost's plain step; none where unknown."""
        if self._parent is not None:
            change, parents = self._parent
            return tuple(map(change, *(cost.replicates for cost in parents)))
        if self.precision is None or not self.precision.replicates:
            return ()
        ratios = self.precision.replicates.items()
        with np.errstate(over="ignore"):  # infinite seconds are refused below, with their place
            held = {part: self.baseline * np.array(x, np.float64) for part, x in ratios}
        return tuple(
            replace(self, precision=None, **{part: values[r] for part, values in held.items()})
            for r in range(len(held["overhead"]))
        )

    @property
    def parents(self) -> tuple["CostModel", ...]:
        """The costs that these derive from, such as those before `truncate`; () where measured."""
        return () if self._parent is None else self._parent[1]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the measurement of these costs, or of those they derive from."""
        if self.parents:
            return tuple(dict.fromkeys(text for cost in self.parents for text in cost.warnings))
        return () if self.precision is None else self.precision.warnings

    def derived(self, change: Callable[..., "CostModel"], *parents: "CostModel") -> "CostModel":
        """These costs, change(*parents), with its values at the parents' replicates as theirs."""
        object.__setattr__(self, "_parent", (change, parents))
        return self

    def _derived(self, method: str, argument: Any, **changed: Any) -> "CostModel":
        """The changed costs, as a method of that name makes them."""
        made = replace(self, precision=None, **changed)
        return made.derived(methodcaller(method, argument), self)

    @property
    def K(self) -> int:
        return len(self.draft) - 1

    @property
    def nodes(self) -> int:
        """R, the most submitted tokens that `verify` prices."""
        return len(self.verify) - 1

    @property
    def tables(self) -> CostTables:
        """draft, verify, catch_up and overhead, for compiled loops."""
        return CostTables(self.draft, self.verify, self.catch_up, self.overhead)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CostModel) and self.to_dict() == other.to_dict()

    @classmethod
    def from_ratio(cls, c: float, K: int, nodes: int = 0) -> "CostModel":
        """The papers' unit model: j draft tokens cost c j, verification and a plain step 1, all
        else 0.

        Verification is priced up to K tokens, or `nodes` where that is more.
        """
        if not 0 <= c <= MOST_SECONDS:
            raise ValueError(
                f"cost ratio is {c}, expected 0 to {MOST_SECONDS:g}: pass draft step / target step"
            )
        verify = np.ones(max(K, nodes) + 1)
        return cls(c * np.arange(K + 1), verify, np.zeros(1), 0.0, 1.0, f"c={c:g}")

    def reading(self, reads: Sequence[str]) -> "CostModel":
        """The costs of a policy that reads these features, some seconds on every computed token.

        `predictor` for those of PREDICTED, `feature` for others, both for both. The charge moves
        into `draft`, so that pricing the result again changes nothing.
        """
        charge = self.charge(reads)
        if not charge:
            return self
        draft = self.draft + charge * np.arange(self.K + 1)
        return self._derived("reading", tuple(reads), draft=draft, feature=0.0, predictor=None)

    def charge(self, reads: Sequence[str]) -> float:
        """Seconds of reading these features of one computed token."""
        if not reads or self.predictor is None:
            return self.feature if reads else 0.0
        learned = sum(name in PREDICTED for name in reads)
        return self.predictor * (learned > 0) + self.feature * (learned < len(reads))

    def at(self, context: float) -> "CostModel":
        """The same costs with `context` cached tokens a sequence; unchanged without terms for them.

        With d = context - self.context: draft[j] + j kv_draft d, verify + kv_verify d and
        baseline + kv_verify d. ValueError for a negative context.
        """
        if not (np.isfinite(context) and context >= 0):
            raise self._error(f"context is {context}, expected a number of tokens >= 0")
        moved = float(context) - self.context
        if not moved or not (self.kv_verify or self.kv_draft):
            return self
        draft = self.draft + self.kv_draft * moved * np.arange(self.K + 1)
        return self._derived(
            "at",
            context,
            draft=np.maximum(draft, 0.0),
            verify=np.maximum(self.verify + self.kv_verify * moved, 0.0),
            baseline=self.baseline + self.kv_verify * moved,
            context=float(context),
        )

    def truncate(self, K: int) -> "CostModel":
        """The same costs for chains of at most K <= self.K tokens; ValueError beyond."""
        if not 0 <= K <= self.K:
            raise self._error(
                f"prices drafts up to {self.K}, asked for {K}: measure it further or extend() it"
            )
        if K == self.K == self.nodes:
            return self
        draft, verify = self.draft[: K + 1], self.verify[: K + 1]
        return self._derived("truncate", K, draft=draft, verify=verify)

    def extend(self, K: int) -> "CostModel":
        """The same costs extrapolated to K >= self.K by their last step; at least one must be
        measured.
        """
        if K < self.K or self.K < 1:
            raise self._error(
                f"prices drafts up to {self.K}, asked to extend to {K}: truncate() or measure more"
            )

        def longer(times: np.ndarray) -> np.ndarray:
            step = max(times[-1] - times[-2], 0.0)
            return np.concatenate((times, times[-1] + step * np.arange(1, K + 2 - len(times))))

        return self._derived("extend", K, draft=longer(self.draft), verify=longer(self.verify))

    def widen(self, nodes: int) -> "CostModel":
        """The same costs with `verify` extrapolated to `nodes` submitted tokens, if it is shorter.

        The slope, never below 0, is that of the least-squares line through the second half of the
        measured values, since the last step alone is mostly noise. ValueError for fewer than three
        entries.
        """
        if nodes <= self.nodes:
            return self
        if self.nodes < 2:
            raise self._error(
                f"prices {self.nodes} submitted tokens, too few to continue to {nodes}: "
                "measure more rows"
            )
        late = np.arange(self.nodes // 2, self.nodes + 1)
        slope = max(float(np.polyfit(late, self.verify[late], 1)[0]), 0.0)
        more = self.verify[-1] + slope * np.arange(1, nodes - self.nodes + 1)
        return self._derived("widen", nodes, verify=np.concatenate((self.verify, more)))

    def seconds(self, rounds: Any) -> np.ndarray:
        """float64[R]: seconds of every round of a `Rounds`, the backlog starting at 0 in each
        sequence.
        """
        if len(rounds.computed) and (most := int(rounds.computed.max())) > self.K:
            raise self._error(f"prices drafts up to {self.K}, a round computed {most}")
        return self._seconds(rounds, backlogs(rounds))

    def _seconds(self, rounds: Any, backlog: np.ndarray) -> np.ndarray:
        """float64[R]: `round_seconds` of each round, added in that order."""
        rows = np.where(rounds.computed > 0, np.minimum(backlog, len(self.catch_up) - 1), 0)
        seconds: np.ndarray = self.overhead + self.draft[rounds.computed]
        return seconds + self.verify[rounds.drafted] + self.catch_up[rows]

    def seconds_without_backlog(self, levels: Any, rows: Any, nodes: Any) -> Any:
        """Seconds of rounds that draft trees, without catch-up: overhead + draft[levels] + node
        (rows - levels) + verify[nodes]."""
        return self.overhead + self.draft[levels] + self.node * (rows - levels) + self.verify[nodes]

    def seconds_tree(self, rounds: Any, rows: Any, backlog: Any) -> np.ndarray:
        """float64[R]: seconds of rounds that draft trees: `round_seconds` + node (rows - computed).

        computed counts the drafter's passes, rows int[R] its rows in them. backlog int[R] is its
        backlog after each round, which the next round pays as catch_up; a round without a pass adds
        one row. ValueError for what is not priced.
        """
        for kind, tokens, priced in (
            ("computed", rounds.computed, self.K),
            ("submitted", rounds.drafted, self.nodes),
        ):
            if len(tokens) and int(tokens.max()) > priced:
                raise self._error(
                    f"prices {priced} {kind} tokens, a round has {tokens.max()}: "
                    "measure with more rows"
                )
        seconds = self._seconds(rounds, backlogs(rounds, backlog))
        return seconds + self.node * np.maximum(np.asarray(rows) - rounds.computed, 0)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, as in the file: without the optional keys that say nothing."""
        values = {}
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if name in _OPTIONAL and (value is None or name in _TERMS and not value):
                continue
            if isinstance(value, CostOrigin | CostPrecision):
                value = value.to_dict()
            values[name] = value.tolist() if isinstance(value, np.ndarray) else value
        return values

    def to_json(self, path: str | PathLike[str]) -> None:
        """Writes the model as one JSON object of its fields, completely or not at all."""
        write_json(path, self.to_dict())

    @classmethod
    def from_dict(cls, data: Any) -> "CostModel":
        """The inverse of `to_dict`; ValueError for a missing or unknown key or an invalid value."""
        data, origin = read_origin(data)
        precision = None
        if isinstance(data, dict) and "precision" in data:
            precision = CostPrecision.from_dict(data["precision"])
            data = {key: value for key, value in data.items() if key != "precision"}
        names = (field.name for field in fields(cls))
        check_keys(data, (name for name in names if name not in _OPTIONAL or name in data))
        plain = {k: converted(k, v, _PLAIN.get(k, float)) for k, v in data.items()}
        return cls(**plain, origin=origin, precision=precision)

    @classmethod
    def from_json(cls, path: str | PathLike[str]) -> "CostModel":
        """Reads what `to_json` wrote; ValueError, one line with the path, for an invalid file."""
        return read_json(path, cls.from_dict, "cost model")
