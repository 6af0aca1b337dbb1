"""A settings model is a command's options, its checks and what a card stores."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
import typer
from typer.testing import CliRunner

from simspec.settings import Settings, argument, command, option, stored


@dataclass(frozen=True)
class Sweep(Settings):
    traces: Annotated[tuple[str, ...], argument("Recordings.")] = ()
    draws: Annotated[int, option("Draws.", "--replicates", ge=1, le=100)] = 4
    rule: Annotated[Literal["greedy", "coupled"], option("Rule.")] = "greedy"
    out: Annotated[Path | None, option("File.")] = None
    lengths: Annotated[tuple[int, ...], option("K.")] = (1, 2)
    as_json: Annotated[bool, option("JSON.", "--json")] = False


def run(*arguments):
    made = []

    @command
    def sweep(settings: Sweep) -> None:
        """Replay."""
        made.append(settings)

    app = typer.Typer()
    app.command()(sweep)
    done = CliRunner().invoke(app, arguments)
    return made, done


def test_options_become_fields():
    made, _ = run("a", "b", "--replicates", "8", "--lengths", "3", "--out", "x", "--json")
    assert made == [Sweep(("a", "b"), 8, "greedy", Path("x"), (3,), True)]
    assert run()[0] == [Sweep()]


def test_help_names_every_option():
    text = run("--help")[1].output
    assert all(word in text for word in ("traces", "--replicates", "--rule", "--out", "--json"))


@pytest.mark.parametrize(
    "given, message",
    [
        ({"draws": 0}, "--replicates is 0, expected int >= 1"),
        ({"draws": 101}, "--replicates is 101, expected int <= 100"),
        ({"draws": "4"}, "--replicates is '4', expected int, got str"),
        ({"rule": "x"}, "--rule is 'x', expected one of greedy, coupled"),
    ],
)
def test_a_field_out_of_range_is_one_line(given, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Sweep(**given)


def test_a_card_stores_plain_data():
    assert stored(Sweep(("a",), out=Path("x"))) == {
        "traces": ("a",), "draws": 4, "rule": "greedy", "out": "x", "lengths": (1, 2),
        "as_json": False,
    }  # fmt: skip


@dataclass(frozen=True)
class Place(Settings):
    device: Annotated[str, option("Where.")] = "cpu"
    rank: Annotated[int, option("Which.", ge=0)] = 0


@dataclass(frozen=True)
class Run(Settings):
    name: Annotated[str, argument("A recording.")]
    place: Place = Place()


def test_a_group_stands_among_the_options():
    made = []

    @command
    def run_it(settings: Run) -> None:
        """Run."""
        made.append(settings)

    app = typer.Typer()
    app.command()(run_it)
    CliRunner().invoke(app, ["a", "--device", "cuda"])
    assert made == [Run("a", Place("cuda"))]
    assert stored(made[0]) == {"name": "a", "place": {"device": "cuda", "rank": 0}}
