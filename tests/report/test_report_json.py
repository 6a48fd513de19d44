"""The report as data: the versioned schema, exact sums, null for what is not known."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.records import request_pass, three_passes

from tokentrace.errors import EndpointError
from tokentrace.model import IdSource, Trace
from tokentrace.probe import LayerState
from tokentrace.report import SCHEMA, Report, build
from tokentrace.stitch import stitch


def made(trace: Trace, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(build(trace, **more).to_json()))
    return found


def test_the_schema_has_every_key_that_scripts_rely_on() -> None:
    value = made(three_passes())
    assert value["schema"] == SCHEMA == "tokentrace.report/1"
    assert set(value) >= {
        "schema", "trace_id", "reply", "wall_ns", "ttft_ns", "tokens", "coverage", "unattributed_ns", "layers",
        "passes", "spans", "findings", "files",
    }  # fmt: skip
    for layer in value["layers"]:
        assert set(layer) >= {
            "layer", "id", "status", "reason", "form_in", "form_out", "own_ns_down", "own_ns_up", "share", "evidence",
        }  # fmt: skip
    assert [layer["layer"] for layer in value["layers"]] == [8, 7, 6, 5, 4, 3, 2, 1]
    for one in value["passes"].values():
        assert set(one) >= {"wall_ns", "ttft_ns", "dilation"}
    for finding in value["findings"]:
        assert set(finding) >= {"layer", "sentence", "evidence", "fix"}
    assert value["spans"] == {"produced": 166, "accepted": None, "rejected": None}
    assert value["files"] == []


def test_the_figures_are_those_of_the_warm_request_and_add_up() -> None:
    value = made(three_passes())
    assert (value["headline_pass"], value["reply"], value["prompt"]) == ("warm", "Hello! How", "Hi")
    assert value["wall_ns"] == value["passes"]["warm"]["wall_ns"] == 61_840_000
    assert value["ttft_ns"] == 41_570_000
    assert value["tokens"] == {"input": 7, "output": 3}
    known = sum((layer["own_ns_down"] or 0) + (layer["own_ns_up"] or 0) for layer in value["layers"])
    assert known + value["unattributed_ns"] == value["wall_ns"]
    shares = sum(layer["share"] or 0 for layer in value["layers"])
    assert shares == pytest.approx(value["coverage"])
    assert list(value["passes"]) == ["cold", "warm", "deep"]
    pace = value["passes"]["warm"]["pace"]
    assert pace == {"window_ns": 20_060_000, "tokens": 2, "exact": True, "why": ""}
    assert value["passes"]["warm"]["dilation"] == 1.0 and value["passes"]["deep"]["dilation"] > 1.4


def test_what_is_not_known_is_null_with_its_reason() -> None:
    layers = {layer["id"]: layer for layer in made(three_passes())["layers"]}
    power = layers["power"]
    assert power["status"] == "unseen" and power["reason"] == "no power sensor can be read"
    assert power["own_ns_down"] is power["own_ns_up"] is power["share"] is None
    assert layers["jit"]["status"] == "idle" and layers["jit"]["own_ns_down"] == 0
    assert layers["tensor"]["own_source"] == "deep proportions"
    assert layers["client"]["own_source"] == "measured"


def test_a_request_that_failed_still_gives_a_report() -> None:
    error = EndpointError("the server closed the connection", fix="look at its log")
    one = request_pass("once", error=error)
    assert one.exchange is not None
    one.exchange.chunks = []
    one.exchange.usage = None
    one.exchange.text = ""
    trace = stitch([one], ids=IdSource(1))
    value = made(trace)
    assert value["error"] == {"message": "the server closed the connection", "layer": 0, "fix": "look at its log"}
    assert value["ttft_ns"] is None and value["tokens"] == {"input": None, "output": None}
    assert value["findings"][0]["status"] == "fail" and value["findings"][0]["fix"] == "look at its log"


def test_the_token_table_has_arrivals_and_latencies() -> None:
    table = made(three_passes())["token_times"]
    assert [(row["index"], row["text"], row["id"], row["arrival_ns"], row["itl_ns"]) for row in table] == [
        (0, "Hello", 19556, 41_570_000, None),
        (1, "!", 17, 51_600_000, 10_030_000),
        (2, " How", 1073, 61_630_000, 10_030_000),
    ]


def test_a_probes_figures_come_along_and_its_bulk_does_not() -> None:
    states = [LayerState(1, facts={"joules": 1.25, "tried": ["a", "b"]})]
    trace = stitch([request_pass("once", states=states)], ids=IdSource(1))
    layer = next(layer for layer in made(trace)["layers"] if layer["layer"] == 1)
    assert layer["facts"] == {"joules": 1.25}


def test_a_report_survives_json() -> None:
    trace = three_passes()
    value = made(trace, notes=["a note"])
    again = Report.from_json(value)
    assert again.to_json() == value and again.notes == ["a note"]


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(st.sampled_from(["layers", "passes", "wall_ns", "tokens", "findings"]), st.text() | st.integers())
)
def test_what_is_no_report_is_refused_in_one_sentence(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="schema"):
        Report.from_json({"schema": "tokentrace.report/2"})
    value = {"schema": SCHEMA, "trace_id": "0" * 32, **broken}
    try:
        Report.from_json(value)
    except ValueError as error:
        assert "\n" not in str(error)
