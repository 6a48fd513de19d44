"""Rows of a comparison: one thing, its time on both sides, and whether the difference is more than noise."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tokentrace.compare.evenness import Even
from tokentrace.compare.group import MODEL, SERVER
from tokentrace.compare.noise import ALPHA, FLOORS, Side, Slots, floor, holm, shift
from tokentrace.compare.sample import LEVELS, NOBODY, Amount, Sample, again_values

#: One run a side: of so many repeated parts so many must have changed in the same direction.
_REPEATED, _NEARLY = 4, 0.9
#: What is less than this share of the wall time on both sides is not tested: each test makes the others weaker.
_SMALL = 0.001


@dataclass(slots=True)
class Row:
    """Times in ns, medians over the measurements of a side; None: nothing of it on that side, or not known there.

    `beyond_noise` None: not known, because one measurement a side shows no noise for it, or not tested (`small`).
    `p` is the larger of `p_order` and `p_size`, the two ways in which a difference has to be more than noise; `p_order`
    is never less than so few measurements allow (0.1 for three against three, 0.029 for four against four).
    `low_ns` to `high_ns` holds the difference with probability `confidence`; `floor_ns` is what noise inside two
    single runs comes to, `limit_ns` how large a difference of theirs has to be, and `even_ns` what it would be if this
    thing changed as all others did.
    """

    key: str
    label: str
    layer: int
    base_ns: float | None
    new_ns: float | None
    difference_ns: float
    change: float | None  # of the base's time; None where that is nothing
    base_range_ns: list[float]
    new_range_ns: list[float]
    low_ns: float | None = None
    high_ns: float | None = None
    confidence: float | None = None
    p: float | None = None
    p_order: float | None = None
    p_size: float | None = None
    floor_ns: float | None = None
    limit_ns: float | None = None
    even_ns: float = 0.0
    is_whole: bool = False  # the request or its first token, of which all other rows are parts
    beyond_noise: bool | None = None
    only_in: str = ""  # base or new
    small: bool = False  # too small on both sides to be worth a test

    @property
    def is_even(self) -> bool:
        """Is it beyond noise, but no more than everything else is?"""
        if self.limit_ns is None:
            return False
        rest = abs(self.difference_ns - self.even_ns)
        if self.is_whole:  # a load does not hold all parts up to the same degree: most of it is enough
            rest = min(rest, self.limit_ns) if rest <= abs(self.even_ns) / 2 else rest
        return abs(self.difference_ns) > self.limit_ns >= rest

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class _Tested:
    row: Row
    p: float | None
    separated: bool
    pairs: list[tuple[int, int]]  # one run a side: the repeated parts that both have, base and new


def level_rows(level: str, base: Sequence[Sample], new: Sequence[Sample], even: Even) -> list[Row]:
    """One row a key, the largest difference first. Empty when a side does not know this level at all."""
    if not all(level in sample.levels for sample in (*base, *new)):
        return []
    keys: dict[Hashable, Amount] = {}
    for sample in (*base, *new):
        for key, amount in sample.levels[level].items():
            keys.setdefault(key, amount)
    tested: dict[Hashable, _Tested] = {}
    least = _SMALL * median(sample.wall_ns for sample in base)
    for key, amount in keys.items():
        found = _row(level, key, amount, base, new)
        if found is not None:
            if max(found.row.base_ns or 0, found.row.new_ns or 0) < least:
                found.row.small = True
            tested[key] = found
    # The wall time is tested by itself; that all levels stay quiet for equal sides is the second 95 %.
    return _decide(tested, even.of(level), even.spread_of(level), ALPHA / len(LEVELS))


def wall_row(base: Sequence[Sample], new: Sequence[Sample], even: Even) -> Row:
    sides = [[Side(s.wall, s.scatter, s.drifts) for s in side] for side in (base, new)]
    tested = _test("wall", "the request" if base[0].kind != "import" else "the recording", 0, *sides)
    row = tested.row
    if row.floor_ns is not None:
        # A wild step or pass is noise of this one run's size: that one side takes twice as long is never within it.
        row.floor_ns = min(row.floor_ns, min(row.base_ns or 0, row.new_ns or 0) / FLOORS)
    return _whole(tested, even)


def ttft_row(base: Sequence[Sample], new: Sequence[Sample], even: Even) -> Row | None:
    """Time to the first token; None where it is not known of every measurement."""
    sides: list[list[Side]] = [[], []]
    for side, samples in zip(sides, (base, new), strict=True):
        for sample in samples:
            if sample.ttft_ns is None:
                return None
            side.append(Side({("", 0): sample.ttft_ns}, sample.scatter, sample.drifts))
    return _whole(_test("ttft", "the first token", 0, *sides), even)


def _whole(tested: _Tested, even: Even) -> Row:
    """Decided by itself; not known where all its parts changed alike."""
    row = tested.row
    row.is_whole = True
    _decide({row.key: tested}, even.main)
    if row.is_even:
        row.beyond_noise = None
    return row


def _row(level: str, key: Hashable, amount: Amount, base: Sequence[Sample], new: Sequence[Sample]) -> _Tested | None:
    sides: list[list[Side]] = []
    present = []
    for samples in (base, new):
        side = []
        for sample in samples:
            mine = sample.levels[level].get(key)
            if mine is None and level in sample.partial:
                return None  # it may only be too small for the list
            slots: Slots = mine.slots if mine is not None else {}
            again = again_values(sample, level, key, amount.layer)
            side.append(Side(slots, sample.scatter, sample.drifts, again))
        sides.append(side)
        present.append(any(key in sample.levels[level] for sample in samples))
    found = _test(name_of(level, key), _label(level, key, amount), amount.layer, *sides)
    row = found.row
    if not all(present):
        row.only_in = "base" if present[0] else "new"
        if present[0]:
            row.new_ns, row.new_range_ns = None, []
        else:
            row.base_ns, row.base_range_ns = None, []
    return found


def _test(key: str, label: str, layer: int, base: Sequence[Side], new: Sequence[Side]) -> _Tested:
    one, other = ([float(sum(side.slots.values())) for side in sides] for sides in (base, new))
    found = shift(one, other)
    row = Row(
        key=key,
        label=label,
        layer=layer,
        base_ns=median(one),
        new_ns=median(other),
        difference_ns=found.difference,
        change=found.difference / median(one) if median(one) > 0 else None,
        base_range_ns=[min(one), max(one)],
        new_range_ns=[min(other), max(other)],
        low_ns=found.low,
        high_ns=found.high,
        confidence=found.confidence,
        p=max(found.p_order, found.p_size) if found.p_order is not None and found.p_size is not None else None,
        p_order=found.p_order,
        p_size=found.p_size,
    )
    pairs = []
    if found.p_size is None:
        row.floor_ns = floor(base[0], new[0])
        pairs = [(base[0].slots[slot], new[0].slots[slot]) for slot in base[0].slots.keys() & new[0].slots.keys()]
    return _Tested(row, found.p_size, found.separated, pairs)


def _decide(tested: Mapping[Hashable, _Tested], even: float, spread: float = 0.0, alpha: float = ALPHA) -> list[Row]:
    """Fill in `beyond_noise` of rows that were tested together. `even`: the share by which everything changed, give
    or take `spread`."""
    hold = holm({key: one.p for key, one in tested.items() if one.p is not None and not one.row.small}, alpha)
    # Of many rows one lies far out by chance: as t with nine degrees of freedom has it (ten steps), within a tenth.
    many = sum(not one.row.small for one in tested.values())
    times = FLOORS * math.sqrt(1 + math.log(max(many, 1)))
    for key, one in tested.items():
        row = one.row
        if row.small:
            continue
        if one.p is not None:
            row.beyond_noise = key in hold and one.separated
        elif row.floor_ns is not None:
            row.even_ns = even * (row.base_ns or 0)
            row.limit_ns = times * math.hypot(row.floor_ns, spread * (row.base_ns or 0))
            row.beyond_noise = abs(row.difference_ns) > row.limit_ns and not row.is_even
            if len(tested) > 1 and not _agree(one.pairs, even, row.difference_ns):
                row.beyond_noise = False
    return sorted((one.row for one in tested.values()), key=lambda row: (-abs(row.difference_ns), row.key))


def _agree(pairs: list[tuple[int, int]], even: float, difference: float) -> bool:
    """Did (nearly) every repeated part change that way? One that was held up once tells of the machine only."""
    if len(pairs) < _REPEATED:
        return True
    same = sum((new - base * (1 + even)) * difference > 0 for base, new in pairs)
    return same >= _NEARLY * len(pairs)


def name_of(level: str, key: Hashable) -> str:
    """The key as text, stable from version to version."""
    if level == "layers":
        return "nobody" if key == NOBODY else str(key)
    return "/".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _label(level: str, key: Hashable, amount: Amount) -> str:
    if level != "layers":
        return amount.label
    from tokentrace.layers import by_number

    if key == NOBODY:
        return "time of no layer"
    if key == SERVER:
        return "the server and the way to it"
    return "the model (layers 5 to 3)" if key == MODEL else f"the {by_number(amount.layer).title} (layer {key})"
