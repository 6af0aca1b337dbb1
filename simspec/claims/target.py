"""Bundled targets by the hash of their weights."""

from dataclasses import dataclass

from simspec.claims.exit_costs import ExitForm


@dataclass(frozen=True)
class BundledTarget:
    """A target of bundled recordings: its name, layers, and the early exit that was measured."""

    name: str
    layers: int
    exit: ExitForm


TARGETS = {
    "3f3badec853498770317b723278334157ccfd0808eb8557b6d0c41f9f19ad5de": BundledTarget(
        "tiny", 10, ExitForm(1, 1)
    ),
    "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd": BundledTarget(
        "smollm2", 30, ExitForm(4, 1)
    ),
}


def target_of(weights: str) -> BundledTarget | None:
    """The bundled target with these weights; None for another."""
    return TARGETS.get(weights)
