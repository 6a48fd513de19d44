"""The words of the tables: each one is explained beneath them, on the terminal and on the page, and none misleads."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from test_diff_even import stretched, wavy
from test_diff_structure import MS, sample, trace

from tokentrace.analyze import analyze
from tokentrace.compare import Diff, compare_samples
from tokentrace.compare.legend import lines
from tokentrace.compare.page import write_diff
from tokentrace.compare.sample import of_pass
from tokentrace.compare.terminal import print_diff
from tokentrace.emit.terminal import make_console


def shown(found: Diff, width: int = 200) -> str:
    out = io.StringIO()
    print_diff(found, make_console(out, width=width), unicode=True, every=True)
    return out.getvalue()


def test_what_all_parts_have_in_common_is_told_with_its_share() -> None:
    found = compare_samples([stretched(trace(), wavy(1, 1.0))], [stretched(trace(), wavy(2, 3.0))])
    request = next(line for line in shown(found).splitlines() if line.startswith("the request"))
    assert request.endswith("like all")
    (told,) = (line for line in lines(found) if line.startswith("noise column"))
    assert f"like all: all parts changed alike ({found.even.main:+.0%}".replace("%", " %") in told
    assert "unsure" not in told and "confidence" not in told


def test_an_interval_that_leaves_out_nothing_is_not_called_within() -> None:
    base = [sample(encode=e * MS, seed=n) for n, e in enumerate((40, 60, 20), 1)]
    new = [sample(encode=e * MS, seed=n) for n, e in enumerate((200, 80, 81), 1)]
    found = compare_samples(base, new)
    assert found.wall.low_ns is not None and found.wall.low_ns > 0 and not found.wall.beyond_noise
    text = shown(found)
    assert "unsure: " in text and "within" not in text
    told = lines(found)[0]
    assert "even where A…B leaves out 0" in told and "90 % confidence" in told and "within" not in told
    plain = compare_samples(base, [sample(encode=e * MS, seed=n) for n, e in enumerate((41, 30, 55), 1)])
    assert not plain.wall.beyond_noise and "leaves out 0" not in lines(plain)[0]


def test_operators_outside_of_any_module_are_told_as_that() -> None:
    sides = []
    for length in (5_000, 4_000):
        made = trace()
        for row in [row for row in range(len(made)) if made.names[made.name[row]] == "step"]:
            start = made.start_ns[row]
            made.add("aten::item", 4, start, start + length, row, direction="down")
        sides.append(of_pass(made, analyze(made), "once", "x"))
    found = compare_samples(sides[:1], sides[1:])
    labels = {row.key: row.label for row in found.levels["modules"]}
    outside = [label for label in labels.values() if label.endswith("(no module)")]
    assert set(outside) == {
        "decode step (no module)",
        "prefill step (no module)",
    }
    assert labels["layers.1.mlp"] == "layers.1.mlp"
    assert any("(no module)" in line and "without the modules inside" in line for line in lines(found))


def test_the_page_s_heading_is_the_finding_however_its_parts_are_called(tmp_path: Path) -> None:
    """The name of a part may look like the end of a sentence."""
    sides = []
    for seed, level, encode in ((1, 1.0, 200_000), (2, 3.0, 2 * MS)):
        made = trace(encode=encode)
        made.names[made.names.index("encode")] = "read cfg. json"
        sides.append(stretched(made, wavy(seed, level)))
    found = compare_samples(sides[:1], sides[1:])
    assert found.verdict.status == "shifted" and "`read cfg. json` took" in found.verdict.headline
    write_diff(found, tmp_path / "x.html")
    heading, after = re.findall(r"<h1>(.*?)</h1><p>(.*?)</p>", (tmp_path / "x.html").read_text())[0]
    assert "`read cfg. json` took" in heading and heading.endswith("beyond noise.")
    assert after.startswith("As a whole the new side took") and f"{heading} {after}" == found.verdict.sentence
    assert found.to_json()["verdict"]["sentence"] == f"{found.verdict.headline} {found.verdict.more}"


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_words_stand_beneath_the_tables_and_on_the_page(width: int, tmp_path: Path) -> None:
    found = compare_samples([sample(jitter=500)], [sample(encode=20 * MS, jitter=500)])
    text = " ".join(shown(found, width).split())
    page = tmp_path / "x.html"
    write_diff(found, page)
    written = page.read_text()
    for line in lines(found):
        assert line in text
        assert line[1:].split("; ")[0] in written
