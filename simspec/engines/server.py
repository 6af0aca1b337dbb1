"""Prompts to a running vLLM server: its answers, their seconds, and its counters around them.

Requests that start together are a wave, which is kept on the disk once it is answered; the same
call goes on after it. A wave during which the server answered others is not kept.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

import msgspec

from simspec.engines.documents import (
    LARGEST,
    LONGEST_LINE,
    NO_POSITION,
    Counters,
    Number,
    Source,
    Whole,
    read_counters,
)
from simspec.engines.imports import SUMS
from simspec.output.files import naming, read_at_most, reraised
from simspec.output.frames import DataFrame, frame
from simspec.output.names import one_note

FORM = "simspec served 1"
KEYS = "VLLM_API_KEY", "OPENAI_API_KEY"
"""Environment variables of the server's key; the first that is set counts."""
PATIENCE, LONGEST_ANSWER = 120.0, 1800.0
"""Seconds without a byte, and of a whole answer, after which a server is given up."""
MOST_ANSWER, MOST_BODY = 16 << 20, 64 << 20
"""Bytes of an answer's stream, and of another body."""
LATE, PAUSE = 60, 0.05
"""Scrapes, and seconds between them, in which counters follow an answer."""
GENERATED, DRAFTING = "generation_tokens", "spec_decode_num_"
DRAFTS, DRAFTED, ACCEPTED, BY_POSITION = (DRAFTING + name for name in SUMS)
COUNTED = re.compile(rf"vllm:({GENERATED}|{DRAFTING}\w+?)_total\b".encode())
AGAIN = "the same command goes on"


class ServerError(ValueError):
    """A server that cannot be reached, refuses, or does not answer as vLLM does."""


class Prompt(NamedTuple):
    """A prompt, and its part of a request: {"messages": chat} or {"prompt": text}."""

    id: str
    content: Mapping[str, Any]

    @property
    def path(self) -> str:
        """Where it is sent."""
        return "/v1/chat/completions" if "messages" in self.content else "/v1/completions"


class Answer(msgspec.Struct):
    """A greedy answer: its tokens, seconds from the first to the last, and its own draft counts."""

    tokens: Whole
    seconds: Number
    text: str
    figures: str = ""


class Wave(msgspec.Struct):
    """Requests that started together, and the server's counters before and after; "": it has none.

    place: of its first prompt in the order of all.
    """

    requests: int
    plain: bool
    place: Whole
    answers: list[Answer]
    before: str
    after: str


class _Chunk(msgspec.Struct):
    choices: list[dict[str, Any]] = []
    usage: dict[str, Any] | None = None
    error: Any = None


def key_from(environment: Mapping[str, str]) -> tuple[str, str]:
    """(variable, the server's key) of KEYS; ("", "") where none is set.

    ValueError, which does not show the key, for one that no header can hold.
    """
    for name in KEYS:
        if key := environment.get(name, "").strip():
            if not re.fullmatch(r"[!-~]+", key):
                raise ValueError(f"{name} holds characters that no header can: set the bare key")
            return name, key
    return "", ""


