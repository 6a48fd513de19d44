"""Real HTTP servers on real sockets that do exactly what a script says, down to the byte and the reset.

    with ScriptedServer() as server:
        server.on("POST", "/v1/chat/completions", sse(chunk("He"), chunk("llo", finish="stop"), DONE))
        server.on("GET", "/v1/models", models("alpha"))
        ...                        # talk to server.url + "/v1"
        assert server.requests[0].path == "/v1/chat/completions"

A reply's body is a list of steps: bytes are sent as one write (and one HTTP chunk), numbers are pauses in seconds, a
threading.Event is waited for, RESET and CLOSE end the connection, Raw(bytes) is sent without framing, WAIT keeps silent
until the server is closed.
Nothing here knows tokentrace.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.loopback import Loopback


class _Mark:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


RESET = _Mark("RESET")  # a TCP reset
CLOSE = _Mark("CLOSE")  # the connection ends here, without the framing's own end
WAIT = _Mark("WAIT")  # nothing more comes, and the connection stays open


@dataclass(frozen=True)
class Raw:
    """Bytes sent as they are, also inside a chunked body."""

    data: bytes


Step = bytes | float | int | Raw | threading.Event | _Mark


@dataclass
class Answer:
    """`framing`: "chunked", "length" or "close" (the body ends with the connection)."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: Sequence[Step] = ()
    framing: str = "chunked"
    before: float = 0.0  # seconds before the headers

    def with_headers(self, **more: str) -> Answer:
        names = {k.replace("_", "-"): v for k, v in more.items()}
        return Answer(self.status, {**self.headers, **names}, self.body, self.framing, self.before)


@dataclass
class Request:
    method: str
    path: str  # with the query
    headers: dict[str, str]  # names in small letters
    body: bytes
    raw: bytes  # the whole head as it came

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Handler = Answer | Callable[[Request], Answer]


class ScriptedServer(Loopback):
    """Answers each connection's one request. `greeting`, when given, is sent at once instead of any HTTP.

    Several answers for one route are given in turn, the last one again and again.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        greeting: bytes | None = None,
        accept: bool = True,
    ) -> None:
        super().__init__(host)
        if tls is not None:
            self.url = self.url.replace("http:", "https:", 1)
        self.requests: list[Request] = []
        self._routes: dict[tuple[str, str], list[Handler]] = {}
        self._fallback: Handler = json_answer({"detail": "Not Found"}, 404)
        self._tls, self._greeting, self._accept = tls, greeting, accept

    def on(self, method: str, path: str, *answers: Handler) -> ScriptedServer:
        self._routes[method, path] = list(answers)
        return self

    def otherwise(self, answer: Handler) -> ScriptedServer:
        """For every request without a route."""
        self._fallback = answer
        return self

    def paths(self) -> list[str]:
        return [r.path for r in self.requests]

    def __enter__(self) -> ScriptedServer:
        return super().__enter__() if self._accept else self

    def handle(self, connection: socket.socket) -> None:
        if self._greeting is not None:
            connection.sendall(self._greeting)
            # Read to the end: a socket closed with bytes unread is reset, which may overtake the greeting.
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(60)
            while connection.recv(65_536):
                pass
        elif self._tls is not None:
            with self._tls.wrap_socket(connection, server_side=True) as secure:
                self._talk(secure)
        else:
            self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = read_request(connection)
        if request is not None:
            self.requests.append(request)
            self._answer(connection, request)

    def _answer(self, connection: socket.socket, request: Request) -> None:
        queue = self._routes.get((request.method, request.path.partition("?")[0]))
        handler = (queue.pop(0) if len(queue) > 1 else queue[0]) if queue else self._fallback
        answer = handler(request) if callable(handler) else handler
        self.closing.wait(answer.before)
        headers = dict(answer.headers)
        whole = b"".join(s for s in answer.body if isinstance(s, bytes))
        if answer.framing == "chunked":
            headers["Transfer-Encoding"] = "chunked"
        elif answer.framing == "length":
            headers["Content-Length"] = str(len(whole))
        lines = "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        head = f"HTTP/1.1 {answer.status} Scripted\r\n{lines}Connection: close\r\n\r\n".encode("latin-1")
        if answer.body and answer.body[0] is RESET:
            _reset(connection)
            return
        if answer.framing == "length" and all(isinstance(s, bytes) for s in answer.body):
            connection.sendall(head + whole)  # one write: how many reads it takes is not left to chance
            return
        connection.sendall(head)
        for step in answer.body:
            if isinstance(step, bytes):
                framed = b"%x\r\n%b\r\n" % (len(step), step) if answer.framing == "chunked" else step
                connection.sendall(framed)
            elif isinstance(step, Raw):
                connection.sendall(step.data)
            elif isinstance(step, (int, float)):
                if self.closing.wait(step):
                    return
            elif isinstance(step, threading.Event):
                while not step.wait(0.02):
                    if self.closing.is_set():
                        return
            elif step is RESET:
                _reset(connection)
                return
            elif step is CLOSE:
                return
            else:
                self._until_gone(connection)
                return
        if answer.framing == "chunked":
            connection.sendall(b"0\r\n\r\n")

    def _until_gone(self, connection: socket.socket) -> None:
        while not self.closing.wait(0.02):
            if select.select([connection], [], [], 0)[0] and not connection.recv(1, socket.MSG_PEEK):
                return


class Refusing:
    """A port that refuses every connection for as long as this is open: bound, but nobody listens."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.bind((host, 0))
        self.port = self._socket.getsockname()[1]
        self.url = f"http://{host}:{self.port}"

    def __enter__(self) -> Refusing:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class ForwardProxy(Loopback):
    """A small HTTP proxy: forwards absolute requests and CONNECT tunnels. `seen` holds the request lines."""

    def __init__(self, *, refuse: int = 0) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.heads: list[bytes] = []
        self._refuse = refuse

    def handle(self, connection: socket.socket) -> None:
        head, rest = _until(connection, b"\r\n\r\n")
        self.heads.append(head)
        line = head.split(b"\r\n")[0].decode()
        self.seen.append(line)
        if self._refuse:
            connection.sendall(f"HTTP/1.1 {self._refuse} No\r\nContent-Length: 0\r\n\r\n".encode())
            return
        method, target, _ = line.split()
        place = target if method == "CONNECT" else target.partition("://")[2].partition("/")[0]
        # Every name leads to this machine here, so that a test needs no DNS.
        with socket.create_connection(("127.0.0.1", int(place.rpartition(":")[2] or 80))) as server:
            if method == "CONNECT":
                connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                path = "/" + target.partition("://")[2].partition("/")[2]
                server.sendall(head.replace(target.encode(), path.encode(), 1) + rest)
            _pump(connection, server)


