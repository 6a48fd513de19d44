"""A layers.yaml that somebody changed is read as it is, or refused with file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tokentrace.errors import LayerError
from tokentrace.layers import BUILTIN, load

TEXT = BUILTIN.read_bytes()


def refusal(folder: Path, data: bytes) -> str:
    file = folder / "layers.yaml"
    file.write_bytes(data)
    load.cache_clear()
    with pytest.raises(LayerError) as caught:
        load(file)
    assert caught.value.fix and "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(file))


def line_of(text: bytes, start: bytes) -> int:
    return text[: text.index(start)].count(b"\n") + 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"number: 7", b"number: 8", "key 'number' is 8 where 7 is expected"),
        (b"number: 7", b"number: seven", "key 'number' has the wrong type str"),
        (b"cost: light", b"cost: some", "key 'cost' must be light or deep"),
        (b"cost: light", b"costs: light", "key 'cost' is missing"),
    ],
)
def test_a_wrong_entry_is_named_with_its_line_and_key(old: bytes, new: bytes, said: str, tmp_path: Path) -> None:
    assert old in TEXT
    changed = TEXT.replace(old, new, 1)
    told = refusal(tmp_path, changed)
    entries = [n for n, line in enumerate(changed.splitlines(), 1) if line.startswith(b"  - ")]
    before = [n for n in entries if n <= line_of(TEXT, old)]
    assert told.startswith(f":{before[-1]}: ") and said in told


def test_what_is_no_text_a_layer_less_or_no_list_is_one_sentence(tmp_path: Path) -> None:
    at = TEXT.index(b"number: 7")
    assert refusal(tmp_path, TEXT[:at] + b"\xff" + TEXT[at:]) == f":{line_of(TEXT, b'number: 7')}: not UTF-8 text"
    root = yaml.safe_load(TEXT)
    root["layers"].pop()
    assert "7 layers, expected 8" in refusal(tmp_path, yaml.safe_dump(root).encode())
    assert "layers" in refusal(tmp_path, b"") and "layers" in refusal(tmp_path, b"schema: 1\n")
    with pytest.raises(LayerError, match="cannot be read"):
        load(tmp_path / "nowhere.yaml")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(TEXT) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_any_slip_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, slips: list[tuple[int, int]]) -> None:
    data = bytearray(TEXT)
    for place, value in slips:
        data[place] = value
    file = tmp_path_factory.getbasetemp() / "slips.yaml"
    file.write_bytes(bytes(data))
    load.cache_clear()
    try:
        assert [layer.number for layer in load(file)] == list(range(8, 0, -1))
    except LayerError as error:
        assert str(error).startswith(str(file)) and error.fix
