"""The whole comparison as data: what the terminal prints, the page shows and `--json` gives.

    schema, verdict {status, sentence (headline and more), headline, more, layer, layer_label, level, key, contributor,
    fix}, noise {known, sentence},
    per_token {base_ns, new_ns, change} or null, unlike [text] (what was not the same work, told in the verdict),
    base / new {measurements [{label, kind, pass, deep_pass, wall_ns, ttft_ns, tokens, pace}], median_wall_ns},
    wall, ttft (rows or null), even {main, deep, spread} (the share by which all parts changed alike),
    levels {layers, spans, steps, modules, operators, kernels: [row]},
    missing {level: why}, notes [text]

Rows as in `rows.Row`. Times are ns; null means not known, never zero. Keys may be added within a version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tokentrace.compare.evenness import Even, even_of
from tokentrace.compare.group import group
from tokentrace.compare.noise import FLOORS
from tokentrace.compare.rows import Row, level_rows, ttft_row, wall_row
from tokentrace.compare.sample import LEVELS, Sample, fill
from tokentrace.compare.sides import Progress, alike, no_garbage, split
from tokentrace.compare.unlike import PerToken, no_per_token, per_token_of, unlike_depth, unlike_tokens
from tokentrace.compare.verdict import Verdict, amount, cannot_tell, judge
from tokentrace.errors import UsageError
from tokentrace.wording import duration, listed, plural

SCHEMA = "tokentrace.diff/1"


@dataclass(slots=True)
class Diff:
    """See the module's docstring."""

    base: list[Sample]
    new: list[Sample]
    wall: Row
    ttft: Row | None
    levels: dict[str, list[Row]]
    verdict: Verdict
    missing: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    per_token: PerToken | None = None
    unlike: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    even: Even = field(default_factory=Even)

    @property
    def noise_known(self) -> bool:
        """Is there more than one measurement on a side?"""
        return len(self.base) + len(self.new) > 2

    @property
    def noise(self) -> str:
        """How noise was told from difference here, in one sentence."""
        if self.noise_known:
            few = min(len(self.base), len(self.new)) < 4
            tail = "; four or more a side make the intervals 95 %" if few else ""
            return (
                f"{plural(len(self.base), 'measurement')} against {len(self.new)}: a difference counts when equal "
                f"sides would lie so far apart, in order and in size, in less than 5 % of cases{tail}"
            )
        if self.wall.floor_ns is None:
            return "one run a side, without repeated steps or passes: nothing is known about noise; give several a side"
        return (
            f"one run a side: how much equal runs differ is not known; a difference counts from {FLOORS:.0f} times "
            "what the scatter of steps and passes inside the runs comes to, and where it is more than what all parts "
            "have in common; give several a side to know"
        )

    def exceeds(self, share: float | None, ns: float | None) -> bool:
        """Is the new side slower by more than this share of the base or this time, and not by noise alone?"""
        return bool(self.wall.beyond_noise) and not self.lost and self._over(share, ns)

    def undecided(self, share: float | None, ns: float | None) -> bool:
        """Can this limit not be checked? A side lost something, or the new side is over it and noise is unknown."""
        if share is None and ns is None:
            return False
        return bool(self.lost) or (self.wall.beyond_noise is None and self._over(share, ns))

    def _over(self, share: float | None, ns: float | None) -> bool:
        if self.wall.difference_ns <= 0:
            return False
        if ns is not None:
            return self.wall.difference_ns > ns
        return share is not None and self.wall.change is not None and self.wall.change > share

    @property
    def title(self) -> str:
        """What the first table is about."""
        return "Request" if self.base[0].kind != "import" else "Recording"

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "verdict": self.verdict.as_dict(),
            "noise": {"known": self.noise_known, "sentence": self.noise},
            "base": _side(self.base, self.wall.base_ns),
            "new": _side(self.new, self.wall.new_ns),
            "wall": self.wall.as_dict(),
            "ttft": self.ttft.as_dict() if self.ttft is not None else None,
            "per_token": self.per_token.as_dict() if self.per_token is not None else None,
            "unlike": list(self.unlike),
            "lost": list(self.lost),
            "even": self.even.as_dict(),
            "levels": {level: [row.as_dict() for row in rows] for level, rows in self.levels.items()},
            "missing": dict(self.missing),
            "notes": list(self.notes),
        }


