"""What is compared with what: by step and place in the tree, not by name alone; and what is told of it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pytest

from tokentrace.analyze import analyze
from tokentrace.analyze.tree import same_name
from tokentrace.carried import carry, restore
from tokentrace.compare import compare_samples
from tokentrace.compare.sample import NOBODY, Sample, of_pass
from tokentrace.compare.spanless import of_report
from tokentrace.compare.terminal import between, print_diff
from tokentrace.emit.terminal import make_console
from tokentrace.errors import UsageError
from tokentrace.exchange import Pace
from tokentrace.fold import fold
from tokentrace.model import IdSource, Trace
from tokentrace.report import build
from tokentrace.wording import duration

T0 = 1_790_000_000_000_000_000
MS = 1_000_000
LAYERS = ("layers.0.self_attn", "layers.0.mlp", "layers.1.self_attn", "layers.1.mlp")


def trace(
    *,
    encode: int = 200_000,
    steps: Sequence[tuple[str, int]] = (("prefill", 8), *[("decode", 1)] * 6),
    modules: Sequence[str] = LAYERS,
    slow: dict[str, int] | None = None,
    operators: Sequence[str] = ("aten::mm", "aten::add", "aten::mm"),
    request: str = "chatcmpl-0001",
    seed: int = 1,
    jitter: int = 0,
) -> Trace:
    """One pass of one request; each operator takes 0.1 ms, `slow` adds to a module or to an operator in each step."""
    slow = slow or {}
    made = Trace(ids=IdSource(seed))
    root = made.add("tokentrace run", 0, T0, T0, -1, envelope=True)
    top = made.add("pass once", 0, T0, T0, root, envelope=True)
    chat = made.add("chat m", 8, T0, T0, top, envelope=True)
    now = T0 + 100_000
    made.add("encode", 7, now, now + encode, chat, direction="down")
    now += encode
    held = made.add(f"request {request}", 6, now, now, chat, envelope=True)
    for number, (phase, tokens) in enumerate(steps):
        begin = now
        told = {"tokentrace.step.index": seed * 100 + number, "tokentrace.step.phase": phase,
                "tokentrace.step.request_tokens": tokens}  # fmt: skip
        step = made.add("step", 6, begin, begin, held, told)
        now += 10_000 + jitter * ((number * 7 + seed * 3) % 5)
        forward = made.add("forward", 5, now, now, step, direction="down")
        for name in modules:
            module = made.add(name, 5, now, now, forward, direction="down")
            now += 20_000 + slow.get(name, 0)
            for place, operator in enumerate(operators):
                length = 100_000 + slow.get(f"{name}/{operator}/{place}", 0)
                made.add(operator, 4, now, now + length, module, direction="down")
                now += length
            made.end_ns[module] = now
        made.end_ns[forward] = now
        made.end_ns[step] = now
    for row in (held, chat, top, root):
        made.end_ns[row] = now + 50_000
    return made


def sample(label: str = "x", **given: Any) -> Sample:
    one = trace(**given)
    return of_pass(one, analyze(one), "once", label)


def rows(found: Any, level: str) -> dict[str, Any]:
    return {row.key: row for row in found.levels[level]}


def test_rows_of_layers_add_up_to_the_difference_of_the_wall_time() -> None:
    found = compare_samples([sample()], [sample(encode=5 * MS, slow={"layers.1.mlp": 50_000})])
    assert sum(row.difference_ns for row in found.levels["layers"]) == found.wall.difference_ns
    assert sum(row.difference_ns for row in found.levels["modules"]) == 7 * 50_000


def test_ids_of_requests_and_numbers_of_steps_do_not_matter() -> None:
    found = compare_samples([sample()], [sample(request="chatcmpl-4f2a", seed=2)])
    assert found.wall.difference_ns == 0 and found.verdict.status == "same"
    assert all(not row.only_in and row.difference_ns == 0 for level in found.levels.values() for row in level)
    assert same_name("request 0b5cbb7e-3c4e-4a0a-9e3f-8e1f0c0f9a11") == same_name(
        "request 1f5cbb7e-3c4e-4a0a-9e3f-8e1f0c0f9a12"
    )
    assert same_name("layers.12.mlp") != same_name("layers.13.mlp") and same_name("add") == "add"


def test_a_module_that_came_in_between_shifts_nothing() -> None:
    more = (LAYERS[0], "layers.0.adapter", *LAYERS[1:])
    found = compare_samples([sample()], [sample(modules=more)])
    by_module = rows(found, "modules")
    assert by_module["layers.0.adapter"].only_in == "new"
    assert by_module["layers.0.adapter"].difference_ns == 7 * 320_000
    assert all(row.difference_ns == 0 for key, row in by_module.items() if key != "layers.0.adapter")
    gone = rows(compare_samples([sample(modules=more)], [sample()]), "modules")["layers.0.adapter"]
    assert gone.only_in == "base" and gone.new_ns is None and gone.difference_ns == -7 * 320_000


def test_a_module_in_the_same_place_under_another_name_is_the_same_module() -> None:
    renamed = (LAYERS[0], "layers.0.moe", LAYERS[2], "layers.1.moe")
    found = compare_samples([sample()], [sample(modules=renamed, slow={"layers.1.moe": 30_000})])
    by_module = rows(found, "modules")
    assert by_module["layers.1.mlp → layers.1.moe"].difference_ns == 7 * 30_000
    assert by_module["layers.0.mlp → layers.0.moe"].difference_ns == 0
    assert not any(row.only_in for row in by_module.values())


def test_operators_of_one_name_are_told_apart_by_their_place() -> None:
    # An operator more at the front: the others are still compared with themselves.
    base = sample(operators=("aten::mm", "aten::add", "aten::mm"))
    new = sample(operators=("aten::copy_", "aten::mm", "aten::add", "aten::mm"))
    by_operator = rows(compare_samples([base], [new]), "operators")
    assert by_operator["aten::copy_"].only_in == "new"
    assert by_operator["aten::mm"].difference_ns == 0 and by_operator["aten::add"].difference_ns == 0


def test_the_verdict_names_layer_and_largest_part() -> None:
    told = compare_samples([sample(jitter=900)], [sample(encode=9 * MS, jitter=900)]).verdict
    assert (told.status, told.layer, told.level, told.key) == ("slower", 7, "spans", "7/encode")
    assert "8.80 ms" in told.sentence and "tokenizer (layer 7)" in told.sentence
    slow = {"layers.1.mlp": 900_000}
    told = compare_samples([sample(jitter=900)], [sample(slow=slow, jitter=900)]).verdict
    assert (told.status, told.layer, told.key) == ("slower", 5, "layers.1.mlp")
    back = compare_samples([sample(slow=slow, jitter=900)], [sample(jitter=900)])
    assert back.verdict.status == "faster" and not back.exceeds(0.0, None)


def test_steps_align_by_phase_and_number() -> None:
    # Two prefill steps instead of one: decode step 0 is still compared with decode step 0.
    split = (("prefill", 4), ("prefill", 4), *[("decode", 1)] * 6)
    found = compare_samples([sample(jitter=500)], [sample(steps=split, jitter=500)])
    by_step = rows(found, "steps")
    assert [key for key, row in by_step.items() if row.only_in == "new"] == ["prefill/1"]
    assert abs(by_step["decode/0"].difference_ns) < 5_000
    assert (found.verdict.layer, found.verdict.key) == (6, "prefill")
    assert "8 prefill tokens in 2 steps instead of 1" in found.verdict.sentence


def test_a_longer_reply_is_told_as_steps_that_only_one_side_has() -> None:
    longer = (("prefill", 8), *[("decode", 1)] * 9)
    found = compare_samples([sample(jitter=500)], [sample(steps=longer, jitter=500)])
    assert found.verdict.level == "steps" and "3 steps that only the new side has" in found.verdict.sentence


def test_a_much_longer_run_is_slower_whatever_it_drifts() -> None:
    base = sample(jitter=500)
    new = sample(steps=(("prefill", 8), *[("decode", 1)] * 300), jitter=500)
    base.tokens, new.tokens = {"input": 8, "output": 7}, {"input": 8, "output": 301}
    base.pace, new.pace = Pace(6 * MS, 6, True), Pace(900 * MS, 300, True)
    new.drifts = [0.6]  # the long run's own passes differ by much
    found = compare_samples([base], [new])
    assert found.verdict.status == "slower" and found.exceeds(0.1, None)
    assert found.verdict.sentence.startswith("Not alike: 7 against 301 output tokens.")
    assert found.to_json()["unlike"] == ["7 against 301 output tokens"]
    assert found.per_token is not None
    assert (found.per_token.base_ns, found.per_token.new_ns) == (MS, 3 * MS)
    # The same drift of a run of the same length is noise as before.
    assert found.wall.floor_ns is not None and found.wall.floor_ns < base.wall_ns
    alike = sample(encode=2 * MS, jitter=500)
    alike.drifts = [0.3]
    assert compare_samples([base], [alike]).wall.beyond_noise is False


def test_one_wild_step_cannot_hide_itself() -> None:
    new = sample(jitter=500)
    new.steps[3].wall_ns += 500 * MS
    new.wall_ns += 500 * MS
    assert compare_samples([sample(jitter=500)], [new]).verdict.status == "slower"


def test_a_side_that_is_not_whole_gives_no_verdict() -> None:
    cut = sample()
    cut.lost = "x is not whole: the file is cut"
    for sides in (([cut], [sample()]), ([sample()], [cut]), ([sample()] * 4, [cut] * 4)):
        found = compare_samples(*sides)
        assert found.verdict.status == "unknown" and "the file is cut" in found.verdict.sentence
        assert found.undecided(0.1, None) and not found.exceeds(0.0, None) and not found.undecided(None, None)
        assert found.to_json()["lost"] == [cut.lost]


def test_several_runs_of_the_same_are_no_difference() -> None:
    base = [sample(jitter=700, seed=n) for n in (1, 2, 3)]
    new = [sample(jitter=700, seed=n) for n in (2, 3, 4)]
    found = compare_samples(base, new)
    assert found.verdict.status == "same" and found.noise_known
    assert not found.exceeds(0.0, None)
    assert found.wall.confidence == pytest.approx(0.9)


def test_runs_that_lie_apart_but_cannot_be_told_from_noise_say_what_would_help() -> None:
    base = [sample(encode=e * MS, seed=n) for n, e in enumerate((40, 60, 20), 1)]
    new = [sample(encode=e * MS, seed=n) for n, e in enumerate((200, 80, 81), 1)]
    found = compare_samples(base, new)
    assert found.verdict.status == "same" and found.wall.low_ns is not None and found.wall.low_ns > 0
    assert "give more a side" in found.verdict.sentence
    alike = compare_samples(base, [sample(encode=e * MS, seed=n) for n, e in enumerate((50, 30, 55), 1)])
    assert alike.verdict.status == "same" and "give more" not in alike.verdict.sentence


def test_a_first_token_that_came_sooner_is_told_where_the_whole_is_the_same() -> None:
    base, new = ([sample(seed=n, jitter=700) for n in range(1, 6)] for _ in range(2))
    for number, (one, other) in enumerate(zip(base, new, strict=True)):
        one.ttft_ns, other.ttft_ns = 5 * MS + 1000 * number, 2 * MS + 1000 * number
    assert "The first token came 3.00 ms (60 %) sooner" in compare_samples(base, new).verdict.sentence
    assert "(150 %) later" in compare_samples(new, base).verdict.sentence
    assert "first token" not in compare_samples(base, base).verdict.sentence


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("many", [1, 4])
def test_a_server_seen_from_outside_has_not_lost_its_layers(many: int, swapped: bool) -> None:
    """What a side did not see is not known there: it is neither nothing nor a time of no layer."""

    def outside(seed: int) -> Sample:
        made = Trace(ids=IdSource(seed))
        root = made.add("tokentrace run", 0, T0, T0 + 20 * MS, -1, envelope=True)
        top = made.add("pass once", 0, T0, T0 + 20 * MS, root, envelope=True)
        chat = made.add("chat m", 8, T0, T0 + 20 * MS, top, envelope=True)
        made.add("send", 8, T0, T0 + 100_000, chat, direction="down")
        return of_pass(made, analyze(made), "once", "outside")

    sides = [[sample(seed=n, jitter=700) for n in range(1, many + 1)], [outside(n) for n in range(1, many + 1)]]
    found = compare_samples(*(sides[::-1] if swapped else sides))
    layers = rows(found, "layers")
    assert set(layers) <= {"8", "server"} and not layers["server"].only_in
    assert sum(row.difference_ns for row in layers.values()) == pytest.approx(found.wall.difference_ns, rel=0.01)
    assert "no layer" not in found.verdict.sentence and "-100" not in found.verdict.sentence
    assert not found.levels["steps"] and "outside" in found.missing["steps"]
    assert all(row.layer == 8 for row in found.levels["spans"])


def test_a_fold_is_not_mistaken_for_the_whole() -> None:
    whole = trace()
    folded = fold(whole, 60)
    small = of_pass(folded, analyze(folded), "once", "x")
    found = compare_samples([small], [sample()])
    assert not any(found.levels[level] for level in ("layers", "spans", "modules", "operators"))
    assert all("folded" in found.missing[level] for level in ("layers", "spans", "modules", "operators"))
    assert found.verdict.status == "same" and found.levels["steps"]


def test_a_fold_that_carries_its_report_has_the_layers_of_the_whole() -> None:
    whole = trace()
    folded = fold(whole, 60)
    carry(folded, build(whole))
    found = compare_samples([of_pass(folded, analyze(folded), "once", "x")], [sample()])
    layers = rows(found, "layers")
    assert {"4", "5", "6", "7", "nobody"} <= set(layers)
    assert all(row.difference_ns == 0 for row in layers.values())
    assert not found.unlike and "folded" in found.missing["modules"] and not found.levels["modules"]


def test_a_place_that_no_layer_has_is_left_out_of_a_report() -> None:
    """A file may say anything."""
    whole = trace()
    folded, report = fold(whole, 60), build(whole)
    known = dict(report.passes["once"].own_ns)
    report.passes["once"].own_ns = {**known, "x": 3, "": 4}
    carry(folded, report)
    found = analyze(folded)
    restore(folded, found)
    assert sum(found.passes["once"].own.values()) == sum(known.values())
    layers = of_report(report, "x").levels["layers"]
    assert sum(one.total for layer, one in layers.items() if layer != NOBODY) == sum(known.values())


def test_a_recording_is_not_compared_with_a_request() -> None:
    other = Sample("k", "import", "import", 5)
    with pytest.raises(UsageError, match="recording"):
        compare_samples([sample()], [other])


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_figure_is_cut(width: int) -> None:
    slow = dict.fromkeys(LAYERS, 123 * MS)
    base = [sample(jitter=700 * n, seed=n, encode=n * 91 * MS) for n in (1, 2, 3)]
    new = [sample(jitter=700 * n, seed=n, slow=slow, encode=n * 97 * MS) for n in (2, 3, 4)]
    found = compare_samples(base, new)
    shown = io.StringIO()
    print_diff(found, make_console(shown, width=width), unicode=True, every=True)
    lines = shown.getvalue().splitlines()
    plain = io.StringIO()
    print_diff(found, make_console(plain, width=width), unicode=False, every=True)
    assert plain.getvalue().isascii() and all(len(line) <= width for line in plain.getvalue().splitlines())
    assert all(len(line) <= width for line in lines)
    row = next(row for row in found.levels["layers"] if row.layer == 7)
    line = next(line for line in lines if line.startswith("7 "))
    figures = [duration(row.base_ns or 0), duration(row.new_ns or 0)]
    assert all(figure in line for figure in figures)
    assert row.low_ns is not None and row.high_ns is not None
    assert width < 80 or between(row.low_ns, row.high_ns) in line
    # Only a name may be shortened: what follows the first column holds no sign of a cut.
    assert not any(line.endswith("…") for line in lines)
