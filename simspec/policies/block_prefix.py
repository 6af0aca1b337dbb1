"""How much of a drafted block is verified, by the average accepted length."""

from simspec.policy.arguments import check_lengths, check_number, check_scope, policy_name
from simspec.policy.policy import Array, Go, Policy
from simspec.policy.threshold import averaged
from simspec.policy_kind import SCOPE, Option, PolicyKind, Real

_HEAD = 2
# params: weight of a new round, headroom, then the lengths. state: length, average.


def _draft_more(params: Array, state: Array, slot: int, features: Array, u: float) -> Go:
    return slot < state[0], True


def _observe(
    params: Array,
    state: Array,
    computed: int,
    drafted: int,
    accepted: int,
    features: Array,
    cost: float,
) -> None:
    if drafted == 0:
        return
    state[1] = averaged(state[1], accepted, params[0])
    state[0] = params[len(params) - 1]
    for i in range(len(params) - 1, _HEAD - 1, -1):
        if params[i] >= state[1] + params[1]:
            state[0] = params[i]


def block_prefix(
    lengths: str = "2/4/7", weight: float = 0.2, headroom: float = 1.0, scope: str = "stream"
) -> Policy:
    """Verify the shortest prefix of a block that leaves headroom above the average accepted length.

    After a round with a accepted tokens e = (1 - weight) e + weight a. The next length is the
    smallest >= e + headroom, else the longest; the first round verifies the longest, and e starts
    there minus headroom.

    A block drafter computes its whole block in one pass, and this rule submits a prefix. Here the
    prefix is what is drafted: accepted tokens are the same, min(length, run), and so is the cost if
    draft[k] is that of one pass for every k >= 1, as measured on such a drafter. With costs of a
    drafter that computes token by token it is another rule, which drafts less. The rule reads no
    features of tokens that it does not submit. PolicyError for values outside their ranges.

    Source: servers of block drafters (2, 4, 7 by an average + 1.0), no reference implementation:
    unverified are the weight, the start and the rounding.
    """
    steps = check_lengths("block_prefix", "lengths", lengths, 1)
    check_number("block_prefix", "weight", weight, 0, 1)
    check_number("block_prefix", "headroom", headroom, 0, 255)
    check_scope("block_prefix", scope)
    settings = {"lengths": str(lengths), "weight": weight, "headroom": headroom, "scope": scope}
    name = policy_name("block_prefix", settings, block_prefix)
    params, state0 = (weight, headroom, *steps), (steps[-1], steps[-1] - headroom)
    return Policy(name, _draft_more, _observe, params, state0, scope=scope)


POLICIES = (
    PolicyKind(
        block_prefix, "outcomes", "servers of block drafters", "average accepted length",
        "the shortest prefix that leaves headroom", "2/4/7, headroom 1", "unverified; needs costs "
        "of a block drafter",
        examples=("block_prefix:1/2/3", "block_prefix:1/2/4,weight=0.9,scope=sequence"),
        space={
            "lengths": Option(("2/4/7", "1/2/3", "1/3/5/7", "2/4/8")),
            "weight": Real(0.02, 1, log=True), "headroom": Real(0, 3),
            "scope": SCOPE,
        },
    ),
)  # fmt: skip
