"""One request and its reply, as the client saw them. Written by `tokentrace.client`, read by the probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from tokentrace.errors import EndpointError

#: The kinds of chunks that carry tokens.
TOKEN_KINDS = ("content", "reasoning", "tool")


@dataclass(slots=True)
class Phase:
    """A stretch of the client's own work or waiting: dns, connect, tls, send, wait, stream."""

    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Chunk:
    """One server-sent event (or comment) and when its last byte arrived.

    `kind`: role, content, reasoning, tool, finish, usage, keepalive, error, done or other. `counted`: the reply's
    tokens so far, of a server that counts in every chunk (`continuous_usage_stats`).
    """

    time_ns: int
    kind: str
    text: str = ""
    choice: int = 0
    size_bytes: int = 0
    counted: int | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the tokens after the first came. All figures of this kind, in every command, are this one.

    `window_ns` is from the first arrival of text to the last. All that came with the first arrival belongs to the time
    to the first token, and what follows the last text (an end mark, usage, [DONE], silence) to no token. `tokens` came
    in that time. `exact` False: no more than so many, because chunks hold several tokens each and nothing tells how
    many of them the first arrival brought. None is not known; `why` is the reason, also of what is not exact.
    """

    window_ns: int | None = None
    tokens: int | None = None
    exact: bool = False
    why: str = ""

    @property
    def per_token_ns(self) -> float | None:
        """Time of a token after the first; where not exact, it took at least this."""
        return self.window_ns / self.tokens if self.window_ns and self.tokens else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second after the first; where not exact, there were at most so many."""
        return self.tokens * 1e9 / self.window_ns if self.window_ns and self.tokens else None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


IN_ONE_READ = "all of the text came in one read, so nothing lies between its tokens"
SEVERAL_A_CHUNK = "chunks hold several tokens, and how many the first one held is not told"


def pace(times_ns: Sequence[int], counted: int | None, *, end_mark: bool = False) -> Pace:
    """The pace of a reply that was streamed. `times_ns`: arrivals of its chunks with text, in order; `counted`: its
    tokens, as the server counted them; `end_mark`: one of these may be an end mark, which has no text.
    """
    if len(times_ns) < 2:
        return Pace(why="its text came in one chunk" if times_ns else "no text came")
    window = times_ns[-1] - times_ns[0]
    if window <= 0:
        return Pace(why=IN_ONE_READ)
    if counted is None:
        return Pace(window, why="the server did not count the tokens")
    chunks = len(times_ns)
    first = sum(at <= times_ns[0] for at in times_ns)
    if counted == chunks or (end_mark and counted == chunks + 1):
        return Pace(window, chunks - first, True)
    if counted < chunks:
        return Pace(window, why=f"the server counted fewer tokens ({counted}) than chunks with text came ({chunks})")
    return Pace(window, counted - first, False, SEVERAL_A_CHUNK)


@dataclass(frozen=True, slots=True)
class Latencies:
    """What a user feels of one reply; None is unknown, not zero. `text_chunks` may hold several tokens each."""

    wall_ns: int
    ttft_ns: int | None
    inter_token_ns: tuple[int, ...]
    text_chunks: int
    output_tokens: int | None
    tokens_per_s: float | None  # see `Pace`; None also where that is not exact


@dataclass(slots=True)
class Exchange:
    """One streaming chat request from the first byte sent to the last one received.

    `error` is set when the reply did not come or was not usable; everything seen until then is still here.
    Headers that carry a key are never stored.
    """

    url: str
    model: str
    span_id: int
    traceparent: str
    request: dict[str, Any] = field(default_factory=dict)
    request_bytes: int = 0
    start_ns: int = 0
    end_ns: int = 0
    phases: list[Phase] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    status_code: int = 0
    http_version: str = ""
    response_headers: dict[str, str] = field(default_factory=dict)
    response_bytes: int = 0
    response_id: str = ""
    response_model: str = ""
    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    usage: dict[str, Any] | None = None
    keepalives: int = 0
    malformed: int = 0  # events that were not JSON
    saw_done: bool = False
    streamed: bool = False  # the answer came as server-sent events
    complete: bool = False
    interrupted: bool = False  # by Ctrl-C or by `should_stop`
    let_go: str = ""  # the program did not read the reply to its end, which is no error: what it did, in a sentence
    attempts: int = 1
    proxy: str = ""  # "host:port (HTTP_PROXY)"; never with a user name or password
    server_address: str = ""
    server_port: int = 0
    error: EndpointError | None = None
    error_type: str = ""  # HTTP status as text, or a word for the cause; empty when there was no error
    notes: list[str] = field(default_factory=list)
    #: chat, text_completion, or "GET /path" for a request that asks no model for anything.
    operation: str = "chat"

    @property
    def is_model_call(self) -> bool:
        return self.operation in ("chat", "text_completion")

    @property
    def token_times_ns(self) -> list[int]:
        """Arrival of each chunk that carries content of the first choice (a chunk may hold several tokens)."""
        return [c.time_ns for c in self.chunks if c.kind in TOKEN_KINDS and c.choice == 0]

    @property
    def ttft_ns(self) -> int | None:
        """Request start to the first chunk with content; a role chunk or a comment does not count.

        None where the reply was not streamed, also where a stream was asked for: no token has a time of its own then.
        """
        times = self.token_times_ns
        return times[0] - self.start_ns if times and self.streamed else None

    @property
    def inter_token_ns(self) -> list[int]:
        times = self.token_times_ns
        return [b - a for a, b in pairwise(times)]

    @property
    def wall_ns(self) -> int:
        return max(0, self.end_ns - self.start_ns)

    @property
    def output_tokens(self) -> int | None:
        """As the server counted them; None when it sent no usage."""
        value = (self.usage or {}).get("completion_tokens")
        return value if isinstance(value, int) else None

    @property
    def input_tokens(self) -> int | None:
        value = (self.usage or {}).get("prompt_tokens")
        return value if isinstance(value, int) else None

    @property
    def pace(self) -> Pace:
        """How fast the tokens after the first came; see `Pace`."""
        if not self.streamed:
            return Pace(why="the reply was not streamed")
        texts = [c for c in self.chunks if c.kind in TOKEN_KINDS and c.choice == 0]
        times, tokens = [c.time_ns for c in texts], self.output_tokens
        plain = pace(times, tokens, end_mark=self.finish_reason == "stop")
        if plain.window_ns is None:
            return plain
        if any(c.choice for c in self.chunks):
            return Pace(plain.window_ns, why="the tokens of several replies are counted together")
        with_first = [c.counted for c in texts if c.time_ns == times[0]][-1]
        at_last = texts[-1].counted
        if with_first and at_last and with_first < at_last:
            return Pace(plain.window_ns, at_last - with_first, True)
        details = (self.usage or {}).get("completion_tokens_details")
        hidden = details.get("reasoning_tokens") if isinstance(details, dict) else None
        if hidden and not self.reasoning:
            return Pace(plain.window_ns, why="tokens of reasoning are counted that were not sent")
        return plain

    @property
    def latencies(self) -> Latencies:
        """The figures of this reply at once."""
        times, found = self.token_times_ns, self.pace
        rate = found.tokens_per_s if found.exact else None
        return Latencies(self.wall_ns, self.ttft_ns, tuple(self.inter_token_ns), len(times), self.output_tokens, rate)


def prompt_of(request: Mapping[str, Any]) -> str:
    """What the user said last; of content in parts the texts."""
    for message in reversed(request.get("messages") or ()):
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, list):
                return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
            return str(content or "")
    prompt = request.get("prompt")
    return prompt if isinstance(prompt, str) else ""
