"""Findings say what the recording shows, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import recordings
from recordings import call, kernel, launches, op, trace_file

from tokentrace.importers import load


def told(path: Path, **options: Any) -> str:
    return "\n".join(f"{f.sentence} | {f.evidence} | {f.fix}" for f in load(path, **options).findings)


def copy(ts: float, dur: float, correlation: int, name: str = "Memcpy HtoD (Pinned -> Device)") -> dict[str, Any]:
    return {**kernel(name, ts, dur, correlation, stream=9), "cat": "gpu_memcpy"}


def test_a_gap_in_which_nothing_was_recorded_is_not_blamed_on_the_next_call(tmp_path: Path) -> None:
    rows = launches(12, 10, 8)
    rows += [op("aten::add", 5110, 8), call("cudaLaunchKernel", 5112, 4, 99), kernel("add", 5117, 5, 99)]
    text = told(trace_file(tmp_path / "t.json", rows))
    assert "before add, while the launching thread did nothing that was recorded" in text
    assert "while the host was in cudaLaunchKernel" not in text


def test_a_gap_spread_over_what_a_function_called_names_the_function(tmp_path: Path) -> None:
    rows = launches(12, 10, 8)
    rows += [op("aten::outer", 130, 1000), *[op(f"aten::inner{n}", 131 + n * 100, 90) for n in range(9)]]
    rows += [call("cudaLaunchKernel", 1125, 4, 99), kernel("add", 1131, 5, 99)]
    text = told(trace_file(tmp_path / "t.json", rows))
    assert "while the host was in aten::outer and what it called" in text


def test_a_gpu_that_only_copies_is_told(tmp_path: Path) -> None:
    rows = launches(12, 10, 5)
    rows += [call("cudaMemcpyAsync", 119, 1, 50), copy(121, 900, 50)]
    assert "the GPU only copied: 900 µs without a kernel" in told(trace_file(tmp_path / "t.json", rows))
    under = launches(12, 10, 9)
    under += [call("cudaMemcpyAsync", 1, 1, 50), copy(6, 100, 50)]
    assert "only copied" not in told(trace_file(tmp_path / "u.json", under))


def test_memory_asked_of_the_driver_is_the_first_thing_to_stop(tmp_path: Path) -> None:
    rows = launches(12, 100, 5)
    rows += [call("cudaFree", n * 100 + 10, 80, None) for n in range(12)]
    text = told(trace_file(tmp_path / "t.json", rows))
    assert "The host spent 960 µs taking memory from the driver and giving it back." in text
    assert "Launch-bound" in text and "first keep it from asking the driver for memory" in text
    before = [call("cudaMalloc", -900, 800, None), *launches(12, 10, 9)]
    assert "taking memory" not in told(trace_file(tmp_path / "b.json", before)), "a start needs memory"


def test_without_the_launches_nothing_is_said_about_them(tmp_path: Path) -> None:
    rows = launches(12, 10, 8)
    rows += [kernel("lost", 1000 + n * 100, 5, 1000 + n) for n in range(20)]
    text = told(trace_file(tmp_path / "t.json", rows))
    assert "Whether the GPU waited for launches cannot be told" in text
    assert "aunch-bound" not in text


def test_waits_of_the_profiler_itself_are_not_the_programs(tmp_path: Path) -> None:
    rows = launches(12, 10, 8)
    rows += [call("cudaDeviceSynchronize", 130, 5000, None)]
    found = load(trace_file(tmp_path / "t.json", rows))
    text = "\n".join(f"{f.sentence} | {f.evidence}" for f in found.findings)
    assert "The host waited" not in text and "waiting 0 %" in text


def test_a_handful_of_kernels_is_no_reason_for_graphs(tmp_path: Path) -> None:
    assert "graph" not in told(trace_file(tmp_path / "t.json", launches(3, 1000, 1)))
    assert "No kernel ran inside a graph" in told(trace_file(tmp_path / "u.json", launches(40, 1000, 1)))


def test_a_recording_of_two_gpus_that_copy_is_read_right() -> None:
    """The host is 0.4 s ahead of the GPUs, which copy nearly all of the time."""
    text = told(recordings.large("nsys-ai/h100_2gpu_1s.sqlite.gz"))
    assert "For 97 % of the time the GPU only copied" in text
    assert "the host launched work faster than the GPU finished it" in text and "look at the copies" in text


def test_a_training_that_asks_for_memory_is_read_right() -> None:
    text = told(recordings.large("tracelens/mi300_ddp_resnet18_train.json.gz"))
    assert "taking memory from the driver and giving it back. | 99 % of 3.39 s; hipMalloc" in text


def test_pauses_outside_all_events_are_read_right() -> None:
    text = told(recordings.large("segment-anything-fast/a100_sam_amg_triton.json.gz"))
    assert "while the launching thread did nothing that was recorded" in text


def test_host_work_before_the_first_kernel_is_told_apart_from_gaps(tmp_path: Path) -> None:
    rows = [op("aten::prepare", -1000, 990), *launches(40, 10, 9)]
    text = told(trace_file(tmp_path / "t.json", rows))
    assert "The GPU ran nothing for the first 1.00 ms" in text and "its first work was launched after 1.00 ms" in text
    assert "aten::prepare 990 µs" in text
    assert "ran nothing" not in told(trace_file(tmp_path / "u.json", launches(40, 10, 9)))


def test_work_that_was_queued_before_the_recording_began_is_not_called_idle() -> None:
    """A decode step cut out of a longer run: its first copy was handed to the GPU after 0.5 ms and began at 8.4 ms."""
    text = told(recordings.SMALL / "mi300_vllm_decode_full_graph_step.json.gz")
    assert "No work of the GPU is recorded for the first 8.37 ms, 44 % of the recording" in text
    assert "though the first was handed to it after 534 µs" in text and "hipMemcpyAsync returned 7.83 ms before" in text
    assert "ran nothing" not in text and "what the host prepares" not in text


def test_a_long_start_is_no_part_of_what_a_launch_costs(tmp_path: Path) -> None:
    """Creating a context takes half a minute at times, and has nothing to do with the launches that follow."""
    rows = [call("cudaDeviceGetStreamPriorityRange", -1_000_000, 900_000, None), *launches(40, 10, 9)]
    assert "spent 4.00 µs of work on each launch" in told(trace_file(tmp_path / "t.json", rows))


def test_a_first_launch_that_loads_its_kernel_is_host_work(tmp_path: Path) -> None:
    rows = [call("cudaLaunchKernel", -1000, 990, 500), kernel("first", -5, 4, 500), *launches(40, 10, 9)]
    text = told(trace_file(tmp_path / "t.json", rows))
    assert "The GPU ran nothing for the first 995 µs" in text and "cudaLaunchKernel 990 µs" in text


def test_kernels_that_begin_as_soon_as_a_launch_takes_effect_were_launched_too_late(tmp_path: Path) -> None:
    """The host launches while the kernel before still runs, but the next one is not there when it ends."""
    text = told(trace_file(tmp_path / "t.json", launches(40, 10, 5.5, delay=8)))
    assert "Launch-bound: for 44 % of the time" in text and "launched already" not in text
    queued = [{**row, "ts": 1000 + n // 3 * 10} if row["cat"] == "kernel" else row
              for n, row in enumerate(launches(40, 1, 5.5))]  # fmt: skip
    text = told(trace_file(tmp_path / "u.json", queued))
    assert "Not launch-bound, though the GPU was idle" in text and "launched already" in text


def test_a_part_is_called_that_where_it_is_meant_and_the_recording_where_that_is(tmp_path: Path) -> None:
    """A launch is looked for in the whole recording; what was compiled was compiled within the part."""
    rows = [op("ProfilerStep#7", 0, 4000), op("_compile (dynamo_timed)", 200, 900), *launches(40, 100, 50)]
    rows += [kernel("lost", 10 + n * 100, 2, 900 + n) for n in range(5)]
    path = trace_file(tmp_path / "t.json", rows)
    assert "Code was compiled for 900 µs during the recording." in told(path)
    for options, part in (({"window": (150_000, 4_000_000)}, "the window"), ({"step": 7}, "the step")):
        text = told(path, **options)
        assert f"Code was compiled for 900 µs during {part}." in text
        assert "kernels have no launch in the recording: their launches are not in the file" in text


def late(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same 2 ms later, with ids that are higher by 2,000."""
    shifted = [{**row, "ts": row["ts"] + 2000, "args": dict(row["args"])} for row in rows]
    for row in shifted:
        if "correlation" in row["args"]:
            row["args"]["correlation"] += 2000
    return shifted


