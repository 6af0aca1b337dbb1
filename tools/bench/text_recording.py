"""Positions recorded a second along written texts, by n-gram rule, as one JSON:
python tools/bench/text_recording.py [--texts 400] [--tokens 512] [--repeats 5]

Texts repeat themselves as much as --vocabulary allows. One thread; a rule is compiled and run once
before the clock runs. Rates count output positions; `recorded` is `record_texts` with its checks,
`drafted` the compiled pass alone.
"""

import argparse
import json
import statistics
import time

import numpy as np

from simspec.engines.ngram import RULES, drafted_text
from simspec.engines.text import WrittenText, record_texts


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--tokens", type=int, default=512, help="of an output; its prompt has 128")
    parser.add_argument("--vocabulary", type=int, default=500)
    parser.add_argument("--depth", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def rate(function, positions: int, repeats: int) -> float:
    """Positions a second, median of the repeats."""
    function()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    return positions / statistics.median(seconds)


def main() -> None:
    options = parse()
    rng = np.random.default_rng(0)
    size = options.texts, options.tokens + 128
    tokens = np.minimum(rng.zipf(1.3, size), options.vocabulary).astype(np.int32)
    texts = [
        WrittenText(str(i), "random", row[:128], row[128:], options.tokens)
        for i, row in enumerate(tokens)
    ]
    positions, K = options.texts * options.tokens, options.depth
    result = {}
    for name, rule in RULES.items():

        def drafted(rule=rule):
            for text in texts:
                drafted_text(text.prompt, text.output, rule, K, text.budget, (0,))

        result[name] = {
            "drafted": rate(drafted, positions, options.repeats),
            "recorded": rate(
                lambda rule=rule: record_texts(texts, rule, K, (0,)), positions, options.repeats
            ),
        }
    print(json.dumps({"unit": "positions/s", "positions": positions, "rules": result}, indent=1))


if __name__ == "__main__":
    main()
