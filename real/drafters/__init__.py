"""The kinds of drafters: one declaration each, and look-ups over them."""

from real.draft import Drafter, DrafterKind
from real.draft.kind import ParallelFactory
from simspec.plugins import plugins

BUILTIN: dict[str, DrafterKind] = {
    name: file.KIND for name, file in plugins(__name__, "KIND").items()
}
"""Every kind of drafter, by the name of its file."""


def trainable() -> tuple[str, ...]:
    """Names of the drafters whose weights are trained."""
    return tuple(name for name, kind in BUILTIN.items() if kind.recipe is not None)


def parallel_form(drafter: Drafter) -> ParallelFactory | None:
    """The parallel form of a drafter; None for one that is recorded position by position.

    The look-up is by its exact class: a subclass may draft otherwise.
    """
    kinds = (kind for kind in BUILTIN.values() if kind.drafter is type(drafter))
    return next((kind.parallel for kind in kinds), None)
