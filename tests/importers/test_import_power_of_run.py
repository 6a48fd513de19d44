"""A power dump beside a saved run: joined by time, in the zone that is said, with the energy of each request."""

from __future__ import annotations

import json
from datetime import datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner
from support.records import three_passes

from tokentrace import emit
from tokentrace.carried import carry
from tokentrace.cli import cli
from tokentrace.fold import fold
from tokentrace.importers import power_dumps
from tokentrace.importers.power_of_run import join_power
from tokentrace.importers.report import keep_also, of_trace
from tokentrace.model import Trace
from tokentrace.report import build

SECOND = 1_000_000_000
START = int(datetime(2026, 11, 30, 12, 0, tzinfo=ZoneInfo("UTC")).timestamp()) * SECOND
BERLIN = ZoneInfo("Europe/Berlin")


def run_of(length_s: int) -> Trace:
    """One request of a prefill step and three decode steps, whose power nobody saw."""
    trace = Trace()
    end = START + length_s * SECOND
    root = trace.add("tokentrace run", 0, START, end, -1, {"tokentrace.layer": 0})
    chat = trace.add("chat m", 8, START, end, root,
                     {"tokentrace.layer": 8, "tokentrace.pass": "once", "gen_ai.usage.output_tokens": 4})  # fmt: skip
    trace.add("unseen", 1, START, START, chat, {"tokentrace.unseen": "no sensor", "tokentrace.layer": 1})
    quarter = length_s * SECOND // 4
    for n, phase in enumerate(("prefill", "decode", "decode", "decode")):
        told = {"tokentrace.layer": 6, "tokentrace.step.phase": phase, "tokentrace.step.share": 1.0}
        trace.add("step", 6, START + n * quarter, START + (n + 1) * quarter, chat, told)
    return trace


def dump_of(watts: float, first_s: float, last_s: float, zone: tzinfo, every_ms: int = 100) -> str:
    rows = ["timestamp, index, uuid, name, power.draw.instant [W]"]
    for ms in range(int(first_s * 1000), int(last_s * 1000), every_ms):
        at = datetime.fromtimestamp(START / 1e9 + ms / 1000, zone)
        rows.append(f"{at:%Y/%m/%d %H:%M:%S}.{at.microsecond // 1000:03d}, 0, GPU-1, NVIDIA H100, {watts:.2f} W")
    return "\n".join(rows) + "\n"


def test_energy_is_power_times_time_and_shared_out_by_steps() -> None:
    trace = run_of(8)
    joined, findings = join_power(trace, [("p.csv", power_dumps.parse(dump_of(250, -2, 10, BERLIN), "p.csv", BERLIN))])
    (power,) = [span for span in joined.spans if span.layer == 1]
    assert power.name == "power" and (power.start_ns, power.end_ns) == (START, START + 8 * SECOND)
    told = power.attributes
    assert told["tokentrace.power.joules"] == pytest.approx(2000, rel=1e-6)
    assert told["tokentrace.power.prefill_joules"] == pytest.approx(500, rel=1e-6)
    assert told["tokentrace.power.decode_joules"] == pytest.approx(1500, rel=1e-6)
    assert told["tokentrace.power.joules_per_token"] == pytest.approx(500, rel=1e-6)
    assert told["tokentrace.join"] == "time" and told["tokentrace.pass"] == "once"
    (finding,) = findings
    assert finding.sentence.startswith("GPU 0 NVIDIA H100 used 2,000 J (± ") and "once pass" in finding.sentence
    assert "read as Europe/Berlin" in finding.evidence
    assert any(span.name == "unseen" for span in trace.spans), "the given trace stays as it is"
    assert len(joined) == len(trace)


def test_a_dump_in_another_zone_is_not_joined_and_the_distance_is_told() -> None:
    joined, (finding,) = join_power(run_of(8), [("p.csv", power_dumps.parse(dump_of(250, -2, 10, BERLIN), "p.csv"))])
    assert not [span for span in joined.spans if span.name == "power"]
    assert finding.status == "unknown" and "59.8 min after the run" in finding.evidence
    assert "read as UTC" in finding.evidence and "--zone" in finding.fix


def test_a_request_shorter_than_the_samples_apart_gets_no_joules() -> None:
    text = dump_of(250, -10, 10, BERLIN, every_ms=5000)
    joined, (finding,) = join_power(run_of(2), [("p.csv", power_dumps.parse(text, "p.csv", BERLIN))])
    (power,) = [span for span in joined.spans if span.name == "power"]
    assert "tokentrace.power.joules" not in power.attributes
    assert finding.status == "unknown" and "too short" in finding.sentence


