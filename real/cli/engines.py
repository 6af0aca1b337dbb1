"""Engines in the text that commands print."""

from collections.abc import Mapping


def describe_engines(engines: Mapping[str, str]) -> str:
    """The engines that ran, such as "target engine fast, drafter engine eager"."""
    return ", ".join(f"{model} engine {engine}" for model, engine in engines.items())
