"""Layers 5 and 3: what NVIDIA's library tells of each card, and what that means for the server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokentrace.doctor.check import ENGINE_DOWN, Check, Result, Situation, fail, ok, skip, unknown, warn
from tokentrace.doctor.machine import command, hardware
from tokentrace.doctor.machine.situation import on_the_servers_machine
from tokentrace.doctor.machine.view import View
from tokentrace.probes import _nvidia_cards
from tokentrace.probes._nvidia_cards import Card, Cards
from tokentrace.wording import listed, plural

_GIB = 2**30
#: With less than this free, one long prompt more ends in "out of memory".
_TIGHT_BYTES = 300 * 2**20
#: vLLM's default for --gpu-memory-utilization up to 0.11; later versions ask for slightly more.
_USUAL_SHARE = 0.9
#: dtype -> least compute capability with arithmetic for it, and what serves in its place.
_NEEDS = {
    "bfloat16": ((8, 0), "--dtype half"),
    "fp8": ((8, 9), "a 16-bit or int4 (AWQ, GPTQ) model"),
    "nvfp4": ((10, 0), "an fp8 or int4 model"),
}


def look(situation: Situation, view: View) -> Iterable[Result]:
    """TT505, TT506 and TT303 from one reading of the library."""
    there = hardware.look(view)
    if not there.cards_of("NVIDIA") and not there.nvidia_driver and not there.dxg:
        yield from _amd_memory(there)
        return
    found = _nvidia_cards.read()
    if not found.cards:
        for check in ("TT505", "TT506", "TT303"):
            yield unknown(check, f"NVML does not show the cards: {found.problem}", "run nvidia-smi")
        return
    yield from dtype(view, found)
    yield from memory(view, found, _meminfo(view))
    yield from modes(view, found)


def _amd_memory(there: hardware.Hardware) -> Iterator[Result]:
    cards = [c for c in there.cards_of("AMD") if c.total_bytes and c.used_bytes is not None]
    yield skip("TT505", "there is no NVIDIA GPU here" if not cards else "AMD's compute GPUs all do bfloat16")
    yield skip("TT303", "there is no NVIDIA GPU here")
    if not cards:
        yield skip("TT506", "there is no GPU memory here")
    for card in cards:
        assert card.total_bytes is not None and card.used_bytes is not None
        yield _room(f"GPU {card.index} {card.model}".strip(), card.total_bytes - card.used_bytes, card.total_bytes, [])


def dtype(view: View, found: Cards) -> Iterator[Result]:
    """TT505: the number formats that the model and the command ask for against the cards' capability."""
    asked = command.parse(view.command)
    config = command.model_config(view, asked.model)
    wanted, explicit = _wanted(asked, config)
    known = [c for c in found.cards if c.capability is not None]
    evidence = [f"GPU {c.index} {c.name}: compute capability {_dotted(c)}" for c in known]
    if not known:
        yield unknown(
            "TT505", "the cards' compute capability cannot be read", "", *_reasons(found, "compute capability")
        )
        return
    if not wanted:
        limits = [f"{name} from {need[0][0]}.{need[0][1]}" for name, need in _NEEDS.items()]
        yield ok("TT505", f"compute capability {listed(sorted({_dotted(c) for c in known}))}", *evidence, *limits)
        return
    for name in wanted:
        least, instead = _NEEDS[name]
        short = [c for c in known if c.capability is not None and c.capability < least]
        if not short:
            yield ok("TT505", f"every card does {name}", *evidence)
            continue
        detail = (
            f"{name} needs compute capability {least[0]}.{least[1]}, GPU {short[0].index} {short[0].name} has "
            f"{_dotted(short[0])}"
        )
        if explicit:
            yield fail("TT505", detail, f"use {instead}", *evidence, explains=ENGINE_DOWN)
        else:
            yield warn("TT505", f"the model's {detail}", f"use {instead}", *evidence)


def _wanted(asked: command.Command, config: dict[str, object]) -> tuple[list[str], bool]:
    """Formats that need a capability, and whether the command names the dtype itself."""
    said = asked.get("dtype").lower()
    explicit = said in ("bfloat16", "bf16")
    wanted = []
    if explicit or (said in ("", "auto") and str(config.get("dtype") or config.get("torch_dtype")) == "bfloat16"):
        wanted.append("bfloat16")
    quantized = config.get("quantization_config")
    method = str(quantized.get("quant_method", "")) if isinstance(quantized, dict) else ""
    method = f"{method} {asked.get('quantization')}".lower()
    wanted += [name for name, words in (("fp8", ("fp8",)), ("nvfp4", ("nvfp4", "modelopt_fp4"))) if
               any(word in method for word in words)]  # fmt: skip
    return wanted, explicit


def _dotted(card: Card) -> str:
    return f"{card.capability[0]}.{card.capability[1]}" if card.capability else "?"


def _reasons(found: Cards, name: str) -> list[str]:
    return [f"GPU {c.index}: {c.fields.get(name) or c.fields.get('handle', 'not asked')}" for c in found.cards]


