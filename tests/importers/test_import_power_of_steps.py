"""Joules of the steps of a recording, from a power dump that was made beside it."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tokentrace.importers import Imported, load

BEGIN_S = 1_796_000_000
STEPS = {"execute_context_1(1000)_generation_0(0)": (0.5, 2.0), "execute_context_0(0)_generation_4(4)": (3.0, 1.0)}


def dump(every_ms: int, watts: float = 200.0, devices: int = 1, late_s: int = 0) -> str:
    rows = ["timestamp, index, power.draw.instant [W]"]
    for n in range(5_000 // every_ms):
        at = datetime.fromtimestamp(BEGIN_S + late_s + n * every_ms / 1000, timezone.utc)
        rows += [f"{at:%Y/%m/%d %H:%M:%S}.{at.microsecond // 1000:03d}, {d}, {watts * (d + 1):.2f} W"
                 for d in range(devices)]  # fmt: skip
    return "\n".join(rows) + "\n"


def imported(folder: Path, power: str, device: int = 0, **header: Any) -> Imported:
    events: list[dict[str, Any]] = []
    for number, (name, (after_s, length_s)) in enumerate(STEPS.items()):
        begin, length = (BEGIN_S + after_s) * 1e6, length_s * 1e6
        at = {"ph": "X", "pid": 1, "tid": 1, "ts": begin, "dur": length}
        events += [
            {**at, "cat": "user_annotation", "name": name},
            {**at, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "dur": 5, "args": {"correlation": number + 1}},
            {**at, "cat": "kernel", "name": "k", "pid": device, "tid": 7, "ts": begin + 10, "dur": length - 20,
             "args": {"correlation": number + 1, "device": device, "stream": 7}},
        ]  # fmt: skip
    (folder / "t.json").write_text(json.dumps({**header, "traceEvents": events}))
    (folder / "power.csv").write_text(power)
    return load([folder / "t.json", folder / "power.csv"])


def of_steps(found: Imported) -> list[tuple[float | None, float | None]]:
    told = [found.trace.attributes(row) for row in range(len(found.trace)) if found.trace.layer[row] == 6]
    return [(one.get("tokentrace.step.joules"), one.get("tokentrace.step.joules_error")) for one in told]


def test_prefill_and_decode_get_the_joules_of_their_time(tmp_path: Path) -> None:
    found = imported(tmp_path, dump(100))
    (prefill, prefill_error), (decode, decode_error) = of_steps(found)
    assert prefill == pytest.approx(400, rel=1e-6) and decode == pytest.approx(200, rel=1e-6)
    # At each end of a step half a period of 100 ms at 200 W is in doubt, and the resolution all along.
    assert prefill_error == pytest.approx(20, abs=0.1) and decode_error == pytest.approx(20, abs=0.1)
    sentences = [finding.sentence for finding in found.findings if finding.layer == 1]
    assert any("400 J" in s and "a prefill step, 0.4 J" in s for s in sentences), sentences
    assert any("200 J" in s and "a decode step, 50 J" in s for s in sentences), sentences


def test_a_step_shorter_than_the_sensor_sees_gets_no_joules(tmp_path: Path) -> None:
    found = imported(tmp_path, dump(1500))
    (prefill, _), (decode, _) = of_steps(found)
    assert prefill is not None and decode is None
    refused = [f for f in found.findings if "decode step drew" in f.sentence]
    assert [f.status for f in refused] == ["unknown"] and "too short: the step took 1000.0 ms" in refused[0].sentence


def test_of_which_card_the_joules_are_is_told_wherever_they_stand(tmp_path: Path) -> None:
    """A number may have been given anew by CUDA_VISIBLE_DEVICES, and a dump of one card may be of another."""
    for device, cards, how, told in ((1, 2, "number", "by its number"), (3, 1, "only card", "as the only one in")):
        card = str(device) if cards == 2 else "0"
        found = imported(tmp_path, dump(100, devices=cards), device=device)
        sentence = f"GPU {card} is taken for the recording's device {device}, {told}"
        of_card = [f for f in found.findings if f.layer == 1 and f.sentence.startswith(f"GPU {card} used")]
        assert len(of_card) == 3 and all(sentence in f.evidence for f in of_card)
        spans = [span for span in found.trace.spans if span.name in ("step", "power")]
        assert len(spans) == 2 + cards
        for span in spans:
            prefix = "tokentrace.power" if span.name == "power" else "tokentrace.step.power"
            expected = {f"{prefix}.card": card, f"{prefix}.device": str(device), f"{prefix}.device_join": how}
            if span.name == "step" or span.attributes["hw.id"] == card:
                assert expected.items() <= span.attributes.items()
            else:
                assert f"{prefix}.device" not in span.attributes, "the other card ran nothing of this"


def test_of_several_cards_the_one_is_taken_that_ran_the_steps(tmp_path: Path) -> None:
    assert of_steps(imported(tmp_path, dump(100, devices=2), device=1))[1][0] == pytest.approx(400, rel=1e-6)
    assert of_steps(imported(tmp_path, dump(100, devices=2), device=5)) == [(None, None)] * 2


def of_model(name: str) -> str:
    """A dump whose card has this name."""
    first, *rows = dump(100).splitlines()
    return "\n".join([f"{first}, name", *(f"{row}, {name}" for row in rows)]) + "\n"


@pytest.mark.parametrize(
    ("card", "recorded", "joined"),
    [
        ("NVIDIA H100", ["NVIDIA H100 80GB HBM3"], True),
        ("NVIDIA H100 80GB HBM3", [], True),
        ("NVIDIA H100 80GB HBM3", ["NVIDIA A100-SXM4-40GB"], False),
        (
            "NVIDIA H100 80GB HBM3",
            ["AMD Instinct MI300X"],
            True,
        ),  # of calls and names that disagree nothing is concluded
    ],
)
def test_a_dump_of_another_model_is_not_joined(tmp_path: Path, card: str, recorded: list[str], joined: bool) -> None:
    found = imported(tmp_path, of_model(card), deviceProperties=[{"id": 0, "name": name} for name in recorded])
    other = [f for f in found.findings if "is of another device than the recording" in f.sentence]
    assert bool(other) != joined and (of_steps(found)[0][0] is not None) == joined
    assert joined or other[0].evidence == f"the dump is of {card}, the recording of {recorded[0]}"


def test_a_dump_of_another_maker_is_not_joined(tmp_path: Path) -> None:
    imported(tmp_path, of_model("NVIDIA H100"))
    trace = tmp_path / "t.json"
    trace.write_text(trace.read_text().replace("cudaLaunchKernel", "hipLaunchKernel"))
    found = load([trace, tmp_path / "power.csv"])
    (other,) = (f for f in found.findings if "is of another device" in f.sentence)
    assert other.status == "unknown" and "of a device of AMD" in other.evidence
    assert of_steps(found) == [(None, None)] * 2


def test_how_far_a_dump_lies_from_the_recording_is_told(tmp_path: Path) -> None:
    for late_s, told in ((3600, "59.9 min after the recording"), (-3600, "59.9 min before the recording")):
        found = imported(tmp_path, dump(100, late_s=late_s))
        (outside,) = (f for f in found.findings if f.sentence.startswith("No sample of power.csv lies in"))
        assert outside.evidence.startswith(f"50 samples; {told}") and "--zone" in outside.fix
    found = imported(tmp_path, dump(100, late_s=90 * 86_400))
    (outside,) = (f for f in found.findings if f.sentence.startswith("No sample of power.csv lies in"))
    assert "89 days after" in outside.evidence and "--zone" not in outside.fix, "no zone is that far away"
