"""Cuts the prompts of traces/smollm2 out of public sets, and the training prompts beside them.

Usage: python tests/cut_prompts.py DATA/eval EXHIBIT.jsonl TRAINING.jsonl

The first file has 20 prompts of each of six sets. The second has all other prompts, of these sets
and of three more, for drafters to learn behind. No prompt is in both.
"""

import json
import sys
from pathlib import Path

TASKS = {
    "mt_bench": "chat",
    "gsm8k_test": "math",
    "humaneval": "code",
    "spider_dev": "sql",
    "mts_dialog_test": "summary",
    "tatqa_dev": "reading",
}
"""Files of the exhibit, and what their tasks are called there."""
MORE = "mbpp_sanitized", "codesearchnet_queries", "qmsum_test"
PROMPTS = 20
CHARACTERS = 80, 2400
"""Of a prompt of the exhibit: about 600 tokens at most."""


def main(data: Path, exhibit: Path, training: Path) -> None:
    shown, learned = [], []
    for name in (*TASKS, *MORE):
        with (data / f"{name}.jsonl").open(encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        # spread over the file, whose rows are in order of subject
        fit = [
            i
            for i, row in enumerate(rows)
            if CHARACTERS[0] <= len(row["turns"][0]) <= CHARACTERS[1]
        ]
        chosen = {fit[j * len(fit) // PROMPTS] for j in range(PROMPTS)} if name in TASKS else set()
        for i, row in enumerate(rows):
            prompt = {key: row[key] for key in ("id", "task", "source", "turns")}
            if i in chosen:
                shown.append(prompt | {"task": TASKS[name]})
            else:
                learned.append(prompt)
    texts = {row["turns"][0] for row in shown}
    learned = [row for row in learned if row["turns"][0] not in texts]
    for path, prompts in ((exhibit, shown), (training, learned)):
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in prompts)
        path.write_text("".join(lines), encoding="utf-8")
        print(f"{path}: {len(prompts)} prompts")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
