"""`tokentrace diff` as a command: its exit codes, what it writes, and what it says of a side that it cannot take."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from test_diff_structure import MS, trace

from tokentrace import emit, runs
from tokentrace.report import build

COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()", "diff"]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    names = []
    for number, encode in enumerate((200_000, 201_000, 199_500, 30 * MS, 30 * MS + 900, 30 * MS + 2_000)):
        one = trace(encode=encode, seed=number + 1, jitter=600)
        one.meta["prompt"] = "<script>alert(1)</script>"
        names.append(runs.save(one, one, build(one)).name)
    return tmp_path, names


def diff(*arguments: str, data: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TOKENTRACE_DATA_DIR": str(data)}
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=env, timeout=240, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_the_command_fails_a_build_only_for_what_is_slower(stored: tuple[Path, list[str]]) -> None:
    data, names = stored
    base, new = ",".join(names[:3]), ",".join(names[3:])
    slower = diff(base, new, "--fail-over", "10%", "--json", data=data, code=1)
    found = orjson.loads(slower.stdout)
    assert found["schema"] == "tokentrace.diff/1" and found["fail_over"]["exceeded"] is True
    assert found["verdict"]["layer"] == 7 and found["noise"]["known"] is True
    assert found["wall"]["difference_ns"] == pytest.approx(29.8e6, rel=0.01)
    assert diff(new, base, "--fail-over", "10%", data=data).returncode == 0
    assert diff(base, new, "--fail-over", "60ms", data=data).returncode == 0
    repeated = [x for name in names[:3] for x in ("--base", name)] + [x for name in names[3:] for x in ("--new", name)]
    assert orjson.loads(diff(*repeated, "--json", data=data).stdout)["wall"] == found["wall"]


@pytest.mark.parametrize("how", [(), ("--json",), ("-q",)])
def test_a_reader_that_goes_away_is_no_slower_run(how: tuple[str, ...], stored: tuple[Path, list[str]]) -> None:
    data, names = stored
    reading, writing = os.pipe()
    os.close(reading)
    env = {**os.environ, "TOKENTRACE_DATA_DIR": str(data)}
    try:
        done = subprocess.run(
            [*COMMAND, names[0], names[1], *how],
            stdout=writing,
            stderr=subprocess.PIPE,
            env=env,
            timeout=240,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.returncode == 141 and done.stderr == b""


def test_one_run_a_side_says_that_noise_is_unknown(stored: tuple[Path, list[str]]) -> None:
    data, names = stored
    shown = diff(names[0], names[3], data=data).stdout
    assert "how much equal runs differ is not known" in " ".join(shown.split())
    assert "tokenizer (layer 7)" in " ".join(shown.split())


def test_the_page_needs_nothing_and_runs_nothing(stored: tuple[Path, list[str]], tmp_path: Path) -> None:
    data, names = stored
    page = tmp_path / "diff.html"
    diff(names[0], names[3], "-o", str(page), data=data)
    text = page.read_text()
    assert "<script" not in text and "src=" not in text and "http://" not in text and "https://" not in text
    assert "default-src 'none'" in text and "encode" in text and len(text) < 200_000


def test_a_folder_with_one_run_in_it_is_that_run(stored: tuple[Path, list[str]], tmp_path: Path) -> None:
    data, names = stored
    for number, at in ((1, 200_000), (2, 30 * MS)):
        made = trace(encode=at, seed=number, jitter=600)
        runs.save(made, made, build(made), out=tmp_path / "out" / str(number))
    one, other = (str(tmp_path / "out" / str(number)) for number in (1, 2))
    found = orjson.loads(diff(one, f"{other}:once", "--json", data=data).stdout)
    assert found["verdict"]["layer"] == 7 and found["new"]["measurements"][0]["pass"] == "once"
    several = diff(str(data / "runs"), names[0], data=data, code=2)
    assert "there are 6 runs in" in several.stderr and "name one of them" in several.stderr
    (tmp_path / "empty").mkdir()
    assert "no recording in" in diff(str(tmp_path / "empty"), names[0], data=data, code=2).stderr


def test_a_report_and_a_trace_file_will_do(stored: tuple[Path, list[str]], tmp_path: Path) -> None:
    data, names = stored
    report = data / "runs" / names[0] / runs.REPORT
    file = tmp_path / "other.jsonl"
    emit.save(trace(encode=30 * MS, jitter=600), file)
    found = orjson.loads(diff(str(report), str(file), "--json", data=data).stdout)
    assert found["verdict"]["layer"] == 7 and found["base"]["measurements"][0]["kind"] == "report"
    assert "no spans" in found["missing"]["modules"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "two sides"),
        (("one",), "two sides"),
        (("nothing", "nowhere"), "called 'nothing'"),
        (("--passes", "cold", "warm"), "wants the runs once"),
        (("a", "b", "--fail-over", "much"), "neither a share nor a time"),
        (("a", "b", "-o", "x.pdf"), "does not end in .html"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(
    arguments: tuple[str, ...], said: str, stored: tuple[Path, list[str]]
) -> None:
    done = diff(*arguments, data=stored[0], code=2)
    assert said in done.stderr and "fix:" in done.stderr


def test_a_pass_that_is_not_there_names_those_that_are(stored: tuple[Path, list[str]]) -> None:
    data, names = stored
    done = diff(names[0], "--passes", "cold", "warm", data=data, code=2)
    assert "has no cold pass" in done.stderr and "once" in done.stderr


def test_a_pass_of_another_name_is_told_as_a_pass(stored: tuple[Path, list[str]]) -> None:
    data, names = stored
    done = diff(f"{names[0]}:foo", names[1], data=data, code=2)
    assert "has no foo pass; it has once" in done.stderr
    assert "no run is called" in diff("nothing:foo", names[1], data=data, code=2).stderr
    many = diff(names[0][:2], names[1], data=data, code=2)
    assert "6 runs are called" in many.stderr and "more of the name" in many.stderr


def test_a_recording_that_was_cut_gives_no_verdict(stored: tuple[Path, list[str]]) -> None:
    folder = Path(os.environ.get("TOKENTRACE_RECORDINGS") or "/nonexistent")
    cut, whole = folder / "malformed/DERIVED_truncated_plain.json", next(iter(folder.glob("kineto/*.json.gz")), None)
    if whole is None or not cut.is_file():
        pytest.skip("TOKENTRACE_RECORDINGS names no recording")
    found = orjson.loads(diff(str(cut), str(whole), "--json", data=stored[0]).stdout)
    assert found["verdict"]["status"] == "unknown" and "cut" in found["verdict"]["sentence"]
    shown = diff(str(cut), str(whole), "--fail-over", "5%", "-q", data=stored[0], code=2)
    assert "cannot be told" in shown.stderr


def test_two_recordings_compare_kernel_by_kernel(tmp_path: Path) -> None:
    folder = os.environ.get("TOKENTRACE_RECORDINGS")
    file = next(iter(Path(folder or "/nonexistent").glob("kineto/*.json.gz")), None)
    if file is None:
        pytest.skip("TOKENTRACE_RECORDINGS names no recording")
    found = orjson.loads(diff(str(file), str(file), "--json", data=tmp_path).stdout)
    assert found["verdict"]["status"] == "same" and found["wall"]["difference_ns"] == 0
    assert len(found["levels"]["kernels"]) > 20 and found["levels"]["steps"]
    one = found["levels"]["kernels"][0]
    assert one["base_ns"] == one["new_ns"] > 0


def test_what_takes_thrice_as_long_in_all_its_parts_says_how_to_know(tmp_path: Path) -> None:
    names = []
    for factor in (1, 3):
        made = trace(seed=factor, jitter=600)
        begin = made.start_ns[0]
        for times in (made.start_ns, made.end_ns):
            times[:] = [begin + factor * (at - begin) for at in times]
        names.append(str(tmp_path / f"{factor} x.jsonl"))
        emit.save(made, Path(names[-1]))
    page = tmp_path / "even.html"
    done = diff(*names, "--fail-over", "10%", "-o", str(page), data=tmp_path, code=2)
    shown = " ".join(done.stdout.split())
    assert "The new side took 3 times as long" in shown and "threads, precision, device" in shown
    told = done.stderr.splitlines()
    assert "cannot be told" in told[0] and told[1].startswith("  fix: make each side twice more, in turn")
    assert told[1].endswith(f"tokentrace diff '{names[0]}',BASE2,BASE3 '{names[1]}',NEW2,NEW3")
    assert "<code>tokentrace diff &#x27;" in page.read_text()
