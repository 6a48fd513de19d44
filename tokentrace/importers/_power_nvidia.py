"""nvidia-smi's own output forms: -q text, -q -x XML, --query-gpu CSV and dmon. Each -> (kind, samples, lost)."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from datetime import tzinfo
from xml.etree import ElementTree

from tokentrace.importers._power_values import (
    PowerSample,
    Read,
    active_reasons,
    number,
    on_off,
    power_choice,
    text_of,
    time_ns,
)

_UNIT = re.compile(r"\s*\[([^\]]+)\]\s*$")


def from_xml(text: str, zone: tzinfo) -> Read:
    """`nvidia-smi -q -x`, once or looped (`-l`): one document after another."""
    samples: list[PowerSample] = []
    lost = 0
    for document in re.split(r"(?=<\?xml)", text):
        if not document.strip():
            continue
        # These dumps declare a DTD but no entities; one that does is not from the tool.
        if "<!ENTITY" in document:
            lost += 1
            continue
        try:
            root = ElementTree.fromstring(document.strip())
        except (ElementTree.ParseError, ValueError):
            lost += 1
            continue
        moment = time_ns(_xml(root, "timestamp"), zone)
        for index, gpu in enumerate(root.iter("gpu")):
            samples.append(_xml_gpu(gpu, index, moment, _xml(root, "driver_version")))
    return "nvidia-smi -q -x", samples, lost


def _xml(node: ElementTree.Element, *paths: str) -> str:
    for path in paths:
        text = text_of(node.findtext(path))
        if text:
            return text
    return ""


def _xml_gpu(gpu: ElementTree.Element, index: int, moment: int | None, driver: str) -> PowerSample:
    power = gpu.find("gpu_power_readings")
    power = power if power is not None else gpu.find("power_readings")
    power = power if power is not None else ElementTree.Element("none")
    watts, kind = power_choice(
        number(_xml(power, "instant_power_draw"), "W"),
        number(_xml(power, "average_power_draw"), "W"),
        number(_xml(power, "power_draw"), "W"),
    )
    reasons = [
        (re.sub(r"^clocks_(?:event|throttle)_reason_", "", child.tag), (child.text or "").strip())
        for parent in ("clocks_event_reasons", "clocks_throttle_reasons")
        for child in gpu.findall(f"{parent}/*")
    ]
    return PowerSample(
        time_ns=moment,
        device=_xml(gpu, "minor_number") or str(index),
        watts=watts,
        watts_kind=kind,
        average_w=number(_xml(power, "average_power_draw"), "W"),
        cap_w=number(_xml(power, "current_power_limit", "enforced_power_limit", "power_limit"), "W"),
        cap_requested_w=number(_xml(power, "requested_power_limit", "power_limit"), "W"),
        temp_c=number(_xml(gpu, "temperature/gpu_temp"), "C"),
        memory_temp_c=number(_xml(gpu, "temperature/memory_temp"), "C"),
        util_percent=number(_xml(gpu, "utilization/gpu_util"), "%"),
        clock_mhz=number(_xml(gpu, "clocks/sm_clock"), "MHz"),
        memory_clock_mhz=number(_xml(gpu, "clocks/mem_clock"), "MHz"),
        throttle=active_reasons(reasons),
        mig=on_off(_xml(gpu, "mig_mode/current_mig")),
        name=_xml(gpu, "product_name"),
        uuid=_xml(gpu, "uuid"),
        vendor="NVIDIA",
        driver_version=driver,
    )


def from_query(text: str, zone: tzinfo) -> Read:
    """`nvidia-smi -q`, once or looped: a tree by indentation under each GPU's line."""
    samples: list[PowerSample] = []
    for log in re.split(r"^=+NVSMI LOG=+\s*$", text, flags=re.MULTILINE)[1:]:
        head, *gpus = re.split(r"^GPU (?=[0-9A-Fa-f]{4,8}:)", log, flags=re.MULTILINE)
        common = _tree(head)
        moment = time_ns(common.get("Timestamp", ""), zone)
        for index, gpu in enumerate(gpus):
            samples.append(_query_gpu(_tree(gpu.partition("\n")[2]), index, moment, common.get("Driver Version", "")))
    return "nvidia-smi -q", samples, 0


def _tree(text: str) -> dict[str, str]:
    """Lines `key : value` by their path of headings, joined with "/"."""
    result: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    for line in text.splitlines():
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        while stack and stack[-1][0] >= indent:
            stack.pop()
        key, colon, value = line.strip().partition(" : ")
        key = key.strip()
        # Even a line with a value may be a heading: "HW Slowdown : Not Active" has two reasons below it.
        stack.append((indent, key))
        if colon:
            result.setdefault("/".join(name for _, name in stack), value.strip())
    return result


def _query_gpu(tree: Mapping[str, str], index: int, moment: int | None, driver: str) -> PowerSample:
    def get(*paths: str) -> str:
        return next((text_of(tree[p]) for p in paths if text_of(tree.get(p))), "")

    def power(*names: str) -> float | None:
        return number(get(*(f"{s}/{n}" for s in ("GPU Power Readings", "Power Readings") for n in names)), "W")

    watts, kind = power_choice(power("Instantaneous Power Draw"), power("Average Power Draw"), power("Power Draw"))
    reasons = [
        (path.rpartition("/")[2].lower().replace(" ", "_"), state)
        for path, state in tree.items()
        if path.startswith(("Clocks Event Reasons/", "Clocks Throttle Reasons/"))
    ]
    return PowerSample(
        time_ns=moment,
        device=get("Minor Number") or str(index),
        watts=watts,
        watts_kind=kind,
        average_w=power("Average Power Draw"),
        cap_w=power("Current Power Limit", "Enforced Power Limit", "Power Limit"),
        cap_requested_w=power("Requested Power Limit", "Power Limit"),
        temp_c=number(get("Temperature/GPU Current Temp"), "C"),
        memory_temp_c=number(get("Temperature/Memory Current Temp"), "C"),
        util_percent=number(get("Utilization/GPU", "Utilization/Gpu"), "%"),
        clock_mhz=number(get("Clocks/SM"), "MHz"),
        memory_clock_mhz=number(get("Clocks/Memory"), "MHz"),
        throttle=active_reasons(reasons),
        mig=on_off(get("MIG Mode/Current")),
        name=get("Product Name"),
        uuid=get("GPU UUID"),
        vendor="NVIDIA",
        driver_version=driver,
    )


