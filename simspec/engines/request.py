"""Request: what an exporter writes, and how its engine names things."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from simspec.engines.choice import NO_LIMITS, Choice, Evidence, Limits, Schedule
from simspec.policies import parse
from simspec.policy.policy import Policy


@dataclass(frozen=True)
class Settings:
    """Settings of a deployment that recordings do not hold.

    | field          | type        | meaning                                                       |
    | -------------- | ----------- | ------------------------------------------------------------- |
    | method         | str or None | the engine's name of the mechanism; None: by the drafter      |
    | model          | str or None | path or name of the draft model                               |
    | engine_version | str or None | of the engine, where formats changed                          |
    | captured       | int         | rows of the largest captured graph; 0: no limit               |
    | ngram          | int         | longest suffix that a prompt lookup matches                   |
    | least_ngram    | int         | shortest one, where the engine has a setting for it           |
    | mode           | str         | thinking_on or thinking_off                                   |
    """

    method: str | None = None
    model: str | None = None
    engine_version: str | None = None
    captured: int = 0
    ngram: int = 3
    mode: str = "thinking_off"
    least_ngram: int = 1


@dataclass(frozen=True)
class Request:
    """Recordings, what was chosen from them, and the deployment's settings."""

    evidence: Evidence
    choice: Choice
    settings: Settings

    @property
    def schedule(self) -> Schedule:
        """The draft lengths; ValueError where none drafts, or the policy adapts its own."""
        schedule = self.choice.schedule
        if schedule is None:
            raise ValueError(
                f"policy {self.choice.policies[0]!r} has no fixed draft length, and this format "
                "holds nothing else: give --policy fixed:K, or none"
            )
        if schedule.longest == 0:
            raise ValueError(
                "plain decoding is the fastest at these costs, so there is nothing to export: "
                "give --policy fixed:K to export a length all the same"
            )
        return schedule

    @property
    def length(self) -> int:
        """The one draft length; ValueError where batch sizes differ, or none drafts."""
        schedule = self.schedule
        if not schedule.single:
            raise ValueError(
                f"batch sizes {list(schedule.batch)} draft {list(schedule.length)} tokens, but "
                "this format holds one length: give one --batch-sizes, or --policy fixed:K"
            )
        return schedule.longest

    def method(self, methods: Mapping[str, str], engine: str) -> str:
        """The engine's name of the drafter; ValueError for a drafter that it does not have."""
        if self.settings.method is not None:
            return self.settings.method
        drafter = self.evidence.drafter
        if drafter.startswith("ngram "):  # along a text, by the rule that follows
            drafter = "prompt_lookup"
        if drafter not in methods:
            raise ValueError(
                f"{engine} has no counterpart of drafter {drafter!r}, expected one of "
                f"{', '.join(methods)}: name its mechanism with --method"
            )
        return methods[drafter]

    def model(self, method: str) -> str:
        """The draft model; ValueError where none was named."""
        if not self.settings.model:
            raise ValueError(
                f"method {method!r} loads a draft model, and a recording does not name its files: "
                "give --draft-model"
            )
        return self.settings.model


@dataclass(frozen=True)
class ExportFormat:
    """One engine's format: declared in `EXPORTS` of its file.

    | field       | type                      | meaning                                          |
    | ----------- | ------------------------- | ------------------------------------------------ |
    | name        | str                       | what the command line calls it                   |
    | export      | Request -> str            | the document                                     |
    | validate    | (str, Settings) -> None   | ValueError for what the engine refuses or alters |
    | not_covered | (str,)                    | what the document does not say about the engine  |
    | limits      | Limits                    | the lengths that the engine takes                |
    | flags       | (Request, file) -> str    | flags that go with the document; None: none      |
    | engine      | str                       | whose own costs should price it; "": none        |
    | right       | str                       | a document that `validate` passes: its exam      |
    | wrong       | (str,)                    | documents that it refuses                        |
    """

    name: str
    export: Callable[[Request], str]
    validate: Callable[[str, Settings], None]
    not_covered: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS
    flags: Callable[[Request, str], str] | None = None
    engine: str = ""
    right: str = ""
    wrong: tuple[str, ...] = ()


MEASURED = Limits(shortest=1)
"""Of formats that state acceptance: it is that of a draft, even where plain decoding is faster."""


def confidence_threshold(
    request: Request, inclusive: bool, engine: str
) -> tuple[float, int] | None:
    """(threshold, longest draft) of a confidence policy, None of a fixed length.

    inclusive: whether the engine submits the token below the threshold. ValueError for the other
    kind, since its drafts differ by a token, and for any other policy.
    """
    if request.choice.schedule is not None:
        return None
    name = request.choice.policies[0]
    policy = parse(name)
    if not isinstance(policy, Policy) or not name.startswith("confidence:"):
        raise ValueError(
            f"{engine} has no setting that drafts as policy {name!r} does: give fixed:K or "
            f"confidence:P,inclusive={str(inclusive).lower()}"
        )
    threshold, submits = policy.params
    if bool(submits) != inclusive:
        does = "submits" if inclusive else "drops"
        raise ValueError(
            f"policy {name!r} does not draft as {engine} does, which {does} the token below the "
            f"threshold: give confidence:{threshold:g},inclusive={str(inclusive).lower()}"
        )
    return threshold, policy.longest(request.evidence.K)
