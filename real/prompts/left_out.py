"""Prompts that are left out, and why."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class LeftOut:
    """How many prompts of a file are left out.

    | field | meaning |
    | --- | --- |
    | read | prompts in the file |
    | empty | prompts without a token |
    | too_long | prompts over `limit` tokens |
    | limit | most tokens of a prompt |
    | longest | tokens of the longest prompt read |
    """

    read: int = 0
    empty: int = 0
    too_long: int = 0
    limit: int = 0
    longest: int = 0

    @property
    def count(self) -> int:
        """Prompts left out for any reason."""
        return self.empty + self.too_long

    def __add__(self, other: "LeftOut") -> "LeftOut":
        return LeftOut(
            self.read + other.read,
            self.empty + other.empty,
            self.too_long + other.too_long,
            max(self.limit, other.limit),
            max(self.longest, other.longest),
        )

    def describe(self) -> str:
        """One line such as `left out 3 of 80 prompts: 3 over 1,952 tokens (longest 2,310)`; ""
        where none is left out."""
        reasons = []
        if self.too_long:
            reasons.append(f"{self.too_long} over {self.limit:,} tokens (longest {self.longest:,})")
        if self.empty:
            reasons.append(f"{self.empty} empty")
        if not reasons:
            return ""
        return f"left out {self.count} of {self.read} prompts: {', '.join(reasons)}"

    def to_json(self) -> dict[str, int]:
        """The fields, for a data card."""
        return asdict(self)
