"""The resource a span belongs to: one per process and layer, so that Jaeger shows each layer as a service."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tokentrace.errors import LayerError
from tokentrace.host import this_host
from tokentrace.layers import by_number
from tokentrace.model import Trace

NAMESPACE = "tokentrace"
HOST_KEYS = ("host.id", "host.name")


@dataclass(slots=True)
class Resource:
    """Resource attributes of the spans of one process and layer.

    `added` names those that the trace's own process description does not hold, so that a reader can take them
    off again. Host attributes are never among them: the machine a trace came from has to survive.
    """

    process: str
    layer: int
    attributes: dict[str, Any]
    added: list[str] = field(default_factory=list)


def service_name(layer: int) -> str:
    """`L8 client request` … `L1 chip power`; `tokentrace` for the run itself."""
    try:
        return by_number(layer).service_name
    except LayerError:
        return NAMESPACE


def parse_pairs(text: str) -> dict[str, str]:
    """`key=value,key2=value%20two` as OTEL_RESOURCE_ATTRIBUTES and OTEL_EXPORTER_OTLP_HEADERS are written.

    Keys and values are percent-decoded; a part without a key or without `=` is skipped.
    """
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        key = unquote(key.strip())
        if equals and key:
            found[key] = unquote(value.strip())
    return found


@dataclass(frozen=True, slots=True)
class _User:
    """What the user's environment says about resources."""

    service_name: str
    attributes: dict[str, str]


def _user(environ: Mapping[str, str]) -> _User:
    attributes = parse_pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    named = attributes.pop("service.name", "")
    return _User(unquote(environ.get("OTEL_SERVICE_NAME", "").strip()) or named, attributes)


class Resources:
    """Resources of a trace by (process, layer), made on first use.

    Facts of a process (pid, host) win over the user's OTEL_RESOURCE_ATTRIBUTES; the user's service name and
    namespace win over ours.
    """

    def __init__(self, trace: Trace, environ: Mapping[str, str] | None = None) -> None:
        self._trace = trace
        self._user = _user(os.environ if environ is None else environ)
        self._made: dict[tuple[str, int], Resource] = {}

    def get(self, process: str, layer: int) -> Resource:
        found = self._made.get((process, layer))
        if found is None:
            found = self._made[process, layer] = self._make(process, layer)
        return found

    def _make(self, process: str, layer: int) -> Resource:
        known = self._trace.processes.get(process)
        own = dict(known.attributes) if known else {}
        host = {key: own[key] for key in HOST_KEYS if key in own} or self._host()
        found: dict[str, Any] = {
            "service.name": self._user.service_name or service_name(layer),
            "service.namespace": self._user.attributes.get("service.namespace", NAMESPACE),
        }
        found.update({key: value for key, value in own.items() if key not in found})
        for key, value in host.items():
            found.setdefault(key, value)
        for key, value in self._user.attributes.items():
            found.setdefault(key, value)
        found.setdefault("service.instance.id", _instance(self._trace.trace_id, found, process))
        added = [key for key in found if key not in own and key not in HOST_KEYS]
        # A process that names its own service keeps that name for the reader, under a reserved key.
        for key in ("service.name", "service.namespace"):
            if key in own:
                found[f"tokentrace.process.{key}"] = own[key]
                added.append(f"tokentrace.process.{key}")
        return Resource(process, layer, found, added)

    def _host(self) -> dict[str, str]:
        """The host of a process that does not name one: that of the trace's root, else this machine."""
        if len(self._trace):
            root = self._trace.processes.get(self._trace.process[0])
            named = {key: root.attributes[key] for key in HOST_KEYS if key in root.attributes} if root else {}
            if named:
                return named
        return this_host()


def _instance(trace_id: int, attributes: Mapping[str, Any], process: str) -> str:
    """`service.instance.id`: the same for one process in one trace, different from any other's."""
    parts = (attributes.get("host.id", ""), attributes.get("process.pid", process), f"{trace_id:032x}")
    return str(uuid.uuid5(uuid.NAMESPACE_OID, "/".join(map(str, parts))))