def test_kernels_at_the_head_of_a_part_need_not_be_from_before_the_recording(tmp_path: Path) -> None:
    rows = [kernel("early", 1000 + n, 1, 900 + n) for n in range(3)] + late(launches(12, 10, 5))
    whole = told(trace_file(tmp_path / "whole.json", rows))
    assert "3 of 15 kernels have no launch in the recording: they were queued before the recording began" in whole
    path = trace_file(tmp_path / "part.json", [op("aten::before", 0, 100), *rows])
    part = told(path, window=(500_000, 9_000_000))
    assert "their launches are not in the file" in part and "queued before" not in part
    assert "launches were looked for up to 10.0 s before the window" in part


def test_a_kernel_with_a_lower_id_than_the_first_call_was_queued_before_it(tmp_path: Path) -> None:
    """A long queue still runs long after the first kernel whose launch is recorded, on another stream."""
    early = [kernel("early", 1990 + n * 50, 40, 900 + n, stream=9) for n in range(3)]
    why = "kernels have no launch in the recording: "
    text = told(trace_file(tmp_path / "all.json", [*early, *late(launches(12, 10, 5))]))
    assert f"3 of 15 {why}they were queued before the recording began." in text
    lost = kernel("lost", 2500, 1, 5000)
    text = told(trace_file(tmp_path / "some.json", [*early, lost, *late(launches(12, 10, 5))]))
    assert f"4 of 16 {why}3 were queued before the recording began, the launches of the others are not in" in text
    text = told(trace_file(tmp_path / "none.json", [kernel("lost", 1990, 1, 5000), *late(launches(12, 10, 5))]))
    assert f"1 of 13 {why}their launches are not in the file." in text


