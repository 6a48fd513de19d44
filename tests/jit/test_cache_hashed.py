"""Caches of single files: HIP, CUDA, DeepGEMM and MIOpen. Their files are made after the sources; no GPU wrote them."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokentrace.probes._cache_entries import MAX_KEY, Bounds, Entries, hashed, miopen

#: MIOpen, kern_db.hpp.
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS `kern_db` (`id` INTEGER PRIMARY KEY ASC,`kernel_name` TEXT NOT NULL,"
    "`kernel_args` TEXT NOT NULL,`kernel_blob` BLOB NOT NULL,`kernel_hash` TEXT NOT NULL,"
    "`uncompressed_size` INT NOT NULL);"
    "CREATE UNIQUE INDEX IF NOT EXISTS `idx_kern_db` ON kern_db(kernel_name, kernel_args, kernel_hash, "
    "uncompressed_size);"
)


def keys(found: Entries) -> list[str]:
    return sorted(entry.key for entry in found.entries)


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    """What lies in the folder is the same afterwards: names, sizes, times of writing."""

    def stands() -> list[tuple[str, int, int]]:
        return sorted((str(p), p.lstat().st_size, p.lstat().st_mtime_ns) for p in folder.rglob("*"))

    before = stands()
    yield
    assert stands() == before


def store(database: Path, *kernels: tuple[str, str]) -> None:
    hashes = [hashlib.md5(name.encode(), usedforsecurity=False).hexdigest() for name, _ in kernels]
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(SCHEMA)
        connection.executemany(
            "INSERT OR REPLACE INTO kern_db(kernel_name, kernel_args, kernel_blob, kernel_hash, uncompressed_size) "
            "VALUES(?, ?, ?, ?, ?)",
            [(name, args, b"\x7fELF" * 50, told, 0) for (name, args), told in zip(kernels, hashes, strict=True)],
        )  # fmt: skip
        connection.commit()


def test_comgrs_entries_and_none_of_its_other_files(tmp_path: Path) -> None:
    for name in ("llvmcache-4f3a9c", "llvmcache-00ff", "llvmcache.timestamp", "amdgpu-compiler-1a2b3c.tmp.o"):
        (tmp_path / name).write_bytes(b"\0" * 16)
    os.utime(tmp_path / "llvmcache-00ff", ns=(10**18, 10**18))
    with untouched(tmp_path):
        found = hashed.comgr(str(tmp_path), "/c", Bounds())
    assert keys(found) == ["00ff", "4f3a9c"] and found.complete
    old = next(e for e in found.entries if e.key == "00ff")
    assert (old.path, old.written_ns, old.took_ns) == ("/c/llvmcache-00ff", 10**18, None)


def test_the_drivers_entries_and_not_its_index(tmp_path: Path) -> None:
    (tmp_path / "6/b").mkdir(parents=True)
    (tmp_path / "index").write_bytes(b"\0" * 64)
    (tmp_path / "6/b/e0943aa8a566c2").write_bytes(b"x")
    (tmp_path / "6/b/readme").write_bytes(b"x")
    (tmp_path / "notes").mkdir()
    assert keys(hashed.cuda(str(tmp_path), "/c", Bounds())) == ["6/b/e0943aa8a566c2"]


def test_deepgemms_kernels_tell_how_long_their_compiler_took(tmp_path: Path) -> None:
    for name, begin, end in (("fp8_gemm.0123456789abcdef", 10**18, 10**18 + 8 * 10**9),
                             ("copied.0123456789abcdef", 10**18, 10**18 + 10**5),
                             ("half_done.0123456789abcdef", 10**18, None)):  # fmt: skip
        folder = tmp_path / "cache" / f"kernel.{name}"
        folder.mkdir(parents=True)
        for file, time_ns in (("kernel.cu", begin), ("kernel.cubin", end)):
            if time_ns is not None:
                (folder / file).write_bytes(b"x")
                os.utime(folder / file, ns=(time_ns, time_ns))
    (tmp_path / "tmp/uuid").mkdir(parents=True)
    (tmp_path / "tmp/uuid/kernel.cubin").write_bytes(b"x")
    found = {e.key: e.took_ns for e in hashed.deep_gemm(str(tmp_path), "/d", Bounds()).entries}
    assert found == {"fp8_gemm.0123456789abcdef": 8 * 10**9, "copied.0123456789abcdef": None}


@pytest.mark.parametrize("read", [hashed.comgr, hashed.cuda, hashed.deep_gemm])
def test_no_folder_and_a_file_in_its_place_hold_nothing(tmp_path: Path, read) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "file").write_bytes(b"")
    for name in ("none", "file"):
        found = read(str(tmp_path / name), "/x", Bounds())
        assert (found.entries, found.problem) == ([], "")


def test_names_of_any_bytes_are_told_without_control_characters(tmp_path: Path) -> None:
    for name in (b"llvmcache-\x1b[31m", b"llvmcache-\xff\xfe", b"llvmcache-" + b"k" * 240):
        (Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))).write_bytes(b"")
    found = keys(hashed.comgr(str(tmp_path), "/c", Bounds()))
    assert len(found) == 3 and all(key.isprintable() and len(key) <= MAX_KEY for key in found)


def test_miopens_new_kernels_are_told_with_their_arguments(tmp_path: Path) -> None:
    database = tmp_path / "3.5.0.abc" / "gfx942_304.ukdb"
    database.parent.mkdir()
    store(database, ("conv1.o", "-DK=1"))
    before = miopen.state(str(tmp_path), Bounds())
    assert keys(miopen.since(before, str(tmp_path), "/m", Bounds())) == []
    store(database, ("conv2.o", "-DK=2"), ("conv1.o", "-DK=3"))
    with untouched(tmp_path):
        found = miopen.since(before, str(tmp_path), "/m", Bounds())
    assert keys(found) == ["conv1.o -DK=3", "conv2.o -DK=2"]
    assert {(e.path, e.written_ns) for e in found.entries} == {
        ("/m/3.5.0.abc/gfx942_304.ukdb", database.stat().st_mtime_ns)
    }
    assert found.complete and all(e.took_ns is None for e in found.entries)


def test_a_database_that_came_meanwhile_is_new_as_a_whole(tmp_path: Path) -> None:
    before = miopen.state(str(tmp_path), Bounds())
    store(tmp_path / "gfx942_304.ukdb", ("a.o", ""), ("b.o", ""))
    assert keys(miopen.since(before, str(tmp_path), "/m", Bounds())) == ["a.o", "b.o"]


def test_a_database_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    database = tmp_path / "gfx942_304.ukdb"
    store(database, ("a.o", ""))
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        # With little room for pages, SQLite writes into the file before the transaction ends, and a journal beside it.
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("BEGIN IMMEDIATE")
        for number in range(50):
            writer.execute("INSERT INTO kern_db(kernel_name, kernel_args, kernel_blob, kernel_hash, uncompressed_size) "
                           "VALUES(?, '', ?, '', 0)", (f"{number}.o", b"x" * 9000))  # fmt: skip
        assert (tmp_path / "gfx942_304.ukdb-journal").stat().st_size
        before = miopen.state(str(tmp_path), Bounds())
        writer.execute("COMMIT")
    assert not before.complete and "being written" in before.problem
    found = miopen.since(before, str(tmp_path), "/m", Bounds())
    assert keys(found) == [] and not found.complete and "being written" in found.problem


def test_a_database_of_another_kind_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "view.ukdb")) as connection:
        connection.executescript(
            "CREATE TABLE other(id, kernel_name, kernel_args);"
            "CREATE VIEW kern_db AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) "
            "SELECT id, 'a' AS kernel_name, 'b' AS kernel_args FROM n;"
        )
    (tmp_path / "text.ukdb").write_text("no database")
    (tmp_path / "empty.ukdb").write_bytes(b"")
    before = miopen.state(str(tmp_path), Bounds())
    assert before.last_row == {} and not before.complete
    found = miopen.since(before, str(tmp_path), "/m", Bounds())
    assert keys(found) == [] and ".ukdb cannot be read" in found.problem


def test_new_problems_and_new_objects(tmp_path: Path) -> None:
    text = tmp_path / "gfx942_304.HIP.3_5_0.ufdb.txt"
    text.write_text("1x3x224-F32=ConvAsm:1.2,0,algo\n")
    device = tmp_path / "3.5.0" / ("ab" * 16)
    device.mkdir(parents=True)
    (device / "old.o").write_bytes(b"")
    os.utime(device / "old.o", ns=(10**18, 10**18))
    before = miopen.state(str(tmp_path), Bounds())
    with text.open("a") as file:
        file.write("no key\n=x:y\n1x3x224-F32=ConvAsm:9.9,0,algo\n1x64x56-F16=ConvHip:0.4,0,algo;ConvAsm:1,0,a\n")
    (device / "new.o").write_bytes(b"")
    os.utime(device / "new.o", ns=(before.taken_ns, before.taken_ns))
    found = miopen.since(before, str(tmp_path), "/m", Bounds())
    assert keys(found) == ["1x64x56-F16", f"3.5.0/{'ab' * 16}/new.o"]


@given(st.binary(max_size=300))
def test_any_text_has_some_keys_or_none(data: bytes) -> None:
    assert all(isinstance(key, str) and key for key in miopen.keys_of(data))


@given(st.binary(max_size=4096), st.booleans())
def test_any_file_in_a_databases_place_is_a_problem_and_never_an_error(data: bytes, looks_like_one: bool) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x.ukdb").write_bytes(b"SQLite format 3\0" + data if looks_like_one else data)
        before = miopen.state(folder, Bounds())
        found = miopen.since(before, folder, "/m", Bounds())
        assert found.entries == [] and (not found.complete or before.last_row == {})
        assert [one.name for one in Path(folder).iterdir()] == ["x.ukdb"]


def test_flipped_bytes_of_a_real_database_are_told_or_hide_nothing(tmp_path: Path) -> None:
    database = tmp_path / "x.ukdb"
    store(database, *((f"k{number}.o", "-D") for number in range(30)))
    whole = database.read_bytes()
    nothing = miopen.State()
    told = 0
    for position in range(0, len(whole), 97):
        database.write_bytes(whole[:position] + bytes((whole[position] ^ 0xFF,)) + whole[position + 1 :])
        found = miopen.since(nothing, str(tmp_path), "/m", Bounds())
        told += not found.complete
        if found.complete:
            assert len(found.entries) == 30 and not found.problem, position
        else:
            assert not found.entries and found.problem.startswith("x.ukdb cannot be read: "), position
    assert 0 < told < len(range(0, len(whole), 97)) / 2, "most of a database is room for what is still to come"