@dataclass(frozen=True)
class Server:
    """A vLLM server. plain: without drafts; clock: seconds.

    ValueError, which does not show a password, unless `url` is http://HOST[:PORT][/PREFIX].
    """

    url: str
    plain: bool = False
    key: str = field(default="", repr=False)
    clock: Callable[[], float] = time.perf_counter
    _open: set[HTTPConnection] = field(default_factory=set, repr=False)

    def __post_init__(self) -> None:
        _ = self._parts

    @cached_property
    def _parts(self) -> SplitResult:
        with reraised(ValueError, "the address", "expected http://HOST:8000", ValueError):
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
                raise ValueError("it is no http or https address of a host")
            if parts.username is not None or parts.query or parts.fragment:
                raise ValueError(f"it holds more than a host; a key goes into {KEYS[0]}")
            if re.search(r"[^!-~]", self.url):
                raise ValueError("it holds a space or another character that no address has")
        return parts

    @property
    def address(self) -> str:
        """The address without a trailing /v1."""
        parts = self._parts
        return f"{parts.scheme}://{parts.netloc}{self._prefix}"

    @property
    def _prefix(self) -> str:
        return self._parts.path.rstrip("/").removesuffix("/v1")

    @contextmanager
    def _asked(self, path: str, body: Any = None, missing: bool = False) -> Iterator[HTTPResponse]:
        """The response to GET, or to POST with a body; missing: whether 404 is one."""
        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=PATIENCE)
        self._open.add(connection)
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        sent = None if body is None else msgspec.json.encode(body)
        try:
            connection.request("POST" if sent else "GET", self._prefix + path, sent, headers)
            response = connection.getresponse()
            if response.status != 200 and not (missing and response.status == 404):
                raise ServerError(self._refusal(path, response))
            yield response
        except (OSError, HTTPException) as error:
            reason = one_note(error)[:200] or type(error).__name__
            raise ServerError(f"{self.address}{path} does not answer: {reason}; {AGAIN}") from None
        finally:
            self._open.discard(connection)
            connection.close()

    def _refusal(self, path: str, response: HTTPResponse) -> str:
        status, where = response.status, f"{self.address}{path}"
        if status in (401, 403):
            given = "refuses the key of" if self.key else "wants a key: set"
            return f"{where} {given} {' or '.join(KEYS)} (HTTP {status})"
        if 300 <= status < 400:
            return f"{where} redirects (HTTP {status}): give the address that it leads to"
        text = response.read(LONGEST_LINE).decode("utf-8", "replace")
        told = "a page" if text.lstrip().startswith("<") else self._shown(text)
        return f"{where} refuses: HTTP {status}, {told}"

    def _shown(self, text: object) -> str:
        """What a server said, on one line, without the key."""
        said = one_note(text)
        return (said.replace(self.key, "KEY") if self.key else said)[:300]

    def _lines(self, response: HTTPResponse, path: str, most: int) -> Iterator[bytes]:
        """Lines of a body; ServerError where it has more bytes, or takes too long."""
        left, end = most, time.monotonic() + LONGEST_ANSWER
        while line := response.readline(left + 1):
            left -= len(line)
            if left < 0 or time.monotonic() > end:
                limit = f"{most:,} bytes" if left < 0 else f"{LONGEST_ANSWER:.0f} s"
                raise ServerError(f"{self.address}{path} answers over {limit}: is it vLLM?")
            yield line

    def stop(self) -> None:
        """Closes all connections, so that threads which wait for an answer end."""
        for connection in [*self._open]:
            with suppress(OSError, AttributeError):
                connection.sock.shutdown(2)

    def model(self, name: str | None = None) -> str:
        """The served model of that name; None: the only one. ServerError for another or several."""
        with self._asked("/v1/models") as response:
            body = b"".join(self._lines(response, "/v1/models", MOST_BODY))
        with reraised(ServerError, f"{self.address}/v1/models is no list of models"):
            known = [str(model["id"]) for model in msgspec.json.decode(body)["data"]]
        if name in known or (name is None and len(known) == 1):
            return name or known[0]
        served = self._shown(", ".join(known[:9]))
        raise ServerError(f"{self.address} serves {served or 'nothing'}: say which with --model")

    def counters(self) -> str:
        """The lines of /metrics that count tokens; "" where the server shows none."""
        kept = []
        with self._asked("/metrics", missing=True) as response:
            for line in self._lines(response, "/metrics", MOST_BODY):
                if COUNTED.match(line):
                    kept.append(line[:LONGEST_LINE].decode("utf-8", "replace"))
        return "".join(kept)

    def ask(self, prompt: Prompt, model: str, tokens: int) -> Answer:
        """The greedy answer of at most that many tokens, and when its parts came.

        ServerError where it breaks off, or is no stream of vLLM.
        """
        body = {
            "model": model, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        first = last = count = None
        text, figures = list[str](), ""
        where = f"{self.address}{prompt.path}, prompt {prompt.id!r:.80}"
        with self._asked(prompt.path, {**body, **prompt.content}) as response:
            if (kind := response.headers.get_content_type()) != "text/event-stream":
                raise ServerError(f"{where}: {kind}, expected a stream of events: is it vLLM?")
            for line in self._lines(response, prompt.path, MOST_ANSWER):
                name, _, data = line.partition(b":")
                if name != b"data" or data.strip() == b"[DONE]":
                    continue
                with reraised(ServerError, f"{where}: no event of vLLM", raised=ValueError):
                    chunk = msgspec.json.decode(data, type=_Chunk)
                if chunk.error is not None:
                    raise ServerError(f"{where}: {self._shown(chunk.error)}")
                if chunk.choices:
                    last = self.clock()
                    first = last if first is None else first
                    held = chunk.choices[0].get("delta") or chunk.choices[0]
                    text += [str(held.get("content") or held.get("text") or "")]
                if chunk.usage is not None:
                    count = chunk.usage.get("completion_tokens")
                if b'"speculative_decoding":{' in data.replace(b" ", b""):
                    figures = data.decode().strip()
        if first is None or last is None or type(count) is not int or count < 1:
            raise ServerError(f"{where}: the answer broke off or is empty; {AGAIN}")
        return Answer(count, last - first, "".join(text), figures)


def counted(wave: Wave, where: str = "/metrics") -> Counters:
    """What a wave added to the counters, by their names; {} of a server that shows none."""
    if not wave.after:
        return {}
    names = GENERATED, DRAFTS, DRAFTED, ACCEPTED, BY_POSITION
    before, after = (Source("vllm-prometheus", where, "", s) for s in (wave.before, wave.after))
    for each in (before, after):
        read_counters(each, None, "vllm:", names)
    try:
        found = read_counters(after, before, "vllm:", names)
    except ValueError:
        raise ServerError(f"{where} counts less than before: a restart? {AGAIN}") from None
    if GENERATED not in found:
        raise ServerError(f"{where} lacks vllm:{GENERATED}_total: expected vLLM's")
    return found


def check_alone(wave: Wave, server: Server) -> None:
    """ServerError where the counters hold more than this wave's answers, or less."""
    where, ours = f"{server.address}/metrics", sum(answer.tokens for answer in wave.answers)
    found = counted(wave, where)
    if not found:
        return
    sums = {name: sum(held.values()) for name, held in found.items()}
    if server.plain and sums.get(DRAFTED, 0):
        raise ServerError(f"{server.address} drafts, expected a server without drafts")
    if sums[GENERATED] < ours:
        raise ServerError(
            f"{where} counts {sums[GENERATED]} of {ours} answered tokens: it is of another process,"
            " such as one of several replicas; give one server's own address"
        )
    # a draft beyond the end of an answer counts as accepted, so K tokens of each may be over
    most = ours + (len(found.get(BY_POSITION, ())) - 1) * len(wave.answers)
    for made, name, limit in (
        (sums[GENERATED], "tokens", ours),
        (sums.get(DRAFTS, 0) + sums.get(ACCEPTED, 0), "drafts and accepted tokens", most),
    ):
        if made > limit:
            raise ServerError(
                f"{where} counts {made} {name}, these requests can have {limit}: the server "
                f"answers others too, so nothing is decided; when it does not, {AGAIN}"
            )


def send_wave(
    server: Server, model: str, prompts: Sequence[Prompt], place: int, tokens: int
) -> Wave:
    """Sends these prompts together, and waits for the counters to follow.

    ServerError as for `ask`, and where the server answered others too.
    """
    before = server.counters()
    if len(prompts) == 1:
        answers = [server.ask(prompts[0], model, tokens)]
    else:
        with ThreadPoolExecutor(len(prompts)) as pool:
            try:
                answers = [*pool.map(lambda prompt: server.ask(prompt, model, tokens), prompts)]
            except BaseException:
                server.stop()
                raise
    wave = Wave(len(prompts), server.plain, place, answers, before, server.counters())
    ours, where = sum(answer.tokens for answer in answers), f"{server.address}/metrics"
    for _ in range(LATE if wave.after else 0):
        if counted(wave, where)[GENERATED][NO_POSITION] >= ours:
            break
        time.sleep(PAUSE)
        wave.after = server.counters()
    check_alone(wave, server)
    return wave


def waves_of(batches: Sequence[int], count: int) -> list[tuple[int, int]]:
    """[(requests in flight, place of the first)] of whole waves of so many prompts."""
    return [(n, place) for n in batches for place in range(0, count - n + 1, n)]


def serve_prompts(
    servers: Sequence[Server],
    prompts: Sequence[Prompt],
    batches: Sequence[int],
    tokens: int,
    path: Path,
    tell: Callable[[int], None],
    model: str | None = None,
) -> list[Wave]:
    """The waves of all prompts on every server, by turns, kept in a file as they come.

    Waves that the file holds are not sent again. A first request of each server warms it up and is
    not kept. ServerError, one line, where a server fails or answers others too.
    """
    about = {
        "form": FORM, "servers": [server.address for server in servers], "tokens": tokens,
        "model": model or "", "prompts": hashlib.sha256(msgspec.json.encode(prompts)).hexdigest(),
    }  # fmt: skip
    waves = _kept(path, about)
    done = {(wave.requests, wave.place, wave.plain) for wave in waves}
    names = dict[str, str]()
    for i, (n, place) in enumerate(waves_of(batches, len(prompts))):
        for server in servers[:: 1 - 2 * (i % 2)]:  # which is first takes turns
            if (n, place, server.plain) in done:
                continue
            if server.address not in names:
                names[server.address] = server.model(model)
                send_wave(server, names[server.address], prompts[:1], 0, tokens)
            asked = prompts[place : place + n]
            waves.append(send_wave(server, names[server.address], asked, place, tokens))
            _append(path, waves[-1])
        tell(i + 1)
    return waves


def _kept(path: Path, about: dict[str, Any]) -> list[Wave]:
    """The waves of a file, which is made where there is none; half a line of a kill is cut off."""
    lines = read_at_most(path, LARGEST).splitlines(keepends=True) if path.exists() else []
    if lines and not lines[-1].endswith(b"\n"):
        os.truncate(path, sum(map(len, lines[:-1])))
        lines.pop()
    if not lines:
        _append(path, about)
        return []
    with reraised(ValueError, f"{path} holds no waves of a server", "give another --out"):
        if msgspec.json.decode(lines[0]) != about:
            raise ValueError("it is of other servers, prompts, --budget or --model")
        return [msgspec.json.decode(line, type=Wave) for line in lines[1:]]


def _append(path: Path, value: Any) -> None:
    with naming(path), open(path, "ab") as file:
        file.write(msgspec.json.encode(value) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def plan_frame(
    servers: Sequence[Server], prompts: Sequence[Prompt], batches: Sequence[int], tokens: int,
    key: str,
) -> DataFrame:  # fmt: skip
    """What `serve_prompts` would send; key: the variable of the key, "" for none."""
    count = 1 + sum(n for n, _ in waves_of(batches, len(prompts)))
    text = sum(len(str(part)) for p in prompts for part in p.content.values())
    paths = " ".join([*dict.fromkeys(p.path for p in prompts), "/v1/models", "/metrics"])
    columns = "server", "paths", "requests", "new tokens, at most"
    rows = [(server.address, paths, count, count * tokens) for server in servers]
    headers = "Content-Type" + (f", Authorization with the value of {key}" if key else "")
    notes = (
        f"{len(prompts)} prompts of {text:,} characters in all, each once for every number of "
        f"requests in flight ({', '.join(map(str, batches))}), temperature 0; one warms up",
        f"headers: {headers}; redirects are not followed",
        "nothing was sent",
    )
    return frame(rows, columns, names=2, title="What would be sent", notes=notes)
