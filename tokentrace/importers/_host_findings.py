"""Findings about the host: where its time goes, what was compiled, which operators lead."""

from __future__ import annotations

from collections.abc import Iterator

from tokentrace import gpu_events
from tokentrace.importers import host
from tokentrace.importers._analysis import WORTH_SAYING, Analysis, caveat, counted
from tokentrace.probe import Finding
from tokentrace.wording import duration, plural, share


def host_time(found: Analysis) -> Iterator[Finding]:
    split = found.measures.split
    if split is None or split.total_ns <= 0 or split.calls < 10 or found.measures.captured or found.events.silent:
        return
    working = split.framework_ns + split.library_ns + split.launch_ns
    each = working / split.calls
    parts = {"framework": split.framework_ns, "library": split.library_ns, "launch": split.launch_ns}
    most = max(parts, key=lambda key: parts[key])
    part = "most of it" if 2 * parts[most] > working else "the largest part of it"
    # Where the device always had work, less of it on the host would change nothing.
    matters = found.measures.starved_ns > WORTH_SAYING * max(1, found.measures.window_ns)
    yield Finding(
        4,
        f"The launching threads spent {duration(each)} of work on each launch, {part} in the {most}.",
        f"framework (Python, dispatch) {share(split.framework_ns, split.total_ns)}, library (kernel choice and set-up, "
        f"other runtime calls) {share(split.library_ns, split.total_ns)}, launch calls "
        f"{share(split.launch_ns, split.total_ns)}, waiting {share(split.blocked_ns, split.total_ns)} of "
        f"{duration(split.total_ns)}" + caveat(found),
        {"framework": "graphs and torch.compile remove this part",
         "library": "warm up, and keep shapes stable so that libraries reuse their choices",
         "launch": "fewer, larger kernels; graphs"}[most] if matters else "",
    )  # fmt: skip


def jit(found: Analysis) -> Iterator[Finding]:
    events, measures = found.events, found.measures
    length = events.end - events.start
    if len(measures.compiles):
        total = int(length[measures.compiles].sum())
        yield Finding(2, f"Code was compiled for {duration(total)} during {found.whole}.",
                      f"{len(measures.compiles):,} events: {counted(events, measures.compiles)}",
                      "warm up before measuring, and keep the compile caches between starts", "warn")  # fmt: skip
    if len(measures.loads):
        total = int(length[measures.loads].sum())
        yield Finding(2, f"Device code was loaded for {duration(total)} during {found.whole}.",
                      f"{len(measures.loads):,} events: {counted(events, measures.loads)}",
                      "warm up before measuring (first use loads; CUDA_MODULE_LOADING=EAGER loads at start)",
                      "warn" if total > WORTH_SAYING * found.figures["span_ns"] else "ok")  # fmt: skip
    if len(measures.compiled_calls) and not len(measures.compiles):
        yield Finding(2, f"{plural(len(measures.compiled_calls), 'call')} of compiled graphs; nothing was compiled.",
                      counted(events, measures.compiled_calls), "")  # fmt: skip


def operators(found: Analysis) -> Iterator[Finding]:
    operators = found.operators
    if not operators:
        return
    total = found.figures["kernel_sum_ns"]
    # Inside a graph no operator is known to have launched anything; a small rest would be named the leader.
    if operators[0]["device_ns"] * 20 > total > 0:
        best = operators[0]
        yield Finding(
            4,
            f"{host.short(best['name'], 60)} launched {share(best['device_ns'], total)} of "
            + ("the kernel time that was recorded." if found.events.silent else "all kernel time."),
            "; ".join(f"{host.short(e['name'], 50)}: {duration(e['device_ns'])} on the device, {duration(e['own_ns'])} "
                      f"own host time, {plural(e['calls'], 'call')}" for e in operators[:3]),
            "",
        )  # fmt: skip
    else:
        best = operators[0]
        own = int(found.tree.own_ns[found.events.rows(gpu_events.OPERATOR)].sum())
        sentence = (
            f"{host.short(best['name'], 60)} took the most own time, {share(best['own_ns'], own)} of all operators'."
        )
        told = [f"{host.short(e['name'], 50)}: {duration(e['own_ns'])} own, {plural(e['calls'], 'call')}"
                for e in operators[:3]]  # fmt: skip
        yield Finding(4, sentence, "; ".join(told), "")
