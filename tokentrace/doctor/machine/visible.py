"""Variables that hide GPUs from a process: what each says, and what is left of the cards.

Sources: CUDA programming guide, "CUDA_VISIBLE_DEVICES" (an index out of range hides itself and all after it, no device
is left of a list with a repetition); HIP documentation, "GPU isolation techniques" (ROCR_VISIBLE_DEVICES first, then
HIP_VISIBLE_DEVICES counts within what is left; HIP also reads CUDA_VISIBLE_DEVICES); NVIDIA Container Toolkit,
NVIDIA_VISIBLE_DEVICES (void, none or empty: no GPU is mounted).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Variable -> vendor whose runtime reads it.
VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "NVIDIA",
    "ROCR_VISIBLE_DEVICES": "AMD",
    "HIP_VISIBLE_DEVICES": "AMD",
    "ZE_AFFINITY_MASK": "Intel",
}


@dataclass(frozen=True, slots=True)
class Selection:
    """`chosen` are the driver's numbers in the order the program counts them; None: it cannot be told from here."""

    variable: str
    value: str
    chosen: tuple[int, ...] | None
    problem: str = ""
    fix: str = ""


def selections(environ: Mapping[str, str], vendor: str, uuids: Sequence[str]) -> list[Selection]:
    """What the variables of one vendor leave of its cards, whose UUIDs are given in the driver's order."""
    found = []
    for variable, whose in VARIABLES.items():
        applies = whose == vendor or (vendor == "AMD" and variable == "CUDA_VISIBLE_DEVICES")
        if applies and variable in environ:
            found.append(select(variable, environ[variable], uuids))
    return found


def select(variable: str, value: str, uuids: Sequence[str]) -> Selection:
    """One variable against the cards."""
    count = len(uuids)
    unset = f"unset {variable}"
    entries = [entry.strip() for entry in value.split(",")] if value.strip() else []
    if not entries:
        return Selection(variable, value, (), "is set and empty, which hides every GPU", unset)
    if entries[0].lower() in ("-1", "none", "void", "nodevfiles"):
        return Selection(variable, value, (), f"is {value}, which hides every GPU", unset)
    chosen: list[int] = []
    for entry in entries:
        if entry.startswith("MIG-"):
            return Selection(variable, value, None)  # slices have no place in the list of cards
        index = _index(entry, uuids)
        if index is None:
            numbers = f"0 to {count - 1}" if count > 1 else "0" if count else "none"
            hidden = "and all after it" if entry != entries[-1] else ""
            problem = f"names {entry!r}, which is no GPU here (there is {numbers}): it {hidden} stays hidden"
            return Selection(variable, value, tuple(chosen), " ".join(problem.split()), _valid(variable, count))
        if index in chosen:
            return Selection(variable, value, (), f"names GPU {index} twice, which hides every GPU",
                             f"export {variable}={','.join(dict.fromkeys(entries))}")  # fmt: skip
        chosen.append(index)
    return Selection(variable, value, tuple(chosen))


def _index(entry: str, uuids: Sequence[str]) -> int | None:
    if entry.isdecimal():
        return int(entry) if int(entry) < len(uuids) else None
    matches = [i for i, uuid in enumerate(uuids) if len(entry) > 4 and uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _valid(variable: str, count: int) -> str:
    if not count:
        return f"unset {variable}"
    return f"export {variable}={','.join(map(str, range(count)))}, or unset {variable}"
