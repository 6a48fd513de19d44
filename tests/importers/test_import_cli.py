"""`tokentrace import` as a user runs it: what it prints, its JSON, and its progress line."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import recordings
from recordings import call, kernel, trace_file

from tokentrace.cli import import_

MAIN = "from tokentrace.cli import main; main()"
TINY = recordings.SMALL / "a100_simple_add_small.json.gz"


def run_import(*arguments: str | Path, **more: str) -> str:
    env = {**{key: value for key, value in os.environ.items() if key != "COLUMNS"}, **more}
    done = subprocess.run([sys.executable, "-c", MAIN, "import", *map(str, arguments)], capture_output=True, text=True,
                          timeout=240, check=False, env=env)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def as_json(*arguments: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_import(*arguments, "--json"))
    return found


def test_the_json_names_figures_lost_and_the_facts_of_layers() -> None:
    truth = recordings.known()[TINY.name][1]
    found = as_json(TINY)
    assert found["schema"] == "tokentrace.import/1"
    assert {key: found["figures"][key] for key in ("kernels", "launches", "idle_share")} == {
        "kernels": truth["kernels"],
        "launches": truth["launches"],
        "idle_share": truth["idle_share_span"],
    }
    assert found["lost"] == {"events": 0, "reason": ""}
    assert [layer["layer"] for layer in found["layers"]] == [8, 7, 6, 5, 4, 3, 2, 1]
    for layer in found["layers"]:
        assert (layer["status"] == "seen") == bool(layer["facts"])
    three = next(layer for layer in found["layers"] if layer["layer"] == 3)
    assert set(three["facts"]) == {"own_ns", "share", "evidence"}
    assert 0 < three["facts"]["own_ns"] < found["figures"]["span_ns"] and three["facts"]["evidence"] > 0


def test_findings_keep_to_a_width_that_was_asked_for() -> None:
    whole, narrow = (text[text.index("[ok]") :] for text in (run_import(TINY), run_import(TINY, COLUMNS="40")))
    assert max(map(len, whole.splitlines())) > 80, "a pipe gets whole lines"
    long = [line for line in narrow.splitlines() if len(line) > 40 and " " in line.strip()]
    assert not long and narrow.split() == whole.split()


def test_each_finding_shows_its_evidence() -> None:
    findings = as_json(TINY)["findings"]
    lines = run_import(TINY).splitlines()
    for finding in findings:
        at = lines.index(f"[{finding['status']}] layer {finding['layer']}: {finding['sentence']}")
        assert lines[at + 1] == f"    evidence: {finding['evidence']}"
        if finding["fix"]:
            assert lines[at + 2] == f"    fix: {finding['fix']}"
    assert findings


def test_damage_is_told_even_when_no_event_is_known_to_be_lost(tmp_path: Path) -> None:
    path = trace_file(tmp_path / "t.json", [kernel("k", 1, 2, 1), kernel("k", 4, -1, 2)])
    lost = as_json(path)["lost"]
    assert lost["events"] == 0 and "negative duration" in lost["reason"]
    assert f"lost: 0 events, {lost['reason']}" in run_import(path).splitlines()
    assert "lost:" not in run_import(TINY)


def test_an_unknown_idle_share_says_why(tmp_path: Path) -> None:
    second = kernel("k", 30, 5, 2, device=1)
    two = trace_file(tmp_path / "two.json", [kernel("k", 10, 5, 1), second])
    assert "idle share unknown: several devices" in run_import(two)
    none = trace_file(tmp_path / "none.json", [call("cudaMalloc", 0, 5, 1)])
    assert "idle share unknown: no kernel in it" in run_import(none)
    point = trace_file(tmp_path / "point.json", [kernel("k", 10, 0, 1)])
    assert "idle share unknown: the recording has no length" in run_import(point)
    one = trace_file(tmp_path / "one.json", [kernel("k", 0, 5, 1), kernel("k", 15, 5, 2)])
    assert "idle share 50 %" in run_import(one)


def on_a_terminal(code: str, path: Path) -> str:
    """What the command writes to a terminal as standard error."""
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run([sys.executable, "-c", code, "import", str(path), "--json"], stdout=subprocess.PIPE,
                              stderr=theirs, env={**os.environ, "TERM": "xterm"}, timeout=240, check=False)  # fmt: skip
        os.write(theirs, b"|")  # an end to read up to
        told = ""
        while not told.endswith("|"):
            told += os.read(ours, 1 << 16).decode()
    finally:
        os.close(theirs)
        os.close(ours)
    assert done.returncode == 0 and json.loads(done.stdout)["figures"]["kernels"] > 0
    return told


def test_a_window_in_milliseconds_is_exact_to_the_nanosecond() -> None:
    """1.001 ms times a million is 1,000,999.9999999999 as a float."""
    assert import_._window("1.001-1795872004.000001") == (1_001_000, 1_795_872_004_000_001)


def test_a_terminal_shows_the_bytes_read_when_it_takes_long() -> None:
    quick = f"from tokentrace.cli import import_; import_._QUIET_S = 1e9; {MAIN}"
    assert on_a_terminal(quick, TINY) == "|"
    slow = f"from tokentrace.cli import import_; import_._QUIET_S = 0; {MAIN}"
    told = on_a_terminal(slow, TINY)
    assert " MB read …" in told and told.endswith("\r\x1b[2K|")


def test_the_example_in_the_docs_is_what_the_program_prints() -> None:
    text = (Path(__file__).parents[2] / "docs" / "import.md").read_text()
    shown = text.split("```")[1].strip().splitlines()
    command = shown[0].removeprefix("$ tokentrace import ")
    printed = run_import(recordings.SMALL / command).splitlines()
    assert len(shown) - 1 == len(printed)
    for line, real in zip(shown[1:], printed, strict=True):
        assert real.startswith(line.removesuffix("…"))
