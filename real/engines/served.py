"""The rounds that a running vLLM server reports, against the replay of its texts."""

from collections.abc import Sequence

from real.engines.compare import Comparison, Difference, predicted_passes, text_differences
from real.engines.messages import Finished, Request
from real.engines.rows import Row
from real.engines.vllm_server import Served
from simspec.engines.convention import CONVENTIONS
from simspec.engines.ngram import NgramRule
from simspec.trace.trace import Trace

COUNTERS = "num_drafts", "num_draft_tokens", "num_accepted_tokens"


def compare_served(
    served: Sequence[Served],
    requests: Sequence[Request],
    k: int,
    rule: NgramRule | None,
    recording: Trace | None = None,
) -> Comparison:
    """Every served request against the replay at draft length k, in rounds with a draft.

    A server reports no plain passes. rule: of its n-gram drafts; None: drafts of a model, which
    need the drafter's recording of the same prompts, and texts equal to it. ValueError where the
    server has reported no rounds.
    """
    if any(answer.rounds is None for answer in served):
        raise ValueError(
            "the server reports no rounds: start it with --speculative-config and "
            "--per-request-spec-decode-metrics detailed"
        )
    asked = {request.id: request for request in requests}
    rounds = {answer.id: list(answer.rounds or ()) for answer in served}
    rows = [_row(asked[answer.id], answer, k) for answer in served if answer.tokens]
    differences = text_differences(rows, recording)
    apart = {difference.id for difference in differences}
    follows = [row for row in rows if rule is not None or row.request.id not in apart]
    rules = CONVENTIONS["vllm" if rule is not None else "vllm_model"]
    kept, predicted = predicted_passes(follows, k, rules, rule, recording)
    counters = {name: [0, 0] for name in COUNTERS}
    compared = cut = 0
    for s, row in enumerate(kept):
        passes = predicted.sequence(s)
        expected = [(drafted, accepted) for _, drafted, accepted in passes if drafted]
        engine = rounds[row.request.id]
        if engine and expected and passes[-1][1] and engine[-1][1] > expected[-1][1]:
            # tokens accepted after the end of the text count in the engine
            engine[-1] = engine[-1][0], expected[-1][1]
            cut += 1
        compared += len(engine)
        for both, counts in ((0, engine), (1, expected)):
            counters["num_drafts"][both] += len(counts)
            counters["num_draft_tokens"][both] += sum(drafted for drafted, _ in counts)
            counters["num_accepted_tokens"][both] += sum(accepted for _, accepted in counts)
        differences += _first_difference(row, engine, expected)
    left_out = len(rows) - len(kept)
    return Comparison(len(kept), compared, cut, {k: counters}, tuple(differences), left_out)


def _row(request: Request, answer: Served, k: int) -> Row:
    """The answer as a row without passes, which the server does not list."""
    text = Finished(
        answer.id, answer.tokens, (), None, 0.0, answer.seconds, None, answer.stopped
    )  # fmt: skip
    return Row(0, 0, k, None, request, text)


def _first_difference(
    row: Row, engine: Sequence[tuple[int, int]], expected: Sequence[tuple[int, int]]
) -> list[Difference]:
    place = next((i for i, (a, b) in enumerate(zip(engine, expected)) if a != b), None)
    if place is None:
        if len(engine) == len(expected):
            return []
        place = min(len(engine), len(expected))
    a, b = (list(rounds[place]) if place < len(rounds) else None for rounds in (engine, expected))
    return [Difference(row.request.id, row.k, 0, "rounds", place, a, b)]