def is_csv_header(line: str) -> bool:
    return "power.draw" in line or bool(re.search(r"\btimestamp\b.*\b(temperature|utilization)\.gpu\b", line))


def csv_rows(text: str, skipinitialspace: bool = False) -> Iterator[list[str]]:
    """Rows of CSV text; a row the csv module refuses (a field of 128 KiB, a NUL) is left out."""
    rows = csv.reader(text.splitlines(), skipinitialspace=skipinitialspace)
    while True:
        try:
            yield next(rows)
        except StopIteration:
            return
        except csv.Error:
            continue


def from_csv(text: str, zone: tzinfo) -> Read:
    """`--query-gpu=… --format=csv`, with or without units in the values; the title row is needed."""
    samples: list[PowerSample] = []
    lost = 0
    columns: list[str] = []
    units: list[str] = []
    for row in csv_rows(text, skipinitialspace=True):
        if not row or not any(cell.strip() for cell in row):
            continue
        if is_csv_header(",".join(row)):
            columns = [_UNIT.sub("", cell).strip() for cell in row]
            units = [(_UNIT.search(cell) or ["", ""])[1] for cell in row]
            continue
        if not columns or len(row) != len(columns):
            lost += 1
            continue
        samples.append(_csv_row(dict(zip(columns, row, strict=True)), dict(zip(columns, units, strict=True)), zone))
    return "nvidia-smi --query-gpu", samples, lost


def _csv_row(row: Mapping[str, str], units: Mapping[str, str], zone: tzinfo) -> PowerSample:
    def get(*names: str) -> str:
        return next((text_of(row[n]) for n in names if text_of(row.get(n))), "")

    def value(unit: str, *names: str) -> float | None:
        found = (number(row[n], unit, units[n]) for n in names if n in row)
        return next((v for v in found if v is not None), None)

    watts, kind = power_choice(
        value("W", "power.draw.instant"), value("W", "power.draw.average"), value("W", "power.draw")
    )
    reasons = [
        (name.rpartition(".")[2], state.strip())
        for name, state in row.items()
        if name.startswith(("clocks_event_reasons.", "clocks_throttle_reasons."))
    ]
    return PowerSample(
        time_ns=time_ns(get("timestamp"), zone),
        device=get("index", "gpu_bus_id", "pci.bus_id", "uuid", "gpu_uuid"),
        watts=watts,
        watts_kind=kind,
        average_w=value("W", "power.draw.average"),
        cap_w=value("W", "enforced.power.limit", "power.limit"),
        cap_requested_w=value("W", "power.limit"),
        temp_c=value("C", "temperature.gpu"),
        memory_temp_c=value("C", "temperature.memory"),
        util_percent=value("%", "utilization.gpu"),
        clock_mhz=value("MHz", "clocks.current.sm", "clocks.sm"),
        memory_clock_mhz=value("MHz", "clocks.current.memory", "clocks.mem"),
        throttle=active_reasons(reasons),
        mig=on_off(get("mig.mode.current")),
        name=get("name", "gpu_name"),
        uuid=get("uuid", "gpu_uuid"),
        vendor="NVIDIA",
        driver_version=get("driver_version"),
    )


def is_dmon(text: str) -> bool:
    """dmon's title row; pmon's looks alike but is about processes."""
    title = re.search(r"^#\s*(?:Date\s+)?(?:Time\s+)?gpu\s[^\n]*", text, re.MULTILINE)
    return title is not None and "pid" not in title[0].split()


def from_dmon(text: str, zone: tzinfo) -> Read:
    """`nvidia-smi dmon`: a title row, a unit row, then whole numbers. Times only with `-o DT`."""
    samples: list[PowerSample] = []
    lost = 0
    titles: list[str] = []
    units: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            cells = line.lstrip("#").split()
            if "gpu" in cells:
                titles = cells
            elif titles and len(cells) == len(titles):
                units = dict(zip(titles, cells, strict=True))
            continue
        cells = line.split()
        if not cells:
            continue
        if len(cells) != len(titles):
            lost += 1
            continue
        samples.append(_dmon_row(dict(zip(titles, cells, strict=True)), units, zone))
    return "nvidia-smi dmon", samples, lost


def _dmon_row(row: Mapping[str, str], units: Mapping[str, str], zone: tzinfo) -> PowerSample:
    def value(unit: str, name: str) -> float | None:
        return number(row.get(name), unit, units.get(name, unit))

    watts = value("W", "pwr")
    moment = time_ns(f"{row['Date']} {row['Time']}", zone) if "Date" in row and "Time" in row else None
    return PowerSample(
        time_ns=moment,
        device=row.get("gpu", "0"),
        watts=watts,
        watts_kind="unspecified" if watts is not None else "",
        temp_c=value("C", "gtemp"),
        memory_temp_c=value("C", "mtemp"),
        util_percent=value("%", "sm"),
        clock_mhz=value("MHz", "pclk"),
        memory_clock_mhz=value("MHz", "mclk"),
        vendor="NVIDIA",
    )
