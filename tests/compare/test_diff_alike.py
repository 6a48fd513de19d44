"""Like is compared with like: what looked inside the model with what did too, and a pass never with itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.records import T0, request_pass

from tokentrace import runs
from tokentrace.compare import compare, sides
from tokentrace.model import IdSource
from tokentrace.report import build
from tokentrace.stitch import stitch


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A default run, the same again, and one with --once, by name."""
    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    found = {}
    for number, name in enumerate(("one", "other", "once")):
        ids = IdSource(number + 1)
        passes = [request_pass("once", ids=ids, steps=6)] if name == "once" else [
            request_pass("cold", ids=ids, deep=False, steps=6),
            request_pass("warm", ids=ids, deep=False, at=T0 + 10**9, steps=6),
            request_pass("deep", ids=ids, at=T0 + 2 * 10**9, steps=6),
        ]  # fmt: skip
        made = stitch(passes, ids=ids, meta={"prompt": "Hi"})
        found[name] = runs.save(made, made, build(made)).name
    return found


def test_a_run_with_once_meets_the_deep_pass(kept: dict[str, str]) -> None:
    for base, new in ((kept["one"], kept["once"]), (kept["once"], kept["one"])):
        found = compare([base], [new])
        told = {sample.pass_name for sample in (*found.base, *found.new)}
        assert told == {"deep", "once"} and not found.unlike
        assert any("the deep pass is compared and not the warm one" in note for note in found.notes)
        names = {row.label for row in found.levels["spans"]}
        assert "layers.0.mlp" in names or any("mlp" in name for name in names)
        assert not any(row.only_in for row in found.levels["spans"]), "other spans than on the other side"
        assert found.levels["operators"]
    plain = compare([kept["one"]], [kept["other"]])
    assert {sample.pass_name for sample in (*plain.base, *plain.new)} == {"warm"} and not plain.unlike
    assert plain.levels["spans"] and plain.levels["operators"] and not any("is compared" in n for n in plain.notes)


def test_a_chosen_pass_stays_and_unlike_spans_are_left_out_with_the_reason(kept: dict[str, str]) -> None:
    found = compare([f"{kept['one']}:warm"], [kept["once"]])
    assert [sample.pass_name for sample in (*found.base, *found.new)] == ["warm", "once"]
    assert not found.levels["spans"] and found.levels["layers"] and found.levels["steps"]
    assert found.missing["spans"] == "the warm pass saw the model from outside and the once pass looked inside"
    assert found.verdict.sentence.startswith(f"Not alike: {found.missing['spans']}, which takes time of its own.")


def test_no_pass_is_compared_with_itself(kept: dict[str, str]) -> None:
    found = compare([kept["one"]], [kept["one"]], base_pass="cold", new_pass="warm")
    assert found.levels["spans"] and not found.unlike
    of_one = compare([kept["one"]], [kept["one"]], base_pass="warm", new_pass="deep")
    for level in ("modules", "operators"):
        assert not of_one.levels[level]
        assert of_one.missing[level] == "both sides have only the deep pass of one run"
    of_two = compare([f"{kept['one']}:warm"], [f"{kept['other']}:deep"])
    assert of_two.levels["modules"] and of_two.levels["operators"] and not of_two.levels["spans"]


def test_passes_of_one_run_are_read_once_however_large_it_is(
    kept: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [kept["one"], kept["other"]]
    plain = compare(names, names, base_pass="cold", new_pass="warm").to_json()
    read: list[Path] = []
    reading = sides._read
    monkeypatch.setattr(sides, "_KEPT_SPANS", 0)
    monkeypatch.setattr(sides, "_read", lambda path: (read.append(path), reading(path))[1])
    assert compare(names, names, base_pass="cold", new_pass="warm").to_json() == plain
    assert [path.parent.name for path in read] == names
    assert compare([kept["one"]], [kept["once"]]).base[0].pass_name == "deep", "read again, as it was let go"


def test_programs_of_several_calls_meet_by_the_name_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENTRACE_DATA_DIR", str(tmp_path))
    names = []
    for number, longest in enumerate(("plan", "answer")):
        ids = IdSource(number + 1)
        calls = [
            request_pass(call, ids=ids, deep=False, at=T0 + at * 10**9, decode_ms=30 if call == longest else 3, steps=6)
            for at, call in enumerate(("plan", "answer"))
        ]
        made = stitch(calls, ids=ids, window=(T0, T0 + (number + 2) * 10**9), meta={"headline": longest})
        names.append(runs.save(made, made, build(made)).name)
    found = compare(names[:1], names[1:])
    assert [sample.pass_name for sample in (*found.base, *found.new)] == ["plan", "plan"]
    (note,) = (note for note in found.notes if "program" in note)
    assert "plan" in note and "2.00 s in the base and 3.00 s on the new side" in note
    chosen = compare(names[:1], names[1:], base_pass="answer", new_pass="answer")
    assert [sample.pass_name for sample in (*chosen.base, *chosen.new)] == ["answer", "answer"]
