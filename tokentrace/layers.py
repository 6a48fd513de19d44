"""Reads and checks layers.yaml, the single source of the layer table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokentrace.errors import LayerError

SCHEMA = 1
BUILTIN = Path(__file__).with_name("layers.yaml")
#: Names of the spans of no length that say how a layer stood which left no span: it cannot be seen; nothing happened.
UNSEEN, IDLE = "unseen", "idle"
MARKS = frozenset((UNSEEN, IDLE))
_REQUIRED: dict[str, type | tuple[type, ...]] = {
    "id": str,
    "number": int,
    "title": str,
    "question": str,
    "probe": str,
    "parent": (str, type(None)),
    "join": str,
    "cost": str,
    "modes": list,
    "needs": str,
    "form": dict,
    "spans": list,
}


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer as layers.yaml describes it; `form_down` and `form_up` are (in, out) in words."""

    id: str
    number: int
    title: str
    question: str
    probe: str
    parent: str | None
    join: str
    cost: str
    modes: tuple[str, ...]
    needs: str
    form_down: tuple[str, str]
    form_up: tuple[str, str]
    spans: tuple[str, ...]

    @property
    def service_name(self) -> str:
        """OpenTelemetry service name: Jaeger colours, groups and sorts by it."""
        return f"L{self.number} {self.title}"

    def owns(self, span_name: str) -> bool:
        return span_name in MARKS or any(fnmatchcase(span_name, pattern) for pattern in self.spans)


@lru_cache(maxsize=8)
def load(path: Path = BUILTIN) -> tuple[Layer, ...]:
    """The layers, nearest the user first. Raises LayerError with file, line and key when the file is wrong."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where PyYAML was built with libyaml
        root = yaml.compose(text, Loader=fast)
        data = yaml.load(text, Loader=fast)
    except UnicodeDecodeError as error:
        line = 1 + error.object[: error.start].count(b"\n")
        raise LayerError(f"{path}:{line}: not UTF-8 text", fix="mend that line") from error
    except OSError as error:
        raise LayerError(f"{path} cannot be read: {error.strerror}", fix="reinstall tokentrace") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise LayerError(f"{path}{where}: {problem}", fix="mend that line") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("layers"), list):
        raise LayerError(f"{path}:1: expected 'schema: {SCHEMA}' and a list 'layers'", fix="mend the file")
    lines = _entry_lines(root)
    layers = tuple(_layer(path, line, entry) for line, entry in zip(lines, data["layers"], strict=True))
    wanted = list(range(8, 0, -1))
    for line, layer, number in zip(lines, layers, wanted, strict=False):
        if layer.number != number:
            problem = f"key 'number' is {layer.number} where {number} is expected: each once, from 8 down to 1"
            raise LayerError(f"{path}:{line}: {problem}", fix="mend that entry")
    if len(layers) != len(wanted):
        raise LayerError(f"{path}:1: {len(layers)} layers, expected 8", fix="mend the file")
    return layers


def _entry_lines(root: Any) -> list[int]:
    for key, value in root.value:
        if key.value == "layers":
            return [node.start_mark.line + 1 for node in value.value]
    return []


def _layer(path: Path, line: int, entry: Any) -> Layer:
    def wrong(key: str, problem: str) -> LayerError:
        return LayerError(f"{path}:{line}: key '{key}' {problem}", fix="mend that entry")

    if not isinstance(entry, dict):
        raise LayerError(f"{path}:{line}: expected a layer, found {type(entry).__name__}", fix="mend that entry")
    for key, kind in _REQUIRED.items():
        if key not in entry:
            raise wrong(key, "is missing")
        if not isinstance(entry[key], kind) or isinstance(entry[key], bool):
            raise wrong(key, f"has the wrong type {type(entry[key]).__name__}")
    for key in entry:
        if key not in _REQUIRED:
            raise wrong(str(key), "is unknown")
    if not 1 <= entry["number"] <= 8:
        raise wrong("number", "must be 1 to 8")
    if ":" not in entry["probe"]:
        raise wrong("probe", "must be 'module:Class'")
    if entry["cost"] not in ("light", "deep"):
        raise wrong("cost", "must be light or deep")
    form: dict[str, tuple[str, str]] = {}
    for way in ("down", "up"):
        pair = entry["form"].get(way)
        if not isinstance(pair, list) or len(pair) != 2:
            raise wrong(f"form.{way}", "must be [in, out]")
        form[way] = (str(pair[0]), str(pair[1]))
    return Layer(
        id=entry["id"],
        number=entry["number"],
        title=entry["title"],
        question=entry["question"],
        probe=entry["probe"],
        parent=entry["parent"],
        join=entry["join"],
        cost=entry["cost"],
        modes=tuple(entry["modes"]),
        needs=entry["needs"],
        form_down=form["down"],
        form_up=form["up"],
        spans=tuple(entry["spans"]),
    )


def by_number(number: int) -> Layer:
    for layer in load():
        if layer.number == number:
            return layer
    raise LayerError(f"there is no layer {number}", fix="layers are numbered 8 (client request) to 1 (chip power)")


def by_id(name: str) -> Layer:
    for layer in load():
        if layer.id == name:
            return layer
    raise LayerError(f"there is no layer {name!r}", fix=f"known layers: {', '.join(x.id for x in load())}")


def parse_selection(text: str) -> frozenset[int]:
    """'8-6,3' or 'client,jit' or a mixture -> {8, 7, 6, 3}. Raises LayerError for anything unknown."""
    chosen: set[int] = set()
    for part in filter(None, re.split(r"[,\s]+", text.strip().lower())):
        if match := re.fullmatch(r"l?(\d+)(?:-l?(\d+))?", part):
            first, last = int(match[1]), int(match[2] or match[1])
            chosen.update(by_number(n).number for n in _span(first, last))
        else:
            chosen.add(by_id(part if re.search(r"\d", part) else part.replace("-", "_")).number)
    if not chosen:
        raise LayerError("no layer was given", fix="for example --layers 8-6,3")
    return frozenset(chosen)


def _span(first: int, last: int) -> Iterable[int]:
    # Bounded before expanding, so that a slip like 1-99999999 stays one sentence.
    for end in (first, last):
        by_number(end)
    return range(min(first, last), max(first, last) + 1)
