"""A saved import: what was printed is what `show`, `view` and --json tell of it later, in the words of a recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import recordings
from click.testing import CliRunner, Result

from tokentrace.cli import cli
from tokentrace.cli.view import _load as page_of
from tokentrace.emit import load, save
from tokentrace.report import KEPT

DECODE = recordings.SMALL / "mi300_vllm_decode_full_graph_step.json.gz"
#: Of these only a part fits into a trace: their layers' times are the importer's own.
BIG = "hta/a100_recsys_rank3of8.json.gz"
POWER = "timestamp, index, power.draw.instant [W]\n" + "".join(
    f"2023/09/28 17:15:{s:02d}.000, 0, 200.00 W\n" for s in range(10)
)
#: What tells of the file at hand, and the operators, for which an import has a table of its own with device times.
OF_THE_FILE = {"files", "schema", "operators"}


def run(*arguments: object) -> Result:
    done = CliRunner().invoke(cli, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done


def told(*arguments: object) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return result


@pytest.mark.parametrize("folded", [False, True])
def test_a_saved_import_tells_what_the_import_told(folded: bool, tmp_path: Path) -> None:
    path = recordings.large(BIG) if folded else DECODE
    saved = tmp_path / "x.jsonl"
    first = told("import", path, "-o", saved)
    again = told("show", saved)
    assert len(first["findings"]) > 3
    for layer in first["layers"]:
        del layer["facts"]
    for layer in again["layers"]:
        del layer["facts"]
    for key in set(again) - OF_THE_FILE:
        assert again[key] == first[key], key
    assert page_of(str(saved), False)[1].to_json()["findings"] == first["findings"]


def test_the_words_are_those_of_a_recording(tmp_path: Path) -> None:
    printed = run("import", DECODE, "-o", tmp_path / "x.jsonl").stdout
    assert "the request " not in printed and "the recording   " in printed
    shown = run("show", tmp_path / "x.jsonl").stdout
    assert "the request " not in shown and "the recording   " in shown
    for finding in told("import", DECODE)["findings"]:
        assert finding["sentence"][:40] in " ".join(shown.split())


def test_a_part_of_a_recording_is_called_that() -> None:
    window = run("import", DECODE, "--window", "0-15").stdout
    assert "the window   " in window and "of the recording" not in window
    assert "the step   " in run("import", DECODE, "--step", "0").stdout


def test_the_sentence_on_the_slowest_is_of_the_part(tmp_path: Path) -> None:
    saved = tmp_path / "x.jsonl"
    first = told("import", DECODE, "--step", "0", "-o", saved)
    assert " of the step: " in first["slowest"] and told("show", saved)["slowest"] == first["slowest"]
    page = tmp_path / "x.html"
    run("import", DECODE, "--step", "0", "-q", "-o", page)
    assert " % of the step." in page.read_text()


def test_what_is_joined_to_a_saved_import_is_told_with_the_rest(tmp_path: Path) -> None:
    saved, both, power = tmp_path / "x.jsonl", tmp_path / "y.jsonl", tmp_path / "power.csv"
    power.write_text(POWER)
    before = told("import", DECODE, "-o", saved)["findings"]
    joined = told("import", saved, power, "-o", both)["findings"]
    assert joined and told("show", both)["findings"] == before + joined


def test_a_kept_report_that_is_none_is_passed_over(tmp_path: Path) -> None:
    for text in ("{", '{"findings": 3}', "[]"):
        run("import", DECODE, "-q", "-o", tmp_path / "x.jsonl")
        trace = load(tmp_path / "x.jsonl")
        trace.set_attributes(0, {KEPT: text})
        save(trace, tmp_path / "y.jsonl")
        assert told("show", tmp_path / "y.jsonl")["wall_ns"] > 0


def test_operators_of_a_recording_are_counted_over_all_of_it(tmp_path: Path) -> None:
    """Of a recording that does not fit into a trace the table, its shares and the sentence are of every event."""
    import gzip

    path = recordings.large("hta/a100_ddp_nccl_2rank.json.gz")
    saved = tmp_path / "x.jsonl"
    run("import", path, "-q", "-o", saved)
    report = told("show", saved)
    calls: dict[str, int] = {}
    with gzip.open(path) as file:
        for event in json.load(file)["traceEvents"]:
            if event.get("ph") == "X" and event.get("cat") == "cpu_op":
                calls[event["name"]] = calls.get(event["name"], 0) + 1
    listed = report["operators"]
    assert [one["own_ns"] for one in listed] == sorted((one["own_ns"] for one in listed), reverse=True)
    assert all(one["calls"] == calls[one["name"]] for one in listed)
    assert listed[0]["name"] == "aten::empty" and "aten::empty" in report["slowest"]
    assert report["operators_own_ns"] > sum(one["own_ns"] for one in listed)
    part = listed[0]["own_ns"] / report["operators_own_ns"]
    assert f"  {part:.1%}".replace("%", " %") in run("show", saved, "--detail").stdout


def test_a_span_with_others_folded_into_it_keeps_its_own_length_in_the_tree(tmp_path: Path) -> None:
    saved = tmp_path / "x.jsonl"
    run("import", recordings.large("hta/a100_ddp_nccl_2rank.json.gz"), "-q", "-o", saved)
    trace = load(saved)
    first = run("show", saved, "--tree").stdout.splitlines()[0]
    assert trace.attributes(0).get("tokentrace.folded.spans")
    from tokentrace.wording import duration

    assert duration(trace.end_ns[0] - trace.start_ns[0]) in " ".join(first.split())
