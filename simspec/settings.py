"""Settings of a command: one frozen dataclass is its options, its interface and what a card stores.

    @dataclass(frozen=True)
    class Sweep(Settings):
        traces: Annotated[tuple[str, ...], argument("Recordings: files or bundled names.")] = ()
        replicates: Annotated[int, option("Draws of each policy.", ge=1, le=10_000)] = 4

    @command
    def sweep(settings: Sweep) -> None:
        '''Replay policies on recordings and print what each would gain.'''

`app.command()(sweep)` then takes `simspec sweep A.parquet --replicates 8`, `Sweep(replicates=0)` is
a ValueError of one line, and `stored(settings)` is what a card keeps. A field whose type is itself
a Settings model is a group: its options stand among the command's, for several commands. A field
whose limits are a bare `msgspec.Meta` is no option, and belongs to the Python interface alone.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec


def option(help: str, *names: str, **limits: Any) -> msgspec.Meta:
    """An option of a command: its help, its names where they are not --FIELD, and msgspec's limits.

    | limit | meaning |
    | --- | --- |
    | ge, gt, le, lt | range of a number |
    | pattern, min_length, max_length | of a text, or of each text of a list |
    """
    return msgspec.Meta(description=help, extra={"names": names, "kind": "option"}, **limits)


def argument(help: str, **limits: Any) -> msgspec.Meta:
    """A positional argument of a command, see `option`."""
    return msgspec.Meta(description=help, extra={"names": (), "kind": "argument"}, **limits)


class Settings:
    """Base of settings: every field is checked against its annotation when an instance is made.

    Subclasses are frozen dataclasses. ValueError names the option, what was given and what is
    expected.
    """

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, name)
            if isinstance(value, list):  # options that repeat arrive as lists
                value = tuple(value)
            try:
                object.__setattr__(self, name, msgspec.convert(value, hint))
            except msgspec.ValidationError as error:
                given, expected = repr(value)[:80], reason(error, hint)
                raise ValueError(f"{_shown(name, hint)} is {given}, {expected}") from None


def stored(settings: Any) -> dict[str, Any]:
    """The settings as plain data for a card; paths are text."""
    data: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=str)
    return data


def command(function: Callable[[Any], None]) -> Callable[..., None]:
    """`function(settings)` as typer takes it: a parameter for each field of its settings model."""
    (parameter,) = inspect.signature(function, eval_str=True).parameters.values()
    model = parameter.annotation
    parameters = _parameters(model)

    @wraps(function)
    def run(**given: Any) -> None:
        function(_made(model, given))

    run.settings = model  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _is_group(hint: Any) -> bool:
    """Whether a field is a group of options: settings of its own."""
    return isinstance(hint, type) and issubclass(hint, Settings)


def _parameters(model: Any) -> list[inspect.Parameter]:
    """typer's parameters of the fields, those of groups in their place."""
    import typer

    parameters = []
    for each in fields(model):
        hint = get_type_hints(model, include_extras=True)[each.name]
        if _is_group(hint):
            parameters += _parameters(hint)
            continue
        kind, meta = _parts(hint)
        if meta and not meta.extra:  # of the Python interface alone
            continue
        extra = (meta and meta.extra) or {"names": (), "kind": "option"}
        declare = typer.Argument if extra["kind"] == "argument" else typer.Option
        default = each.default
        if each.default_factory is not MISSING:
            default = each.default_factory()
        info = declare(
            *extra["names"],
            help=meta.description if meta else None,
            show_default=default not in (None, (), "", MISSING),
        )
        if default is MISSING:
            default = inspect.Parameter.empty
        elif isinstance(default, tuple):
            default = list(default) or None
        annotation: Any = Annotated[_option_type(kind), info]
        parameters.append(
            inspect.Parameter(
                each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
        )
    return parameters


def _made(model: Any, given: dict[str, Any]) -> Any:
    """The settings of typer's values; None where nothing was given for a list."""
    values = {}
    for name, hint in get_type_hints(model, include_extras=True).items():
        if _is_group(hint):
            values[name] = _made(hint, given)
        elif name in given:
            value = given[name]
            values[name] = () if value is None and get_origin(_parts(hint)[0]) is tuple else value
    return model(**values)


def _shown(name: str, hint: Any) -> str:
    """The option as users type it."""
    meta = _parts(hint)[1]
    names = (meta.extra or {}).get("names", ()) if meta else ()
    return next(iter(names), f"--{name.replace('_', '-')}")


def reason(error: msgspec.ValidationError, hint: Any) -> str:
    """What is expected in place of a value that is not of this annotation."""
    kind = _parts(hint)[0]
    if get_origin(kind) is Literal:
        return f"expected one of {', '.join(map(str, get_args(kind)))}"
    return str(error).replace("Expected", "expected").replace("`", "")


def _parts(hint: Any) -> tuple[Any, msgspec.Meta | None]:
    """(the type, its Meta) of an annotation."""
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        metas = [note for note in notes if isinstance(note, msgspec.Meta)]
        return kind, next((meta for meta in metas if meta.extra), metas[0] if metas else None)
    return hint, None


def _option_type(kind: Any) -> Any:
    """What typer reads: a list for a tuple of any length, the type without its limits."""
    kind = _parts(kind)[0]
    if get_origin(kind) is tuple:
        return list[_option_type(get_args(kind)[0])] | None  # type: ignore[misc]
    if get_origin(kind) in (Union, UnionType):
        return Union[tuple(_option_type(part) for part in get_args(kind))]  # noqa: UP007
    if get_origin(kind) is Literal:
        return str  # the settings check it
    return kind
