"""Layer 1: what the request cost in joules, on each device with a power sensor, and whether it was held back.

Sensors: NVIDIA through NVML, AMD through AMD SMI or hwmon, processors through RAPL or hwmon, Jetson modules through
hwmon. One thread in this process reads them at their own pace. Where there is no sensor the layer says so, names
what was tried, and still shows processor seconds, frequency and utilization, which are not power.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address

from tokentrace.energy.device import Log, device_record
from tokentrace.model import Record
from tokentrace.probe import Finding, LayerState, ProbeContext, ProbeUnavailable
from tokentrace.probes import _amd, _cpu, _nvidia
from tokentrace.probes._cpu import CpuWatch
from tokentrace.probes._power_check import findings
from tokentrace.probes._power_report import cpu_record, split_of, tokens_of, window_of
from tokentrace.probes._sensors import Found, Sampler, Sensor, Tried, now_ns

LAYER = 1
NO_SENSOR_FIX = (
    "on a GPU machine install the vendor's driver and pip install 'tokentrace[nvidia]' or 'tokentrace[amd]'; on a "
    "bare-metal processor sudo modprobe intel_rapl_msr; virtual machines usually have no power sensor"
)


def find_all() -> list[Found]:
    """Every interface that could show power on this machine, looked for once. Never raises."""
    found = [_nvidia.discover(), _amd.discover(), _cpu.rapl(), _cpu.hwmon()]
    if sys.platform == "darwin":
        apple = Tried("Apple powermetrics", "needs root and is not read by this version")
    else:
        apple = Tried("Apple powermetrics", "this is not macOS")
    return [*found, Found(tried=[apple])]


class PowerProbe:
    """See the module's docstring. `find` is the seam through which tests bring their own sensors.

    `context.options` it reads: `pids` (serving processes), `steps` (see `_power_report.split_of`).
    """

    layer = LAYER

    def __init__(self, find: Callable[[], list[Found]] = find_all) -> None:
        self.state = LayerState(LAYER)
        self._find = find
        self._found: list[Found] = []
        self._sampler: Sampler | None = None
        self._watch = CpuWatch()
        self._armed_ns = 0
        self._disarmed_ns = 0

    def check(self, context: ProbeContext) -> Iterable[Finding]:
        found = self._find()
        try:
            return findings(found)
        finally:
            close_all(found)

    def arm(self, context: ProbeContext) -> None:
        self.state = LayerState(LAYER)
        self._found = self._find()
        sensors: list[Sensor] = [s for f in self._found for s in f.sensors]
        self._watch = CpuWatch(_pids(context))
        self._watch.open()
        found = self._found
        self._sampler = Sampler(sensors, beside=self._watch.read, at_end=lambda: close_all(found))
        self._armed_ns = now_ns()
        self._disarmed_ns = 0
        self._sampler.start()

    def disarm(self) -> None:
        if self._sampler is not None and not self._disarmed_ns:
            self._disarmed_ns = now_ns()
            self._sampler.stop()
            self._watch.read()

    def collect(self, context: ProbeContext) -> Iterable[Record]:
        if self._sampler is None:
            raise ProbeUnavailable("power was not watched", fix="run the request again")
        logs = self._sampler.finish()
        address = context.exchange.server_address if context.exchange is not None else ""
        if context.mode == "url" and not _is_here(address):
            where = address or "an unknown address"
            raise ProbeUnavailable(
                f"the server runs on another machine ({where}), its power cannot be seen from here",
                fix="run tokentrace on that machine",
                layer=LAYER,
            )
        window = window_of(context.exchange, self._armed_ns, self._disarmed_ns or now_ns())
        split = split_of(context)
        tokens = tokens_of(context.exchange, split)
        serving = _serving(logs, frozenset(self._watch.processes))
        records: list[Record] = []
        refused: list[str] = []
        joules: dict[str, float] = {}
        errors: dict[str, float] = {}
        for log in logs:
            serves = serving.get(log.info.id)
            record, problem, parts = device_record(log, window, split, tokens, serves)
            records.append(record)
            if parts is None:
                refused.append(f"{log.info.name}: {problem}")
            elif not log.info.part_of and log.info.type != "enclosure" and serves is not False:
                joules[log.info.name] = parts.total.joules
                errors[log.info.name] = parts.total.error_joules
        self._conclude(logs, records, refused)
        cpu = cpu_record(self._watch, window, tokens, self.state.reason)
        facts = self.state.facts
        if joules:
            facts["joules"] = sum(joules.values())
            facts["error_joules"] = sum(errors.values())
            facts["joules_by_device"] = joules
            if tokens.count:
                facts["joules_per_token"] = facts["joules"] / tokens.count
                facts["tokens_source"] = tokens.source
        if cpu is not None:
            records.append(cpu)
            facts.update({k: v for k, v in cpu.attributes.items() if k.startswith("tokentrace.cpu.")})
        facts["sampler_cpu_seconds"] = self._sampler.cost_seconds
        if not records:
            raise ProbeUnavailable(self.state.reason, fix=self.state.fix, layer=LAYER)
        return records

    def _conclude(self, logs: Sequence[Log], records: Sequence[Record], refused: Sequence[str]) -> None:
        """Seen when at least one device gave joules, else unseen with every reason."""
        tried = [t for f in self._found for t in f.tried]
        self.state.facts["tried"] = [f"{t.what}: {t.problem}" for t in tried]
        if len(refused) < len(logs):
            self.state.status = "seen"
            if refused:
                self.state.reason = "; ".join(refused)
            return
        self.state.status = "unseen"
        if logs:
            self.state.reason = "; ".join(refused)
            self.state.fix = "ask for a longer reply, for instance --max-tokens 500"
            return
        self.state.reason = "no power sensor can be read: " + "; ".join(f"{t.what}: {t.problem}" for t in tried)
        broken = [t.fix for t in tried if not t.absent and t.fix]
        self.state.fix = broken[0] if broken else NO_SENSOR_FIX


def close_all(found: Sequence[Found]) -> None:
    for one in found:
        if one.close is not None:
            one.close()
            one.close = None


def _pids(context: ProbeContext) -> tuple[int, ...]:
    """The serving processes: as given, else as the agent says (`pids`, or `pid`)."""
    given = context.options.get("pids")
    if not given and context.agent is not None:
        facts = context.agent.facts()
        given = facts.get("pids") or ([facts["pid"]] if facts.get("pid") else [])
    return tuple(dict.fromkeys(int(pid) for pid in given or ()))


def _serving(logs: Sequence[Log], processes: frozenset[int]) -> dict[str, bool | None]:
    """Which GPUs the serving processes compute on. Unknown for all unless at least one matches: inside a container
    the driver's process numbers are the host's and match nothing.
    """
    matched = {log.info.id: None if log.info.pids is None else bool(log.info.pids & processes) for log in logs}
    return matched if any(matched.values()) else {}


def _is_here(address: str) -> bool:
    """Whether an address belongs to this machine. An empty one does not."""
    import psutil

    if address == "localhost":
        return True
    try:
        if ip_address(address).is_loopback:
            return True
    except ValueError:
        return False
    return any(a.address == address for addresses in psutil.net_if_addrs().values() for a in addresses)
