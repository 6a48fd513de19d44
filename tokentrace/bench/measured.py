"""What one request showed, small enough to keep for each of many thousands."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokentrace.bench.plan import Job
from tokentrace.exchange import Exchange


@dataclass(slots=True)
class Measured:
    """Times in ns. None is unknown, not zero. In an open loop `ttft_ns` and `total_ns` count from when the request was
    due; `delay_ns` is how much later it was sent.

    `between_ns`: distances of consecutive chunks with text, which may hold several tokens each; none where all came in
    one read. `mean_between_ns` and `tokens_per_s` are those of `exchange.Pace`; `exact` False: a token took at least,
    and in a second came at most so much; `pace_why` says why they are not known, or not exact. `wait_ns`: from the
    request sent to its first token, without connecting. `cpu_ns`: processor time that this client spent on it.
    """

    target: int
    number: int
    round: int
    start_ns: int
    end_ns: int
    delay_ns: int
    total_ns: int
    ttft_ns: int | None = None
    wait_ns: int | None = None
    mean_between_ns: float | None = None
    between_ns: tuple[int, ...] = field(default=(), repr=False)
    input_tokens: int | None = None
    output_tokens: int | None = None
    chunks: int = 0
    tokens_per_s: float | None = None
    exact: bool = False
    pace_why: str = ""
    ok: bool = True
    check: str = ""
    error: str = ""
    fix: str = ""
    status: int = 0
    finish_reason: str = ""
    cpu_ns: int = 0


def measure(job: Job, exchange: Exchange, due_ns: int | None, cpu_ns: int) -> Measured:
    """The figures of one request. `due_ns`: when it should have been sent, in an open loop."""
    told = exchange.latencies
    begin = exchange.start_ns if due_ns is None else min(due_ns, exchange.start_ns)
    delay = exchange.start_ns - begin
    times = exchange.token_times_ns
    error = exchange.error
    pace = exchange.pace
    sent = next((p.end_ns for p in reversed(exchange.phases) if p.name == "send"), None)
    return Measured(
        target=job.target,
        number=job.number,
        round=job.round,
        start_ns=exchange.start_ns,
        end_ns=exchange.end_ns,
        delay_ns=delay,
        total_ns=exchange.end_ns - begin,
        ttft_ns=told.ttft_ns + delay if told.ttft_ns is not None else None,
        wait_ns=times[0] - sent if times and sent is not None and exchange.streamed else None,
        mean_between_ns=pace.per_token_ns,
        between_ns=told.inter_token_ns if pace.window_ns else (),
        input_tokens=exchange.input_tokens,
        output_tokens=exchange.output_tokens,
        chunks=told.text_chunks,
        tokens_per_s=pace.tokens_per_s,
        exact=pace.exact,
        pace_why=pace.why,
        ok=error is None and exchange.complete,
        check=error.check or "unknown" if error is not None else "" if exchange.complete else "unknown",
        error=str(error) if error is not None else "" if exchange.complete else "the reply did not come to its end",
        fix=error.fix if error is not None else "",
        status=exchange.status_code,
        finish_reason=exchange.finish_reason,
        cpu_ns=cpu_ns,
    )
