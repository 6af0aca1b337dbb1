"""Suffix decoding: proposes the likeliest continuation of the text's own repeated suffixes."""

from real.draft import DrafterKind, Pick, Step
from real.draft.protocol import ConfiguredDrafter
from simspec.engines.ngram import SuffixRule, suffix_draft


class SuffixDrafter(ConfiguredDrafter):
    """Drafts by `simspec.engines.ngram`, whose rule vLLM's proposer of simspec shares.

    The settings are those of `SuffixRule`. One search a round. A chain drafted one token later
    continues a longer match, so not `prefix_only`. ValueError for invalid settings.
    """

    name = "suffix"
    prefix_only = False
    history_free = True
    tokens_only = True

    def __init__(self, depth: int = 24, factor: float = 1.0, least: float = 0.1, most: int = 24):
        self.settings = {"depth": depth, "factor": factor, "least": least, "most": most}
        self.rule = SuffixRule(depth, factor, least, most)

    def begin(self, target, prompt: list[int], prefill, pick: Pick) -> None:
        self.sequence, self.drafted = list(prompt), 0

    def next(self) -> Step | None:
        if not self.drafted:
            self.draft = suffix_draft(self.sequence, self.rule).token.tolist()
        if self.drafted == len(self.draft):
            return None
        self.drafted += 1
        return Step(self.draft[self.drafted - 1], self.drafted - 1, None)

    def rollback(self, accepted: int) -> None:
        self.drafted = 0

    def catch_up(self, tokens: list[int], output, path) -> None:
        self.sequence += tokens


KIND = DrafterKind(SuffixDrafter, SuffixDrafter.load)
