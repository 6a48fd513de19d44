"""From a URL or a process to the server behind it: its engine, its processes, what may be seen of them.

Looks only; nothing is started, stopped or changed. What cannot be seen for lack of rights is said in `Found.reason`.
"""

from __future__ import annotations

import os
from dataclasses import replace

from tokentrace.attach import roles, sockets, versions
from tokentrace.attach.asked import Told, ask
from tokentrace.attach.found import Found, ServerProcess
from tokentrace.attach.obstacles import START_AGAIN, as_user, user_name
from tokentrace.client.causes import one_line
from tokentrace.client.settings import Endpoint
from tokentrace.client.urls import bracketed
from tokentrace.errors import AttachError
from tokentrace.host import proc
from tokentrace.host.flags import flags_of

#: Where vLLM serves when it is not told (vllm/entrypoints/openai/cli_args.py).
_DEFAULT_PORT = 8000
_THERE = "run tokentrace attach on that machine, as the user who runs the server"


def find(url: str | Endpoint | None = None, *, pid: int | None = None) -> Found:
    """The server behind `url` or with the process `pid` in it. Asks it /version and /v1/models.

    Raises AttachError: nobody listens there, it is no inference server, there is no such process. EndpointError: a
    server that can only be seen from outside does not answer.
    """
    if pid is not None:
        return _of_pid(pid, url)
    if url is None:
        raise AttachError("no server was named", fix="give its URL, such as http://localhost:8000, or --pid")
    endpoint = with_version(url)
    addresses = sockets.local_addresses(endpoint.host)
    if addresses is None:
        return _outside(endpoint, f"{endpoint.host} is another machine", _THERE)
    if not addresses:
        raise AttachError(f"the host name {endpoint.host} is not known", fix="check the URL")
    listening = sockets.on_port(endpoint.port, addresses)
    if not listening:
        return _no_listener(endpoint)
    held = sockets.holders({one.inode for one in listening})
    if not held:
        return _unseen(endpoint, listening[0])
    for holder in sorted(held):
        top = roles.top_of(holder)
        if top is not None:
            return _server(endpoint, *top, set(held))
    return _stranger(endpoint, min(held))


def with_version(url: str | Endpoint) -> Endpoint:
    """The endpoint; an address without any path gets the /v1 under which both engines serve. Raises ConfigError."""
    endpoint = url if isinstance(url, Endpoint) else Endpoint.of(url)
    if endpoint.base_url.count("/") > 2:
        return endpoint
    return replace(endpoint, base_url=f"{endpoint.base_url}/v1")


def _of_pid(pid: int, url: str | Endpoint | None) -> Found:
    looked = roles.look(pid)
    if looked is None:
        raise AttachError(_nothing_there(pid), fix="list them: ps -ef | grep -i vllm")
    top = roles.top_of(pid)
    if top is None:
        raise AttachError(
            f"process {pid} ({one_line(looked.title, 60)}) belongs to no vLLM server, nor to the local engine",
            fix="give the pid of the server: ps -ef | grep -i vllm",
        )
    if url is not None:
        return _server(with_version(url), *top, set())
    front, not_ready = _front(*top)
    if front is None and looked.uid != os.geteuid():
        return _without_ports(_server(None, *top, set()), looked)
    return _server(front, *top, set(), not_ready)


def _nothing_there(pid: int) -> str:
    """Why a process cannot be looked at."""
    try:
        status = proc.status(pid)
    except OSError:
        return f"there is no process {pid}"
    if status.ended:
        return f"process {pid} has ended, and its parent has not taken notice yet"
    return f"process {pid} is one of the kernel's own"


def _without_ports(found: Found, looked: roles.Looked) -> Found:
    name = user_name(looked.uid)
    return replace(
        found,
        reason=f"on which port process {looked.pid} listens cannot be seen: it belongs to user {name}, "
        f"you are {user_name(os.geteuid())}",
        fix=f"add its URL, or {as_user(name)}",
    )


def _front(top: roles.Looked, engine: str) -> tuple[Endpoint | None, str]:
    """Where the server's API listens; else None, and why it does not if that is known.

    By the port of the command line where it names one. Of others only one that answers as an API is taken: torch and
    ZMQ listen too. Engine cores and workers have no API.
    """
    fronts = {one.pid for one in roles.members(top, engine, ()) if one.role in ("api", "single")}
    if not fronts:
        return None, ""
    listening = sockets.listeners(top.pid)
    held = set().union(*sockets.holders({one.inode for one in listening}, {top.pid, *fronts}).values())
    theirs = sorted((one for one in listening if one.inode in held), key=lambda one: one.port)
    named = _port_of(top)
    flags, _ = flags_of(top.arguments)
    # A file may name another port than the default one.
    expected = named or (_DEFAULT_PORT if engine == "vllm" and "config" not in flags else 0)
    for one in theirs:
        if one.port == expected:
            return _endpoint_at(one), ""
    if not named:
        for one in theirs:
            endpoint = _endpoint_at(one)
            if ask(endpoint).serves:
                return endpoint, ""
    if not roles.engine_of(top) or flags.keys() & {"headless", "uds"}:
        return None, ""  # the engine without HTTP, or on a unix socket
    return None, f"its API does not listen{f' on port {expected}' if expected else ''} yet"


