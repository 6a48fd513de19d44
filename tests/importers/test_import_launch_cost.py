"""What a launch costs the host is told without what the host only waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import recordings
from recordings import analysed, call, kernel, launches, op, trace_file

from tokentrace.importers import load
from tokentrace.importers.launch_cost import Split


def split_of(path: Path) -> Split:
    found = analysed(path).measures.split
    assert found is not None
    return found


def other(row: dict[str, Any]) -> dict[str, Any]:
    """The same on autograd's thread."""
    return {**row, "tid": 2}


def backward(node: str, main: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Twelve launches before backward(), which lasts from 1,000 to 2,000 µs and in which `main` happens; twenty nodes
    of 40 µs from 1,100 on, one right behind the other, launch a kernel each."""
    mark = {**op("## backward ##", 1000, 1000), "cat": "user_annotation"}
    rows = [*launches(12, 10, 5), mark, *main]
    for n in range(20):
        at = 1100 + n * 40
        rows += [other(op(node, at, 40)), other(call("cudaLaunchKernel", at + 5, 2, 100 + n)),
                 kernel("grad", at + 10, 5, 100 + n)]  # fmt: skip
    return rows


@pytest.mark.parametrize("node", ["autograd::engine::evaluate_function: MmBackward0", "MmBackward0", "AddmmBackward"])
def test_a_thread_that_waits_for_autograds_thread_does_no_work(tmp_path: Path, node: str) -> None:
    """Of the annotation's 1,000 µs the nodes fill 800."""
    found = split_of(trace_file(tmp_path / "t.json", backward(node, [])))
    assert found.backward_ns == found.blocked_ns == 800_000
    assert found.framework_ns + found.library_ns == 12 * 2_000 + 200_000 + 20 * 38_000
    text = "\n".join(f.evidence for f in load(tmp_path / "t.json").findings)
    assert "(800 µs in backward() for autograd's own thread)" in text


def test_a_thread_that_works_beside_autograds_thread_does_not_wait(tmp_path: Path) -> None:
    """An operator of the main thread ends within each node."""
    busy = [op("aten::add", 1110 + n * 40, 5) for n in range(20)]
    found = split_of(trace_file(tmp_path / "t.json", backward("MmBackward0", busy)))
    assert found.backward_ns == 0 and found.blocked_ns == 0


def test_what_autograds_thread_does_behind_its_nodes_is_waited_for_too(tmp_path: Path) -> None:
    """DDP copies its last buckets there. Before the last node nothing is recorded of it."""
    last = [other(op("torch.distributed.ddp.reducer::copy_bucket_to_grad", 1920, 60))]
    found = split_of(trace_file(tmp_path / "t.json", backward("MmBackward0", last)))
    assert found.backward_ns == (1980 - 1100) * 1000


def test_a_thread_inside_a_call_does_not_wait_for_autograd_beside_it(tmp_path: Path) -> None:
    calls = [call("cudaFree", 1050, 900, None)]
    found = split_of(trace_file(tmp_path / "t.json", backward("MmBackward0", calls)))
    assert found.backward_ns == 0 and found.memory_ns == 900_000


def test_operators_of_other_threads_are_no_sign_of_waiting(tmp_path: Path) -> None:
    found = split_of(trace_file(tmp_path / "t.json", backward("aten::mm", [])))
    assert found.backward_ns == 0


def queue(depth: int, took: float) -> list[dict[str, Any]]:
    """`depth` launches of 2 µs on a device that needs 100 µs for each of their kernels, then ten that take `took`."""
    rows = []
    for n in range(depth + 10):
        at = n * 4 if n < depth else depth * 4 + (n - depth) * (took + 2)
        rows += [op("aten::mm", at, took + 1 if n >= depth else 3),
                 call("cudaLaunchKernel", at + 0.5, took if n >= depth else 2, n + 1),
                 kernel("slow", 5 + n * 100, 100, n + 1)]  # fmt: skip
    return rows


def test_a_launch_that_finds_its_queue_full_waits_for_the_gpu(tmp_path: Path) -> None:
    found = split_of(trace_file(tmp_path / "full.json", queue(700, 100)))
    assert found.full_queue_ns == 10 * 98_000 and found.launch_ns == 710 * 2_000
    text = "\n".join(f.evidence for f in load(tmp_path / "full.json").findings)
    assert "980 µs in calls whose queue was full" in text


def test_a_long_launch_before_a_short_queue_is_the_launchs_own(tmp_path: Path) -> None:
    """It loads or compiles its kernel."""
    found = split_of(trace_file(tmp_path / "short.json", queue(50, 100)))
    assert found.full_queue_ns == 0 and found.launch_ns == 50 * 2_000 + 10 * 100_000


def test_a_single_long_launch_is_not_what_every_launch_costs(tmp_path: Path) -> None:
    rows = [*launches(40, 100, 5), call("cudaLaunchKernel", 4100, 5000, 99), kernel("lazy", 9110, 5, 99)]
    (told,) = (
        f for f in load(trace_file(tmp_path / "t.json", rows)).findings if "of work on each launch" in f.sentence
    )
    assert "most of it in the launch" in told.sentence and "one launch took 5.00 ms" in told.evidence
    assert "warm up before measuring" in told.fix


def test_memory_calls_are_told_apart_from_the_library(tmp_path: Path) -> None:
    rows = launches(12, 100, 5) + [call("hipFree", n * 100 + 10, 80, None) for n in range(12)]
    found = split_of(trace_file(tmp_path / "t.json", rows))
    assert found.memory_ns == 12 * 80_000
    text = "\n".join(f.sentence for f in load(tmp_path / "t.json").findings)
    assert "most of it in the driver's memory calls" in text


@pytest.mark.parametrize(
    ("name", "backward_ns", "full_queue_ns"),
    [  # counted from the raw events with the standard library: last end - first start on the nodes' thread, a stretch
        ("hta/v100_resnet_ns_absolute_ts.pt.trace.json.gz", 238_139_640, 234_612_772),
        ("hta/a100_ddp_nccl_2rank.json.gz", 305_873_636, 0),
        ("tracelens/mi300_ddp_resnet18_train.json.gz", 2_643_520_332, 0),
    ],
)
def test_the_waits_of_a_training_are_read_right(name: str, backward_ns: int, full_queue_ns: int) -> None:
    found = split_of(recordings.large(name))
    assert (found.backward_ns, found.full_queue_ns) == (backward_ns, full_queue_ns)


def test_two_processes_that_wait_at_the_same_time_share_that_time(tmp_path: Path) -> None:
    rows = launches(12, 100, 5)
    rows += [
        {**row, "tid": 2} for row in [call("cudaLaunchKernel", -20, 2, 500), call("cudaLaunchKernel", 1300, 2, 501)]
    ]
    waits = [call("cudaStreamSynchronize", 200, 600, None), call("cudaStreamSynchronize", 200, 600, None, tid=2)]
    text = "\n".join(
        f"{f.sentence} | {f.evidence}" for f in load(trace_file(tmp_path / "t.json", rows + waits)).findings
    )
    assert "The host waited 600 µs in 2 synchronisations on 2 threads side by side" in text
    assert "added up over the threads 1.20 ms" in text


def test_two_processes_of_a_recording_wait_side_by_side() -> None:
    found = load(recordings.large("nsys-ai/h100_2gpu_1s.sqlite.gz")).findings
    (wait,) = (f for f in found if f.sentence.startswith("The host waited"))
    assert "waited 429 ms in 8 synchronisations on 2 threads side by side" in wait.sentence
    assert wait.evidence.startswith("44 % of 969 ms; added up over the threads 857 ms")
