"""The report on a terminal: the whole text for a known trace, any width, hostile replies, colour only when wanted."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len, set_cell_size
from support.records import T0, request_pass, three_passes

from tokentrace.emit.terminal import print_report, print_tree, report_text
from tokentrace.errors import EndpointError
from tokentrace.fold import fold
from tokentrace.model import IdSource, Trace
from tokentrace.probe import LayerState
from tokentrace.report import Report, build
from tokentrace.stitch import stitch

EXPECTED = Path(__file__).with_name("expected")
TRACE = "/home/user/.local/share/tokentrace/runs/20261130-063412-94b2b8fd/trace.jsonl"
RUNS = Path(TRACE).parent.parent


def known_report() -> Report:
    trace = three_passes()
    report = build(trace, notes=["the engine was kept running"])
    report.files = [TRACE, TRACE.replace("trace.jsonl", "detail.jsonl.gz")]
    return report


def tree_text(trace: Trace, **more: object) -> str:
    buffer = io.StringIO()
    print_tree(trace, file=buffer, color=False, **more)  # type: ignore[arg-type]
    return buffer.getvalue()


def check(name: str, text: str) -> None:
    """Compare with the stored text; TOKENTRACE_REWRITE_EXPECTED=1 stores it instead (then read the difference)."""
    path = EXPECTED / name
    if os.environ.get("TOKENTRACE_REWRITE_EXPECTED"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_the_report_at_80_columns_in_ascii() -> None:
    text = report_text(known_report(), width=80, runs_folder=RUNS)
    check("report-80.txt", text)
    assert text.isascii()


def test_the_detailed_report_at_140_columns() -> None:
    check("report-140-detail.txt", report_text(known_report(), width=140, unicode=True, detail=True, runs_folder=RUNS))


def test_the_tree_of_a_trace() -> None:
    check("tree-100.txt", tree_text(three_passes(), width=100, unicode=True))


def test_one_row_a_layer_with_the_form_of_the_token_down_and_back() -> None:
    text = report_text(known_report(), width=140, unicode=True)
    rows = re.findall(r"^(\d) [a-zA-Z]", text, re.MULTILINE)
    assert rows == list("87654321")
    assert re.search(r"7 tokenizer +↓ \"Hi\" → 7 ids \[1, 9690, …\]", text)
    assert re.search(r"^ +↑ 19556 → \"Hello\"", text, re.MULTILINE)
    assert re.search(r"the warm request +61\.8 ms +100 %", text)


@settings(deadline=None, max_examples=40)
@given(st.integers(40, 200), st.booleans(), st.booleans())
def test_no_line_is_wider_than_the_terminal_except_what_is_to_be_copied(
    width: int, unicode: bool, detail: bool
) -> None:
    report = known_report()
    for line in report_text(report, width=width, unicode=unicode, detail=detail).splitlines():
        if not line.startswith(("File", "Look", "Jaeger", "   ")) or ("/" not in line and "tokentrace " not in line):
            assert cell_len(line) <= width, line
    text = report_text(report, width=width, unicode=unicode)
    assert TRACE in text  # a path is never broken


def test_the_commands_name_a_run_so_that_it_is_found() -> None:
    """A folder called `runs` is the user's folder of runs only where it is that."""
    text = report_text(known_report(), runs_folder=RUNS)
    assert f"tokentrace show {Path(TRACE).parent.name} --detail" in text
    for elsewhere in (None, Path("/elsewhere/runs")):
        text = report_text(known_report(), runs_folder=elsewhere)
        assert f"tokentrace show {TRACE} --detail" in text and f"tokentrace export {TRACE} --to jaeger" in text


def test_numbers_are_not_torn_from_their_units() -> None:
    for width in range(60, 110):
        text = report_text(known_report(), width=width)
        assert not re.search(r"\d *\n *(ns|us|ms|s|%|x)\b", text)


def test_a_reply_cannot_drive_the_terminal() -> None:
    hostile = "ok\x1b]0;owned\x07\x1b[31mred\u202egnp.exe\r\nnext [bold]line[/bold] :smile:"
    one = request_pass("once", reply=(hostile,))
    trace = stitch([one], ids=IdSource(1), attributes={"tokentrace.prompt": hostile})
    for text in (
        report_text(build(trace), width=100, unicode=True, detail=True),
        tree_text(trace, width=100),
    ):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    text = report_text(build(trace), width=100)
    assert text.startswith("ok\\x1b]0;owned\\x07\\x1b[31mred\\u202egnp.exe\nnext [bold]line[/bold] :smile:\n")


def test_a_reply_in_any_script_is_shown_as_it_is_and_columns_still_line_up() -> None:
    one = request_pass("once", reply=("你好，", "世界", "🙂"))
    trace = stitch([one], ids=IdSource(1))
    text = report_text(build(trace), width=80)
    assert text.startswith("你好，世界🙂\n")
    lines = text.splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("layer "))
    edge = cell_len(lines[head].split("own time")[0] + "own time")
    table = lines[head + 1 : head + 17]
    assert any("世界" in line for line in table)
    assert all(set_cell_size(line, edge)[-1] != " " for line in table)