def _port_of(top: roles.Looked) -> int:
    """The port on the command line, 0 when it names none."""
    text = flags_of(top.arguments)[0].get("port", "").partition(" ")[0]
    return int(text) if text.isascii() and text.isdigit() else 0


def _endpoint_at(one: sockets.Listener) -> Endpoint:
    return with_version(f"http://{bracketed(one.reached_at)}:{one.port}")


def _server(
    endpoint: Endpoint | None, top: roles.Looked, engine: str, listening: set[int], not_ready: str = ""
) -> Found:
    processes = roles.members(top, engine, listening)
    if not processes:
        raise AttachError(f"process {top.pid} has ended", fix=START_AGAIN)
    version = ask(endpoint).version if endpoint is not None else ""
    for one in processes:
        version = version or versions.installed(one.pid, engine)
    agents = sockets.agent_sockets(one.pid for one in processes)
    reason, fix = ("", "") if not_ready else _whole(processes, engine)
    url = endpoint.base_url if endpoint is not None else ""
    return Found(url, engine, version, tuple(processes), agents, reason, fix, not_ready)


def _whole(processes: list[ServerProcess], engine: str) -> tuple[str, str]:
    """What is missing in the tree, if anything is."""
    if engine == "vllm" and not any(one.role in ("api", "single") for one in processes):
        return (
            f"no API server was found above process {processes[0].pid} ({processes[0].title}): it has ended, or runs "
            "elsewhere",
            f"{START_AGAIN}; if it runs elsewhere, attach there",
        )
    if engine == "vllm" and not any(one.role in ("engine", "single") for one in processes):
        return (
            "the engine's process was not found below the API server",
            "if it runs elsewhere (Ray, another machine), attach to it there with --pid",
        )
    return "", ""


def _no_listener(endpoint: Endpoint) -> Found:
    told = ask(endpoint)
    if told.error is not None and told.error.check == "TT803":
        starting = _starting_at(endpoint.port)
        if starting:
            raise AttachError(
                f"nothing listens on port {endpoint.port} of {endpoint.host} yet: vLLM's process {starting}, which is "
                "to serve there, runs",
                fix="wait until its log says that the application has started",
            )
        raise AttachError(
            f"nothing listens on port {endpoint.port} of {endpoint.host}",
            fix="start the server, or check the port: ss -tlnp",
        )
    return _outside(
        endpoint,
        f"port {endpoint.port} answers, but no process that can be seen here listens on it: it leads elsewhere, "
        "such as into a container",
        _beyond(),
        told,
    )


def _starting_at(port: int) -> int:
    """The process of a vLLM server whose command line says that it serves there, 0 when there is none."""
    for pid in proc.all_pids():
        one = roles.look(pid)
        if one is not None and roles.engine_of(one) == "vllm" and len(one.arguments) > 1 and _port_of(one) == port:
            return pid
    return 0


def _beyond() -> str:
    """Where the server may be instead: vLLM processes that live in another network than ours."""
    here = proc.namespace("self", "net")
    for pid in proc.all_pids():
        one = roles.look(pid)
        if one is None or roles.engine_of(one) != "vllm":
            continue
        try:
            if proc.namespace(pid, "net") != here:
                return f"if it is that one, name its process: --pid {pid}"
        except OSError:
            continue
    return "run tokentrace inside the container, or where the server runs"


def _unseen(endpoint: Endpoint, listener: sockets.Listener) -> Found:
    if listener.uid != os.geteuid():
        name = user_name(listener.uid)
        return _outside(
            endpoint,
            f"the server on port {endpoint.port} belongs to user {name}, you are {user_name(os.geteuid())}",
            as_user(name),
        )
    return _outside(
        endpoint,
        f"the process behind port {endpoint.port} cannot be seen from here: it runs in another container",
        _beyond(),
    )


def _stranger(endpoint: Endpoint, pid: int) -> Found:
    """A process that is no engine we know: a proxy in front of one, another engine, or something else."""
    told = ask(endpoint)
    looked = roles.look(pid)
    name = one_line(looked.title, 60) if looked is not None else "gone"
    if not told.serves:
        raise AttachError(
            f"what listens on port {endpoint.port} (process {pid}, {name}) is not a vLLM server",
            fix="check the port; the server's log names it",
        )
    return _outside(
        endpoint,
        f"the process on port {endpoint.port} ({pid}, {name}) is neither vLLM nor the local engine",
        _beyond() if "docker-proxy" in name else "if it is a proxy, attach to the server behind it",
        told,
    )


def _outside(endpoint: Endpoint, reason: str, fix: str, told: Told | None = None) -> Found:
    told = told or ask(endpoint)
    if told.error is not None:
        raise told.error
    return Found(endpoint.base_url, told.engine, told.version, (), {}, reason, fix)