def _side(samples: Sequence[Sample], wall_ns: float | None) -> dict[str, Any]:
    return {
        "median_wall_ns": wall_ns,
        "measurements": [
            {
                "label": s.label,
                "kind": s.kind,
                "pass": s.pass_name,
                "deep_pass": s.deep_pass,
                "wall_ns": s.wall_ns,
                "ttft_ns": s.ttft_ns,
                "tokens": dict(s.tokens),
                "pace": s.pace.as_dict(),
            }
            for s in samples
        ],
    }


def compare(
    base: Sequence[str],
    new: Sequence[str],
    *,
    base_pass: str = "",
    new_pass: str = "",
    progress: Progress | None = None,
) -> Diff:
    """Compare what these name (see `sides.alike`). Raises UsageError."""
    one, other = split(base), split(new)
    if not one or not other:
        raise UsageError("a side has no run", fix="tokentrace diff BASE NEW")
    with no_garbage():
        return compare_samples(*alike(one, other, base_pass, new_pass, progress))


def compare_samples(base: Sequence[Sample], new: Sequence[Sample]) -> Diff:
    """Raises UsageError for an empty side, and for recordings against requests: they measure different things."""
    every = [*base, *new]
    if not base or not new:
        raise UsageError("a side has no measurement", fix="tokentrace diff BASE NEW")
    if len({sample.kind == "import" for sample in every}) > 1:
        raise UsageError(
            "a recording of a chip cannot be compared with a traced request", fix="give two recordings, or two runs"
        )
    fill(every)
    group(every)
    other_tokens = unlike_tokens(base, new)
    unlike = [*other_tokens, *unlike_depth(base, new)]
    even = even_of(base, new)
    levels = {level: level_rows(level, base, new, even) for level in LEVELS}
    wall = wall_row(base, new, even)
    missing = {}
    for level in LEVELS:
        why = next((s.missing[level] for s in every if level in s.missing), "")
        if not levels[level]:
            missing[level] = why or "there is none"
    per_token = per_token_of(base, new)
    lost = list(dict.fromkeys(sample.lost for sample in every if sample.lost))
    verdict = judge(wall, levels, base, new)
    ttft = ttft_row(base, new, even)
    if verdict.status == "same" and ttft is not None and ttft.beyond_noise:
        sooner = "later" if ttft.difference_ns > 0 else "sooner"
        verdict.more = f"{verdict.more} The first token came {amount(ttft)} {sooner}, which is beyond noise.".strip()
    if unlike:
        verdict.headline = f"Not alike: {listed(unlike)}. {verdict.headline}"
        told = _a_token(per_token) if per_token is not None else no_per_token(base, new) if other_tokens else ""
        verdict.more = f"{verdict.more} {told}".strip()
    if lost:
        for row in (wall, *([ttft] if ttft is not None else []), *(row for rows in levels.values() for row in rows)):
            row.beyond_noise = None
    return Diff(
        base=list(base),
        new=list(new),
        wall=wall,
        ttft=ttft,
        levels=levels,
        verdict=cannot_tell(lost, wall) if lost else verdict,
        missing=missing,
        notes=_notes(base, new),
        per_token=per_token,
        unlike=unlike,
        lost=lost,
        even=even,
    )


def _a_token(found: PerToken) -> str:
    return (
        f"A token after the first took {duration(found.new_ns)} instead of {duration(found.base_ns)} "
        f"({found.change:+.1%})."
    ).replace("%", " %")


def _notes(base: Sequence[Sample], new: Sequence[Sample]) -> list[str]:
    """What makes the two sides unlike before any time is looked at."""
    notes = [note for sample in (*base, *new) for note in sample.notes]
    for name in sorted({name for sample in (*base, *new) for name in sample.facts}):
        sides = [sorted({s.facts[name] for s in side if name in s.facts}) for side in (base, new)]
        if sides[0] and sides[1] and sides[0] != sides[1]:
            before, after = (listed([_short(text) for text in side], 3) for side in sides)
            notes.append(f"not alike: {name} {before} in the base, {after} on the new side")
    passes = {sample.pass_name for sample in (*base, *new)}
    if len(passes) > 1 and {s.pass_name for s in base} != {s.pass_name for s in new}:
        names = [" and ".join(sorted({s.pass_name for s in side})) for side in (base, new)]
        notes.append(f"the {names[0]} pass is compared with the {names[1]} pass")
    return notes


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:39] + "…"