def test_kernels_queued_before_the_recording_of_two_processes_are_told() -> None:
    text = told(recordings.large("nsys-ai/h100_2gpu_1s.sqlite.gz"))
    assert "1,810 of 3,442 kernels have no launch in the recording: they were queued before the rec" in text


def test_a_gap_spent_in_operators_is_not_said_to_lie_outside_them(tmp_path: Path) -> None:
    mark = {**op("clear cache", 125, 1000), "cat": "user_annotation"}
    end = [call("cudaLaunchKernel", 1125, 4, 99), kernel("add", 1131, 5, 99)]
    inner = [op("aten::mul", 130, 400), op("aten::fill_", 540, 350)]
    text = told(trace_file(tmp_path / "t.json", [*launches(12, 10, 8), mark, *inner, *end]))
    assert "while the host was in clear cache, most of it in operators, aten::mul the longest" in text
    text = told(trace_file(tmp_path / "u.json", [*launches(12, 10, 8), mark, op("aten::mul", 130, 100), *end]))
    assert "while the host was in clear cache, for 908 µs of it outside any operator" in text
    text = told(trace_file(tmp_path / "v.json", [*launches(12, 10, 8), mark, *end]))
    assert "while the host was in clear cache, outside any operator" in text


def test_a_gap_of_a_recording_that_lies_in_operators_is_read_right() -> None:
    text = told(recordings.large("hta/a100_simple_add_small.json.gz"))
    assert "while the host was in [param|clear_cache], most of it in operators, aten::mul the longest" in text


def test_the_leader_by_own_time_is_the_one_with_the_most_own_time(tmp_path: Path) -> None:
    """Fifteen operators launch a little each, a sixteenth nothing; the graph's kernels are of no operator."""
    rows = []
    for n in range(15):
        rows += [op(f"aten::small{n}", n * 20, 10), call("cudaLaunchKernel", n * 20 + 1, 2, n + 1),
                 kernel("tiny", n * 20 + 5, 0.1, n + 1)]  # fmt: skip
    rows += [op("aten::slow", 500, 100), call("cudaGraphLaunch", 700, 5, 99), kernel("in the graph", 710, 3000, 99)]
    path = trace_file(tmp_path / "t.json", rows)
    assert "aten::slow took the most own time, 45 % of all operators'. | by own host time: aten::slow: 100 µs" in told(
        path
    )
    assert "aten::slow" in {entry["name"] for entry in load(path).operators}


def test_the_leader_by_own_time_of_a_recording_is_read_right() -> None:
    text = told(recordings.SMALL / "mi300_vllm_decode_full_graph_step.json.gz")
    assert (
        "aten::slice took the most own time, 20 % of all operators'. | by own host time: aten::slice: 66.5 µs" in text
    )


def test_the_functions_of_an_operator_written_in_python_are_its_own(tmp_path: Path) -> None:
    python = [{**op(name, ts, dur), "cat": "python_function"}
              for name, ts, dur in (("moe.py(3): forward", 1010, 900), ("nn.Module: Linear_0", 1200, 300))]  # fmt: skip
    rows = [*launches(12, 10, 5), op("vllm::moe_forward", 1000, 1000), *python, op("aten::mm", 1600, 100)]
    own = {entry["name"]: entry["own_ns"] for entry in load(trace_file(tmp_path / "t.json", rows)).operators}
    assert own["vllm::moe_forward"] == (1000 - 300 - 100) * 1000


def test_the_own_time_of_an_operator_written_in_python_is_read_right() -> None:
    """15.104 ms by a count of the raw events without its operators and calls, in which calls that are no spans lack."""
    found = load(recordings.large("tracelens/b200_vllm_tp8_prefill_eager.json.gz")).operators
    (own,) = (entry["own_ns"] for entry in found if entry["name"] == "vllm::moe_forward")
    assert 15_104_133 <= own < 1.02 * 15_104_133


