"""One sentence: is the new side slower, in which layer, and what contributes most. Says so where noise hides it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tokentrace.compare.processor import hint
from tokentrace.compare.rows import Row
from tokentrace.compare.sample import Sample
from tokentrace.layers import by_number
from tokentrace.wording import duration, listed, plural

#: A layer is named in the sentence when its difference is at least this share of the base's wall time.
MATERIAL = 0.01
#: One module or operator is named as the contributor when it makes up at least this share of the difference.
_ALONE = 0.3
_MOST = 0.6
#: From this share of the shorter side on a part that stands out of what all others did is a finding by itself.
_STANDS = 0.05
#: From this share of the base on a difference of single runs is worth more runs, though theirs would explain it.
_LARGE = 0.1


@dataclass(slots=True)
class Verdict:
    """`status`: slower, faster, shifted (as a whole the same, but layers differ), same, or unknown.

    `shifted` is also said where of the whole it cannot be told, since most parts changed alike, but one stands out.

    `layer` is the number of the layer named, 0 for time of no layer, None when none is; `level` and `key` tell the
    contributor's row; `fix` says what would make it known, where it is not. `headline` is the finding, `more` the
    sentences that explain it, if any.
    """

    status: str
    headline: str
    layer: int | None = None
    layer_label: str = ""
    level: str = ""
    key: str = ""
    contributor: str = ""
    fix: str = ""
    more: str = ""

    @property
    def sentence(self) -> str:
        """All that is said."""
        return f"{self.headline} {self.more}".strip()

    def as_dict(self) -> dict[str, Any]:
        return {"sentence": self.sentence} | {name: getattr(self, name) for name in self.__slots__}


def judge(wall: Row, levels: dict[str, list[Row]], base: Sequence[Sample], new: Sequence[Sample]) -> Verdict:
    """The verdict on all rows together."""
    material = MATERIAL * (wall.base_ns or 0)
    large = {level: [row for row in rows if abs(row.difference_ns) >= material] for level, rows in levels.items()}
    layers = [row for row in large["layers"] if row.beyond_noise]
    standing = _standing(large) if wall.is_even else None
    if wall.is_even and _stand_out(wall, large, standing):
        # Seen from outside a slow module slows all steps alike; seen from inside, it is not everything that is slow.
        wall.beyond_noise = True
    fix = ""
    if wall.beyond_noise:
        # The layers' differences add up to that of the wall time: that one is no noise, so its largest parts are none.
        sign = 1 if wall.difference_ns > 0 else -1
        status = "slower" if sign > 0 else "faster"
        text = f"The new side is {amount(wall)} {status}"
        mine = [row for row in large["layers"] if row.difference_ns * sign > 0]
        layers = [row for row in layers if row in mine]
        if standing is not None and not layers:  # its layer is more than that one span, and within noise
            layers = [row for row in mine if row.layer == standing[1].layer]
        layers = layers or mine[:1]
    elif layers and not wall.is_even:
        sign = 1 if layers[0].difference_ns > 0 else -1
        status, mine = "shifted", layers[:1]
        text = f"As a whole there is no difference beyond noise ({signed(wall)})"
    elif wall.difference_ns == 0:
        return Verdict("same", "No difference at all: both sides took the same time.")
    elif wall.is_even:
        return _even(wall, standing, base, new)
    elif wall.beyond_noise is None:
        sign = 1 if wall.difference_ns > 0 else -1
        status, mine = "unknown", [row for row in large["layers"] if row.difference_ns * sign > 0]
        text = f"The new side differs by {signed(wall)}, and nothing shows how much of that is noise"
        fix = _several(base, new)
    else:
        verdict = _within(wall, large)
        if verdict.status == "same" and wall.limit_ns is not None and abs(wall.change or 0) >= _LARGE:
            verdict.fix = _several(base, new)  # so large that it may be one after all
        return verdict
    if not mine:
        return Verdict(status, f"{text}; no layer stands out.", fix=fix)
    top = mine[0]
    verdict = Verdict(status, "", top.layer, top.label, fix=fix)
    split = _split_steps(base, new, sign)
    if split is not None and top.layer <= 5 and abs(split.extra_ns) >= _ALONE * abs(top.difference_ns):
        verdict.layer, verdict.layer_label = 6, "the engine queue (layer 6)"
        verdict.level, verdict.key, verdict.contributor = "steps", split.phase, split.sentence
        verdict.headline = (
            f"{text}: {verdict.layer_label} {split.sentence}, and these steps took {duration(abs(split.extra_ns))} "
            f"{'more' if sign > 0 else 'less'}, most of it in {top.label}."
        )
        return verdict
    took = "more" if top.difference_ns > 0 else "less"
    where = f"{top.label} took {duration(abs(top.difference_ns))} {took}"
    verdict.level, verdict.key, verdict.contributor = _contributor(top, levels, base, new)
    joint = ": " if status != "shifted" else ", but "
    verdict.headline = f"{text}{joint}{where}{', ' + verdict.contributor if verdict.contributor else ''}"
    others = [f"{row.label} ({signed(row)})" for row in layers if row is not top][:2]
    verdict.headline += f"; also {listed(others)}." if others else "."
    return verdict


def _stand_out(wall: Row, large: dict[str, list[Row]], standing: tuple[str, Row] | None) -> bool:
    """Do some modules or operators by themselves make up a good part of the difference, or one span most of it?"""
    sign = 1 if wall.difference_ns > 0 else -1
    level, row = standing or ("", wall)
    if level in ("spans", "layers") and row.difference_ns * sign >= _MOST * abs(wall.difference_ns):
        return True
    for level in ("modules", "operators", "kernels"):
        found = sum(
            row.difference_ns for row in large.get(level, ()) if row.beyond_noise and row.difference_ns * sign > 0
        )
        if found * sign >= _ALONE * abs(wall.difference_ns):
            return True
    return False


def _standing(large: dict[str, list[Row]]) -> tuple[str, Row] | None:
    """(level, row) of what changed most beyond noise: a span or module rather than the layer that it is most of."""
    found = [(level, row) for level in ("spans", "modules", "layers", "operators", "kernels")
             for row in large.get(level, ()) if row.beyond_noise]  # fmt: skip
    if not found:
        return None
    most = max(abs(row.difference_ns) for _, row in found)
    return next((level, row) for level, row in found if abs(row.difference_ns) >= _MOST * most)


def _even(wall: Row, standing: tuple[str, Row] | None, base: Sequence[Sample], new: Sequence[Sample]) -> Verdict:
    """All parts but perhaps one changed alike, and one run a side cannot tell whose doing that is."""
    times = f"{wall.new_ns / wall.base_ns:.3g} times as long" if wall.base_ns and wall.new_ns else "another time"
    whole = f"he new side took {times}, {signed(wall)}"
    cause = (
        "one run a side cannot tell a busier or slower machine from a change to what all parts share "
        "(threads, precision, device)."
    )
    told = hint(base[0].processor, new[0].processor)
    fix = _several(base, new)
    if standing is None:
        return Verdict("unknown", f"T{whole}, all its parts alike: {cause}", fix=fix, more=told)
    level, row = standing
    label = row.label if level == "layers" else f"the {by_number(row.layer).title} (layer {row.layer})"
    change = f"{duration(abs(row.difference_ns))} {'more' if row.difference_ns > 0 else 'less'}"
    if row.base_ns and row.new_ns:
        change += f" ({duration(row.base_ns)} → {duration(row.new_ns)}{_of_pass(level, new)})"
    name = label if level == "layers" else f"`{row.label}`"
    large = abs(row.difference_ns) >= _STANDS * min(wall.base_ns or 0, wall.new_ns or 0)
    if large:
        where = f"{label} took" if level == "layers" else f"in {label} {name} took"
        text = f"{where} {change}, beyond noise."
        more = f"As a whole t{whole}, and its other parts changed alike: {cause} {told}"
    else:
        text = f"T{whole}, nearly all its parts alike: {cause}"
        more = f"{told} Beyond that {name} took {change}."
    return Verdict(
        "shifted" if large else "unknown", text[0].upper() + text[1:], row.layer, label, level, row.key,
        f"{name} ({signed(row)})", fix, more.strip(),
    )  # fmt: skip


def _several(base: Sequence[Sample], new: Sequence[Sample]) -> str:
    """How to make it known, as a command with names to fill in."""
    one, other = base[0].given or (base[0].label, ""), new[0].given or (new[0].label, "")
    same = one[0] == other[0]  # two passes of one run
    sides = []
    for (name, chosen), letter in ((one, "RUN" if same else "BASE"), (other, "RUN" if same else "NEW")):
        names = [shlex.quote(name), f"{letter}2", f"{letter}3"]
        sides.append(",".join(f"{name}:{chosen}" if chosen else name for name in names))
    again = "make the run twice more" if same else "make each side twice more, in turn (base, new, base, new)"
    return f"{again}, then: tokentrace diff {' '.join(sides)}"


def cannot_tell(lost: Sequence[str], wall: Row) -> Verdict:
    """A side is not whole: what is gone may have been the difference, whatever the rest of it says."""
    return Verdict(
        "unknown",
        f"Cannot tell: {'; '.join(lost)}.",
        more=f"What is left differs by {signed(wall)}, which says nothing about the whole.",
    )


def _within(wall: Row, large: dict[str, list[Row]]) -> Verdict:
    """Nothing shows in the whole or in a layer; perhaps one thing inside does."""
    for level in ("modules", "spans", "kernels", "operators"):
        found = [row for row in large.get(level, ()) if row.beyond_noise]
        if found:
            row = found[0]
            label = f"the {by_number(row.layer).title} (layer {row.layer})"
            text = (
                f"As a whole there is no difference beyond noise ({signed(wall)}), but in {label} `{row.label}` "
                f"took {duration(abs(row.difference_ns))} {'more' if row.difference_ns > 0 else 'less'} "
                f"({duration(row.base_ns or 0)} → {duration(row.new_ns or 0)})."
            )
            return Verdict("shifted", text, row.layer, label, level, row.key, f"`{row.label}` ({signed(row)})")
    return Verdict("same", f"No difference beyond noise: {signed(wall)}, {_noise(wall)}.")


def amount(row: Row) -> str:
    """50.2 ms (11 %), without its sign."""
    share = f" ({abs(row.change):.0%})" if row.change is not None else ""
    return f"{duration(abs(row.difference_ns))}{share.replace('%', ' %')}"


def signed(row: Row) -> str:
    """+50.2 ms (+11 %)."""
    sign = "+" if row.difference_ns > 0 else ""
    share = f" ({row.change:+.1%})".replace("%", " %") if row.change is not None else ""
    return f"{sign}{duration(row.difference_ns)}{share}"


def _noise(row: Row) -> str:
    if row.low_ns is not None and row.high_ns is not None and row.confidence is not None:
        text = f"{row.confidence:.0%} interval {duration(row.low_ns)} to {duration(row.high_ns)}".replace("%", " %")
        if row.low_ns > 0 or row.high_ns < 0:
            text += (
                "; but runs that scatter as these do lie so far apart in 5 % of cases or more when nothing differs: "
                "give more a side"
            )
        return text
    if row.limit_ns is not None:
        return f"and noise seen inside the two runs allows for ±{duration(row.limit_ns)}"
    return "noise unknown"


@dataclass(slots=True)
class _Split:
    phase: str
    sentence: str
    extra_ns: float


def _split_steps(base: Sequence[Sample], new: Sequence[Sample], sign: int) -> _Split | None:
    """Did the engine cut the same tokens of a phase into another number of steps? That is the scheduler's doing."""
    best: _Split | None = None
    for phase in sorted({s.slot[0] for sample in (*base, *new) for s in sample.steps}):
        sides = [[_phase(sample, phase) for sample in side] for side in (base, new)]
        counts = [{count for count, _, _ in side} for side in sides]
        tokens = {number for side in sides for _, number, _ in side}
        if any(len(c) != 1 for c in counts) or counts[0] == counts[1] or len(tokens) != 1 or None in tokens:
            continue
        before, after = counts[0].pop(), counts[1].pop()
        if not before or not after:
            continue
        extra = median(wall for _, _, wall in sides[1]) - median(wall for _, _, wall in sides[0])
        total = tokens.pop() or 0
        sentence = f"did the same {plural(total, f'{phase} token')} in {plural(after, 'step')} instead of {before}"
        if extra * sign > 0 and (best is None or abs(extra) > abs(best.extra_ns)):
            best = _Split(phase, sentence, extra)
    return best


