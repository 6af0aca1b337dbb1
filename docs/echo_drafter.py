"""A drafter outside the package: it is recorded and swept (docs/extending.md)."""

from dataclasses import replace
from pathlib import Path

import simspec
from real.draft import Drafter, Step
from real.pair import TINY, load_pair
from real.prompts import Prompt
from real.record import Settings
from real.record.recorder import record_to
from real.sampling import Rule


class Echo(Drafter):
    """Proposes what followed the last token when it last occurred."""

    name = "echo"
    prefix_only = False
    has_logits = False

    def begin(self, target, prompt, prefill, pick):
        self.sequence, self.draft = list(prompt), []

    def next(self):
        last = [*self.sequence, *self.draft][-1]
        places = [i for i, token in enumerate(self.sequence[:-1]) if token == last]
        if not places:
            return None
        self.draft.append(self.sequence[places[-1] + 1])
        return Step(self.draft[-1], parent=len(self.draft) - 1, logits=None)

    def rollback(self, accepted):
        self.draft = []

    def catch_up(self, tokens, output, path):
        self.sequence += tokens


pair = replace(load_pair(TINY, "prompt_lookup"), drafter=Echo())
prompts = [
    Prompt(str(i), "mine", "me", pair.tokenizer.encode(f"Count from {i} to 20: {i}, {i + 1},").ids)
    for i in range(3)
]
settings = Settings(8, 48, Rule(), pair.end_tokens, features=())
record_to(Path("out/echo.parquet"), pair, prompts, settings)
policies = ["fixed:0", "fixed:2", "beta_ts", "oracle"]
table = simspec.sweep("out/echo.parquet", policies, 0.05, replicates=1, progress=False)
print(table[["policy", "speedup"]])
