"""A running vLLM server: greedy requests over HTTP, the rounds of each, and its counters.

The server must run with `--per-request-spec-decode-metrics detailed`, an experimental option. It
lists rounds with a draft alone: rows and plain passes are not known, unlike from a worker. What it
answers is untrusted: bytes, tokens and seconds are bounded, redirects refused.
"""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from real.engines.messages import MOST_TOKEN_ID, Request, decoded
from simspec.output.files import replacing
from simspec.output.names import one_note

MOST_BYTES = 16 << 20
"""Bytes of a response's body."""
LONGEST_DRAFT = 1024
"""Tokens of a draft."""


@dataclass(frozen=True)
class Server:
    """Address of a server, and how long it may take.

    | field | meaning |
    | --- | --- |
    | url | http://HOST:PORT or https, without a path of the API |
    | model | its name for the model; None: the only one that it lists |
    | key | sent as a bearer token; None: none |
    | seconds | a request may take, from the connection to the last byte |
    """

    url: str
    model: str | None = None
    key: str | None = None
    seconds: float = 300.0


@dataclass(frozen=True)
class Served:
    """A request's output, and its rounds with a draft.

    | field | meaning |
    | --- | --- |
    | tokens | the output; its end token included |
    | rounds | (drafted, accepted) of each round with a draft, in order; None without its metrics |
    | seconds | from the connection to the last byte |
    | stopped | "end" or "length" |
    | response | id and metrics of the response, as `simspec import` reads them |
    """

    id: str
    tokens: tuple[int, ...]
    rounds: tuple[tuple[int, int], ...] | None
    seconds: float
    stopped: str
    response: dict[str, Any]


