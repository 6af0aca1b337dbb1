"""Where tests that start vLLM itself run: `make test-engines`, with its environment."""

import os

import pytest

from real.engines import RELEASED, find_environment


def reason_to_skip(model=None):
    """Why vLLM, on the model of a folder, cannot run here; None where it can."""
    if os.environ.get("SIMSPEC_TEST_ENGINES") != "1":
        return "runs with `make test-engines`"
    if model is not None and not model.is_dir():
        return f"no model at {model}: `make smollm2`"
    try:
        find_environment(RELEASED["vllm"])
    except ValueError as error:
        return str(error)
    return None


def needs_vllm(model=None):
    """The mark of such tests."""
    return pytest.mark.skipif(reason_to_skip(model) is not None, reason=str(reason_to_skip(model)))
