"""Calls on the workers of a Dask cluster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from warnings import catch_warnings, simplefilter

CONNECT_SECONDS = 10
"""How long a scheduler, and then its first worker, may take to answer."""
SAME_VERSIONS = ("python", "simspec", "numpy", "numba")
"""What must be of one version everywhere: results are the same to the last bit."""


def check_cluster(address: str) -> None:
    """ValueError, one line, where Dask, its scheduler or a worker is missing, or versions vary."""
    with _connected(address):
        pass


def cluster_results(
    address: str,
    function: Callable[..., Any],
    calls: Sequence[tuple[Any, ...]],
    shared: Sequence[Any],
) -> Iterator[Any]:
    """function(*call) of each call, in order, on the workers of the scheduler at this address.

    `shared` are large arguments: the scheduler keeps them, and a worker gets each once, not with
    every call. What a dead worker was to do, or to keep, others do and get. ValueError as for
    `check_cluster`; whatever `function` raises.
    """
    from joblib import Parallel, delayed, parallel_config

    with _connected(address) as client:
        with parallel_config(backend="dask", client=client):
            parallel = Parallel(return_as="generator")
        # What joblib sends instead of these. For a cluster of one thread it calls here, with these.
        parallel._backend.data_futures = {id(value): _kept(client, value) for value in shared}
        yield from parallel(delayed(function)(*call) for call in calls)


def _kept(client: Any, value: Any) -> Any:
    """The value as a task, which runs again where its result is lost; scattered data would not."""
    with catch_warnings():
        simplefilter("ignore")  # Dask's advice on large tasks
        return client.submit(_itself, value, pure=False)


def _itself(value: Any) -> Any:
    return value


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    try:
        client_of = import_module("distributed").Client
    except ImportError:
        raise ValueError(
            f"a sweep on {address} needs Dask, which is not installed: pip install "
            "'simspec[cluster]'"
        ) from None
    if "://" not in address:
        raise ValueError(
            f"{address!r} is no address of a Dask scheduler: expected the one that `dask "
            "scheduler` prints, such as tcp://10.0.0.1:8786"
        )
    try:
        client = client_of(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no Dask scheduler answers at {address} ({_one_line(error)}): start one with `dask "
            "scheduler`, and give the address that it prints"
        ) from None
    with client:
        _check_workers(client, address)
        yield client


def _check_workers(client: Any, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
    except TimeoutError:
        raise ValueError(
            f"the Dask scheduler at {address} has no worker: start one with `dask worker {address}`"
        ) from None
    found = client.get_versions(packages=["simspec", "numba"])
    here = found["client"]["packages"]
    for name, worker in found["workers"].items():
        for package in SAME_VERSIONS:
            there = worker["packages"][package]
            if there != here[package]:
                raise ValueError(
                    f"worker {name} has {package} {there}, this process {here[package]}: install "
                    "the same versions everywhere, or results would differ"
                )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
