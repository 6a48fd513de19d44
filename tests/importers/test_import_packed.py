"""Packed files: cut, damaged, packed twice, bombs."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from unittest import mock

import recordings
from recordings import TINY, refused, written

from tokentrace.importers import _source, load


def test_a_cut_gzip_stream_gives_the_events_up_to_the_cut(tmp_path: Path) -> None:
    whole = load(recordings.SMALL / "mi250_minitoy_train_small.json.gz")
    packed = (recordings.SMALL / "mi250_minitoy_train_small.json.gz").read_bytes()
    found = load(written(tmp_path / "cut.json.gz", packed[:-40]))
    assert 0 < found.source["events"] <= whole.source["events"]
    assert "gzip stream is cut" in found.lost["reason"]
    half = load(written(tmp_path / "half.json.gz", packed[: len(packed) // 2]))
    assert 0 < half.source["events"] < whole.source["events"] and half.lost["events"] == 1
    recordings.check_tree(half.trace)


def test_damage_in_the_middle_of_a_gzip_stream(tmp_path: Path) -> None:
    packed = bytearray(
        (recordings.SMALL / "v100_dlrm_8rank_worker0_step_12.1694128201545.pt.trace.json.gz").read_bytes()
    )
    middle = len(packed) // 2
    packed[middle : middle + 64] = bytes(64)
    found = load(written(tmp_path / "hole.json.gz", bytes(packed)))
    assert 500 < found.source["events"] < 3290 and found.lost["reason"]


def test_gzip_in_gzip_and_many_members(tmp_path: Path) -> None:
    plain = gzip.decompress(TINY.read_bytes())
    truth = load(TINY).figures
    assert load(written(tmp_path / "twice.json.gz", gzip.compress(gzip.compress(plain)))).figures == truth
    third = len(plain) // 3
    members = b"".join(gzip.compress(part) for part in (plain[:third], plain[third : 2 * third], plain[2 * third :]))
    assert load(written(tmp_path / "members.json.gz", members)).figures == truth
    deep = plain
    for _ in range(5):
        deep = gzip.compress(deep)
    assert "gzip inside gzip" in refused(written(tmp_path / "deep.json.gz", deep))


def test_a_bomb_of_nothing_ends_early(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=9) as file:
        file.write(b'{"a": "')
        for _ in range(200):
            file.write(b"\0" * (1 << 20))
    assert refused(written(tmp_path / "bomb.json.gz", buffer.getvalue()))


def test_a_bomb_of_events_is_refused(tmp_path: Path) -> None:
    event = b'{"ph":"X","cat":"kernel","name":"' + b"k" * 500 + b'","pid":0,"tid":0,"ts":1,"dur":1},'
    packed = gzip.compress(b"[" + event * 30_000)
    with mock.patch.object(_source, "_BOMB_BYTES", 1 << 20):
        assert "more than 150 times" in refused(written(tmp_path / "bomb.json.gz", packed))
