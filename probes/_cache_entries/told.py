"""What the caches did, in words: one line for the table, and findings with what they rest on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tokentrace.probe import Finding
from tokentrace.probes._cache_entries.watch import Use
from tokentrace.wording import duration, listed, plural

LAYER = 2
_UNITS = {
    "FlashInfer": "module", "torch extensions": "extension", "DeepGEMM": "kernel", "HIP": "step of a compilation",
    "CUDA": "module", "MIOpen": "kernel", "MIOpen db": "problem",
}  # fmt: skip
_ACCOUNT = {"FlashInfer": ".ninja_log", "torch extensions": ".ninja_log", "DeepGEMM": "the times of its files"}
_FIX = "send a request of this shape when the server starts, before users do, and keep {path} between starts"


def facts(uses: Sequence[Use], pass_name: str) -> dict[str, Any]:
    """For the state of layer 2: `cache_use`, and findings as plain values, apart those on the server's start."""
    return {
        "cache_use": [use.as_dict() for use in uses],
        "cache_findings": _plain(findings(uses, pass_name)),
        "cache_start_findings": _plain(of_the_start(uses)),
    }


def _plain(findings: Iterable[Finding]) -> list[dict[str, str]]:
    return [{"sentence": f.sentence, "evidence": f.evidence, "fix": f.fix, "status": f.status} for f in findings]


def line(uses: Sequence[Use]) -> str:
    """What happened, on one line; "" when nothing did."""
    parts = []
    for use in uses:
        said = []
        if use.miss:
            said.append(f"{_count(use.miss, use)} compiled{_spent(use.miss_ns, use.untimed)}{_keys(use, 'miss')}")
        if use.hit:
            said.append(f"{_count(use.hit, use)} loaded{_saved(use.saved_ns)}{_keys(use, 'hit')}")
        if said:
            parts.append(f"{use.compiler}: {', '.join(said)}")
    return "; ".join(parts)


def findings(uses: Sequence[Use], pass_name: str) -> list[Finding]:
    """What compiling cost in this pass, and what the caches saved in it."""
    where = "during the request" if pass_name in ("", "once") else f"in the {pass_name} pass"
    found: list[Finding] = []
    for use in uses:
        account = _account(use)
        if use.miss:
            evidence = "; ".join(filter(None, (f"{_named(use, 'miss')}, {account}", use.note)))
            found.append(Finding(LAYER, _compiled(use, where), evidence, _FIX.format(path=use.path), "warn"))
        if use.hit:
            sentence = f"{_count(use.hit, use)} of {use.compiler} came from the cache {where}{_saved(use.saved_ns)}."
            found.append(Finding(LAYER, sentence, f"{_named(use, 'hit')}, {account}", "", "ok"))
    return found


def of_the_start(uses: Sequence[Use]) -> list[Finding]:
    """The same for the time from the server's start to this pass; the first pass of a run is the one to ask."""
    found: list[Finding] = []
    for use in uses:
        account = _account(use)
        if use.paid:
            sentence = (f"{_count(use.paid, use)} of {use.compiler} that the cache did not have "
                        f"{_were(use.paid)} compiled since the server started{_spent(use.paid_ns, 0)}.")  # fmt: skip
            found.append(Finding(LAYER, sentence, account, f"keep {use.path} between starts", "ok"))
        if use.found and use.found_ns:
            sentence = (f"{_count(use.found, use)} of {use.compiler} {_were(use.found)} in the cache when the server "
                        f"started{_saved(use.found_ns)}.")  # fmt: skip
            found.append(Finding(LAYER, sentence, account, "", "ok"))
    return found


def _compiled(use: Use, where: str) -> str:
    count = ("at least " if not use.complete else "") + _count(use.miss or 0, use)
    if use.compiler == "MIOpen db":
        return f"MIOpen looked for solvers of {count} {where} that its database did not have; how long is not told."
    if use.untimed == use.miss:
        return f"{use.compiler} compiled {count} {where} that its cache did not have; how long is not told."
    return f"{use.compiler} compiled {count} {where} that its cache did not have{_spent(use.miss_ns, use.untimed)}."


def _account(use: Use) -> str:
    """What the figures rest on."""
    return f"by {_ACCOUNT[use.compiler]}, in {use.path}" if use.compiler in _ACCOUNT else f"in {use.path}"


def _count(number: int, use: Use) -> str:
    unit = _UNITS[use.compiler]
    return plural(number, unit, "steps of compilations" if unit.startswith("step") else "")


def _spent(ns: int, untimed: int) -> str:
    if not ns:
        return ""
    return f", {'at least ' if untimed else ''}{duration(ns)}"


def _saved(ns: int) -> str:
    return f", which saved {duration(ns)} of compiling" if ns else ""


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _keys(use: Use, result: str) -> str:
    named = _named(use, result)
    return f" ({named})" if named else ""


def _named(use: Use, result: str) -> str:
    """The keys of this result that are told, each with its time, and how many more there are."""
    told = [(f"{one['key']} {duration(one['took_ns'])}" if one["took_ns"] else str(one["key"]))
            for one in use.keys if one["result"] == result]  # fmt: skip
    every = (use.miss if result == "miss" else use.hit) or 0
    rest = every - len(told)
    return listed([*told, f"{rest} more"] if rest and told else told, len(told) + 1)
