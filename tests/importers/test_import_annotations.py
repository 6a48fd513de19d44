"""What is an operator in a recording and what an annotation, whatever the recording calls it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import recordings
from recordings import call, kernel, launches, op, trace_file

from tokentrace.importers import Imported, load
from tokentrace.importers.report import of_trace

_TORCHS_OWN = re.compile(r"ProfilerStep|Optimizer|DataLoader|DistributedDataParallel")


def tables(found: Imported) -> list[str]:
    """The names in the list of operators and in the report's table."""
    return [entry["name"] for entry in found.operators] + [row["name"] for row in of_trace(found.trace).operators]


def own(found: Imported, layer: int) -> int:
    return sum(state.facts.get("own_ns", 0) for state in found.layers if state.layer == layer)


def old(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same as the profiler of 2021 wrote it: annotations are operators."""
    kinds = {"cpu_op": "Operator", "user_annotation": "Operator"}
    return [{**row, "cat": kinds.get(row["cat"], row["cat"])} for row in rows]


def training() -> list[dict[str, Any]]:
    """A step of 2 ms: data loading, forward, and an optimizer that launches a kernel outside any operator."""
    marks = [op("ProfilerStep#4", 0, 2000), op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 300),
             op("Optimizer.step#SGD.step", 1500, 400)]  # fmt: skip
    late = [call("cudaLaunchKernel", 1600, 5, 900), kernel("fused_sgd", 1610, 50, 900)]
    work = [{**row, "ts": row["ts"] + 400} for row in launches(12, 50, 20)]
    return [*({**mark, "cat": "user_annotation"} for mark in marks), *work, *late]


def test_an_old_recording_reads_like_a_new_one(tmp_path: Path) -> None:
    new, was = (load(trace_file(tmp_path / f"{name}.json", rows))
                for name, rows in (("new", training()), ("old", old(training()))))  # fmt: skip
    assert set(tables(was)) == set(tables(new)) and not any(map(_TORCHS_OWN.search, tables(was)))
    assert [entry["name"] for entry in was.operators] == ["aten::mm"]
    assert [(layer, own(was, layer)) for layer in (6, 5, 4, 3)] == [(layer, own(new, layer)) for layer in (6, 5, 4, 3)]
    assert own(was, 5) > 500_000 and [f.sentence for f in was.findings] == [f.sentence for f in new.findings]


def test_an_annotation_has_launched_nothing_as_an_operator(tmp_path: Path) -> None:
    """The optimizer's kernel was launched outside any operator: nobody's is better than a step's."""
    found = load(trace_file(tmp_path / "t.json", old(training())))
    assert sum(entry["device_ns"] for entry in found.operators) == 12 * 20_000
    assert found.figures["kernel_sum_ns"] == 12 * 20_000 + 50_000


def test_a_collective_of_a_backend_is_an_operator(tmp_path: Path) -> None:
    """torch writes it as an annotation, and it is what does the work."""
    talk = [{**op("gloo:all_reduce", n * 1000, 800), "cat": "user_annotation", "tid": 5} for n in range(4)]
    marks = [{**op(name, 0, 4000), "cat": "user_annotation"} for name in ("step 1", "## forward ##")]
    found = load(trace_file(tmp_path / "t.json", [*talk, *marks, *(op("aten::mm", n * 1000, 300) for n in range(4))]))
    assert {(entry["name"], entry["calls"]) for entry in found.operators} == {("gloo:all_reduce", 4), ("aten::mm", 4)}
    assert "module ## forward ##" in found.trace.names and "op gloo:all_reduce" in found.trace.names


def test_the_published_recording_of_2021_lists_operators_only() -> None:
    """Six steps took the most own time of all "operators" of this recording, 341 of 894 ms."""
    found = load(recordings.large("kineto/v100_dgx_resnet_w4_2021_old_schema.pt.trace.json.gz"))
    assert not any(map(_TORCHS_OWN.search, tables(found))) and tables(found)[0].startswith("aten::")
    assert [step["name"] for step in found.steps] == [f"ProfilerStep#{n}" for n in range(5, 11)]
    modules = {name for name in found.trace.names if name.startswith("module ")}
    assert modules == {"module Optimizer.step#SGD.step", "module Optimizer.zero_grad#SGD.zero_grad",
                       "module enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"}  # fmt: skip
    assert not any(_TORCHS_OWN.search(name) for name in found.trace.names if name.startswith("op "))


def test_no_published_recording_lists_an_annotation_of_torch() -> None:
    for name in ("hta/a100_ddp_nccl_2rank.json.gz", "hta/mi250_minitoy_train_small.json.gz",
                 "hta/gp100_gpu_user_annotation_small.json.gz"):  # fmt: skip
        assert not any(map(_TORCHS_OWN.search, tables(load(recordings.large(name))))), name
