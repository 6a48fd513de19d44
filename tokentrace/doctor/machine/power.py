"""Layer 1: which power sensors answer, field by field, and what holds a device back. The power probe's own check."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from tokentrace.doctor.check import Check, Result, Situation, Status, ok, skip, unknown, warn
from tokentrace.doctor.machine import hardware, surroundings
from tokentrace.doctor.machine.situation import on_the_servers_machine
from tokentrace.doctor.machine.view import View
from tokentrace.probe import Finding
from tokentrace.probes import _nvidia_cards
from tokentrace.probes._power_check import Topic, by_topic
from tokentrace.probes._sensors import Found
from tokentrace.probes.power import NO_SENSOR_FIX, close_all, find_all
from tokentrace.wording import plural

_IDS: dict[Topic, str] = {
    "interface": "TT101", "versions": "TT102", "fields": "TT103", "limits": "TT104", "sharing": "TT105",
    "processor": "TT108", "binding": "TT109",
}  # fmt: skip
_STATUS: dict[str, Status] = {"ok": "ok", "warn": "warn", "fail": "fail", "unknown": "unknown"}


def look(situation: Situation, view: View) -> Iterable[Result]:
    """TT101 to TT105, TT108 and TT109."""
    found = find_all()
    try:
        return judge(found, _around(view))
    finally:
        close_all(found)


def _around(view: View) -> str:
    around = surroundings.look(view)
    return f"inside {around.machine}, which usually has no power sensor" if around.machine else ""


def judge(found: Sequence[Found], around: str = "") -> list[Result]:
    """Results from what the probe found; interfaces that are merely absent are evidence, not results."""
    told = by_topic(found)
    sensors = [s for f in found for s in f.sensors]
    absent = [f for topic, f in told if topic == "interface" and f.status == "unknown"]
    tried = [f.sentence for f in absent]
    results: list[Result] = []
    if sensors:
        names = [f.sentence for topic, f in told if topic == "interface" and f.status == "ok"]
        results.append(ok("TT101", f"{plural(len(sensors), 'power sensor')} can be read", *names, *tried))
    elif not any(f.status == "warn" for _, f in told):
        fix = "run on the machine itself" if around else NO_SENSOR_FIX
        fix = next((f.fix for f in absent if "PYTHONPATH" in f.fix), fix)
        results.append(
            unknown("TT101", "no power sensor is here, so joules cannot be told", fix, *filter(None, (around, *tried)))
        )
    for topic, finding in told:
        if topic != "interface" or finding.status == "warn":
            results.append(_result(_IDS[topic], finding))
    return results


def _result(check: str, finding: Finding) -> Result:
    evidence = tuple(part for part in finding.evidence.split("; ") if part)
    sentence = (
        finding.sentence[:1].lower() + finding.sentence[1:] if finding.sentence.startswith("The ") else finding.sentence
    )
    return Result(check, _STATUS[finding.status], sentence, finding.fix, evidence)


def health(situation: Situation, view: View) -> Iterable[Result]:
    """TT106: memory faults, errors the driver logged, persistence mode."""
    there = hardware.look(view)
    if not there.nvidia_driver:
        return [skip("TT106", "there is no NVIDIA driver here")]
    cards = _nvidia_cards.read()
    if not cards.cards:
        return [unknown("TT106", f"NVML does not show the cards: {cards.problem}", "run nvidia-smi")]
    logged, why = kernel_log()
    return list(faults(cards, xids(logged), why))


def faults(cards: _nvidia_cards.Cards, logged: Sequence[tuple[str, int]], why_no_log: str) -> Iterator[Result]:
    """One result for each card. `logged` are (PCI address, Xid) of the kernel's log."""
    seen = [f"Xid {number} of {address} in the kernel's log" for address, number in logged]
    lines = seen or (
        [f"errors (Xid) cannot be looked up: {why_no_log}"] if why_no_log else ["no Xid in the kernel's log"]
    )
    for card in cards.cards:
        name = f"GPU {card.index} {card.name}".strip()
        missing = [f"{n}: {why}" for n, why in card.fields.items() if why != "yes" and n in
                   ("ECC errors", "remapped rows", "persistence mode", "handle")]  # fmt: skip
        if card.fields.get("handle"):
            yield warn("TT106", f"{name} does not answer: {card.fields['handle']}",
                       "reboot; if it stays away, look at its seat and power", *lines)  # fmt: skip
        elif card.rows_failed or card.rows_pending or card.ecc_errors:
            what = "its memory has rows that cannot be replaced" if card.rows_failed else (
                "its memory waits for a reset to replace faulty rows" if card.rows_pending else
                f"{plural(card.ecc_errors or 0, 'memory error')} since the driver was loaded could not be corrected"
            )  # fmt: skip
            fix = (
                "have the card replaced"
                if card.rows_failed
                else f"end what runs on it, then: sudo nvidia-smi --gpu-reset -i {card.index}"
            )
            yield warn("TT106", f"{name}: {what}", fix, *lines, *missing)
        elif seen:
            yield warn("TT106", f"{name}: the driver logged {plural(len(seen), 'error')}",
                       "look the Xid up in NVIDIA's list: sudo dmesg | grep Xid", *lines, *missing)  # fmt: skip
        else:
            off = card.persistence is False
            note = ["persistence mode is off: the first program after a pause waits for the driver"] if off else []
            yield ok("TT106", f"{name}: no memory fault is told", *lines, *note, *missing)


