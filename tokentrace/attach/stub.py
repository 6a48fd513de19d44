"""The machine code that a borrowed thread runs: the bytes of stub.S (tests reassemble it and compare), and its values.

Nothing is assembled at run time, so that attach needs no binutils.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

PAGE = 4096
CODE = bytes.fromhex(
    "488d6424809c5053515256575541504151415241534154415541564157fc4889e5b80d00000031c90fa24829dc4883e4"
    "c04889e3488dbb0002000031c0b908000000f348abb8ffffffffbaffffffff480fae23ff15a70f000085c07537ff15a5"
    "0f00004189c4c705c00f000001000000488b3db10f0000ff15930f00008905b10f00004489e7ff158c0f000041bd0300"
    "0000eb0641bd02000000b8ffffffffbaffffffff480fae2b44892d810f00004889ec415f415e415d415c415b415a4159"
    "41585d5f5e5a595b589d488da42480000000ff25480f0000"
)
_VALUES = struct.Struct("<6QIi")
_STATE = struct.Struct("<Ii")
STATE_AT = PAGE + 48
#: What the code says of itself at STATE_AT. WAITING: for the interpreter's lock. REFUSED: the thread holds the lock.
WAITING, RUNNING, REFUSED, DONE = range(4)
#: The string begins here, behind the values.
STRING_AT = PAGE + 256


@dataclass(frozen=True, slots=True)
class Functions:
    """Addresses in the target of what the code calls."""

    check: int
    ensure: int
    run: int
    release: int


def size_for(string: bytes) -> int:
    """Bytes to map, whole pages: one for the code, the rest for the values and the string with its final zero."""
    return PAGE + (STRING_AT - PAGE + len(string) + 1 + PAGE - 1) // PAGE * PAGE


def values(functions: Functions, back: int, page: int) -> bytes:
    """The values at `page + PAGE` for code at `page`, which goes on at `back`."""
    f = functions
    return _VALUES.pack(f.check, f.ensure, f.run, f.release, back, page + STRING_AT, WAITING, 0)


def state_of(data: bytes) -> tuple[int, int]:
    """(state, what PyRun_SimpleString gave) from the 8 bytes at STATE_AT."""
    state, code = _STATE.unpack(data)
    return int(state), int(code)
