"""What can still be read of a damaged or cut rocprofv3 result.

The writer's order is fixed (metadata, agents, strings, kernel_symbols, …, buffer_records), and every list holds objects
of one kind. So each known list is looked for by its key and read object by object up to the next known key; an object
that is no JSON any more is skipped and counted.
"""

from __future__ import annotations

import re
from json import JSONDecodeError, JSONDecoder

import msgspec

from tokentrace.importers import columns
from tokentrace.importers.columns import Lost

#: A list -> a key that each of its objects has, and those of the other lists have not.
_MARKS = {"agents": "id", "kernel_symbols": "kernel_id", "kernel_dispatch": "dispatch_info",
          "memory_copy": "dst_agent_id"}  # fmt: skip
_RECORD = "start_timestamp"
_RECORDS = (
    "kernel_dispatch",
    "memory_copy",
    "hip_api",
    "hip_compiler_api",
    "hip_runtime_api",
    "marker_api",
    "roctx_api",
)
#: Lists that are not read; they end the one before them.
_OTHERS = ("counters", "code_objects", "host_functions", "summary", "callback_records", "counter_collection",
           "hsa_api", "rccl_api", "memory_allocation", "scratch_memory", "rocdecode_api", "rocjpeg_api",
           "pc_sample_host_trap", "pc_sample_stochastic", "ompt", "kfd_events")  # fmt: skip
_SECTION = re.compile(
    rb'"(metadata|strings|' + "|".join(dict.fromkeys((*_MARKS, *_RECORDS, *_OTHERS))).encode() + rb')"\s*:\s*(?=[\[{])'
)
_NEXT = re.compile(r",\s*(?=\{)")
_TOLERANT = JSONDecoder(strict=False)


def parts(text: bytes, lost: Lost) -> list[dict[str, msgspec.Raw]]:
    """One entry a process: the readable `metadata`, `strings` and lists as JSON of their own; record lists by name."""
    found: list[dict[str, msgspec.Raw]] = []
    sections = list(_SECTION.finditer(text))
    for number, match in enumerate(sections):
        key = match[1].decode()
        if key in _OTHERS:
            continue
        end = sections[number + 1].start() if number + 1 < len(sections) else len(text)
        if key in ("metadata", "strings"):
            whole = _object(text, match.end())
            if key == "metadata" or not found:
                found.append({})
            if whole is None:
                lost.add(1, f"'{key}' of the result is damaged" + _MEANS.get(key, ""))
            else:
                found[-1][key] = msgspec.Raw(whole)
            continue
        if not found:
            found.append({})
        kept, skipped = readable(text[match.end() : end], mark_of(key))
        found[-1].setdefault(key, msgspec.Raw(b"[" + b",".join(kept) + b"]"))
        if skipped:
            lost.add(skipped, f"{_entries(skipped)} of {key}, damaged or cut", torn=True)
    return found


_MEANS = {"strings": ": calls are told by number", "metadata": ": its process is unknown"}


def readable(text: bytes, mark: str) -> tuple[list[bytes], int]:
    """The objects of a list that are whole and hold the key `mark`, and how many are not. `text` begins with "["."""
    # One character a byte, so that places in the text are places in the bytes.
    string = text.decode("latin-1")
    kept: list[bytes] = []
    skipped = 0
    torn = False  # what follows may lie within the object that was just skipped
    at = 1
    while True:
        while at < len(string) and string[at] in ", \r\n\t":
            at += 1
        if at >= len(string) or string[at] == "]":
            return kept, skipped
        if string[at] == "{":
            try:
                value, end = _TOLERANT.raw_decode(string, at)
            except (JSONDecodeError, ValueError, RecursionError):
                pass
            else:
                if mark in value:
                    kept.append(text[at:end])
                    torn = False
                elif not torn:
                    skipped += 1
                at = end
                continue
        skipped += not torn
        torn = True
        following = _NEXT.search(string, at + 1)
        if following is None:
            return kept, skipped
        at = following.end()


def mark_of(name: str) -> str:
    return _MARKS.get(name, _RECORD)


def decoded(raw: msgspec.Raw, kind: type, name: str, lost: Lost) -> list[object]:
    """A list of one kind of object, as much of it as can be read; the rest is counted in `lost`."""
    try:
        whole: list[object] = msgspec.json.decode(raw, type=list[kind])  # type: ignore[valid-type]
    except (msgspec.DecodeError, RecursionError) as error:
        problem = columns.clean(str(error), 120)
    else:
        return whole
    one: msgspec.json.Decoder[object] = msgspec.json.Decoder(kind)
    found: list[object] = []
    kept, skipped = readable(bytes(raw).lstrip(), mark_of(name)) if bytes(raw).lstrip()[:1] == b"[" else ([], 1)
    for text in kept:
        try:
            found.append(one.decode(text))
        except (msgspec.DecodeError, RecursionError):
            skipped += 1
    lost.add(skipped, f"{_entries(skipped)} of {name}, unreadable ({problem})")
    return found


def _entries(count: int) -> str:
    return f"{count:,} entries" if count != 1 else "1 entry"


def _object(text: bytes, at: int) -> bytes | None:
    if text[at : at + 1] != b"{":
        return None
    string = text[at : at + (64 << 20)].decode("latin-1")
    try:
        _, end = _TOLERANT.raw_decode(string)
    except (JSONDecodeError, ValueError, RecursionError):
        return None
    return text[at : at + end]