def memory(view: View, found: Cards, system: tuple[int, int] | None) -> Iterator[Result]:
    """TT506: free memory of each card and who holds the rest."""
    ours = _family(view)
    for card in found.cards:
        name = f"GPU {card.index} {card.name}".strip()
        if card.unified and system is not None:
            total, free = system
            yield _room(f"{name} (shares the machine's memory)", free, total, [])
        elif card.total_bytes is None or card.free_bytes is None:
            reason = card.fields.get("memory") or card.fields.get("handle", "not asked")
            yield unknown("TT506", f"{name}: its memory cannot be read: {reason}", "", *_holders(card, view))
        elif ours & set(card.processes or ()):
            yield _while_serving(name, card.free_bytes, card.total_bytes, _holders(card, view))
        else:
            yield _room(name, card.free_bytes, card.total_bytes, _holders(card, view))


def _while_serving(name: str, free: int, total: int, holders: list[str]) -> Result:
    facts = f"{name}: {_gib(free)} of {_gib(total)} free while the server runs"
    if free < _TIGHT_BYTES:
        fix = "start the server with a lower --gpu-memory-utilization or a smaller --max-model-len"
        return warn("TT506", f"{facts}: out of memory is near", fix, *holders)
    return ok("TT506", facts, *holders)


def _room(name: str, free: int, total: int, holders: list[str]) -> Result:
    share = free / total
    fits = int(share * 100) / 100
    detail = f"{name}: {_gib(free)} of {_gib(total)} free, so --gpu-memory-utilization up to {fits:.2f} fits"
    if share < 0.1:
        detail = f"{name}: its memory is nearly full, {_gib(free)} of {_gib(total)} free"
        fix = "end the process that holds it" if holders else "find who holds it: nvidia-smi, or fuser -v /dev/nvidia*"
        return warn("TT506", detail, fix, *holders)
    if share < _USUAL_SHARE:
        usual = f"vLLM's usual share of {_USUAL_SHARE} of all memory does not fit now"
        return ok("TT506", detail, usual, *holders)
    return ok("TT506", detail, *holders)


def _holders(card: Card, view: View) -> list[str]:
    lines = []
    for pid, size in sorted((card.processes or {}).items()):
        name = view.text(f"/proc/{pid}/comm").strip() or "not visible from here: another container, or a zombie"
        lines.append(f"process {pid} ({name}) holds {_gib(size) if size is not None else 'an unknown part'}")
    if card.processes is not None and not card.processes and card.total_bytes and card.free_bytes is not None:
        used = card.total_bytes - card.free_bytes
        if used > _GIB:
            lines.append(f"{_gib(used)} are held by processes that the driver does not show here")
    return lines


def _family(view: View) -> set[int]:
    """The server's process, its children and its parents up to init."""
    import psutil

    if not view.pid:
        return set()
    try:
        process = psutil.Process(view.pid)
        return {p.pid for p in (process, *process.parents()[:-1], *process.children(recursive=True))}
    except psutil.Error:
        return {view.pid}


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f} GiB"


def _meminfo(view: View) -> tuple[int, int] | None:
    """(total, available) bytes of the machine's memory."""
    facts = {}
    for line in view.text("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        facts[name] = value.split()[:1]
    try:
        return int(facts["MemTotal"][0]) * 1024, int(facts["MemAvailable"][0]) * 1024
    except (KeyError, IndexError, ValueError):
        return None


def modes(view: View, found: Cards) -> Iterator[Result]:
    """TT303: who may launch kernels: compute mode and MPS."""
    mps = _mps(view)
    for card in found.cards:
        name = f"GPU {card.index}"
        if card.compute_mode is None:
            reason = card.fields.get("compute mode") or card.fields.get("handle", "not asked")
            yield unknown("TT303", f"{name}: its compute mode cannot be read: {reason}")
        elif card.compute_mode == "prohibited":
            yield fail("TT303", f"{name}: its compute mode forbids every program",
                       f"sudo nvidia-smi -i {card.index} -c DEFAULT", explains=ENGINE_DOWN)  # fmt: skip
        elif card.compute_mode.startswith("exclusive") and not mps:
            held = plural(len(card.processes or ()), "process", "processes")
            yield warn("TT303", f"{name}: its compute mode is {card.compute_mode}: only one program may use it",
                       f"sudo nvidia-smi -i {card.index} -c DEFAULT", f"{held} on it now")  # fmt: skip
        else:
            yield ok("TT303", f"{name}: its compute mode is {card.compute_mode}", *mps)


def _mps(view: View) -> list[str]:
    """Signs of NVIDIA's Multi-Process Service, under which kernels of several programs share one context."""
    pipe = view.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    running = view.exists(f"{pipe}/control")
    lines = [f"MPS runs (its pipe is {pipe}): kernels of other programs share the card"] if running else []
    if limit := view.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
        lines.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={limit}: {view.whose} gets that part of the card at most")
    return lines


CHECKS = (
    Check(
        "TT505", "number format",
        "bfloat16 needs compute capability 8.0, fp8 8.9, nvfp4 10.0; older cards refuse the model or serve it slowly.",
        "NVML's compute capability against --dtype, --quantization and the model's config.json",
        "Choose a format that the card has, for instance --dtype half.",
        on_the_servers_machine("TT505", look),
    ),
    Check(
        "TT506", "device memory",
        "Servers ask for a share of all memory; what other programs hold is missing from it.",
        "NVML's free memory and the processes on each card; the machine's memory where the card shares it",
        "End what holds the memory, or lower --gpu-memory-utilization to what fits.",
    ),
    Check(
        "TT303", "compute mode",
        "In exclusive mode a second program is refused; under MPS kernels of others run beside the server's.",
        "NVML's compute mode, MPS's pipe folder",
        "sudo nvidia-smi -c DEFAULT",
    ),
)  # fmt: skip
