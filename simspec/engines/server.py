"""Prompts to a running vLLM server: its answers, their seconds, and its counters around them.

Prompts are sent in waves, of which a number of requests is in flight at any time. A wave is kept on
the disk once it is answered; the same call goes on after it. A wave during which the server
answered others is not kept.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import msgspec
import numpy as np
from msgspec import Meta

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

FORM = "simspec served 2"
KEYS = "VLLM_API_KEY", "OPENAI_API_KEY"
"""Environment variables of the server's key; the first that is set counts."""
PATIENCE, LONGEST_ANSWER = 120.0, 1800.0
"""Seconds without a byte, and of a whole answer, after which a server is given up."""
MOST_BODY = 64 << 20
"""Bytes of a body."""
LATE, PAUSE = 60, 0.05
"""Scrapes, and seconds between them, in which counters follow an answer."""
SETTLE = 1.0
"""Seconds before another server's turn: threads of one that has answered spin for half of it, on
the cores of the other where both share a machine, whose steps then take twice as long."""
GENERATED, DRAFTING = "generation_tokens", "spec_decode_num_"
DRAFTS, DRAFTED, ACCEPTED, BY_POSITION = (DRAFTING + name for name in SUMS)
COUNTED = re.compile(rf"vllm:({GENERATED}|{DRAFTING}\w+?)_total\b".encode())
URL = re.compile(r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(/[\w./~-]*)?", re.ASCII)
AGAIN = "the same command goes on"


class ServerError(ValueError):
    """A server that cannot be reached, refuses, or does not answer as vLLM does."""


class NotThere(ServerError):
    """HTTP 404."""


class Prompt(NamedTuple):
    """A prompt, and its part of a request: {"messages": chat} or {"prompt": text}."""

    id: str
    content: Mapping[str, Any]

    @property
    def path(self) -> str:
        """Where it is sent."""
        return "/v1/chat/completions" if "messages" in self.content else "/v1/completions"


class Answer(msgspec.Struct):
    """A greedy answer: its tokens, when its parts came (a part is what a pass added), and its own
    draft counts. Times are of the client's clock, in seconds."""

    tokens: Whole
    times: Annotated[list[Number], Meta(min_length=1)]
    text: str
    figures: str = ""


class Wave(msgspec.Struct):
    """Answers of a server that had `requests` in flight: where one ends, the next prompt is sent.

    before, after: the server's counters; "": it has none; place: of its first prompt.
    """

    requests: int
    plain: bool
    place: Whole
    answers: list[Answer]
    before: str
    after: str

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(answer.tokens for answer in self.answers)

    @property
    def parts(self) -> int:
        """Parts of all answers, without their first ones."""
        return sum(len(answer.times) - 1 for answer in self.answers)

    @property
    def full(self) -> tuple[float, int]:
        """(seconds in which every request in flight decodes, none its prompt; parts in them).

        Parts of one step come within half of a median step.
        """
        steps = np.concatenate([np.diff(answer.times) for answer in self.answers])
        times = np.sort(np.concatenate([answer.times[1:] for answer in self.answers]))
        ends = [(a.times[i], step) for a in self.answers for i, step in ((0, 1), (-1, -1))]
        at, change = np.array(sorted(ends)).T
        full = change.cumsum()[:-1] == self.requests
        late = np.median(steps) / 2 if len(steps) else 0.0
        parts = np.diff(np.searchsorted(times, at + late))
        return float(np.diff(at)[full].sum()), int(parts[full].sum())


class _Chunk(msgspec.Struct):
    choices: list[dict[str, Any]] = []
    usage: dict[str, Any] | None = None
    error: Any = None


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """None, so that the key goes to no other address."""


OPENER = build_opener(ProxyHandler({}), _NoRedirect)


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


def address_of(url: str) -> str:
    """http://HOST[:PORT][/PREFIX] without a trailing /v1.

    ValueError, which shows nothing of it, for any other address.
    """
    if not URL.fullmatch(url):
        raise ValueError(
            f"the address is none such as http://HOST:8000, which is expected; a key goes into "
            f"{KEYS[0]}"
        )
    return url.rstrip("/").removesuffix("/v1")


@dataclass(frozen=True)
class Server:
    """A vLLM server, see `address_of`. plain: without drafts; clock: seconds."""

    address: str
    plain: bool = False
    key: str = field(default="", repr=False)
    clock: Callable[[], float] = time.perf_counter

    @contextmanager
    def _lines(self, path: str, body: Any = None, kind: str = "") -> Iterator[Iterator[bytes]]:
        """The lines of the response to GET, or to POST with a body; kind: its type.

        ServerError where it does not come, or is larger or slower than any that counts.
        """
        where, headers = self.address + path, {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        sent = None if body is None else msgspec.json.encode(body)
        try:
            with OPENER.open(Request(where, sent, headers), timeout=PATIENCE) as response:
                if kind and (given := response.headers.get_content_type()) != kind:
                    raise ServerError(f"{where} answers {given}, expected {kind}: is it vLLM?")
                yield _bounded(response, where)
        except HTTPError as error:
            with error:
                refused = NotThere if error.code == 404 else ServerError
                raise refused(f"{where} {self._refusal(error)}") from None
        except (OSError, HTTPException, OverflowError) as error:
            reason = one_note(error)[:200] or type(error).__name__
            raise ServerError(f"{where} does not answer: {reason}; {AGAIN}") from None

    def _refusal(self, error: HTTPError) -> str:
        status = f"HTTP {error.code}"
        if error.code in (401, 403):
            given = "refuses the key of" if self.key else "wants a key: set"
            return f"{given} {' or '.join(KEYS)} ({status})"
        if 300 <= error.code < 400:
            return f"redirects ({status}): give the address that it leads to"
        text = error.read(LONGEST_LINE).decode("utf-8", "replace")
        return f"refuses: {status}, {'a page' if text.lstrip()[:1] == '<' else self._shown(text)}"

    def _shown(self, text: object) -> str:
        """What a server said, on one line, without the key."""
        said = one_note(text)
        return (said.replace(self.key, "KEY") if self.key else said)[:300]

    def model(self, name: str | None = None) -> str:
        """The served model of that name; None: the only one. ServerError for another or several."""
        with self._lines("/v1/models") as lines:
            body = b"".join(lines)
        with reraised(ServerError, f"{self.address}/v1/models is no list of models"):
            known = [str(model["id"]) for model in msgspec.json.decode(body)["data"]]
        if name in known or (name is None and len(known) == 1):
            return name or known[0]
        served = self._shown(", ".join(known[:9])) or "nothing"
        raise ServerError(f"{self.address} serves {served}: say which with --model")

    def counters(self) -> str:
        """The lines of /metrics that count tokens; "" where the server shows none."""
        try:
            with self._lines("/metrics") as lines:
                kept = [line[:LONGEST_LINE] for line in lines if COUNTED.match(line)]
        except NotThere:
            return ""
        return b"".join(kept).decode("utf-8", "replace")

    def ask(self, prompt: Prompt, model: str, tokens: int) -> Answer:
        """The greedy answer of at most that many tokens, and when its parts came.

        ServerError where it breaks off, or is no stream of vLLM.
        """
        body = {
            "model": model, "max_tokens": tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}, **prompt.content,
        }  # fmt: skip
        times, text, count, figures = list[float](), list[str](), None, ""
        where = f"{self.address}{prompt.path}, prompt {prompt.id!r:.80}"
        with self._lines(prompt.path, body, "text/event-stream") as lines:
            for line in lines:
                name, _, data = line.partition(b":")
                if name != b"data" or data.strip() == b"[DONE]":
                    continue
                with reraised(ServerError, f"{where}: no event of vLLM", raised=ValueError):
                    chunk = msgspec.json.decode(data, type=_Chunk)
                if chunk.error is not None:
                    raise ServerError(f"{where}: {self._shown(chunk.error)}")
                if chunk.choices:
                    times.append(self.clock())
                    held = chunk.choices[0].get("delta") or chunk.choices[0]
                    text.append(str(held.get("content") or held.get("text") or ""))
                if chunk.usage is not None:
                    count = chunk.usage.get("completion_tokens")
                if b'"speculative_decoding":{' in data.replace(b" ", b""):
                    figures = data.decode().strip()
        if not times or type(count) is not int or count < 1:
            raise ServerError(f"{where}: the answer broke off or is empty; {AGAIN}")
        return Answer(count, [round(at, 6) for at in times], "".join(text), figures)


def _bounded(response: Any, where: str) -> Iterator[bytes]:
    left, end = MOST_BODY, time.monotonic() + LONGEST_ANSWER
    while line := response.readline(left + 1):
        left -= len(line)
        if left < 0 or time.monotonic() > end:
            limit = f"{MOST_BODY:,} bytes" if left < 0 else f"{LONGEST_ANSWER:.0f} s"
            raise ServerError(f"{where} answers over {limit}: is it vLLM?")
        yield line


def counted(wave: Wave, where: str = "/metrics") -> Counters:
    """What a wave added to the counters, by their names; {} of a server that shows none.

    ServerError where they went back.
    """
    if not wave.after:
        return {}
    names = GENERATED, DRAFTS, DRAFTED, ACCEPTED, BY_POSITION
    before, after = (Source("vllm-prometheus", where, "", s) for s in (wave.before, wave.after))
    for each in (before, after):
        read_counters(each, None, "vllm:", names)
    try:
        return read_counters(after, before, "vllm:", names)
    except ValueError:
        raise ServerError(f"{where} counts less than before: a restart? {AGAIN}") from None


def check_alone(wave: Wave, server: Server) -> None:
    """ServerError where the counters hold more than this wave's answers, or less."""
    where = f"{server.address}/metrics"
    found = counted(wave, where)
    made, drafted = (sum(found.get(name, {}).values()) for name in (GENERATED, DRAFTED))
    if server.plain and drafted:
        raise ServerError(f"{server.address} drafts, expected a server without drafts")
    if found and made < wave.tokens:
        raise ServerError(
            f"{where} counts {made} of {wave.tokens} answered tokens: it is of another process, "
            "such as one of several replicas; give one server's own address"
        )
    if made > wave.tokens:
        raise ServerError(
            f"{where} counts {made} tokens and {drafted} drafted ones, these requests got "
            f"{wave.tokens}: the server answers others too, so nothing is decided; when it does "
            f"not, {AGAIN}"
        )


def send_wave(
    server: Server, model: str, requests: int, prompts: Sequence[Prompt], place: int, tokens: int
) -> Wave:
    """Keeps `requests` of these prompts in flight, and waits for the counters to follow.

    ServerError as for `ask`, and where the server answered others too.
    """
    before = server.counters()
    with ThreadPoolExecutor(requests) as pool:
        answers = [*pool.map(lambda prompt: server.ask(prompt, model, tokens), prompts)]
    wave = Wave(requests, server.plain, place, answers, before, server.counters())
    for _ in range(LATE if wave.after else 0):
        found = counted(wave, f"{server.address}/metrics").get(GENERATED, {})
        if found.get(NO_POSITION, 0) >= wave.tokens:
            break
        time.sleep(PAUSE)
        wave.after = server.counters()
    check_alone(wave, server)
    return wave


def prompts_of_wave(requests: int) -> int:
    """Prompts of a wave: two for each of several requests, since fewer are in flight as soon as
    there is no next one."""
    return 2 * requests if requests > 1 else 1


def waves_of(batches: Sequence[int], count: int) -> list[tuple[int, int]]:
    """[(requests in flight, place of the first)] of the whole waves of `count` prompts."""
    sizes = ((n, prompts_of_wave(n)) for n in batches)
    return [(n, place) for n, size in sizes for place in range(0, count - size + 1, size)]


def serve_prompts(
    servers: Sequence[Server], prompts: Sequence[Prompt], batches: Sequence[int], tokens: int,
    path: Path, tell: Callable[[int], None], model: str | None = None,
) -> list[Wave]:  # fmt: skip
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
    names, last = dict[str, str](), ""
    for i, (n, place) in enumerate(waves_of(batches, len(prompts))):
        for server in servers[:: 1 - 2 * (i % 2)]:  # which is first takes turns
            if (n, place, server.plain) in done:
                continue
            if last not in ("", server.address):
                time.sleep(SETTLE)
            last = server.address
            if server.address not in names:
                names[server.address] = server.model(model)
                send_wave(server, names[server.address], 1, prompts[:1], 0, tokens)
            asked = prompts[place : place + prompts_of_wave(n)]
            waves.append(send_wave(server, names[server.address], n, asked, place, tokens))
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
    count = 1 + sum(prompts_of_wave(n) for n, _ in waves_of(batches, len(prompts)))
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
