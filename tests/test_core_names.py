"""The house rules that a reader relies on: names, docstrings, sizes."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import simspec

MODULES = ["simspec", *(m.name for m in pkgutil.walk_packages(simspec.__path__, "simspec."))]


@pytest.mark.parametrize("name", MODULES)
def test_public_functions_and_classes_have_docstrings(name):
    module = importlib.import_module(name)
    if name != "simspec":
        assert (module.__doc__ or "").partition("\n")[0].strip().endswith((".", ":"))
    for label, thing in vars(module).items():
        function = inspect.unwrap(getattr(thing, "py_func", thing))
        if label.startswith("_") or getattr(function, "__module__", None) != name:
            continue
        if inspect.isfunction(function) or inspect.isclass(function):
            docstring = thing.__doc__ or ""
            assert docstring, f"{name}.{label} has no docstring"
            assert not docstring.startswith(f"{label}("), f"{name}.{label} has no docstring"


@pytest.mark.parametrize("name", MODULES)
def test_modules_are_small_and_finished(name):
    path = Path(inspect.getsourcefile(importlib.import_module(name)))
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    assert "util" not in path.stem
    assert "helper" not in path.stem
    assert not [word for word in ("TODO", "FIXME", "XXX", "raise NotImplemented") if word in text]
    assert max(map(len, text.splitlines())) <= 140


def test_every_export_exists_and_accepted_is_never_committed():
    for name in simspec.__all__:
        assert getattr(simspec, name) is not None
    rounds = simspec.replay(simspec.synthetic.iid(1.0, 1, 9, 2), simspec.policies.fixed(2))
    assert rounds.accepted.tolist() == [2, 2, 2]
    assert simspec.committed(rounds, simspec.synthetic.iid(1.0, 1, 9, 2)).tolist() == [3, 3, 3]
