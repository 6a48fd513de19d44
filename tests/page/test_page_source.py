"""The page's own source and its data format, without a browser."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.records import three_passes
from support.traces import run_trace

from tokentrace import emit
from tokentrace.emit import html
from tokentrace.emit.html import _bundle, _pack
from tokentrace.errors import UsageError

ASSETS = Path(str(resources.files("tokentrace.emit.html"))) / "assets"
SOURCES = sorted(ASSETS.rglob("*.js"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_a_module_writes_no_markup_runs_no_text_and_calls_nobody(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "fetch(",
                 "XMLHttpRequest", "WebSocket", "import(", "</script", "<!--"):  # fmt: skip
        assert word not in text, word
    assert set(re.findall(r"https?://[^\s\"]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert text.startswith("/*"), "a module says first what it is for"
    assert len(text.splitlines()) < 400


def test_every_module_is_in_the_page_once_and_after_what_it_needs() -> None:
    script = _bundle.script()
    for path in SOURCES:
        assert script.count(f"\n// {path.stem}.js\n") == 1, path.stem
    defined: set[str] = set()
    for line in script.splitlines():
        if match := re.match(r"const (module_\w+) = \(\(\) => \{", line):
            defined.add(match[1])
        elif match := re.match(r"const \{[^}]*\} = (module_\w+);", line):
            assert match[1] in defined


def test_the_policy_allows_exactly_what_stands_in_the_page() -> None:
    page = html.render(three_passes()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None and policy[1].startswith("default-src 'none'; ")
    for tag, source in (("style", "style-src"), ('script type="module"', "script-src")):
        name = tag.split()[0]
        inside = re.search(rf"<{tag}>(.*?)</{name}>", page, re.DOTALL)
        assert inside is not None
        digest = base64.b64encode(hashlib.sha256(inside[1].encode()).digest()).decode()
        assert f"{source} 'sha256-{digest}'" in policy[1]
    assert not re.search(r"\sstyle=|\son\w+=", page.split("<script")[0]), "inline styles and handlers are not allowed"


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_numbers_are_leb128(values: list[int]) -> None:
    def one(value: int) -> bytes:
        out = bytearray()
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        return bytes(out) + bytes([value])

    assert _pack.leb128(np.array(values, np.uint64)) == b"".join(map(one, values))


def header(page: bytes) -> dict[str, Any]:
    text = re.search(rb'id="data">(.*?)</script>', page, re.DOTALL)
    assert text is not None
    block = zlib.decompress(base64.b64decode(text[1]))
    found: dict[str, Any] = orjson.loads(block[4 : 4 + int.from_bytes(block[:4], "little")])
    return found


def test_the_data_holds_the_report_and_every_pass() -> None:
    from tokentrace.report import build

    trace = three_passes()
    found = header(html.render(trace))
    assert found["count"] == len(trace)
    assert found["story"]["report"] == build(trace).to_json()
    assert [one["name"] for one in found["story"]["passes"]] == ["cold", "warm", "deep"]
    assert [len(one["frames"]) for one in found["story"]["passes"]] == [3, 3, 3]
    assert trace.names[trace.name[found["story"]["slowest"]["row"]]] == "step"


def test_watts_are_drawn_from_where_the_sensors_left_them() -> None:
    trace = run_trace(60)
    series = header(html.render(trace))["story"]["power"]
    assert [[watts for _, watts in one["points"]] for one in series] == [[10.0, 11.0, 12.0]]
    watts = {"tokentrace.power.samples_w": [70.5, 300.0], "tokentrace.power.samples_ms": [0.0, 1.5]}
    row = trace.add("power nvml", 1, trace.start_ns[0], trace.end_ns[0], 0, {"hw.name": "H100", **watts})
    listed = header(html.render(trace))["story"]["power"][-1]
    assert (listed["row"], listed["device"], listed["points"]) == (row, "H100", [[0, 70.5], [1_500_000, 300.0]])


def test_a_very_long_prompt_is_cut_and_says_so() -> None:
    trace = three_passes()
    trace.meta["prompt"] = "x" * 3_000_000
    trace.set_attributes(0, {"tokentrace.prompt": "x" * 10})
    page = html.render(trace)
    assert "3,000,000 characters in all" in header(page)["story"]["report"]["prompt"]
    assert len(page) < 400_000


def test_save_writes_a_page_by_its_suffix_and_load_refuses_it(tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    emit.save(three_passes(), path)
    assert path.read_bytes().startswith(b"<!doctype html>")
    with pytest.raises(UsageError, match="written for a browser"):
        emit.load(path)
