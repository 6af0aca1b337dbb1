"""An engine's worker process, and the conversation with it: one JSON object a line each way.

| line | direction |
| --- | --- |
| `{"start": {…}}` | to the worker, once; `real.engines.adapter.start_options` has its keys |
| `{"ready": {…}}` | `Ready` |
| `{"run": 7, "requests": […], "concurrent": 1, "k": 5, "force": 3}` | to the worker; "policy" too |
| `{"run": 7, "id": …}` | `Finished`, one a request, in any order |
| `{"run": 7, "done": true, "seconds": 1.5}` | all requests have finished |
| `{"stop": true}`, or end of file | the worker ends |
| `{"error": "one line"}`, with "run" where one failed | the worker cannot do it |

A run without "k" has the start's draft length; "force" is left out where the engine drafts by
itself, "policy" where the length is fixed. What a worker writes is untrusted: bytes of a line,
numbers and lists are bounded.
"""

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from real.engines.adapter import Engine, EngineSettings, Environment
from simspec.cost.gate import check_seconds
from simspec.output.files import converted
from simspec.output.names import one_note

MOST_TOKENS = 1 << 20
"""Tokens of a prompt or an output."""
LONGEST_LINE = 16 << 20
"""Bytes of a line from a worker."""
STDERR_KEPT = 1 << 14
"""Bytes of the worker's last output on stderr that are kept."""
Token = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Count = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
Seconds = Annotated[float, Meta(ge=0, lt=1e9)]
Text = Annotated[str, Meta(max_length=10_000)]
Pass = tuple[Count, Count, Count]
"""Tokens emitted, drafted and accepted by one pass of the target."""


@dataclass(frozen=True)
class Request:
    """A prompt in token ids, and the most tokens of its output."""

    id: Text
    prompt: tuple[Token, ...]
    max_tokens: Token


@dataclass(frozen=True)
class Ready:
    """An engine that has loaded its models, `seconds` after the worker's start.

    sets_k: a run may set the draft length, 0 for plain decoding; forces_drafts: a run may force the
    number of junk tokens drafted in each pass. settings: of an engine of shapes, in words.
    """

    engine: Text
    version: Text
    device: Text
    seconds: Seconds
    sets_k: bool
    forces_drafts: bool
    settings: Mapping[Text, Text] = field(default_factory=dict)


@dataclass(frozen=True)
class Finished:
    """One request's output and its passes of the target, plain passes included."""

    id: Text
    tokens: tuple[Token, ...]  # its end token included where the engine keeps it
    passes: tuple[Pass, ...]  # the prompt's pass first; not trimmed
    pass_seconds: tuple[float, ...]
    first_seconds: float  # from the start of this request to its first token
    seconds: float  # to its last
    stopped: Literal["end", "length"]  # by an end token, or max_tokens

    def check(self, request: Request) -> None:
        """ValueError unless it can be the answer to this request.

        The passes emit at least the tokens of the output; the last one starts inside it. A clock
        can mean its seconds.
        """
        emitted, count = [row[0] for row in self.passes], len(self.tokens)
        if count > request.max_tokens or len(emitted) > request.max_tokens + 1:
            raise ValueError(f"{count} tokens of up to {request.max_tokens}, {len(emitted)} passes")
        for row in self.passes:
            if not (row[2] <= row[1] and 1 <= row[0] <= row[1] + 1):
                raise ValueError(
                    f"a pass is {list(row)}; expected accepted <= drafted and 1 <= emitted <= "
                    "drafted + 1"
                )
        if sum(emitted) < count or (emitted and sum(emitted[:-1]) >= max(count, 1)):
            raise ValueError(
                f"request {self.id[:60]!r} has {count} tokens, its {len(emitted)} passes emit "
                f"{sum(emitted)}"
            )
        if len(self.pass_seconds) != len(emitted):
            raise ValueError(f"{len(self.pass_seconds)} pass_seconds for {len(emitted)} passes")
        what = f"request {self.id[:60]!r}, or a pass of it,"
        for seconds in {self.seconds, *self.pass_seconds}:
            check_seconds(seconds, what)
        if not 0 <= self.first_seconds <= self.seconds:  # 0: the prompt was read before
            raise ValueError(
                f"request {self.id[:60]!r} has its first token after {self.first_seconds:g} s of "
                f"{self.seconds:g}: its clock is broken"
            )


