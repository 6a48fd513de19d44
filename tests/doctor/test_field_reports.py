"""docs/field-reports.md: which real report is answered by which check. Made from the two tables of the tests:

python tests/doctor/test_field_reports.py > docs/field-reports.md
"""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "doctor_machine")]

import pytest  # noqa: E402
from outside_reports import OUTSIDE  # noqa: E402
from reports import REPORTS  # noqa: E402

from tokentrace.doctor.registry import checks  # noqa: E402

ALL = {**OUTSIDE, **REPORTS}
DOC = HERE.parents[1] / "docs" / "field-reports.md"
HOW = {
    "real": "a real socket, process, folder or user, without a GPU",
    "recording": "a file or stream recorded on such a machine or service",
    "tree": "a folder with the files that a driver or an engine leaves",
    "stub": "a small library in the vendor's place: it shows the reading of the interface, not a card's behaviour",
    "elsewhere": "no matter of the doctor: another command answers it",
    "open": "nothing answers it yet",
}
_HEAD = """# Reports from the field, and what the doctor says

Real reports of other projects (letters: C client, T tokenizer, E engine, M tensors, P profiling, K kernels, J compiled
code, W power, O traces, R several servers), the checks that answer each of them, and how a test shows it:
"""


def page() -> str:
    answered = sum(how not in ("elsewhere", "open") for _, how, _ in ALL.values())
    without_gpu = sum(how in ("real", "recording") for _, how, _ in ALL.values())
    elsewhere = sum(how == "elsewhere" for _, how, _ in ALL.values())
    lines = [_HEAD]
    lines += [f"- **{word}**: {text} ({sum(how == word for _, how, _ in ALL.values())})" for word, text in HOW.items()]
    lines += [
        "",
        f"Of {len(ALL)} reports the doctor answers {answered} ({answered / len(ALL):.0%}), {without_gpu} with a "
        f"real socket, process, file or recording; other commands answer {elsewhere}; "
        f"{sum(how == 'open' for _, how, _ in ALL.values())} are open.",
        "",
        "| report | checks | verdict | shown by |",
        "|---|---|---|---|",
    ]
    for report, (found, how, note) in ALL.items():
        lines.append(f"| {report} | {', '.join(found)} | {note} | {how} |")
    return "\n".join(lines) + "\n"


def test_the_table_is_current() -> None:
    assert DOC.read_text(encoding="utf-8") == page()


def test_every_check_that_is_named_exists() -> None:
    known = {c.id for c in checks()}
    for report, (found, how, note) in ALL.items():
        assert set(found) <= known and how in HOW and note, report


def test_every_report_is_in_the_table() -> None:
    path = Path(os.environ.get("TOKENTRACE_REPORTS", "/nonexistent"))
    if not path.exists():
        pytest.skip("TOKENTRACE_REPORTS is not set")
    with path.open(encoding="utf-8") as file:
        rows = {row["id"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}
    assert rows == set(ALL)


if __name__ == "__main__":
    sys.stdout.write(page())
