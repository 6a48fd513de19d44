"""transformers' generate in the program itself, inside `with tokentrace.trace(...)`."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import tokentrace
from tokentrace.layers import MARKS

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Any, Any]]:
    """The built-in model and its tokenizer, as transformers loads them."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from tokentrace.engines.local.model import ensure_model

    folder = ensure_model()
    yield (
        AutoTokenizer.from_pretrained(folder.path),
        AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.float32),
    )


def answer(tokenizer: Any, model: Any, prompt: str = "Hi", most: int = 10) -> str:
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**ids, max_new_tokens=most, do_sample=False)
    text: str = tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    return text


def tree(trace: Any, depth: int) -> list[str]:
    """Names down to this depth below the pass, each behind its parent's; without the unseen layers and power."""
    spans = list(trace.spans)
    children: dict[int, list[Any]] = {}
    for span in spans:
        children.setdefault(span.parent, []).append(span)

    def walk(row: int, level: int) -> list[str]:
        found = []
        for child in sorted(children.get(row, ()), key=lambda c: (c.start_ns, -c.end_ns)):
            if child.name not in MARKS and child.layer != 1:
                found.append(f"{spans[row].name} > {child.name}")
                found += walk(child.row, level + 1) if level < depth else []
        return found

    return walk(1, 1)


def test_one_generation_is_one_pass_with_every_step(pair: tuple[Any, Any]) -> None:
    plain = answer(*pair)
    before = pair[1].forward, type(pair[0]).decode, type(pair[1]).generate
    with tokentrace.trace("mine") as t:
        assert answer(*pair) == plain
    assert (pair[1].forward, type(pair[0]).decode, type(pair[1]).generate) == before
    assert "forward" not in vars(pair[1])
    assert tree(t, 3) == [
        "pass call 1 > chat template",
        "pass call 1 > encode",
        "pass call 1 > request",
        "request > submit",
        *(["request > step", "step > forward", "step > sample"] * 10),
        "request > finish",
        "pass call 1 > decode",
    ]
    assert t.report.tokens == {"input": 31, "output": 10}
    assert (t.report.prompt, t.reply) == ("Hi", plain)
    rows = {row.layer: row for row in t.layers}
    assert {n: rows[n].status for n in (8, 7, 6, 5, 4, 3, 2)} == {
        8: "unseen", 7: "seen", 6: "seen", 5: "seen", 4: "unseen", 3: "unseen", 2: "idle"
    }  # fmt: skip
    assert rows[7].form_in == '"Hi"' and rows[7].form_out.startswith("31 ids [1, 9690, 198")
    assert "deep=True" in rows[4].fix
    owned = sum((row.own_ns_down or 0) + (row.own_ns_up or 0) for row in t.layers)
    assert owned + t.report.unattributed_ns == t.wall_ns
    assert t.report.coverage > 0.95


def test_deep_shows_modules_and_operators(pair: tuple[Any, Any]) -> None:
    with tokentrace.trace("deep", deep=True) as t:
        answer(*pair, most=3)
    names = {span.name for span in t.spans if span.layer == 5}
    assert {"embed_tokens", "layers.0.self_attn", "layers.29.mlp", "norm", "lm_head"} <= names
    assert {row.layer: row.status for row in t.layers}[4] == "seen"
    under = list(t.spans)
    parents = {under[span.parent].name for span in under if span.name == "aten::linear"}
    assert "lm_head" in parents
    assert all(span.parent >= 0 for span in under[1:]), "no orphan"
    assert len(tokentrace_out(t)) <= 10_000


def tokentrace_out(trace: Any) -> Any:
    from tokentrace.fold import BUDGET, fold

    return fold(trace.data, BUDGET)


def test_two_generations_are_two_passes_and_the_second_is_not_mixed_with_the_first(pair: tuple[Any, Any]) -> None:
    with tokentrace.trace("two") as t:
        first = answer(*pair, prompt="Hi", most=4)
        second = answer(*pair, prompt="Say yes", most=6)
    assert list(t.report.passes) == ["call 1", "call 2"]
    texts = [span.attributes["tokentrace.form.out"] for span in t.spans if span.name == "decode"]
    assert texts == [f'"{first}"', f'"{second}"']
    steps = [len(one.steps) for one in t.report.passes.values()]
    assert steps == [4, 6]


