"""The figures of the client against those that the engine itself counts for the same requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tokentrace.bench import Plan, Target, bench
from tokentrace.bench.measured import Measured
from tokentrace.client.settings import Endpoint
from tokentrace.engines.local.process import LocalEngine

pytestmark = pytest.mark.model


class _Quiet:
    def announce(self, sentence: str) -> None:
        return

    def begin(self, what: str, count: int) -> None:
        return

    def one(self, measured: Measured) -> None:
        return


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    with LocalEngine.start(agent=False) as engine:
        yield Target("local engine", Endpoint(engine.base_url, model=engine.model_name))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_agrees_with_the_servers_own_histograms(target: Target, concurrency: int) -> None:
    plan = Plan("Hi", count=12, concurrency=concurrency, max_tokens=12, temperature=0.0)
    one = bench(plan, [target], _Quiet(), save=False).targets[0]
    assert len(one.good) == 12 and one.server is not None
    assert one.server.requests == 12 and one.server.alone
    means, figures = one.server.means_ns, one.figures
    assert figures["total"].mean and figures["ttft"].mean and figures["mean_inter_token"].mean
    # The server starts its clock when a request arrives and stops it when the last chunk is handed over; the client
    # starts before it connects and stops when the last byte is read. So ours are longer, and by no more than that; on a
    # busy machine either may be held up between an event and its clock.
    for theirs, ours in (("e2e", figures["total"]), ("time_to_first_token", figures["ttft"])):
        assert ours.mean is not None
        assert 0.9 * means[theirs] - 5e6 <= ours.mean <= 1.5 * means[theirs] + 150e6, theirs
    # Gaps need no common start. The engine counts one for the end mark too, which has no chunk of its own.
    assert figures["inter_token"].mean == pytest.approx(means["inter_token_latency"], rel=0.5)


def test_two_endpoints_of_one_server_are_no_others(target: Target) -> None:
    plan = Plan("Hi", count=4, max_tokens=4, temperature=0.0)
    found = bench(plan, [target, Target("again", target.endpoint)], _Quiet(), save=False)
    for one in found.targets:
        assert one.server is not None and one.server.endpoints == 2
        assert one.server.requests == 8 and one.server.alone


def test_the_engine_bounds_what_is_said(target: Target) -> None:
    plan = Plan("Hi", count=5, max_tokens=4, temperature=0.0)
    found = bench(plan, [target], _Quiet(), save=False)
    one = found.targets[0]
    assert one.output_tokens == 20 and one.errors == []
    assert found.client is not None and found.client.cpu_share is not None and found.client.cpu_share < 1
    assert sum(m.total_ns for m in one.good) <= one.wall_ns * 1.05  # one at a time: nothing overlaps
