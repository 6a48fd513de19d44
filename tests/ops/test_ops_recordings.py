"""Launches and kernels of real GPU recordings, against figures that were counted independently."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from ops_support import columns_of_recording
from support.answering import Answering, context

from tokentrace.probes import _kineto
from tokentrace.probes._kineto import from_columns, join_launches
from tokentrace.probes.kernel import KernelProbe
from tokentrace.probes.operator_profiler import OperatorProfilerProbe

ROOT = os.environ.get("TOKENTRACE_RECORDINGS", "")
pytestmark = pytest.mark.skipif(not ROOT, reason="TOKENTRACE_RECORDINGS is not set")
FILES = [
    "tracelens/h100_hf_bert-small_forward.json.gz",
    "tracelens/h100_hf_qwen1.5-0.5b_forward.json.gz",
    "tracelens/b200_vllm_tp8_prefill_eager.json.gz",
    "tracelens/mi300_hf_bert-small_forward.json.gz",
    "tracelens/mi300_vllm_decode_full_graph_step.json.gz",
    "hta/a100_triton_one_kernel.json.gz",
    "hta/v100_dlrm_cudagraph_2rank.json.gz",
]


@pytest.mark.parametrize("name", FILES)
def test_every_kernel_finds_the_launch_that_is_in_the_file(name: str) -> None:
    truth = json.loads(Path(ROOT, "groundtruth.json").read_text())[name]
    events = from_columns(columns_of_recording(Path(ROOT, name)))
    joined = join_launches(events)
    kernels = events.kind[joined.work] == _kineto.KERNEL
    launches = set(joined.calls.tolist())
    graphs = set(joined.calls[joined.graphs].tolist())
    callers = joined.call_of[kernels].tolist()
    assert int(kernels.sum()) == truth["kernels"]
    assert len(launches) == truth["launches"] and len(graphs) == truth["graph_launches"]
    assert sum(c in launches for c in callers) == truth["matched_launch"]
    assert sum(c < 0 for c in callers) == truth["orphan"]
    assert sum(c in graphs for c in callers) == truth["graph_kernels"]


def test_the_records_of_a_real_forward_pass() -> None:
    recorded = [columns_of_recording(Path(ROOT, FILES[0]))]
    probe = KernelProbe()
    records = list(probe.collect(context(Answering(recorded))))
    kernels = [r for r in records if r.name.startswith("kernel ")]
    keys = {r.key for r in records if r.key}
    assert len(kernels) == 60 and probe.state.facts["launches"] == 60 and probe.state.facts["orphans"] == 0
    assert all(set(k.link_keys) <= keys and k.link_keys for k in kernels)
    assert all("queue_delay" in " ".join(k.attributes) for k in kernels)
    operators = list(OperatorProfilerProbe().collect(context(Answering(recorded))))
    assert {r.name for r in operators} >= {"aten::linear", "aten::addmm", "aten::layer_norm"}