def decoded(line: bytes, kind: Any = dict) -> Any:
    """The value of a line, as an instance of this type; ValueError, one line, for another."""
    try:
        return msgspec.json.decode(line, type=kind)
    except RecursionError:
        raise ValueError("a line is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"a line holds no {kind.__name__} ({str(error)[:100]})") from None


def read_finished(value: Mapping[str, Any], requests: Mapping[str, Request]) -> Finished:
    """A request's line; ValueError unless it can be the answer to one of these."""
    finished: Finished = converted("a request", value, Finished)
    if finished.id not in requests:
        raise ValueError(f"request {finished.id[:60]!r} was not asked for, or has finished before")
    finished.check(requests[finished.id])
    return finished


class EngineError(ValueError):
    """An engine's failure as one line: the engine, what happened, its last words, what to do."""


@dataclass(frozen=True)
class Patience:
    """Seconds to wait: for `Ready`, for the next line of a run, and for the process to end."""

    start: float = 600.0
    silence: float = 300.0
    end: float = 10.0


class Worker:
    """An engine's worker process; a context manager that ends its process group.

    Every failure is an `EngineError`. After one, `ended` says whether the process is gone: then
    another Worker must be started. Not for several threads.
    """

    def __init__(
        self, engine: Engine, environment: Environment, patience: Patience = Patience()
    ) -> None:
        self.engine, self.environment, self.patience = engine, environment, patience
        self._process: subprocess.Popen[bytes] | None = None
        self._last_words = bytearray()
        self._runs = 0

    @property
    def ended(self) -> bool:
        """Whether it was closed, or has not been started."""
        return self._process is None

    def start(self, settings: EngineSettings) -> Ready:
        """Starts the process and loads the models.

        ValueError for settings that the engine cannot have; EngineError where it does not start.
        """
        self.launch(settings)
        return self.ready()

    def launch(self, settings: EngineSettings) -> None:
        """Starts the process, which loads its models until `ready` has an answer."""
        options = self.engine.start(settings)
        self.close()
        self._last_words = bytearray()
        own = "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV"
        variables = {key: value for key, value in os.environ.items() if key not in own}
        # sockets, which have timeouts as pipes have none
        self._input, its_input = socket.socketpair()
        self._output, its_output = socket.socketpair()
        self._lines = self._output.makefile("rb")
        with its_input, its_output:
            try:
                self._process = subprocess.Popen(
                    [str(self.environment.python), "-u", str(self.engine.script)],
                    stdin=its_input.fileno(), stdout=its_output.fileno(), stderr=subprocess.PIPE,
                    env=variables | dict(self.engine.variables(self.environment.python)),
                    start_new_session=True, bufsize=0,
                )  # fmt: skip
            except OSError as error:
                for end in (self._input, self._lines, self._output):
                    end.close()
                raise EngineError(f"{self.engine.name} cannot be started: {error}") from None
        assert self._process.stderr is not None
        errors = self._process.stderr.fileno(), self._last_words
        self._stderr = threading.Thread(target=_keep_tail, args=errors, daemon=True)
        self._stderr.start()
        self._send({"start": options}, self.patience.start)

    def ready(self) -> Ready:
        """The answer of a process that was launched."""
        line = self._receive(self.patience.start)
        with self._checked():
            if set(line) != {"ready"}:
                raise ValueError(f"the first line has the keys {sorted(line)!s:.100}")
            ready: Ready = converted("ready", line["ready"], Ready)
            if ready.engine != self.engine.name:
                raise ValueError(f"the worker is {ready.engine!r:.60}")
            if ready.version != self.environment.version:
                raise ValueError(
                    f"the worker runs version {ready.version!r:.60}, its environment has "
                    f"{self.environment.version}"
                )
        return ready

    def run(
        self,
        requests: Sequence[Request],
        keep: Callable[[Finished], None],
        concurrent: int = 1,
        k: int | None = None,
        force: int | None = None,
        policy: str | None = None,
    ) -> float:
        """Seconds of a run over the requests; `keep` gets each one as soon as it has finished.

        `concurrent` requests are in flight together; k is the run's draft length, where `Ready`
        allows it, `force` the number of junk tokens drafted in each pass, and `policy` the one
        that decides lengths up to k. EngineError where the run fails; what `keep` has got stays
        right.
        """
        if self._process is None:
            raise EngineError(f"{self.engine.name} is not running: start it")
        waiting = {request.id: request for request in requests}
        if len(waiting) != len(requests):
            raise ValueError("two requests of a run have the same id")
        self._runs += 1
        given = {"k": k, "force": force, "policy": policy}
        line = {"run": self._runs, "requests": msgspec.to_builtins(list(requests))}
        line |= {"concurrent": concurrent} | {k: v for k, v in given.items() if v is not None}
        try:
            self._send(line, self.patience.silence)
            while waiting:
                line = self._receive(self.patience.silence)
                with self._checked():
                    finished = read_finished(self._of_run(line), waiting)
                del waiting[finished.id]
                keep(finished)
            line = self._receive(self.patience.silence)
            with self._checked():
                if self._of_run(line).get("done") is not True:
                    raise ValueError(f"the end of a run has the keys {sorted(line)!s:.100}")
                seconds: float = converted("seconds", line.get("seconds"), Seconds)
                return seconds
        except EngineError:
            raise
        except BaseException:  # `keep` failed, or a signal came: the run's other lines are unread
            self._end(0)
            raise

    def close(self) -> None:
        """Ends the process and every process that it has started."""
        self._end(self.patience.end)

    def _end(self, patience: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self._input.setblocking(False)
        with self._input, suppress(OSError):
            self._input.send(b'{"stop": true}\n')
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._stderr.join(1.0)
        for pipe in (self._lines, self._output, process.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _of_run(self, line: dict[str, Any]) -> dict[str, Any]:
        if type(line.get("run")) is not int or line["run"] != self._runs:
            raise ValueError(f"a line of run {self._runs} has the run {line.get('run')!r:.40}")
        return line

    def _send(self, message: Mapping[str, Any], patience: float) -> None:
        self._input.settimeout(patience)
        try:
            self._input.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except TimeoutError:
            raise self._failure(f"does not read its input for {patience:g} s") from None
        except OSError:
            raise self._failure(self._ending()) from None

    def _receive(self, patience: float) -> dict[str, Any]:
        """The next line's object; EngineError for an error line too."""
        line = self._line(patience)
        with self._checked():
            value: dict[str, Any] = decoded(line)
            if "error" not in value:
                return value
            said, of_run = value["error"], value.get("run", 0) == self._runs > 0
            if set(value) - {"run"} != {"error"} or not (of_run or "run" not in value):
                raise ValueError(f"an error line of another form: {line[:100]!r}")
            if not isinstance(said, str):
                raise ValueError("an error line holds no text")
        if not of_run:  # a worker that fails in a run reads the next line
            self._end(0)
        raise EngineError(
            f"{self.engine.name} {self.environment.version} says: {one_note(said)[:500]}"
        )

    def _line(self, patience: float) -> bytes:
        self._output.settimeout(patience)
        try:
            line = self._lines.readline(LONGEST_LINE + 1)
        except TimeoutError:
            raise self._failure(f"is silent for {patience:g} s") from None
        if len(line) > LONGEST_LINE:
            raise self._failure(f"writes a line of over {LONGEST_LINE:,} bytes")
        if not line.endswith(b"\n"):
            raise self._failure(self._ending(half=bool(line)))
        return line[:-1]

    def _ending(self, half: bool = False) -> str:
        """How the process has ended, as part of a sentence."""
        assert self._process is not None
        where = " in the middle of a line" if half else ""
        try:
            code = self._process.wait(self.patience.end)
        except subprocess.TimeoutExpired:
            return f"has closed its output{where}"
        if code < 0:
            return f"was ended by signal {-code}{where}"
        return f"ended with exit code {code}{where}"

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """A ValueError inside ends the process and becomes an EngineError."""
        try:
            yield
        except ValueError as error:
            said = one_note(error)[:500]
            raise self._failure(f"answers wrongly: {said}", last_words=False) from None

    def _failure(self, what: str, last_words: bool = True) -> EngineError:
        """The error; ends the process."""
        self._end(0)
        lines = bytes(self._last_words).decode("utf-8", "replace").strip().splitlines()
        words = f'; its last words: "{one_note(lines[-1])[:300]}"' if lines and last_words else ""
        return EngineError(
            f"{self.engine.name} {self.environment.version} {what}{words}; give the same command "
            "again, what ran is kept"
        )


def _keep_tail(pipe: int, tail: bytearray) -> None:
    """Reads a pipe to its end and keeps the last bytes."""
    with suppress(OSError):
        while part := os.read(pipe, 1 << 16):
            tail += part
            del tail[:-STDERR_KEPT]
