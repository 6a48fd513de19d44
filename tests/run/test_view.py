"""`tokentrace view`: which spans it shows, where the page goes, and what it refuses."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import orjson
import pytest
from support.records import request_pass

from tokentrace import emit, runs
from tokentrace.errors import UsageError
from tokentrace.fold import fold
from tokentrace.model import IdSource, Trace
from tokentrace.report import build
from tokentrace.stitch import stitch

COMMAND = [sys.executable, "-c", "from tokentrace.cli import main; main()"]


def view(*arguments: str, data: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    env.update(TOKENTRACE_DATA_DIR=str(data), **environment)
    done = subprocess.run(
        [*COMMAND, "view", *arguments], capture_output=True, text=True, env=env, timeout=240, check=False
    )
    assert "Traceback" not in done.stderr + done.stdout
    return done


def story(path: Path) -> dict[str, Any]:
    text = re.search(rb'id="data">(.*?)</script>', path.read_bytes(), re.DOTALL)
    assert text is not None
    block = zlib.decompress(base64.b64decode(text[1]))
    found: dict[str, Any] = orjson.loads(block[4 : 4 + int.from_bytes(block[:4], "little")])
    return found


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str, Trace]:
    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    ids = IdSource(3)
    trace = stitch([request_pass("once", ids=ids)], ids=ids, meta={"prompt": "Hi"})
    report = build(trace)
    report.spans["recorded"] = len(trace)
    run = runs.save(trace, fold(trace, 40), report)
    return tmp_path, run.name, trace


def test_the_newest_run_is_shown_whole_beside_it(stored: tuple[Path, str, Trace]) -> None:
    data, name, trace = stored
    done = view(data=data)
    page = data / "runs" / name / "report.html"
    assert done.returncode == 0 and done.stdout.startswith(f"{page} ({len(trace)} spans")
    found = story(page)
    assert found["count"] == len(trace)
    saved = orjson.loads((data / "runs" / name / runs.REPORT).read_bytes())
    assert found["story"]["report"] == saved


def test_folded_and_out_and_json(stored: tuple[Path, str, Trace], tmp_path: Path) -> None:
    data, name, trace = stored
    out = tmp_path / "a b.html"
    told = orjson.loads(view(name[-8:], "--folded", "-o", str(out), "--json", data=data).stdout)
    assert told["schema"] == "tokentrace.view/1" and told["file"] == str(out)
    assert told["bytes"] == out.stat().st_size
    assert (told["spans"], told["recorded"]) == (40, len(trace))
    found = story(out)
    assert found["count"] == 40
    assert found["story"]["passes"][0]["folded"] is True
    assert all(frame["own"] is None for frame in found["story"]["passes"][0]["frames"])


def test_a_file_of_lines_and_export_and_quiet(stored: tuple[Path, str, Trace], tmp_path: Path) -> None:
    data, name, trace = stored
    emit.save(trace, tmp_path / "own.jsonl.gz")
    done = view(str(tmp_path / "own.jsonl.gz"), "-q", data=data)
    assert (done.returncode, done.stdout) == (0, "")
    assert story(tmp_path / "own.html")["count"] == len(trace)
    exported = subprocess.run([*COMMAND, "export", name, "--to", "html", "-o", str(tmp_path / "e.html")], timeout=240,
                              env={**os.environ, "TOKENTRACE_DATA_DIR": str(data)}, check=False)  # fmt: skip
    assert exported.returncode == 0
    assert story(tmp_path / "e.html")["story"]["report"]["reply"] == "Hello! How"


def test_the_browser_is_opened_only_where_there_is_a_screen(stored: tuple[Path, str, Trace], tmp_path: Path) -> None:
    data, name, _ = stored
    program = tmp_path / "show"
    program.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/asked\n')
    program.chmod(0o755)
    browser = f"{program} %s"
    assert view(data=data, BROWSER=browser).returncode == 0
    assert view("--no-open", data=data, BROWSER=browser, DISPLAY=":9").returncode == 0
    assert not (tmp_path / "asked").exists()
    assert ", opened)" in view(data=data, BROWSER=browser, DISPLAY=":9").stdout
    assert (tmp_path / "asked").read_text().strip() == (data / "runs" / name / "report.html").as_uri()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "no run is called"),
        (["there/is/nothing"], "there is no run at there/is/nothing"),
        (["-o", "x.json"], "no name for a page"),
        (["-o", "/nowhere/x.html"], "there is no folder"),
    ],
)
def test_what_cannot_be_is_one_sentence(stored: tuple[Path, str, Trace], arguments: list[str], words: str) -> None:
    done = view(*arguments, data=stored[0])
    assert done.returncode == 2 and words in done.stderr and "fix:" in done.stderr


def test_without_any_run_it_says_how_to_make_one(tmp_path: Path) -> None:
    done = view(data=tmp_path)
    assert done.returncode == 2 and 'tokentrace run "Hi"' in done.stderr


def test_a_recording_is_shown_with_its_findings(tmp_path: Path) -> None:
    folder = os.environ.get("TOKENTRACE_RECORDINGS")
    if not folder:
        pytest.skip("TOKENTRACE_RECORDINGS is not set")
    source = Path(folder) / "tracelens" / "h100_hf_bert-small_forward.json.gz"
    out = tmp_path / "gpu.html"
    done = view(str(source), "-o", str(out), data=tmp_path)
    assert done.returncode == 0, done.stderr
    found = story(out)
    assert found["links"], "kernels link to their launches"
    assert any("GPU was busy" in finding["sentence"] for finding in found["story"]["report"]["findings"])
    assert found["story"]["report"]["layers"][0]["status"] == "unseen"


def test_a_run_is_found_by_any_part_of_its_name_and_by_the_folder_it_was_put_in(
    stored: tuple[Path, str, Trace], tmp_path: Path
) -> None:
    _, name, trace = stored
    wanted = tmp_path / "runs" / name / runs.TRACE
    for part in (name, name[:9], name[-6:], name[4:13]):
        assert runs.find(part) == wanted
    assert runs.find(str(tmp_path / "runs")) == wanted
    second = runs.save(trace, trace, build(trace), tmp_path / "out")
    assert runs.find(str(tmp_path / "out")) == second / runs.TRACE
    (tmp_path / "out" / "another").mkdir()
    (tmp_path / "out" / "another" / runs.TRACE).write_bytes((second / runs.TRACE).read_bytes())
    with pytest.raises(UsageError) as refused:
        runs.find(str(tmp_path / "out"))
    assert "2 runs" in str(refused.value) and "another" in refused.value.fix
