"""What a round costs, in seconds, and how many rows a drafter owes after it."""

from dataclasses import dataclass, fields, replace

import numpy as np

from simspec.files import check_keys, read_json, write_json
from simspec.round_cost import chain_seconds, tree_seconds


@dataclass(frozen=True, eq=False)
class CostModel:
    """Seconds of every part of a round; K is the longest draft it prices.

    | field | dtype, shape | meaning |
    | --- | --- | --- |
    | draft | float64[K + 1] | to draft j tokens, cumulative; draft[0] = 0 |
    | verify | float64[R + 1] | one target pass over j draft tokens and the input (j + 1 rows); R >= K, trees submit more than K |
    | catch_up | float64[B + 1] | to bring the drafter up when b rows are owed; catch_up[0] = 0; b > B costs B's |
    | overhead | float | per round, whatever is drafted |
    | baseline | float | one plain decoding step of the target |
    | name | str | label in tables |
    | device | str | where it was measured |
    | feature | float | to show a policy the features of one computed token; free to policies that read none |
    | node | float | a drafter's pass over a tree: each row beyond its first |

    All times are finite and >= 0, baseline > 0. ValueError otherwise.
    """

    draft: np.ndarray
    verify: np.ndarray
    catch_up: np.ndarray
    overhead: float
    baseline: float
    name: str = "cost"
    device: str = ""
    feature: float = 0.0
    node: float = 0.0

    def __post_init__(self):
        for field in ("draft", "verify", "catch_up"):
            array = np.ascontiguousarray(getattr(self, field), dtype=np.float64)
            if (
                array.ndim != 1
                or len(array) < 1
                or not np.isfinite(array).all()
                or (array < 0).any()
            ):
                raise ValueError(
                    f"cost {self.name!r}: {field} is not a non-empty list of finite seconds >= 0: "
                    "correct it"
                )
            object.__setattr__(self, field, array)
        for field in ("overhead", "baseline", "feature", "node"):
            object.__setattr__(self, field, float(getattr(self, field)))
        if len(self.draft) > len(self.verify):
            raise ValueError(
                f"cost {self.name!r}: draft has {len(self.draft)} entries and verify "
                f"{len(self.verify)}, expected as many or more of verify"
            )
        for field in ("draft", "catch_up"):
            if getattr(self, field)[0] != 0:
                raise ValueError(
                    f"cost {self.name!r}: {field}[0] is {getattr(self, field)[0]}, expected 0: no "
                    "work, no time"
                )
        for field in ("feature", "node"):
            if not (np.isfinite(getattr(self, field)) and getattr(self, field) >= 0):
                raise ValueError(
                    f"cost {self.name!r}: {field} is {getattr(self, field)}, expected finite "
                    "seconds >= 0"
                )
        if not (
            np.isfinite(self.overhead)
            and self.overhead >= 0
            and np.isfinite(self.baseline)
            and self.baseline > 0
        ):
            raise ValueError(
                f"cost {self.name!r}: overhead {self.overhead}, baseline {self.baseline}, expected "
                "finite, >= 0 and > 0"
            )

    @property
    def K(self) -> int:
        return len(self.draft) - 1

    @property
    def nodes(self) -> int:
        """R, the most submitted tokens that `verify` prices."""
        return len(self.verify) - 1

    def __eq__(self, other):
        return isinstance(other, CostModel) and self.to_dict() == other.to_dict()

    @classmethod
    def from_ratio(cls, c: float, K: int, nodes: int = 0) -> "CostModel":
        """The papers' unit model: drafting j costs c j, every verification (of up to K, or `nodes`)
        and plain step 1, nothing else.
        """
        if not (np.isfinite(c) and c >= 0):
            raise ValueError(
                f"cost ratio is {c}, expected a finite number >= 0: pass draft step / target step"
            )
        return cls(
            draft=c * np.arange(K + 1),
            verify=np.ones(max(K, nodes) + 1),
            catch_up=np.zeros(1),
            overhead=0.0,
            baseline=1.0,
            name=f"c={c:g}",
        )

    def reading(self, reads) -> "CostModel":
        """What a policy that reads these features pays: `feature` seconds on every computed token;
        self if it reads none.

        The charge moves into `draft`, so pricing the result again for the same policy changes
        nothing.
        """
        if not reads or not self.feature:
            return self
        return replace(self, draft=self.draft + self.feature * np.arange(self.K + 1), feature=0.0)

    def truncate(self, K: int) -> "CostModel":
        """The same costs for chains of at most K <= self.K tokens; ValueError beyond, since nothing
        was measured there.
        """
        if not 0 <= K <= self.K:
            raise ValueError(
                f"cost {self.name!r} prices drafts up to {self.K}, asked for {K}: measure it "
                "further or extend() it"
            )
        return replace(self, draft=self.draft[: K + 1], verify=self.verify[: K + 1])

    def extend(self, K: int) -> "CostModel":
        """The same costs continued to K >= self.K by their last step (an extrapolation: at least
        one measured step is needed).
        """
        if K < self.K or self.K < 1:
            raise ValueError(
                f"cost {self.name!r} prices drafts up to {self.K}, asked to extend to {K}: "
                "truncate() or measure more"
            )
        draft, verify = (
            np.concatenate(
                (
                    times,
                    times[-1] + max(times[-1] - times[-2], 0.0) * np.arange(1, K + 2 - len(times)),
                )
            )
            for times in (self.draft, self.verify)
        )
        return replace(self, draft=draft, verify=verify)

    def widen(self, nodes: int) -> "CostModel":
        """The same costs with `verify` continued to `nodes` submitted tokens; self if it reaches so
        far (an extrapolation otherwise).

        It goes on from its last entry with the slope, never below 0, of the least-squares line
        through the second half of what was measured: the last step alone is mostly noise.
        ValueError for fewer than three entries.
        """
        if nodes <= self.nodes:
            return self
        if self.nodes < 2:
            raise ValueError(
                f"cost {self.name!r} prices {self.nodes} submitted tokens, too few to continue to "
                f"{nodes}: measure more rows"
            )
        late = np.arange(self.nodes // 2, self.nodes + 1)
        slope = max(float(np.polyfit(late, self.verify[late], 1)[0]), 0.0)
        more = self.verify[-1] + slope * np.arange(1, nodes - self.nodes + 1)
        return replace(self, verify=np.concatenate((self.verify, more)))

    def seconds(self, rounds) -> np.ndarray:
        """float64[R]: seconds of every round of a `Rounds`, the backlog starting at 0 in each
        sequence.
        """
        if len(rounds.computed) and int(rounds.computed.max()) > self.K:
            raise ValueError(
                f"cost {self.name!r} prices drafts up to {self.K}, a round computed "
                f"{rounds.computed.max()}"
            )
        return chain_seconds(
            self.draft,
            self.verify,
            self.catch_up,
            self.overhead,
            rounds.offset,
            rounds.computed,
            rounds.drafted,
            rounds.accepted,
        )

    def seconds_tree(self, rounds, rows, owed) -> np.ndarray:
        """float64[R]: seconds of rounds that draft trees: `round_seconds` + node (rows - computed).

        computed counts the drafter's passes, rows int[R] its rows in them; owed int[R] says how
        many rows it owes after each round, which the next pays as catch_up. A round without a pass
        leaves one more row than before it. ValueError for what is not priced.
        """
        for what, most, known in (
            ("computed", rounds.computed, self.K),
            ("submitted", rounds.drafted, self.nodes),
        ):
            if len(most) and int(most.max()) > known:
                raise ValueError(
                    f"cost {self.name!r} prices {known} {what} tokens, a round has {most.max()}: "
                    "measure with more rows"
                )
        owed = np.asarray(owed, np.int64)
        seconds = tree_seconds(
            self.draft,
            self.verify,
            self.catch_up,
            self.overhead,
            rounds.offset,
            rounds.computed,
            rounds.drafted,
            owed,
        )
        return seconds + self.node * np.maximum(np.asarray(rows) - rounds.computed, 0)

    def to_dict(self) -> dict:
        """Plain lists and numbers, as the file holds them: without `node` where it is 0, as files
        of chains are.
        """
        told = {
            f.name: v.tolist() if isinstance(v := getattr(self, f.name), np.ndarray) else v
            for f in fields(self)
        }
        return told if self.node else {key: value for key, value in told.items() if key != "node"}

    def to_json(self, path) -> None:
        """Write the model as one JSON object whose keys are the fields; the file is whole or not
        there.
        """
        write_json(path, self.to_dict())

    @classmethod
    def from_dict(cls, data) -> "CostModel":
        """The inverse of `to_dict`; ValueError for a missing or unknown key or a bad value."""
        optional = () if isinstance(data, dict) and "node" in data else ("node",)
        check_keys(data, (f.name for f in fields(cls) if f.name not in optional))
        for key, value in data.items():
            parts = (
                value
                if key in ("draft", "verify", "catch_up") and isinstance(value, list)
                else [value]
            )
            text = key in ("name", "device")
            listed = key in ("draft", "verify", "catch_up")
            if isinstance(value, list) != listed or not all(
                isinstance(p, str)
                if text
                else isinstance(p, (int, float)) and not isinstance(p, bool)
                for p in parts
            ):
                raise ValueError(f"{key} is {value!r}, expected {'text' if text else 'seconds'}")
        return cls(**data)

    @classmethod
    def from_json(cls, path) -> "CostModel":
        """Read what `to_json` wrote; ValueError, one line with the path, for a missing or unknown
        key or a bad value.
        """
        return read_json(path, cls.from_dict, "cost model")
