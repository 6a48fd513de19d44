"""The commands around a run: what they print, and that broken stores are one sentence."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from support.records import T0, request_pass
from support.traces import run_trace

from tokentrace import emit, layers, runs
from tokentrace.cli import COMMANDS
from tokentrace.fold import fold
from tokentrace.model import IdSource
from tokentrace.report import Report, build
from tokentrace.stitch import stitch

COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()"]


def tokentrace(*arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TOKENTRACE_DATA_DIR": str(data)}
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=env, timeout=240, check=False)
    assert "Traceback" not in done.stderr + done.stdout
    return done


def test_layers_says_of_every_layer_whether_run_can_see_it(tmp_path: Path) -> None:
    rows = orjson.loads(tokentrace("layers", "--json", data=tmp_path).stdout)["layers"]
    assert [row["number"] for row in rows] == [8, 7, 6, 5, 4, 3, 2, 1]
    for row in rows:
        assert row["status"] in ("ok", "unseen")
        assert row["status"] == "ok" or row["reason"]


def test_layers_names_what_the_local_engine_lacks(tmp_path: Path) -> None:
    import click

    site = Path(click.__file__).parents[1]
    for path in site.iterdir():  # everything installed but one package that the local engine needs
        if not path.name.lower().startswith("uvicorn"):
            (tmp_path / path.name).symlink_to(path)
    paths = [str(Path(runs.__file__).parents[1]), str(tmp_path)]
    code = f"import sys; sys.path += {paths!r}; from tokentrace.cli import main; main()"
    command = [sys.executable, "-S", "-c", code, "layers", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    rows = {row["number"]: row for row in orjson.loads(done.stdout)["layers"]}
    assert rows[8]["status"] == "ok"
    assert rows[6]["status"] == "unseen"
    assert "uvicorn" in rows[6]["reason"] and "tokentrace[local]" in rows[6]["fix"]


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    trace = run_trace(60, 1)
    folder = runs.save(trace, fold(trace), build(trace))
    return tmp_path, folder.name


def test_a_run_is_found_by_name_part_and_path(stored: tuple[Path, str]) -> None:
    data, name = stored
    wanted = data / "runs" / name / runs.TRACE
    for given in (None, name, name[:12], name[-8:], str(wanted), str(wanted.parent)):
        assert runs.find(given) == wanted
    assert tokentrace("show", "nothing", data=data).returncode == 2


def test_show_draws_the_tree_of_a_run(stored: tuple[Path, str]) -> None:
    data, name = stored
    shown = tokentrace("show", name, "--tree", data=data).stdout
    trace = emit.load(runs.find(name))
    assert trace.names[trace.name[0]] in shown
    assert len(shown.splitlines()) > 5
    wrong = tokentrace("show", name, "--tree", "--pass", "nope", data=data)
    assert wrong.returncode == 2 and "no nope pass" in wrong.stderr


def test_list_names_the_runs_that_it_cannot_read(stored: tuple[Path, str]) -> None:
    data, name = stored
    broken = [f"broken-{number}" for number in range(5)]
    for folder, text in zip(broken, ("", "[]", "{}", '{"schema": "tokentrace.report/1"}', "\x00"), strict=True):
        (data / "runs" / folder).mkdir()
        (data / "runs" / folder / runs.REPORT).write_text(text)
    listed = orjson.loads(tokentrace("list", "--json", data=data).stdout)
    assert [row["run"] for row in listed["runs"]] == [name] and listed["unreadable"] == broken
    told = tokentrace("list", data=data)
    assert told.returncode == 0 and name in told.stdout
    assert "5 runs without a report that can be read: broken-0, broken-1" in told.stderr


def test_list_and_show_tell_the_whole_of_a_program_and_its_calls(stored: tuple[Path, str]) -> None:
    data, name = stored
    ids = IdSource(8)
    calls = [
        request_pass("plan", ids=ids, deep=False, steps=2),
        request_pass("answer", ids=ids, deep=False, at=T0 + 10**9, decode_ms=30),
    ]
    window, mode = (T0, T0 + 2_345_000_000), {"tokentrace.mode": "trace"}
    made = stitch(calls, ids=ids, root_name="my chain", window=window, attributes=mode, meta={"prompt": "Hi"})
    report = build(made)
    chain = runs.save(made, made, report).name
    shown = next(line for line in tokentrace("list", data=data).stdout.splitlines() if chain in line)
    assert " 2.35 s " in shown and "2 calls: my chain" in shown
    rows = {row["run"]: row for row in orjson.loads(tokentrace("list", "--json", data=data).stdout)["runs"]}
    assert rows[chain]["program"] == {"name": "my chain", "wall_ns": 2_345_000_000, "calls": 2}
    assert rows[chain]["wall_ns"] == report.wall_ns and rows[name]["program"] is None
    told = tokentrace("show", chain, data=data).stdout
    assert "my chain: 2 calls, 2.35 s in all" in told
    assert f"the call {report.headline_pass}" in told and "the request  " not in told


def test_list_gives_the_terminal_no_control_characters_of_a_reply(stored: tuple[Path, str]) -> None:
    data, name = stored
    report = data / "runs" / name / runs.REPORT
    value = orjson.loads(report.read_bytes())
    report.write_bytes(orjson.dumps({**value, "reply": "\x1b]0;mine\x07Hi\x9b2J", "model": "m\x1b[2J"}))
    told = tokentrace("list", data=data).stdout
    assert "Hi" in told and not any((c < " " and c != "\n") or "\x7f" <= c < "\xa0" for c in told), repr(told)


def test_a_terminal_that_knows_only_ascii_gets_escapes_instead_of_a_failure(stored: tuple[Path, str]) -> None:
    data, name = stored
    report = data / "runs" / name / runs.REPORT
    report.write_bytes(orjson.dumps({**orjson.loads(report.read_bytes()), "reply": "caf\u00e9 \U0001f600"}))
    env = {**os.environ, "TOKENTRACE_DATA_DIR": str(data), "PYTHONIOENCODING": "ascii:strict"}
    for command in ("list", "show"):
        done = subprocess.run([*COMMAND, command], capture_output=True, text=True, env=env, timeout=240, check=False)
        assert done.returncode == 0 and "caf" in done.stdout, done.stderr
    assert r"caf\xe9 \U0001f600" in done.stdout


def test_layers_fit_a_narrow_terminal(tmp_path: Path) -> None:
    env = {**os.environ, "TOKENTRACE_DATA_DIR": str(tmp_path), "COLUMNS": "40"}
    done = subprocess.run([*COMMAND, "layers"], capture_output=True, text=True, env=env, timeout=240, check=False)
    assert all(len(line) <= 40 for line in done.stdout.splitlines())
    for layer in layers.load():
        assert f"{layer.number} {layer.title}: " in done.stdout
        assert layer.question in " ".join(done.stdout.split())


@pytest.mark.parametrize("port", ["99999", "-1", "http"])
def test_a_port_that_is_none_is_refused_before_anything_starts(port: str, tmp_path: Path) -> None:
    done = tokentrace("serve", "--port", port, data=tmp_path)
    assert done.returncode == 2 and "--port" in done.stderr


def test_a_saved_report_reads_back(stored: tuple[Path, str]) -> None:
    data, name = stored
    value = orjson.loads((data / "runs" / name / runs.REPORT).read_bytes())
    assert Report.from_json(value).to_json() == value
    with pytest.raises(ValueError, match="schema"):
        Report.from_json([])  # type: ignore[arg-type]


def test_no_advice_names_a_command_that_is_not_there() -> None:
    root = Path(runs.__file__).parents[1]
    texts = [path for top in ("tokentrace", "probes") for path in (root / top).rglob("*.py")]
    for path in [*texts, root / "layers.yaml", root / "README.md"]:
        for name in re.findall(
            r"tokentrace (doctor|attach|view|diff|bench|\w+(?= --))", path.read_text(encoding="utf-8")
        ):
            assert name in COMMANDS, f"{path}: tokentrace {name}"
