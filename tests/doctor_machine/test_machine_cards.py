"""Layers 5 and 3 with NVIDIA's library: a small C library answers, field by field supported or not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from machine_trees import Machine, by_id, situation
from nvml_card import NvmlCard

from tokentrace.doctor.check import ENGINE_DOWN
from tokentrace.doctor.machine import cards, command, launching, power
from tokentrace.probes import _nvidia_cards

NOT_SUPPORTED, GPU_LOST = 3, 15
GIB = 2**30


def look(machine: Machine, **more: object) -> dict[str, object]:
    machine.nvidia("GPU-1")
    return by_id(cards.look(situation(), machine.view(**more)))


def test_a_healthy_card(machine: Machine, nvml: NvmlCard) -> None:
    nvml.free_mib = 79_500
    found = look(machine)
    assert {r.status for r in found.values()} == {"ok"}
    assert "compute capability 9.0" in found["TT505"].detail and "0.99 fits" in found["TT506"].detail


def model(machine: Machine, **config: object) -> str:
    machine.write("/models/m/config.json", json.dumps(config))
    return "/models/m"


@pytest.mark.parametrize(
    ("capability", "config", "flags", "status"),
    [
        ((7, 5), {"torch_dtype": "bfloat16"}, (), "warn"),
        ((7, 5), {"torch_dtype": "bfloat16"}, ("--dtype", "half"), "ok"),
        ((7, 5), {"torch_dtype": "float16"}, ("--dtype=bfloat16",), "fail"),
        ((8, 0), {"dtype": "bfloat16"}, (), "ok"),
        ((8, 0), {"quantization_config": {"quant_method": "fp8"}}, (), "warn"),
        ((8, 9), {"quantization_config": {"quant_method": "fp8"}}, (), "ok"),
        ((9, 0), {}, ("--quantization", "modelopt_fp4"), "warn"),
        ((9, 0), {}, (), "ok"),
    ],
)
def test_number_formats_against_the_card(
    machine: Machine, nvml: NvmlCard, capability: tuple[int, int], config: dict[str, object], flags: tuple[str, ...],
    status: str,
) -> None:  # fmt: skip
    nvml.major, nvml.minor = capability
    line = ("python", "-m", "vllm.entrypoints.openai.api_server", "--model", model(machine, **config), *flags)
    result = look(machine, command=line)["TT505"]
    assert result.status == status
    if status == "fail":
        assert "--dtype half" in result.fix and result.explains == ENGINE_DOWN


def test_full_memory_names_who_holds_it(machine: Machine, nvml: NvmlCard) -> None:
    nvml.free_mib, nvml.pid, nvml.used_mib = 4_000, os.getpid(), 76_000
    machine.write(f"/proc/{os.getpid()}/comm", "python\n")
    result = look(machine)["TT506"]
    assert result.status == "warn" and f"process {os.getpid()} (python) holds 74.2 GiB" in result.evidence


def test_memory_of_nobody_is_told_as_such(machine: Machine, nvml: NvmlCard) -> None:
    nvml.free_mib = 40_000
    result = look(machine)["TT506"]
    assert result.status == "ok" and "up to 0.50 fits" in result.detail
    assert any("the driver does not show" in line for line in result.evidence)


def test_a_card_full_of_the_server_itself_is_healthy_until_nothing_is_left(machine: Machine, nvml: NvmlCard) -> None:
    nvml.free_mib, nvml.pid, nvml.used_mib = 5_000, os.getpid(), 75_000
    assert look(machine, pid=os.getpid())["TT506"].status == "ok"
    nvml.free_mib = 100
    result = look(machine, pid=os.getpid())["TT506"]
    assert result.status == "warn" and "out of memory is near" in result.detail


def test_a_card_that_shares_the_machines_memory(machine: Machine, nvml: NvmlCard) -> None:
    nvml.memory_code = NOT_SUPPORTED
    machine.write("/proc/meminfo", "MemTotal: 125829120 kB\nMemFree: 1 kB\nMemAvailable: 119537664 kB\n")
    result = look(machine)["TT506"]
    assert (
        result.status == "ok"
        and "shares the machine's memory" in result.detail
        and "114.0 GiB of 120.0" in result.detail
    )


def test_memory_that_cannot_be_read_is_unknown_and_hides_nothing_else(machine: Machine, nvml: NvmlCard) -> None:
    nvml.memory_code = 4  # no permission
    found = look(machine)
    assert found["TT506"].status == "unknown" and "Permission" in found["TT506"].detail
    assert found["TT505"].status == found["TT303"].status == "ok"


def test_one_lost_card_does_not_hide_the_other(machine: Machine, nvml: NvmlCard) -> None:
    nvml.count, nvml.lost = 2, 1
    machine.nvidia("GPU-1", "GPU-2")
    results = list(cards.look(situation(), machine.view()))
    memory = [r for r in results if r.id == "TT506"]
    assert [r.status for r in memory] == ["ok", "unknown"]
    faults = list(power.faults(_nvidia_cards.read(), [], ""))
    assert [r.status for r in faults] == ["ok", "warn"] and "does not answer" in faults[1].detail


@pytest.mark.parametrize(("mode", "status"), [(0, "ok"), (1, "warn"), (2, "fail"), (3, "warn")])
def test_compute_modes(machine: Machine, nvml: NvmlCard, mode: int, status: str) -> None:
    nvml.mode = mode
    result = look(machine)["TT303"]
    assert result.status == status and (status == "ok" or "nvidia-smi -i 0 -c DEFAULT" in result.fix)


def test_under_mps_exclusive_mode_is_as_it_should_be(machine: Machine, nvml: NvmlCard) -> None:
    nvml.mode = 3
    machine.write("/tmp/nvidia-mps/control")
    result = look(machine)["TT303"]
    assert result.status == "ok" and "MPS runs" in result.evidence[0]


def test_modes_that_are_not_told(machine: Machine, nvml: NvmlCard) -> None:
    nvml.modes_code = NOT_SUPPORTED
    assert look(machine)["TT303"].status == "unknown"


def test_faults_of_the_memory(nvml: NvmlCard) -> None:
    assert [r.status for r in power.faults(_nvidia_cards.read(), [], "")] == ["ok"]
    nvml.persistence = 0
    result = next(power.faults(_nvidia_cards.read(), [], "/dev/kmsg: Permission denied"))
    assert result.status == "ok" and any("persistence mode is off" in line for line in result.evidence)
    assert any("Permission denied" in line for line in result.evidence)
    nvml.ecc = 3
    result = next(power.faults(_nvidia_cards.read(), [], ""))
    assert result.status == "warn" and "3 memory errors" in result.detail
    nvml.ecc, nvml.ecc_code = 0, NOT_SUPPORTED
    result = next(power.faults(_nvidia_cards.read(), [], ""))
    assert result.status == "ok" and any(line.startswith("ECC errors: Not Supported") for line in result.evidence)


def test_errors_of_the_drivers_log_are_found() -> None:
    log = (
        "6,1,2,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n"
        "4,2,3,-;NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        "4,3,4,-;NVRM: Xid (PCI:0000:41:00): 79, pid=1\n"
    )
    assert power.xids(log) == [("0000:41:00", 79)]
    found = _nvidia_cards.Cards([_nvidia_cards.Card(0, "A100")])
    result = next(power.faults(found, power.xids(log), ""))
    assert result.status == "warn" and result.evidence[0] == "Xid 79 of 0000:41:00 in the kernel's log"


def test_no_library_is_unknown(machine: Machine, nvml: NvmlCard) -> None:
    nvml.init_code = 12
    found = look(machine)
    assert {r.status for r in found.values()} == {"unknown"} and "not found" in found["TT506"].detail


def test_amd_memory_comes_from_the_drivers_files(machine: Machine) -> None:
    machine.amd()
    found = by_id(cards.look(situation(), machine.view()))
    assert found["TT506"].status == "warn" and "12.0 GiB of 192.0 GiB" in found["TT506"].detail
    assert found["TT505"].status == "skip"


@pytest.mark.parametrize(
    ("line", "engine", "model_name", "flags"),
    [
        ("vllm serve org/m --max-num-seqs 12 --enforce-eager", "vllm", "org/m", {"max-num-seqs": "12"}),
        (
            "python -m vllm.entrypoints.openai.api_server --model=/m --dtype bfloat16",
            "vllm",
            "/m",
            {"dtype": "bfloat16"},
        ),
        ("python -m sglang.launch_server --model-path /m", "sglang", "/m", {}),
        ("node index.js", "", "", {}),
        ("vllm serve m --cudagraph-capture-sizes 1 2 4", "vllm", "m", {"cudagraph-capture-sizes": "1 2 4"}),
    ],
)
def test_command_lines(line: str, engine: str, model_name: str, flags: dict[str, str]) -> None:
    found = command.parse(line.split())
    assert (found.engine, found.model) == (engine, model_name)
    assert flags.items() <= found.flags.items()


def test_the_config_of_a_model_in_hugging_faces_cache(machine: Machine) -> None:
    repository = "/home/me/.cache/huggingface/hub/models--org--m"
    machine.write(f"{repository}/refs/main", "abc")
    machine.write(f"{repository}/snapshots/abc/config.json", '{"torch_dtype": "bfloat16"}')
    assert command.model_config(machine.view(), "org/m") == {"torch_dtype": "bfloat16"}
    machine.write(f"{repository}/snapshots/abc/config.json", "[broken")
    assert command.model_config(machine.view(), "org/m") == {}


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        ("", "ok", "captured graphs"),
        ("--enforce-eager", "warn", "one by one"),
        ("--enforce-eager --tensor-parallel-size 8", "warn", "split over 8 GPUs"),
        ("--max-num-seqs 12 --cudagraph-capture-sizes 1 2 4 8", "warn", "batches of 9 to 12"),
        ("--max-num-seqs 8 --cudagraph-capture-sizes 1 2 4 8", "ok", ""),
        ('--max-num-seqs 12 --compilation-config {"cudagraph_capture_sizes":[1,2,4,8]}', "warn", "9 to 12"),
        ("--compilation-config {broken", "unknown", "cannot be read"),
        ("--compilation-config 3", "ok", ""),
    ],
)
def test_captured_graphs(machine: Machine, flags: str, status: str, said: str) -> None:
    asked = command.parse(("vllm", "serve", "m", *flags.split()))
    result = launching.judge(asked, machine.view())[0]
    assert result.status == status and said in result.detail


def test_graphs_without_a_gpu_are_no_matter(machine: Machine) -> None:
    seen = machine.view(pid=3, command=("vllm", "serve", "m", "--enforce-eager"))
    assert by_id(launching.look(situation(), seen))["TT304"].status == "skip"


def test_a_real_recording_of_cards_has_the_fields_that_are_asked_for(recordings: Path) -> None:
    """What NVIDIA's own program prints for an H100 is what the checks ask NVML for, in the same words."""
    import gzip

    path = recordings / "nvidia_gpu_exporter/linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01.txt.gz"
    text = gzip.decompress(path.read_bytes()).decode(errors="replace")
    for field in ("compute_cap", "memory.free", "compute_mode", "persistence_mode", "mig.mode.current"):
        assert field in text
