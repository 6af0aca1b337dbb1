"""Cuts the prompts of traces/MODEL out of public sets, and the training prompts beside them.

Usage: python tools/cut_prompts.py DATA/eval MODEL EXHIBIT.jsonl TRAINING.jsonl

The first file has as many prompts of each of the model's sets. The second has the other prompts of
all sets, for drafters to learn from. No training prompt shares 13 words in a row with a prompt of
the first file.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np

TASKS = {
    "smollm2": {
        "mt_bench": "chat",
        "gsm8k_test": "math",
        "humaneval": "code",
        "mts_dialog_test": "summary",
        "tatqa_dev": "reading",
    },
    "coder": {
        "humaneval": "code",
        "mbpp_sanitized": "functions",
        "gsm8k_test": "math",
        "mt_bench": "chat",
        "qmsum_test": "summary",
        "spider_dev": "sql",
    },
}
"""Files of each model's recordings, and what their tasks are called there."""
SETS = tuple(sorted(set().union(*TASKS.values()) | {"codesearchnet_queries"}))
"""All sets. Spider's questions share their schemas: none of them is new to a drafter that learned
from others of the same schema."""
LOOPING = "mts-test2-58", "tatqa-dev-085", "tatqa-dev-163"
"""SmolLM2's greedy output repeats more than half of its 8-grams there."""
PROMPTS = {"smollm2": 20, "coder": 22}
CHARACTERS = 80, 2400
"""Of a prompt of the exhibit: about 600 tokens at most."""

WORDS = 13
"""Words in a row that two prompts share by copying, not by chance (GPT-3, appendix C)."""
SAMPLE = 8
"""A file of hashes holds those divisible by it."""

Run = tuple[str, ...]


def words(text: str) -> list[str]:
    """Words of letters, digits and underscores, in lower case."""
    return re.findall(r"\w+", text.lower())


def set_instruction(prompts: Sequence[str]) -> int:
    """How many leading words at least half of the prompts of a set share: its instruction."""
    texts = [words(prompt) for prompt in prompts]
    length, group = 0, texts
    while group:
        by_word: dict[str, list[list[str]]] = {}
        for text in group:
            if len(text) > length:
                by_word.setdefault(text[length], []).append(text)
        group = max(by_word.values(), key=len, default=[])
        if 2 * len(group) < len(texts) or len(group) < 2:
            break
        length += 1
    return length


def word_runs(turns: Iterable[str], instruction: int = 0) -> set[Run]:
    """All runs of `WORDS` words of a prompt's turns, without the set's instruction in the first."""
    runs: set[Run] = set()
    for i, turn in enumerate(turns):
        text = words(turn)[0 if i else instruction :]
        runs |= {tuple(text[j : j + WORDS]) for j in range(len(text) - WORDS + 1)}
    return runs


def sampled_hashes(runs: Iterable[Run]) -> np.ndarray:
    """uint32, ascending: hashes of one in `SAMPLE` runs, the same of every text that holds them.

    Half of 64 bits: a run that was not copied is taken for one with 32,944 others once in 130,000.
    They say whether a text of some dozens of words was copied, and nothing about what it says.
    """
    hashes = {
        int.from_bytes(blake2b(" ".join(run).encode(), digest_size=8).digest(), "big")
        for run in runs
    }
    return np.unique(np.array([h >> 32 for h in hashes if h % SAMPLE == 0], np.uint32))


def leaks(turns: Iterable[str], taken: set[Run], instruction: int = 0) -> bool:
    """Whether a prompt shares a run with `taken`; a short turn shares itself whole."""
    return not taken.isdisjoint(word_runs(turns, instruction))


def main(data: Path, model: str, exhibit: Path, training: Path) -> None:
    shown, learned = [], []
    tasks, count = TASKS[model], PROMPTS[model]
    for name in (*tasks, *(other for other in SETS if other not in tasks)):
        with (data / f"{name}.jsonl").open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        instruction = set_instruction([row["turns"][0] for row in rows])
        # spread over the file, whose rows are in order of subject
        fit = [
            i
            for i, row in enumerate(rows)
            if CHARACTERS[0] <= len(row["turns"][0]) <= CHARACTERS[1]
        ]
        chosen = {fit[j * len(fit) // count] for j in range(count)} if name in tasks else set()
        for i, row in enumerate(rows):
            prompt = {key: row[key] for key in ("id", "task", "source", "turns")}
            if i not in chosen:
                learned.append((prompt, instruction))
            elif row["id"] not in LOOPING:
                shown.append((prompt | {"task": tasks[name]}, instruction))
    taken = set().union(*(word_runs(row["turns"], words) for row, words in shown))
    kept = [row for row, words in learned if not leaks(row["turns"], taken, words)]
    for path, prompts in ((exhibit, [row for row, _ in shown]), (training, kept)):
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in prompts)
        path.write_text("".join(lines), encoding="utf-8")
        print(f"{path}: {len(prompts)} prompts")
    print(f"left out of the training prompts: {len(learned) - len(kept)} that share 13 words")


if __name__ == "__main__":
    data, model, *files = sys.argv[1:]
    main(Path(data), model, *map(Path, files))