def test_a_generation_is_of_the_stage_around_it(pair: tuple[Any, Any]) -> None:
    tokenizer, model = pair
    with tokentrace.trace("staged") as t:
        with t.stage("outer"), t.stage("inner"):
            answer(*pair, most=2)
        with t.stage("later"):
            ids = tokenizer("Hi", return_tensors="pt")
            out = model.generate(**ids, max_new_tokens=2, do_sample=False)
        tokenizer.decode(out[0])
    assert list(t.report.passes) == ["inner", "later"]
    spans = list(t.spans)
    holders = {span.name: spans[span.parent].name for span in spans if not span.layer and span.parent >= 0}
    assert holders["pass inner"] == "stage inner" and holders["stage inner"] == "stage outer"
    assert [row.calls for row in t.report.stages] == [["inner"], ["inner"], ["later"], []]


def test_a_batch_counts_all_of_its_sequences(pair: tuple[Any, Any]) -> None:
    tokenizer, model = pair
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokenizer.padding_side = "left"
    with tokentrace.trace("batch") as t:
        ids = tokenizer(["One", "One two three"], return_tensors="pt", padding=True)
        model.generate(**ids, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    first = next(span for span in t.spans if span.name == "step")
    assert first.attributes["tokentrace.step.batch_size"] == 2
    assert first.attributes["tokentrace.step.scheduled_tokens"] == 2 * ids["input_ids"].shape[1]


def test_a_generation_that_fails_fails_as_before_and_the_report_says_so(pair: tuple[Any, Any]) -> None:
    with tokentrace.trace("bad") as t, pytest.raises(ValueError, match="max_new_tokens"), t.stage("ask"):
        pair[1].generate(max_new_tokens=-5)
    assert len(t) > 1
    assert t.report.error is not None and t.report.error.message == "generate raised ValueError"
    assert [row.failed for row in t.report.stages] == [1, 0]
    unseen = {row.layer: f"{row.reason} {row.fix}" for row in t.layers}
    assert "it failed before its first forward pass" in unseen[5]
    assert not any("server" in told for told in unseen.values()), unseen
    told = t.report.findings[0]
    assert (told.sentence, told.evidence) == ("The call failed: generate raised ValueError", "")
    assert not any("server" in f"{one.sentence} {one.fix}" for one in t.report.findings)


def by_stage(trace: Any) -> dict[str, list[str]]:
    return {" ".join(row.way): row.calls for row in trace.report.stages}


def test_a_generation_in_another_thread_is_of_the_stage_whose_context_it_has(pair: tuple[Any, Any]) -> None:
    async def program(t: Any) -> None:
        with t.stage("outer"):
            with t.stage("inner"):
                await asyncio.to_thread(answer, *pair, most=2)
            await asyncio.to_thread(answer, *pair, most=2)

    with tokentrace.trace("aio") as t:
        asyncio.run(program(t))
    assert by_stage(t) == {"outer": ["inner", "outer"], "outer inner": ["inner"], "": []}
    assert not any(facts["exchange"]["notes"] for facts in t.data.meta["passes"].values())


def test_tasks_and_threads_beside_each_other_keep_their_own_generations(pair: tuple[Any, Any]) -> None:
    async def one(t: Any, name: str, mine: asyncio.Event, others: asyncio.Event) -> None:
        with t.stage(name):
            mine.set()
            await others.wait()
            answer(*pair, most=2)

    async def both(t: Any) -> None:
        left, right = asyncio.Event(), asyncio.Event()
        await asyncio.gather(one(t, "left", left, right), one(t, "right", right, left))

    with tokentrace.trace("tasks") as t:
        asyncio.run(both(t))
    assert by_stage(t) == {"left": ["left"], "right": ["right"], "": []}

    with tokentrace.trace("threads") as t, t.stage("asks"):
        context, stays, go_on = contextvars.copy_context(), threading.Event(), threading.Event()

        def beside() -> None:
            with t.stage("beside"):
                stays.set()
                go_on.wait()

        threads = [threading.Thread(target=beside)]
        threads.append(threading.Thread(target=lambda: context.run(answer, *pair, most=2)))
        threads[0].start()
        stays.wait()
        threads[1].start()
        threads[1].join()
        go_on.set()
        threads[0].join()
    assert by_stage(t)["asks"] == ["asks"]
    assert not t.data.meta["passes"]["asks"]["exchange"]["notes"], "its context was known"
