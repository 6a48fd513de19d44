"""A whole bench: warm up, send, watch the client itself, ask the server, work it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from tokentrace.bench import server_figures, slowest, versus
from tokentrace.bench.load import Sender, Sent
from tokentrace.bench.measured import Measured
from tokentrace.bench.own_cost import Watch
from tokentrace.bench.plan import Plan, Target, batches, warmups
from tokentrace.bench.result import Result, TargetResult, of_target
from tokentrace.client.lookaround import model_ids
from tokentrace.errors import EndpointError, TokentraceError, UsageError
from tokentrace.exchange import IN_ONE_READ
from tokentrace.wording import listed, plural

#: From this share of the gaps on it is said that they are 0 because several chunks came in one read.
_MANY_ZEROS = 0.05


class Ui(Protocol):
    """What a bench tells while it runs."""

    def announce(self, sentence: str) -> None: ...

    def begin(self, what: str, count: int) -> None: ...

    def one(self, measured: Measured) -> None: ...


def bench(plan: Plan, targets: Sequence[Target], ui: Ui, *, save: bool = True) -> Result:
    """Send what `plan` says and work out the figures. Ctrl-C gives those of what had come until then.

    Raises UsageError for a plan that cannot be, EndpointError when every warm-up request of a target failed: then the
    rest would fail as well.
    """
    plan.check()
    if not targets:
        raise UsageError("there is no endpoint", fix="give --url or --profile")
    targets = [_settled(target) for target in targets]
    sentence = plan.announcement(targets)
    ui.announce(sentence)
    warm = Sent()
    sender = Sender(plan, targets, ui.one)
    if plan.warmup:
        ui.begin("warm-up", plan.warmup * len(targets))
        warm = sender.run(warmups(plan, len(targets)))
        _check_warm(targets, warm)
    if warm.interrupted:
        return _worked_out(plan, sentence, targets, warm, Sent(interrupted=True), {})
    before = {number: server_figures.read(target.endpoint) for number, target in enumerate(targets)}
    ui.begin("requests", plan.count * len(targets))
    with Watch() as watch:
        sent = sender.run(batches(plan, len(targets)))
    servers = {}
    if not sent.interrupted:
        for number, target in enumerate(targets):
            # Two endpoints may be one server: its figures are over the requests to both.
            same = [n for n, one in enumerate(targets) if _server(one) == _server(target)]
            mine = sum(m.target in same and m.ok for m in sent.measured)
            servers[number] = server_figures.since(target.endpoint, before[number], mine, len(same))
    result = _worked_out(plan, sentence, targets, warm, sent, servers)
    good = [m for m in sent.measured if m.ok]
    result.client = watch.cost([m.cpu_ns for m in good], sum(m.chunks for m in good))
    gaps = [f.quantiles["p50"].value for t in result.targets if (f := t.figures["inter_token"]).count]
    if warning := result.client.warning(min((g for g in gaps if g), default=None)):
        result.notes.append(warning)
    if save:
        for number, one in enumerate(result.targets):
            _keep(plan, targets[number], one, sent, number)
    return result


def _settled(target: Target) -> Target:
    """The target with its model known and without retries: each request is one request, and a failure is counted."""
    endpoint = replace(target.endpoint, max_retries=0)
    if not endpoint.model:
        known = model_ids(endpoint)
        if known and len(known) == 1:
            endpoint = replace(endpoint, model=known[0])
        elif known:
            raise UsageError(
                f"no model was named and {target.name} has {len(known)}", fix=f"--model, such as {known[0]}"
            )
    return Target(target.name, endpoint)


def _server(target: Target) -> tuple[str, int]:
    return target.endpoint.host, target.endpoint.port


def _check_warm(targets: Sequence[Target], warm: Sent) -> None:
    for number, target in enumerate(targets):
        mine = [m for m in warm.measured if m.target == number]
        if mine and not any(m.ok for m in mine) and not warm.interrupted:
            last = mine[-1]
            raise EndpointError(
                f"{plural(len(mine), 'warm-up request')} to {target.name} failed: {last.error}",
                fix=last.fix,
                check=last.check,
            )


def _worked_out(
    plan: Plan,
    sentence: str,
    targets: Sequence[Target],
    warm: Sent,
    sent: Sent,
    servers: dict[int, server_figures.ServerFigures | None],
) -> Result:
    found = []
    in_rounds = plan.rate is None and len(targets) > 1
    for number, target in enumerate(targets):
        model = sent.models.get(number) or warm.models.get(number) or target.endpoint.model
        one = of_target(target, number, model, sent.measured, warm.measured, plan.seed, in_rounds)
        one.server = servers.get(number)
        one.notes += _notes(plan, one, sent.notes.get(number, []))
        found.append(one)
    result = Result(plan, sentence, found, interrupted=sent.interrupted)
    if sent.gave_up:
        result.notes.append("no request had worked, so the rest was not sent")
    if len(found) == 2:
        result.comparison = versus.compare(found[0].name, found[1].name, found[0].measured, found[1].measured)
        result.verdict = versus.sentence(result.comparison)
    if sent.interrupted:
        done = len(sent.measured)
        result.notes.append(f"interrupted after {plural(done, 'request')} of {plan.count * len(targets)}")
    return result


def _notes(plan: Plan, one: TargetResult, told: Sequence[str]) -> list[str]:
    found = list(told)
    tokens, chunks = one.output_tokens or 0, sum(m.chunks for m in one.good)
    # The end mark is a token without text, so each reply may have one chunk less.
    if chunks and tokens - len(one.good) > 1.1 * chunks:
        found.append(f"a chunk carries {tokens / chunks:.1f} tokens on average: gaps are those between chunks")
    between = [gap for m in one.good for gap in m.between_ns]
    if between and (nothing := between.count(0)) >= _MANY_ZEROS * len(between):
        found.append(
            f"{nothing} of {plural(len(between), 'gap')} between tokens are 0: these chunks came in one read with "
            "the one before, so how far apart they were sent is not known"
        )
    found += _pace_notes(one)
    lengths = {m.output_tokens for m in one.good} - {None}
    if len(lengths) > 1:
        known = sorted(n for n in lengths if n is not None)
        found.append(f"replies had {known[0]} to {known[-1]} tokens: total times are of unequal work")
    if not plan.vary and plan.count > 1:
        cached = [m for m in one.good if m.input_tokens]
        if cached and (cached[0].input_tokens or 0) >= 16:
            found.append("every request had the same prompt, which a prefix cache serves after the first (--vary)")
    return found


def _pace_notes(one: TargetResult) -> list[str]:
    """Why the time of a token is not known of some replies, or only a bound of it."""
    found = []
    for why, count in Counter(m.pace_why for m in one.good if m.pace_why).most_common():
        which = "" if count == len(one.good) else f" of {count} of {plural(len(one.good), 'reply', 'replies')}"
        if any(m.mean_between_ns is not None for m in one.good if m.pace_why == why):
            found.append(f"the time a token{which} is at least, and the tokens a second at most, what is shown: {why}")
        else:
            gaps = "gaps between tokens and " if why == IN_ONE_READ else ""
            found.append(f"{gaps}the time a token{which} cannot be told: {why}")
    return found


def _keep(plan: Plan, target: Target, one: TargetResult, sent: Sent, number: int) -> None:
    if number not in sent.slowest:
        return
    _, job, exchange = sent.slowest[number]
    try:
        one.slowest = slowest.keep(plan, target, exchange, job.number).name
    except TokentraceError as error:
        one.notes.append(f"the slowest request's trace is not kept: {error}")


def names(endpoints: Sequence[str]) -> list[str]:
    """Names that differ, for endpoints that may not."""
    found: list[str] = []
    for name in endpoints:
        number, unique = 2, name
        while unique in found:
            unique = f"{name} ({number})"
            number += 1
        found.append(unique)
    return found


def told(result: Result) -> str:
    """The verdict in one line, for -q."""
    parts = [f"{t.name}: {len(t.good)} of {plural(len(t.measured), 'request')} worked" for t in result.targets]
    if result.verdict and not result.failed:
        return result.verdict
    return f"{listed(parts)}. {result.verdict}".rstrip()