def _phase(sample: Sample, phase: str) -> tuple[int, int | None, int]:
    steps = [s for s in sample.steps if s.slot[0] == phase]
    known = [s.tokens for s in steps if s.tokens is not None]
    return len(steps), sum(known) if len(known) == len(steps) else None, sum(s.wall_ns for s in steps)


def _contributor(
    top: Row, levels: dict[str, list[Row]], base: Sequence[Sample], new: Sequence[Sample]
) -> tuple[str, str, str]:
    """(level, key, words) of what makes up most of a layer's difference."""
    sign = 1 if top.difference_ns > 0 else -1

    def largest(level: str, *layers: int) -> Row | None:
        rows = [r for r in levels.get(level, ()) if r.difference_ns * sign > 0 and (not layers or r.layer in layers)]
        return rows[0] if rows else None

    if top.layer in (5, 4, 3):
        counts = [median(len(s.steps) for s in side) for side in (base, new)]
        only = [r for r in levels.get("steps", ()) if r.only_in == ("new" if sign > 0 else "base")]
        spent = sum(abs(r.difference_ns) for r in only)
        if only and counts[0] != counts[1] and spent >= _MOST * abs(top.difference_ns):
            side = "the new side" if sign > 0 else "the base"
            return "steps", only[0].key, f"{duration(spent)} of it in {plural(len(only), 'step')} that only {side} has"
        row = largest("steps")
        if row is not None and sum(counts) > 2 and abs(row.difference_ns) >= _MOST * abs(top.difference_ns):
            return "steps", row.key, _most(row)
        for level in ("kernels", "modules", "operators") if top.layer == 3 else ("modules", "operators", "kernels"):
            row = largest(level)
            whole = sum(r.difference_ns for r in levels.get(level, ()) if r.difference_ns * sign > 0)
            if row is not None and abs(row.difference_ns) >= _ALONE * abs(whole):
                return level, row.key, _most(row, _of_pass(level, new))
        row = largest("operators") or largest("kernels")
        if row is not None:
            level = "operators" if row in levels.get("operators", ()) else "kernels"
            return level, row.key, f"spread over it, {_most(row, _of_pass(level, new), 'the most')}"
        row = largest("spans", 5)
    else:
        row = largest("spans", top.layer)
    return ("spans", row.key, _most(row)) if row is not None else ("", "", "")


def _of_pass(level: str, new: Sequence[Sample]) -> str:
    passes = {sample.deep_pass for sample in new if sample.deep_pass and sample.deep_pass != sample.pass_name}
    return f", seen in the {passes.pop()} pass" if level in ("modules", "operators", "kernels") and passes else ""


def _most(row: Row, where: str = "", lead: str = "most of it") -> str:
    if row.only_in == "new":
        change = f"{duration(row.difference_ns)}, only on the new side"
    elif row.only_in == "base":
        change = f"{duration(-row.difference_ns)}, only in the base"
    else:
        change = f"{signed(row)}, {duration(row.base_ns or 0)} → {duration(row.new_ns or 0)}"
    return f"{lead} in `{row.label}` ({change}{where})"
