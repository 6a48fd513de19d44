"""Sockets for httpcore that write down when each thing happened, keep to limits, and can be told to stop.

Names are looked up apart from connecting. With several addresses, the next one is tried 0.25 s after the last, or at
once when that failed (RFC 8305), so that an IPv6 address nobody listens on costs no 30 s. A read's time is taken when
the bytes leave the socket, before anything parses them.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import ipaddress
import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpcore

from tokentrace.client.wire import Attempt, Timeouts, Wire, now_ns

_NEXT_ADDRESS_S = 0.25
#: How often `should_stop` is asked while nothing arrives.
_SLICE_S = 0.1
#: A little more than the longest TLS record or ClientHello answer that tells one protocol from another.
_FIRST_BYTES = 64

Address = tuple[int, int, int, Any]  # family, type, protocol, socket address


class Stopped(Exception):
    """`should_stop` said so."""


class Backend(httpcore.NetworkBackend):
    """One exchange's network. httpcore's own timeouts are ignored: `Timeouts` say more."""

    def __init__(self, wire: Wire, timeouts: Timeouts, should_stop: Callable[[], bool] | None = None) -> None:
        self.wire = wire
        self.timeouts = timeouts
        self._should_stop = should_stop
        self._started = time.monotonic()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        wire = self.wire
        wire.host, wire.port = host, port
        limit = self.limit_at("connect", self.timeouts.connect_s)
        addresses = self._look_up(host, port, limit)
        wire.stage = "connect"
        wire.connect_start_ns = now_ns()
        opened = self._race(addresses, limit)
        wire.connect_end_ns = now_ns()
        with contextlib.suppress(OSError):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire.stage = "send"
        return _Stream(self, opened)

    def sleep(self, seconds: float) -> None:
        """Raises Stopped."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.ask()
            time.sleep(min(left, _SLICE_S))

    def limit_at(self, name: str, seconds: float) -> tuple[str, float]:
        """(which limit comes first, when on the monotonic clock)."""
        at = time.monotonic() + seconds
        if self.timeouts.total_s is not None and self._started + self.timeouts.total_s < at:
            return "total", self._started + self.timeouts.total_s
        return name, at

    def ask(self) -> None:
        if self._should_stop is not None and self._should_stop():
            raise Stopped

    def slice(self, left: float) -> float:
        return min(left, _SLICE_S) if self._should_stop is not None else left

    def wait(self, sock: socket.socket, events: int, limit: tuple[str, float], late: type[Exception]) -> None:
        """Until the socket is ready. Raises Stopped, or `late` when the limit runs out."""
        with selectors.DefaultSelector() as selector:
            selector.register(sock, events)
            while True:
                self.ask()
                left = limit[1] - time.monotonic()
                if left <= 0:
                    self.wire.limit = limit[0]
                    raise late(f"timed out: {limit[0]}")
                if selector.select(self.slice(left)):
                    return

    def _look_up(self, host: str, port: int, limit: tuple[str, float]) -> list[Address]:
        wire = self.wire
        literal = _is_literal(host)
        if literal:
            return _addresses(host, port, socket.AI_NUMERICHOST)
        wire.stage = "dns"
        wire.dns_start_ns = now_ns()
        found: list[list[Address] | OSError] = []
        done = threading.Event()

        def ask() -> None:
            try:
                found.append(_addresses(host, port, 0))
            except OSError as error:
                found.append(error)
            except UnicodeError:  # a label that is too long or empty
                found.append(socket.gaierror(socket.EAI_NONAME, "not a host name"))
            done.set()

        # On a thread, because getaddrinfo knows no timeout.
        threading.Thread(target=ask, name="tokentrace-dns", daemon=True).start()
        while not done.wait(self.slice(max(0.0, limit[1] - time.monotonic()))):
            self.ask()
            if time.monotonic() >= limit[1]:
                wire.limit = limit[0]
                raise httpcore.ConnectTimeout(f"timed out: looking up {host}")
        wire.dns_end_ns = now_ns()
        result = found[0]
        if isinstance(result, OSError):
            wire.fault = result
            raise httpcore.ConnectError(str(result)) from result
        wire.addresses = list(dict.fromkeys(a[3][0] for a in result))
        return result

    def _race(self, addresses: list[Address], limit: tuple[str, float]) -> socket.socket:
        """The first socket to connect; the others are closed. Raises ConnectError from the last refusal."""
        waiting = _alternate(addresses)
        open_: dict[socket.socket, Attempt] = {}
        last: OSError | None = None
        next_at = 0.0
        with selectors.DefaultSelector() as selector:
            try:
                while waiting or open_:
                    self.ask()
                    now = time.monotonic()
                    if now >= limit[1]:
                        self.wire.limit = limit[0]
                        for attempt in open_.values():
                            attempt.end_ns, attempt.error = now_ns(), "did not answer"
                        raise httpcore.ConnectTimeout("timed out: connecting")
                    if waiting and (now >= next_at or not open_):
                        sock, attempt, last = self._begin(waiting.pop(0), last)
                        next_at = now + _NEXT_ADDRESS_S
                        if sock is not None:
                            open_[sock] = attempt
                            selector.register(sock, selectors.EVENT_WRITE)
                        continue
                    until = min(limit[1], next_at) if waiting else limit[1]
                    for key, _ in selector.select(self.slice(max(0.0, until - now))):
                        ready = key.fileobj
                        assert isinstance(ready, socket.socket)
                        selector.unregister(ready)
                        attempt = open_.pop(ready)
                        attempt.end_ns = now_ns()
                        code = ready.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                        if not code:
                            return ready
                        last = OSError(code, os.strerror(code))
                        attempt.error = _word(last)
                        ready.close()
            finally:
                for other, attempt in open_.items():
                    if not attempt.end_ns:
                        attempt.end_ns, attempt.error = now_ns(), "given up"
                    other.close()
        last = self.wire.fault = last or OSError(errno.EADDRNOTAVAIL, "no address")
        raise httpcore.ConnectError(str(last)) from last

    def _begin(self, address: Address, last: OSError | None) -> tuple[socket.socket | None, Attempt, OSError | None]:
        family, kind, protocol, place = address
        attempt = Attempt(str(place[0]), now_ns())
        self.wire.attempts.append(attempt)
        sock: socket.socket | None = None
        try:
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            code = sock.connect_ex(place)
            if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
                raise OSError(code, os.strerror(code))
        except OSError as error:
            if sock is not None:
                sock.close()
            attempt.end_ns, attempt.error = now_ns(), _word(error)
            return None, attempt, error
        return sock, attempt, last


