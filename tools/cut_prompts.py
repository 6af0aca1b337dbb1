"""Cuts the prompts of traces/smollm2 out of public sets, and the training prompts beside them.

Usage: python tools/cut_prompts.py DATA/eval EXHIBIT.jsonl TRAINING.jsonl

The first file has up to 20 prompts of each of five sets. The second has the other prompts of these
sets and of four more, for drafters to learn from. No training prompt shares 13 words in a row with
a prompt of the first file (`leakage`).
"""

import json
import sys
from pathlib import Path

import numpy as np
from leakage import leaks, sampled_hashes, set_instruction, word_runs

TASKS = {
    "mt_bench": "chat",
    "gsm8k_test": "math",
    "humaneval": "code",
    "mts_dialog_test": "summary",
    "tatqa_dev": "reading",
}
"""Files of the exhibit, and what their tasks are called there."""
MORE = "mbpp_sanitized", "codesearchnet_queries", "qmsum_test", "spider_dev"
"""Sets of training prompts alone. Spider's questions share their schemas: none of them is new to a
drafter that learned from others."""
LOOPING = "mts-test2-58", "tatqa-dev-085", "tatqa-dev-163"
"""SmolLM2's greedy output repeats more than half of its 8-grams there."""
HASHES = "training_runs.npy"
"""Beside the exhibit: hashes of words of the training prompts, by which a test finds leaks."""
PROMPTS = 20
CHARACTERS = 80, 2400
"""Of a prompt of the exhibit: about 600 tokens at most."""


def main(data: Path, exhibit: Path, training: Path) -> None:
    shown, learned = [], []
    for name in (*TASKS, *MORE):
        with (data / f"{name}.jsonl").open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        instruction = set_instruction([row["turns"][0] for row in rows])
        # spread over the file, whose rows are in order of subject
        fit = [
            i
            for i, row in enumerate(rows)
            if CHARACTERS[0] <= len(row["turns"][0]) <= CHARACTERS[1]
        ]
        chosen = {fit[j * len(fit) // PROMPTS] for j in range(PROMPTS)} if name in TASKS else set()
        for i, row in enumerate(rows):
            prompt = {key: row[key] for key in ("id", "task", "source", "turns")}
            if i not in chosen:
                learned.append((prompt, instruction))
            elif row["id"] not in LOOPING:
                shown.append((prompt | {"task": TASKS[name]}, instruction))
    taken = set().union(*(word_runs(row["turns"], words) for row, words in shown))
    kept = [row for row, words in learned if not leaks(row["turns"], taken, words)]
    for path, prompts in ((exhibit, [row for row, _ in shown]), (training, kept)):
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in prompts)
        path.write_text("".join(lines), encoding="utf-8")
        print(f"{path}: {len(prompts)} prompts")
    learned_runs = (
        word_runs(row["turns"], n) for row, n in learned if not leaks(row["turns"], taken, n)
    )
    np.save(exhibit.parent / HASHES, sampled_hashes(set().union(*learned_runs)))
    print(f"left out of the training prompts: {len(learned) - len(kept)} that share 13 words")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