@dataclass(frozen=True)
class ServerRun:
    """Requests that a server has run; its /metrics before the first one and after the last."""

    version: str
    model: str
    served: tuple[Served, ...]
    before: str
    after: str
    seconds: float

    def write(self, folder: Path) -> None:
        """Writes responses.jsonl, before.prom and after.prom for `simspec import`."""
        write_responses(folder, self.served)
        for name, text in (("before.prom", self.before), ("after.prom", self.after)):
            with replacing(folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")


def write_responses(folder: Path, served: Sequence[Served]) -> None:
    """Writes responses.jsonl, a line for each request."""
    with replacing(folder / "responses.jsonl") as temporary:
        lines = "".join(json.dumps(answer.response) + "\n" for answer in served)
        temporary.write_text(lines, encoding="utf-8")


def run_on_server(
    server: Server,
    requests: Sequence[Request],
    keep: Callable[[Served], None] = lambda served: None,
    concurrent: int = 1,
) -> ServerRun:
    """Runs greedy requests, `concurrent` at a time; `keep` gets each one as soon as it is served.

    Nothing else may use the server, since its counters are of all requests. ValueError, one line,
    where it cannot be reached, is too slow, or answers what it must not.
    """
    if not 1 <= concurrent <= 1024:
        raise ValueError(f"concurrent is {concurrent}; expected 1 to 1024")
    version = _field(_json(server, "/version"), "version", str)
    model = server.model or _only_model(server)
    before, began = _metrics(server), time.monotonic()
    served: dict[str, Served] = {}
    with ThreadPoolExecutor(concurrent) as threads:
        left = iter(requests)
        going: set[Future[Served]] = set()
        try:
            while True:
                for request in left:
                    going.add(threads.submit(_serve, server, model, request))
                    if len(going) == concurrent:
                        break
                if not going:
                    break
                done, going = wait(going, return_when=FIRST_COMPLETED)
                for future in done:
                    result = future.result()
                    served[result.id] = result
                    keep(result)
        finally:
            for future in going:
                future.cancel()
    seconds = time.monotonic() - began
    in_order = tuple(served[request.id] for request in requests)
    return ServerRun(version, model, in_order, before, _metrics(server), seconds)


def _serve(server: Server, model: str, request: Request) -> Served:
    body = {
        "model": model,
        "prompt": list(request.prompt),
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "stream": False,
        "return_token_ids": True,
    }
    began = time.monotonic()
    answer = _json(server, "/v1/completions", body)
    seconds = time.monotonic() - began
    with _named(server, "/v1/completions"):
        return _read_completion(answer, request, seconds)


def _read_completion(answer: dict[str, Any], request: Request, seconds: float) -> Served:
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise ValueError("choices is not a list of one object")
    tokens = _wholes(choices[0].get("token_ids"), request.max_tokens, MOST_TOKEN_ID, "token_ids")
    reason = choices[0].get("finish_reason")
    if reason not in ("stop", "length"):
        raise ValueError(f"finish_reason is {reason!r:.40}; expected stop or length")
    metrics = answer.get("metrics")
    counts = metrics.get("speculative_decoding") if isinstance(metrics, dict) else None
    rounds = None
    if isinstance(counts, dict) and (
        counts.get("num_spec_steps") == 0 or "per_step_drafted" in counts
    ):
        most, longest = request.max_tokens + 1, LONGEST_DRAFT
        drafted, accepted = (
            _wholes(counts.get(f"per_step_{name}", []), most, longest, f"per_step_{name}")
            for name in ("drafted", "accepted")
        )
        if len(drafted) != len(accepted) or any(a > d for d, a in zip(drafted, accepted)):
            raise ValueError("per_step_accepted does not fit per_step_drafted")
        rounds = tuple(zip(drafted, accepted))
    kept = {"id": request.id, "metrics": {"speculative_decoding": counts}}
    return Served(
        request.id, tokens, rounds, seconds, "end" if reason == "stop" else "length", kept
    )


def _wholes(value: Any, most: int, largest: int, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(
            f"{name} is no list of up to {most}: serve vLLM 0.32 or later, with return_token_ids"
        )
    if any(type(number) is not int or not 0 <= number <= largest for number in value):
        raise ValueError(f"{name} holds something else than integers from 0 to {largest}")
    return tuple(value)


def _only_model(server: Server) -> str:
    models = _field(_json(server, "/v1/models"), "data", list)
    if len(models) != 1 or not isinstance(models[0], dict):
        raise ValueError(f"{server.url} lists {len(models)} models: name one")
    return str(_field(models[0], "id", str))


def _field(answer: dict[str, Any], name: str, kind: type) -> Any:
    if not isinstance(answer.get(name), kind):
        raise ValueError(f"a vLLM server was expected, its answer has no {kind.__name__} {name!r}")
    return answer[name]


def _metrics(server: Server) -> str:
    return _fetch(server, "/metrics", None).decode("utf-8", "replace")


def _json(server: Server, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = _fetch(server, path, None if body is None else json.dumps(body).encode())
    with _named(server, path):
        return decoded(answer)


def _fetch(server: Server, path: str, body: bytes | None) -> bytes:
    """The body of the answer; ValueError, one line, where there is none in time and size."""
    headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    began = time.monotonic()
    with _named(server, path):
        host, port, tls = _address(server.url)
        try:
            with _connected(host, port, tls, server.seconds) as sock:
                connection = HTTPConnection(host, port)
                connection.sock = sock
                connection.request("GET" if body is None else "POST", path, body, headers)
                with closing(connection.getresponse()) as response:
                    answer = _body(response)
        except (OSError, HTTPException, ValueError) as error:
            reason = str(error) or type(error).__name__
        else:
            reason = ""
        if time.monotonic() - began >= server.seconds:  # a cut can read as an end
            raise ValueError(f"no whole answer within {server.seconds:g} s")
        if reason:
            raise ValueError(reason)
        if response.status != 200:
            said = one_note(answer[:300].decode("utf-8", "replace"))
            raise ValueError(f"status {response.status}, expected 200: {said}")
        return answer


def _body(response: HTTPResponse) -> bytes:
    parts, size = list[bytes](), 0
    while part := response.read1(1 << 16):
        parts.append(part)
        size += len(part)
        if size > MOST_BYTES:
            raise ValueError(f"the answer has over {MOST_BYTES:,} bytes")
    if response.length:
        raise ValueError(f"the answer ends {response.length} bytes too early")
    return b"".join(parts)


def _address(url: str) -> tuple[str, int, bool]:
    """(host, port, with TLS) of an address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError("expected an address as http://127.0.0.1:8000")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("expected an address without a path, as http://127.0.0.1:8000")
    tls = parts.scheme == "https"
    return parts.hostname, parts.port or (443 if tls else 80), tls


@contextmanager
def _connected(host: str, port: int, tls: bool, seconds: float) -> Iterator[socket.socket]:
    """A connected socket that is cut after these seconds.

    Timeouts of single reads do not end a server that sends a byte now and then.
    """
    sock = socket.create_connection((host, port), seconds)
    if tls:
        sock = ssl.create_default_context().wrap_socket(
            sock, server_hostname=host, do_handshake_on_connect=False
        )

    def cut() -> None:
        with suppress(OSError):
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # past a wrapper of TLS

    deadline = threading.Timer(seconds, cut)
    deadline.daemon = True
    deadline.start()
    try:
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
        yield sock
    finally:
        deadline.cancel()
        sock.close()


@contextmanager
def _named(server: Server, path: str) -> Iterator[None]:
    """Errors inside name the server."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{server.url}{path}: {one_note(error)[:400]}") from None
