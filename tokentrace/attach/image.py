"""Where the interpreter lies in a process, and where in it the four functions that a borrowed thread calls.

Symbols are read from the ELF file on disk (the dynamic table, else the full one; elf(5)), moved to where the file is
mapped, and believed only when the process's memory there holds the file's own bytes: a file that was upgraded since
the process started has other addresses. Only ELF64 of x86-64.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tokentrace.attach.stub import Functions
from tokentrace.host import proc
from tokentrace.host.proc import Mapped

_WANTED = ("PyGILState_Check", "PyGILState_Ensure", "PyRun_SimpleString", "PyGILState_Release")
_LIBRARY = re.compile(r"libpython3[^/]*\.so[^/]*")
_PYTHON = re.compile(r"python3?(\.\d+)?t?")
_X86_64, _SHARED, _LOAD = 62, 3, 1
_DYNSYM, _SYMTAB = 11, 2
#: Bytes of each function that are compared with the file's.
_COMPARED = 16


class ImageError(Exception):
    """The interpreter's functions cannot be found in the process."""


@dataclass(frozen=True, slots=True)
class Image:
    """The interpreter in one process. `ranges`: its addresses with its data, where its own locks lie."""

    path: str
    functions: Functions
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Symbol:
    address: int  # as the file asks for
    start: bytes  # the function's first bytes


def find_image(pid: int) -> Image:
    """Raises ImageError (not CPython, stripped of its symbols, replaced on disk) and OSError (gone, no right)."""
    mapped = proc.maps(pid)
    path, found = locate(pid, interpreter_files(mapped, proc.executable(pid)), _WANTED)
    return Image(path, Functions(*(found[name] for name in _WANTED)), _ranges(mapped, path))


def locate(pid: int, paths: Sequence[str], wanted: Sequence[str]) -> tuple[str, dict[str, int]]:
    """The first of the mapped files that has all the wanted functions, and their addresses in the process.

    Raises ImageError and OSError as `find_image`.
    """
    mapped, program = proc.maps(pid), proc.executable(pid)
    why = f"{', '.join(wanted)} cannot be found in its files: it was stripped of its symbols, or is no CPython"
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    try:
        for path in paths:
            file = f"/proc/{pid}/exe" if path == program else str(proc.inside(pid, path))
            try:
                lowest, symbols = _symbols(file, wanted)
            except (OSError, struct.error):
                continue
            if not set(symbols) >= set(wanted):
                continue
            base = min(one.start - one.offset for one in mapped if one.path == path)
            moved = base - lowest if lowest >= 0 else 0
            there = {name: os.pread(memory, _COMPARED, one.address + moved) for name, one in symbols.items()}
            if b"" in there.values():
                raise ProcessLookupError(f"process {pid} has ended")
            if all(there[name] == one.start for name, one in symbols.items()):
                return path, {name: one.address + moved for name, one in symbols.items()}
            why = f"{path} on disk is not the file that the process runs: it was replaced since"
    finally:
        os.close(memory)
    raise ImageError(why)


def interpreter_files(mapped: list[Mapped], executable: str) -> list[str]:
    """The files that may hold the interpreter, likeliest first."""
    paths = list(dict.fromkeys(one.path for one in mapped if one.path.startswith("/")))
    libraries = [path for path in paths if _LIBRARY.fullmatch(path.rpartition("/")[2])]
    programs = [path for path in paths if path == executable or _PYTHON.fullmatch(path.rpartition("/")[2])]
    return list(dict.fromkeys(libraries + programs))


def _ranges(mapped: list[Mapped], path: str) -> tuple[tuple[int, int], ...]:
    """Addresses of the file, and of the nameless memory right behind it, which holds its zeroed data."""
    found: list[tuple[int, int]] = []
    for one in mapped:
        if one.path == path or (not one.path and found and found[-1][1] == one.start):
            found.append((one.start, one.end))
    return tuple(found)


def _symbols(file: str, wanted: Sequence[str]) -> tuple[int, dict[str, _Symbol]]:
    """(lowest address the file asks for, or -1 when it lies where it asks; the wanted functions that it has)."""
    with open(file, "rb") as opened:
        data = opened.read()
    if data[:5] != b"\x7fELF\x02" or struct.unpack_from("<H", data, 18)[0] != _X86_64:
        return -1, {}
    kind = struct.unpack_from("<H", data, 16)[0]
    programs, sections = struct.unpack_from("<QQ", data, 32)
    program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", data, 54)
    loads = []
    for number in range(program_count):
        type_, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, programs + number * program_size)
        if type_ == _LOAD:
            loads.append((offset, address, size))
    headers = [
        struct.unpack_from("<IIQQQQIIQQ", data, sections + number * section_size) for number in range(section_count)
    ]
    addresses: dict[str, int] = {}
    for wanted_kind in (_DYNSYM, _SYMTAB):
        for header in headers:
            if header[1] == wanted_kind and not set(addresses) >= set(wanted):
                names = headers[header[6]]
                strings = data[names[4] : names[4] + names[5]]
                addresses.update(_table(data[header[4] : header[4] + header[5]], strings, wanted))
    found = {}
    for name, address in addresses.items():
        for offset, start, size in loads:
            if start <= address < start + size:
                at = address - start + offset
                found[name] = _Symbol(address, data[at : at + _COMPARED])
    lowest = min(address & ~0xFFF for _, address, _ in loads) if kind == _SHARED else -1
    return lowest, found


def _table(table: bytes, strings: bytes, wanted: Sequence[str]) -> dict[str, int]:
    places = {}
    for name in wanted:
        text = name.encode() + b"\0"
        at = strings.find(text)
        while at >= 0:  # a name may be stored as the end of a longer one
            places[at] = name
            at = strings.find(text, at + 1)
    found = {}
    for name_at, _, _, section, value, _ in struct.iter_unpack("<IBBHQQ", table[: len(table) // 24 * 24]):
        if name_at in places and value and section:
            found[places[name_at]] = value
    return found