def test_collectives_that_the_host_carries_out_are_told(tmp_path: Path) -> None:
    talk = [{**op("gloo:all_reduce", n * 1000, 800), "cat": "user_annotation", "tid": 5 + n % 2} for n in range(4)]
    rows = [op("aten::mm", n * 1000 + 700, 300) for n in range(4)]
    text = told(trace_file(tmp_path / "t.json", [*talk, *rows]))
    assert "Collectives on the host ran for 3.20 ms, 80 % of the recording; 12 % of that beside operators" in text
    assert "4 calls on 2 threads: gloo:all_reduce ×4" in text
    text = told(recordings.large("hta/cpu_only_gloo_rank34of300.pt.trace.json.gz"))
    assert "Collectives on the host ran for 1.10 s, 86 % of the recording" in text


def test_a_kernel_that_runs_into_a_window_is_not_called_nothing(tmp_path: Path) -> None:
    """It began before the window, so the window does not hold it."""
    rows = [call("cudaLaunchKernel", 0, 2, 900), kernel("long", 5, 3000, 900)]
    rows += [op("aten::prepare", 1000, 1900), *[{**row, "ts": row["ts"] + 3010} for row in launches(12, 100, 50)]]
    path = trace_file(tmp_path / "t.json", rows)
    text = told(path, window=(1_000_000, 4_500_000))
    assert "The GPU began nothing for the first" in text and "of the window; its first work was launched" in text
    assert "ran nothing" not in text


def test_a_window_without_operators_launches_and_kernels_counts_what_it_holds(tmp_path: Path) -> None:
    mark = {**op("note", 5_000, 10), "cat": "user_annotation"}
    text = told(trace_file(tmp_path / "t.json", [*launches(12, 10, 5), mark]), window=(4_000_000, 6_000_000))
    assert "The window holds neither operators nor launches nor kernels. | 1 event of other kinds" in text


def test_the_steps_wait_for_launches_as_long_as_the_recording(tmp_path: Path) -> None:
    """A gap before a copy is a gap like one before a kernel."""
    rows = [op("ProfilerStep#1", 0, 2000), *launches(12, 100, 50)]
    rows += [call("cudaMemcpyAsync", 1700, 5, 99), copy(1710, 40, 99)]
    (step,) = load(trace_file(tmp_path / "t.json", rows)).steps
    assert step["gaps_ns"] == 11 * 50_000 + (1710 - 1155) * 1000
    assert step["starved_ns"] == recordings.analysed(tmp_path / "t.json").measures.starved_ns == step["gaps_ns"]


def test_the_steps_of_recordings_wait_for_launches_as_long_as_they_do() -> None:
    for name, waited in (("tracelens/b200_vllm_tp8_prefill_eager.json.gz", 72_787_879),
                         ("hta/a100_ddp_nccl_2rank.json.gz", 501_942_256)):  # fmt: skip
        found = recordings.analysed(recordings.large(name))
        assert sum(step["starved_ns"] for step in found.step_figures) == found.measures.starved_ns == waited


def test_a_share_below_the_limit_is_not_rounded_up_to_it(tmp_path: Path) -> None:
    """Launch-bound is from 30 % on; 29.7 % is not, and must not read as if it were."""
    text = told(trace_file(tmp_path / "t.json", launches(200, 100, 70.25)))
    assert "Partly launch-bound: the GPU lacked launched work for 29.6 % of the time." in text
    assert "Launch-bound: for 31 % of the time" in told(trace_file(tmp_path / "u.json", launches(200, 100, 69)))


def test_gaps_spent_in_a_launch_are_not_gaps_in_which_nothing_was_launched(tmp_path: Path) -> None:
    rows = [*launches(12, 10, 8), call("cudaLaunchKernel", 125, 5000, 99), kernel("lazy", 5130, 5, 99)]
    text = told(trace_file(tmp_path / "t.json", rows))
    assert "in a few long gaps in which the host was inside launch calls." in text and "inside launch calls for" in text
    rows = [*launches(12, 10, 8), call("cudaLaunchKernel", 5120, 5, 99), kernel("late", 5130, 5, 99)]
    assert "in a few long gaps in which the host launched nothing." in told(trace_file(tmp_path / "u.json", rows))


def test_a_collective_that_is_hidden_needs_no_advice(tmp_path: Path) -> None:
    talk = kernel("ncclDevKernel_AllReduce", 10, 100, 1, stream=9)
    hidden = told(trace_file(tmp_path / "t.json", [*launches(3, 10, 5), kernel("gemm", 5, 200, 2), talk]))
    assert "100 % of it hidden behind other kernels" in hidden and "overlap them with computation" not in hidden
    open_ = told(trace_file(tmp_path / "u.json", [*launches(3, 10, 5), talk]))
    assert "overlap them with computation" in open_
