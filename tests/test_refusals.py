"""Every command refuses every option out of its range, in one line, before a file is read."""

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
import torch
from shell import refused
from typer.main import get_command

from real.model.captured_passes import CapturedPasses
from simspec import cli
from simspec.settings import Settings


def leaves(group, words=()):
    """(words of the command line, command) of every command below a group."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*words, name))
        else:
            yield (*words, name), command


def options(model):
    """(field, annotation) of a settings model, those of its groups too."""
    for each in fields(model):
        hint = get_type_hints(model, include_extras=True)[each.name]
        if isinstance(hint, type) and issubclass(hint, Settings):
            yield from options(hint)
        elif any(meta.extra for _, meta in meta_of(hint)):  # else of the interface in Python alone
            yield each, hint


def meta_of(hint):
    """The limits of an annotation and of what a list holds."""
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        yield kind, next(note for note in notes if isinstance(note, msgspec.Meta))
        yield from meta_of(kind)
    for part in get_args(hint):
        if get_origin(part) is Annotated:
            yield from meta_of(part)


def wrong_values(hint):
    """Values that the annotation does not allow."""
    for kind, meta in meta_of(hint):
        if get_origin(kind) is Literal:
            yield "nonsense"
        if meta.ge is not None:
            yield meta.ge - 1
        if meta.gt is not None:
            yield meta.gt
        if meta.le is not None:
            yield meta.le + 1
        if meta.lt is not None:
            yield meta.lt


def cases():
    cli._load_extras()
    for words, leaf in leaves(get_command(cli.app)):
        model = getattr(leaf.callback, "settings", None)
        if model is None:
            continue
        given = []
        for each, hint in options(model):
            if each.default is MISSING and each.default_factory is MISSING:
                flag = flag_of(each, hint)
                given += [flag, "absent"] if flag else ["absent"]
        for each, hint in options(model):
            for value in wrong_values(hint):
                if flag := flag_of(each, hint):
                    joined = (f"{flag}={value}",) if flag[:2] == "--" else (flag, str(value))
                    yield (*words, *given, *joined), flag


def flag_of(each, hint):
    """The option as users type it; "" for an argument."""
    extra = next((meta.extra for _, meta in meta_of(hint) if meta.extra), {"names": ()})
    if extra.get("kind") == "argument":
        return ""
    return next(iter(extra["names"]), f"--{each.name.replace('_', '-')}").split("/")[0]


CASES = list(cases())


@pytest.mark.parametrize("arguments, option", CASES, ids=lambda a: " ".join(a)[:60])
def test_a_number_out_of_range_is_refused_before_files_are_read(tmp_path, arguments, option):
    """None of the files exists: the line is about the option."""
    refused(tmp_path, *arguments, words=option)


def test_control_ranges_are_found():
    assert len(CASES) > 40
    assert "--depth" in {option for _, option in CASES}


def test_memory_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    def allocate(*_, **__):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 68 TB")

    monkeypatch.setattr("simspec.trace.recordings.locate", allocate)
    refused(tmp_path, "sweep", "absent.parquet", words="out of memory")
    monkeypatch.setattr("simspec.trace.recordings.locate", lambda *_: [0] * (1 << 60))
    refused(tmp_path, "sweep", "absent.parquet", words="out of memory")
    assert not list(Path(tmp_path).iterdir())


def test_out_of_memory_is_reported_and_other_errors_raised():
    class Odd:
        device = "cpu"

        def cache(self, layers, capacity):
            raise self.error

    odd = Odd()
    for odd.error in (
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("can't allocate memory"),
        MemoryError(),
    ):
        with pytest.raises(
            ValueError,
            match="caches of 64 rows do not fit cpu; use shorter sequences, or the eager engine",
        ):
            CapturedPasses((1,), 64).cache("a", odd, 1, 1)
    odd.error = TypeError("another error")
    with pytest.raises(TypeError, match="another error"):
        CapturedPasses((1,), 64).cache("a", odd, 1, 1)