def test_the_command_joins_a_run_and_its_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "20261130-120000-abc"
    run.mkdir()
    emit.save(run_of(8), run / "trace.jsonl")
    dump = tmp_path / "power.csv"
    dump.write_text(dump_of(250, -2, 10, BERLIN))
    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    call = CliRunner().invoke
    out = tmp_path / "joined.jsonl"
    done = call(cli, ["import", str(run), str(dump), "--zone", "Europe/Berlin", "-o", str(out), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    assert document["schema"] == "tokentrace.import.power/1" and document["files"] == [str(out)]
    assert document["power"][0]["tokentrace.power.joules"] == pytest.approx(2000, rel=1e-6)
    assert [span.name for span in emit.load(out).spans if span.layer == 1] == ["power"]
    done = call(cli, ["import", str(run / "trace.jsonl"), str(dump), "--zone", "+01:00"])
    assert done.exit_code == 0 and "used 2,000 J" in done.output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--zone", "Mars"], "no time zone"),
        (["--window", "1-2"], "cut recordings, not a run"),
        ([], "is a run of tokentrace already"),
    ],
)
def test_mistakes_are_told_in_one_sentence(tmp_path: Path, options: list[str], says: str) -> None:
    from tokentrace.errors import UsageError

    emit.save(run_of(8), tmp_path / "t.jsonl")
    (tmp_path / "power.csv").write_text(dump_of(250, -2, 10, BERLIN))
    files = [str(tmp_path / "t.jsonl"), *([str(tmp_path / "power.csv")] if options else [])]
    done = CliRunner().invoke(cli, ["import", *files, *options], standalone_mode=False)
    error = done.exception
    assert isinstance(error, UsageError) or done.exit_code == 2
    assert says in (str(error) + done.output)


def dump_beside(trace: Trace, watts: float = 250) -> list[tuple[str, power_dumps.PowerDump]]:
    after_s = (trace.start_ns[0] - START) / SECOND
    text = dump_of(watts, after_s - 3, (trace.end_ns[0] - START) / SECOND + 3, ZoneInfo("UTC"))
    return [("p.csv", power_dumps.parse(text, "p.csv"))]


@pytest.mark.parametrize("budget", [200, 20])
def test_folded_steps_are_not_taken_for_tokens(budget: int) -> None:
    """One span stands for many steps: per token it would be a hundred times what it was."""
    trace = three_passes(steps=200, modules=1, operators=1)
    joined, findings = join_power(fold(trace, budget), dump_beside(trace))
    powers = [span.attributes for span in joined.spans if span.layer == 1 and span.name == "power"]
    assert powers and not [one for one in powers if "tokentrace.power.decode_joules_per_token" in one]
    assert all("steps were folded" in one.evidence for one in findings if one.status != "unknown")
    whole, findings = join_power(trace, dump_beside(trace))
    (deep,) = [s.attributes for s in whole.spans if s.name == "power" and s.attributes["tokentrace.pass"] == "deep"]
    assert deep["tokentrace.power.decode_joules_per_token"] == pytest.approx(250 * 0.015, rel=0.1)
    assert not [one for one in findings if "folded" in one.evidence]


def test_what_was_folded_inside_steps_leaves_their_joules() -> None:
    trace = three_passes(steps=50, modules=3, operators=3)
    folded = fold(trace, 1000)
    assert len(folded) < len(trace)
    found = [
        [s.attributes.get("tokentrace.power.decode_joules_per_token") for s in joined.spans if s.name == "power"]
        for joined, _ in (join_power(one, dump_beside(trace)) for one in (trace, folded))
    ]
    assert found[0] == found[1] and any(found[0])


@pytest.mark.parametrize("told", ["by its spans", "folded", "by what it carries"])
def test_joined_power_is_seen_whatever_the_run_told_of_it(told: str) -> None:
    trace = three_passes(steps=200)
    before = build(trace)
    given = trace if told == "by its spans" else fold(trace, 300)
    if told == "by what it carries":
        carry(given, before)
    states = {name: [dict(state) for state in one["states"]] for name, one in given.meta["passes"].items()}
    joined, findings = join_power(given, dump_beside(trace))
    keep_also(joined, findings)
    assert [row.status for row in before.layers if row.layer == 1] == ["unseen"]
    report = of_trace(joined)
    (row,) = [row for row in report.layers if row.layer == 1]
    assert (row.status, row.reason, row.fix) == ("seen", "", "")
    assert [one.layer for one in report.layers] == [one.layer for one in before.layers]
    assert {name: one["states"] for name, one in given.meta["passes"].items()} == states, "the given trace stays"
    for name, one in joined.meta["passes"].items():
        assert [state["layer"] for state in one["states"]] == [state["layer"] for state in states[name]]


def test_a_run_without_a_request_is_called_the_run() -> None:
    trace = Trace()
    trace.add("tokentrace run", 0, START, START + 8 * SECOND, -1, {"tokentrace.layer": 0})
    _, (finding,) = join_power(trace, dump_beside(trace))
    assert finding.sentence.startswith("GPU 0 NVIDIA H100 used 2,000 J (± ") and finding.sentence.endswith(
        " in the run."
    )