def test_colour_only_on_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    def printed() -> str:
        out = Terminal()
        print_report(known_report(), file=out, width=100)
        return out.getvalue()

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in printed() and "→" in printed()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", printed())
    pipe = io.StringIO()
    print_report(known_report(), file=pipe, width=100)
    assert pipe.getvalue().isascii()


def test_reasons_and_fixes_of_unseen_layers_are_told_in_full() -> None:
    reason = "no power sensor can be read: " + "; ".join(f"/sys/class/sensor{n}: no such folder" for n in range(12))
    one = request_pass("once", states=[LayerState(1, "unseen", reason, "load the driver: sudo modprobe x")])
    trace = stitch([one], ids=IdSource(1))
    text = " ".join(report_text(build(trace), width=80).split())
    assert reason in text and "to see it: load the driver: sudo modprobe x" in text


def test_joules_are_shown_with_their_error_and_processor_use_as_what_it_is() -> None:
    facts = {"joules": 12.345, "error_joules": 0.4, "joules_per_token": 1.2345}
    trace = stitch([request_pass("once", states=[LayerState(1, facts=facts)])], ids=IdSource(1))
    assert "12.3 J ± 0.4, 1.23 J per token" in report_text(build(trace), unicode=True)
    facts = {"tokentrace.cpu.seconds": 0.63, "tokentrace.cpu.cores_busy": 0.68, "tokentrace.cpu.cores": 2}
    states = [LayerState(1, "unseen", "no sensor", facts=facts)]
    trace = stitch([request_pass("once", states=states)], ids=IdSource(1))
    text = report_text(build(trace))
    assert "processor use, which is no power: 0.63 CPU seconds, 0.68 of 2 cores busy" in text


def test_a_failed_request_says_why_and_what_to_do() -> None:
    error = EndpointError("the server answered 401: the key is wrong", fix="check OPENAI_API_KEY")
    trace = stitch([request_pass("once", error=error)], ids=IdSource(1))
    text = report_text(build(trace), width=100)
    assert "x L8 The request failed: the server answered 401: the key is wrong" in text
    assert "check OPENAI_API_KEY" in text


def test_delivery_is_told_when_the_trace_was_sent() -> None:
    trace = three_passes()
    report = build(trace)
    report.spans = {"produced": 150, "accepted": 140, "rejected": 10}
    text = report_text(report, width=120)
    assert "150 spans" in text and "the receiver took 140, 10 did not arrive" in text


def test_a_reply_that_was_streamed_already_is_not_printed_again() -> None:
    out = io.StringIO()
    print_report(known_report(), file=out, width=80)
    assert out.getvalue().startswith("smollm2, 7 prompt")
    print_report(known_report(), file=out, width=80, reply=True)
    assert "\nHello! How\n\nsmollm2, 7 prompt" in out.getvalue()


def test_long_tables_are_cut_in_the_middle_and_say_so() -> None:
    one = request_pass("once", steps=90, reply=tuple(f"t{n} " for n in range(90)))
    trace = stitch([one], ids=IdSource(1))
    text = report_text(build(trace), width=100, detail=True)
    assert text.count("decode  ") == 39 and "... 50 more" in text
    assert "  100  prefill" in text and "  189  decode" in text


@settings(deadline=None, max_examples=30)
@given(st.integers(40, 160), st.integers(3, 60), st.booleans())
def test_the_tree_is_bounded_in_both_directions(width: int, max_lines: int, unicode: bool) -> None:
    trace = fold(stitch([request_pass("once", steps=12, modules=5)], ids=IdSource(1)), budget=200)
    lines = tree_text(trace, width=width, max_lines=max_lines, unicode=unicode).splitlines()
    assert len(lines) <= max_lines + 1
    assert all(cell_len(line) <= width for line in lines)
    assert lines[0].startswith("tokentrace run")


def test_the_tree_of_one_pass_counts_from_its_start() -> None:
    lines = tree_text(three_passes(), width=100, pass_name="warm").splitlines()
    assert lines[0].startswith("pass warm") and lines[0].split()[2:4] == ["+0", "ns"]


def test_siblings_of_one_name_are_counted() -> None:
    trace = stitch([request_pass("once", steps=12, deep=False)], ids=IdSource(1))
    text = tree_text(trace, width=100, unicode=True)
    assert "… 9 more × step" in text and text.count(" step ") == 4


def test_a_very_deep_trace_is_shown() -> None:
    trace = Trace(ids=IdSource(1))
    row = -1
    for level in range(3_000):
        row = trace.add(f"s{level}", 4, T0 + level, T0 + 10_000 - level, row)
    assert "s1 " in tree_text(trace, width=80, max_lines=20)