def read_request(connection: socket.socket) -> Request | None:
    """One request, or None when the client goes away or does not speak HTTP."""
    if not isinstance(connection, ssl.SSLSocket) and connection.recv(1, socket.MSG_PEEK) == b"\x16":  # TLS
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\nInvalid HTTP request received.")
        return None
    head, rest = _until(connection, b"\r\n\r\n")
    if not head:
        return None
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    try:
        method, path, _ = first.split(" ")
    except ValueError:
        return None
    length = int(headers.get("content-length", "0"))
    while len(rest) < length:
        data = connection.recv(65_536)
        if not data:
            return None
        rest += data
    return Request(method, path, headers, rest, head)


def json_answer(value: Any, status: int = 200, **headers: str) -> Answer:
    return body_answer(json.dumps(value).encode(), "application/json", status, **headers)


def html_answer(text: str = "<!doctype html><title>Console</title>", status: int = 200, **headers: str) -> Answer:
    return body_answer(text.encode(), "text/html; charset=utf-8", status, **headers)


def body_answer(body: bytes, content_type: str, status: int = 200, **headers: str) -> Answer:
    named = {"Content-Type": content_type} | {k.replace("_", "-"): v for k, v in headers.items()}
    return Answer(status, named, [body], "length")


def sse(*steps: Step, framing: str = "chunked", content_type: str = "text/event-stream") -> Answer:
    return Answer(200, {"Content-Type": content_type}, list(steps), framing)


def in_pieces(data: bytes, size: int) -> list[Step]:
    """The bytes cut into writes of `size`, wherever that falls."""
    return [data[i : i + size] for i in range(0, len(data), size)]


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


def chunk(text: str | None = None, *, finish: str | None = None, **delta: Any) -> bytes:
    """A chat completion chunk as an event. The first argument is its content."""
    content = {"content": text} if text is not None else {}
    choice = {"index": 0, "delta": {**content, **delta}, "finish_reason": finish}
    return event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "alpha", "choices": [choice]})


def usage_chunk(prompt: int = 9, completion: int = 2) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return event({"id": "chatcmpl-1", "model": "alpha", "choices": [], "usage": usage})


DONE = b"data: [DONE]\n\n"


def hello() -> Answer:
    """A whole, ordinary reply: Hello, 9 tokens in, 2 out."""
    return sse(chunk(role="assistant"), chunk("He"), chunk("llo", finish="stop"), usage_chunk(), DONE)


def models(*ids: str) -> Answer:
    data = [{"id": i, "object": "model", "owned_by": "test", "max_model_len": 4096} for i in ids]
    return json_answer({"object": "list", "data": data})


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _until(connection: socket.socket, mark: bytes) -> tuple[bytes, bytes]:
    data = b""
    while mark not in data:
        more = connection.recv(65_536)
        if not more:
            return b"", b""
        data += more
    head, _, rest = data.partition(mark)
    return head + mark, rest


def _pump(one: socket.socket, other: socket.socket) -> None:
    while True:
        for ready in select.select([one, other], [], [], 10)[0]:
            data = ready.recv(65_536)
            if not data:
                return
            (other if ready is one else one).sendall(data)