class _Stream(httpcore.NetworkStream):
    """A connected socket, not blocking, plain or TLS."""

    def __init__(self, backend: Backend, sock: socket.socket) -> None:
        self._backend, self._sock = backend, sock
        self._sent = time.monotonic()  # when the last write ended

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        backend, wire = self._backend, self._backend.wire
        if wire.send_end_ns and not wire.first_read_ns:
            wire.stage = "wait"
        if wire.body_begun:
            limit = backend.limit_at("between", backend.timeouts.between_s)
        else:
            # Of the whole head: one that drips in, byte by byte, is no sign of an answer.
            spent = time.monotonic() - self._sent
            limit = backend.limit_at("first byte", backend.timeouts.first_byte_s - spent)
        try:
            data: bytes = self._until_done(lambda: self._sock.recv(max_bytes), limit, httpcore.ReadTimeout)
        except ssl.SSLEOFError:
            data = b""  # closed without close_notify: HTTP's own framing tells whether something is missing
        except OSError as error:
            wire.fault = error
            raise httpcore.ReadError(str(error)) from error
        now = now_ns()
        if data:
            wire.last_read_ns = now
            if not wire.first_read_ns:
                wire.first_read_ns = now
            if len(wire.first_bytes) < _FIRST_BYTES:
                wire.first_bytes += data[:_FIRST_BYTES]
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        backend, wire = self._backend, self._backend.wire
        if not wire.send_start_ns:
            wire.send_start_ns = now_ns()
        limit = backend.limit_at("send", backend.timeouts.first_byte_s)
        rest = memoryview(buffer)
        try:
            while rest:
                sent = self._until_done(functools.partial(self._sock.send, rest), limit, httpcore.WriteTimeout)
                rest = rest[sent:]
        except OSError as error:
            wire.fault = error
            raise httpcore.WriteError(str(error)) from error
        finally:
            wire.send_end_ns = now_ns()
            self._sent = time.monotonic()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        backend, wire = self._backend, self._backend.wire
        if isinstance(self._sock, ssl.SSLSocket):
            self.close()
            raise httpcore.ConnectError("TLS inside TLS is not supported")
        if wire.send_start_ns:
            # What was written and read so far was the talk with a proxy: a part of connecting.
            wire.connect_end_ns = now_ns()
            wire.send_start_ns = wire.send_end_ns = wire.first_read_ns = wire.last_read_ns = 0
            wire.first_bytes = b""
        wire.stage = "tls"
        wire.tls_start_ns = now_ns()
        limit = backend.limit_at("connect", backend.timeouts.connect_s)
        secure: ssl.SSLSocket | None = None
        try:
            secure = ssl_context.wrap_socket(self._sock, server_hostname=server_hostname, do_handshake_on_connect=False)
            stream = _Stream(backend, secure)
            stream._until_done(secure.do_handshake, limit, httpcore.ConnectTimeout)
        except OSError as error:
            wire.fault = error
            (secure or self._sock).close()
            raise httpcore.ConnectError(str(error)) from error
        except BaseException:
            (secure or self._sock).close()
            raise
        wire.tls_end_ns = now_ns()
        wire.tls_version = secure.version() or ""
        cipher = secure.cipher()
        wire.tls_cipher = cipher[0] if cipher else ""
        wire.stage = "send"
        return stream

    def close(self) -> None:
        self._sock.close()

    def get_extra_info(self, info: str) -> Any:
        if info == "ssl_object" and isinstance(self._sock, ssl.SSLSocket):
            return self._sock
        if info == "client_addr":
            return self._sock.getsockname()
        if info == "server_addr":
            return self._sock.getpeername()
        if info == "socket":
            return self._sock
        return None

    def _until_done(self, act: Callable[[], Any], limit: tuple[str, float], late: type[Exception]) -> Any:
        while True:
            self._backend.ask()
            if time.monotonic() >= limit[1]:  # also when bytes keep coming: the total
                self._backend.wire.limit = limit[0]
                raise late(f"timed out: {limit[0]}")
            try:
                return act()
            except ssl.SSLWantReadError:
                self._backend.wait(self._sock, selectors.EVENT_READ, limit, late)
            except ssl.SSLWantWriteError:
                self._backend.wait(self._sock, selectors.EVENT_WRITE, limit, late)
            except BlockingIOError:
                events = selectors.EVENT_WRITE if late is httpcore.WriteTimeout else selectors.EVENT_READ
                self._backend.wait(self._sock, events, limit, late)


def _addresses(host: str, port: int, flags: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    return [(family, kind, protocol, place) for family, kind, protocol, _, place in found]


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _alternate(addresses: list[Address]) -> list[Address]:
    """Families in turn, beginning with the one the resolver put first."""
    first = [a for a in addresses if a[0] == addresses[0][0]]
    other = [a for a in addresses if a[0] != addresses[0][0]]
    mixed: list[Address] = []
    for index in range(max(len(first), len(other))):
        mixed += first[index : index + 1] + other[index : index + 1]
    return mixed


def _word(error: OSError) -> str:
    words = {
        errno.ECONNREFUSED: "refused",
        errno.ENETUNREACH: "has no route",
        errno.EHOSTUNREACH: "cannot be reached",
        errno.EADDRNOTAVAIL: "is not available here",
        errno.EAFNOSUPPORT: "is of a family this machine lacks",
        errno.ETIMEDOUT: "did not answer",
        errno.EACCES: "is not allowed",
        errno.EPERM: "is not allowed",
    }
    return words.get(error.errno or 0, error.strerror or str(error))
