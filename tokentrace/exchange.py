"""One request and its reply, as the client saw them. Written by `tokentrace.client`, read by the probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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

    `kind`: role, content, reasoning, tool, finish, usage, keepalive, error, done or other.
    """

    time_ns: int
    kind: str
    text: str = ""
    choice: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Latencies:
    """What a user feels of one reply; None is unknown, not zero. `text_chunks` may hold several tokens each."""

    wall_ns: int
    ttft_ns: int | None
    inter_token_ns: tuple[int, ...]
    text_chunks: int
    output_tokens: int | None
    tokens_per_s: float | None  # from the first token to the last one: (output_tokens - 1) / that time


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
    def latencies(self) -> Latencies:
        """The figures of this reply at once. `tokens_per_s` needs the server's count, a stream of two chunks or more,
        and that every counted token was streamed (some services count reasoning that they do not show).
        """
        times, tokens = self.token_times_ns, self.output_tokens
        between = times[-1] - times[0] if len(times) > 1 else 0
        details = (self.usage or {}).get("completion_tokens_details")
        counted_reasoning = details.get("reasoning_tokens") if isinstance(details, dict) else None
        hidden = bool(counted_reasoning) and not self.reasoning
        known = tokens is not None and tokens > 1 and between > 0 and not hidden
        # The end mark is counted by most servers and has no chunk: it came after the last time that is known here.
        ended = self.finish_reason == "stop" and tokens == len(times) + 1
        shown = len(times) if ended else tokens
        rate = (shown - 1) * 1e9 / between if known and shown is not None else None
        return Latencies(self.wall_ns, self.ttft_ns, tuple(self.inter_token_ns), len(times), tokens, rate)


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
