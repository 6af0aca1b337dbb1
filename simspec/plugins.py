"""Plug-ins: the files of a folder that declare something under a common name."""

import sys
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


def plugins(package: str, declares: str) -> dict[str, ModuleType]:
    """{name: module} of the files and folders of an imported package that have the attribute.

    Files whose names start with an underscore are not imported. ImportError where one cannot be.
    """
    found = {}
    for file in iter_modules(sys.modules[package].__path__):
        if file.name.startswith("_"):
            continue
        module = import_module(f"{package}.{file.name}")
        if hasattr(module, declares):
            found[file.name] = module
    return found
