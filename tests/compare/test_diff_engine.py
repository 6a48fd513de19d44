"""A slowdown put into one layer of the real engine is found, and named; two equal sides do not differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from compare_engine import LIGHT_AND_DEEP, Running
from support.slow_engine import slept_ns, slow

from tokentrace.compare import compare_samples
from tokentrace.engines.local.compiled import cxx_compiler

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def plain() -> Iterator[Running]:
    with Running() as engine:
        engine.trace()  # what only the first request pays is no part of this
        yield engine


def test_equal_sides_do_not_differ(plain: Running) -> None:
    # A test at 5 % calls one pair of equal sides in twenty different: two more must be told equal than not.
    told: list[str] = []
    while told.count("same") < len(told) / 2 + 1 and len(told) < 8:
        base, new = [], []
        for _ in range(4):
            base.append(plain.sample())
            new.append(plain.sample())
        told.append(compare_samples(base, new).verdict.status)
    assert told.count("same") > len(told) / 2, told


def test_a_sleep_in_the_tokenizer_is_the_tokenizer(plain: Running, tmp_path: Path) -> None:
    with Running(slow(tmp_path, "tokenizer")) as other:
        other.trace()
        base, new = [], []
        for _ in range(5):  # in turn, so that whatever else the machine does falls on both
            base.append(plain.sample())
            new.append(other.sample())
        single = compare_samples([plain.sample()], [other.sample()])
    found = compare_samples(base, new)
    slept = slept_ns(tmp_path)[-6:]  # one a request; the last one is that of `single`
    for one, shortest, longest in ((found, min(slept[:5]), max(slept[:5])), (single, slept[5], slept[5])):
        row = next(row for row in one.levels["layers"] if row.layer == 7)
        # The rest of the layer takes milliseconds; how many depends on what else the machine does.
        assert row.beyond_noise and 0.8 * shortest < row.difference_ns < 2 * longest
    assert found.verdict.layer == 7, found.verdict.sentence
    assert (found.verdict.level, found.verdict.key) == ("spans", "7/encode")
    assert "tokenizer (layer 7)" in found.verdict.sentence and "encode" in found.verdict.sentence
    assert found.noise_known and not single.noise_known
    assert "not known" in single.noise


def test_a_slow_module_is_named(plain: Running, tmp_path: Path) -> None:
    with Running(slow(tmp_path, "module")) as other:
        other.trace()
        base, new = [], []
        while len(base) < 5 or (len(base) < 10 and compare_samples(base, new).verdict.key != "layers.7.mlp"):
            # What else the machine does may hide it behind five a side, and so it should; not behind ten.
            base.append(plain.sample(passes=LIGHT_AND_DEEP))
            new.append(other.sample(passes=LIGHT_AND_DEEP))
    found = compare_samples(base, new)
    # Whether the whole is beyond noise as well depends on what else the machine does.
    assert found.verdict.status in ("slower", "shifted"), found.verdict.sentence
    assert (found.verdict.layer, found.verdict.level, found.verdict.key) == (5, "modules", "layers.7.mlp")
    row = next(row for row in found.levels["modules"] if row.key == "layers.7.mlp")
    assert row.beyond_noise and row.difference_ns > 10 * 35e6
    back = compare_samples(new, base)
    assert back.verdict.key == "layers.7.mlp" and not back.exceeds(0.0, None)


def test_a_smaller_batch_is_the_engine_queue(plain: Running, tmp_path: Path) -> None:
    text = "Name the colours of the rainbow, one after the other, and say for each of them what it is like. " * 4
    with Running(slow(tmp_path, "batch")) as other:
        other.trace()
        # Another first token each time, so that the prefix cache has nothing of the prompt.
        base, new = [], []
        for number in range(5):
            base.append(plain.sample(f"{number} {text}", max_tokens=3))
            new.append(other.sample(f"{number} {text}", max_tokens=3))
    found = compare_samples(base, new)
    assert found.verdict.layer == 6, found.verdict.sentence
    assert found.verdict.key == "prefill" and "instead of 1" in found.verdict.sentence
    only = [row for row in found.levels["steps"] if row.only_in == "new"]
    assert only and all(row.key.startswith("prefill/") for row in only)


@pytest.mark.skipif(cxx_compiler() is None, reason="no C++ compiler")
@pytest.mark.timeout(600)
def test_a_recompile_is_the_jit_cache(tmp_path: Path) -> None:
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    with Running(cache, compiled=True) as engine:
        new = engine.sample(max_tokens=8)
    with Running(cache, compiled=True) as engine:
        base = engine.sample(max_tokens=8)
    found = compare_samples([base], [new])
    assert found.verdict.status == "slower"
    assert found.verdict.layer == 2, found.verdict.sentence