def kernel_log() -> tuple[str, str]:
    """The kernel's log, or why it cannot be read. Reading it takes nothing out of it."""
    lines: list[bytes] = []
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return "", f"/dev/kmsg: {error.strerror}"
    try:
        while len(lines) < 20_000:
            lines.append(os.read(descriptor, 8192))
    except BlockingIOError:
        pass  # the end
    except OSError as error:
        return "", f"/dev/kmsg: {error.strerror}"
    finally:
        os.close(descriptor)
    return b"\n".join(lines).decode(errors="replace"), ""


def xids(log: str) -> list[tuple[str, int]]:
    """(PCI address, number) of each Xid error that NVIDIA's driver logged."""
    found = re.findall(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)", log)
    return [(address, int(number)) for address, number in dict.fromkeys(found)]


CHECKS = (
    Check(
        "TT101", "power sensors",
        "Joules come from the devices' own sensors: NVML, AMD SMI, RAPL or hwmon. Virtual machines usually show none.",
        "each interface in turn, with its own reason where it has nothing",
        "Install the vendor's driver and library, or run on the machine itself.",
        on_the_servers_machine("TT101", look),
    ),
    Check(
        "TT102", "driver and library",
        "An update may replace NVIDIA's library under a loaded kernel module: monitoring then breaks, running programs "
        "go on.",
        "NVML's start, /proc/driver/nvidia/version, the mapped library",
        "Reboot, or unload and load the nvidia kernel modules.",
    ),
    Check(
        "TT103", "power fields",
        "Cards differ in what they measure; a missing field is told as missing, never as zero.",
        "each field asked for by itself",
        "None is needed for a trace.",
    ),
    Check(
        "TT104", "limits and throttling",
        "A power cap or heat slows a device without any error.",
        "the limit in force against the one asked for, throttle reasons, clock and temperature",
        "Look at cooling, power supply and power limit.",
    ),
    Check(
        "TT105", "shared cards",
        "With MIG or partitions power is measured for the whole card, other users' work included.",
        "MIG mode, compute partitions, CUDA_VISIBLE_DEVICES",
        "Measure with the card to yourself.",
    ),
    Check(
        "TT106", "device faults",
        "Memory errors that could not be corrected and errors in the driver's log (Xid) come before crashes.",
        "NVML's ECC counts and remapped rows, persistence mode, Xid lines of the kernel's log where it may be read",
        "Reset or replace the card.",
        on_the_servers_machine("TT106", health),
    ),
    Check(
        "TT108", "processor's energy",
        "Since 2020 only root may read RAPL's counters; a tool that ignores this shows no or zero joules.",
        "the permission of /sys/class/powercap/intel-rapl*/energy_uj",
        "sudo chmod a+r on the file that is named, or run as root.",
    ),
    Check(
        "TT109", "module pynvml",
        "The deprecated distribution pynvml shadows nvidia-ml-py.",
        "the installed distributions that provide the module",
        "pip uninstall pynvml, and keep nvidia-ml-py.",
    ),
)  # fmt: skip
