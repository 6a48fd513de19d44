"""A whole run: choose where the prompt goes, trace it, analyse, save, send on. The command and the API share it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokentrace import session
from tokentrace.errors import EndpointError, TokentraceError, UsageError
from tokentrace.fold import BUDGET, fold
from tokentrace.report import Report, build

if TYPE_CHECKING:
    from tokentrace.client.settings import Endpoint
    from tokentrace.model import Trace

MAX_PROMPT = 4_000_000


@dataclass(slots=True)
class Settings:
    """What a run may be told. `endpoint` None means the local engine."""

    endpoint: Endpoint | None = None
    model: str | None = None
    once: bool = False
    detail: bool = False
    compile: bool = False
    save: bool = True
    out: Path | None = None
    output: Path | None = None
    otlp: str | None = None


@dataclass(slots=True)
class Run:
    """What came of it. `error` is set when the request failed; the trace holds what was seen until then."""

    trace: Trace
    folded: Trace
    report: Report
    error: TokentraceError | None = None
    export_error: TokentraceError | None = None
    interrupted: bool = False
    folder: Path | None = None
    warnings: list[str] = field(default_factory=list)


def run(ask: session.Ask, settings: Settings, ui: session.Ui) -> Run:
    """Trace one prompt. Raises UsageError for a prompt that cannot be sent, EngineError without an engine."""
    if not ask.prompt.strip():
        raise UsageError("the prompt is empty", fix='for example tokentrace run "Hi"')
    if len(ask.prompt) > MAX_PROMPT:
        raise UsageError(f"the prompt has {len(ask.prompt)} characters", fix=f"at most {MAX_PROMPT} are sent")
    outcome = _remote(ask, settings.endpoint, ui) if settings.endpoint is not None else _local(ask, settings, ui)
    report = build(outcome.trace)
    folded = outcome.trace if settings.detail else fold(outcome.trace, BUDGET)
    report.spans = {"produced": len(folded), "recorded": len(outcome.trace)}
    result = Run(outcome.trace, folded, report, outcome.error, interrupted=outcome.interrupted)
    _deliver(result, settings)
    return result


def _remote(ask: session.Ask, endpoint: Endpoint, ui: session.Ui) -> session.Outcome:
    if not endpoint.model:
        endpoint = dataclasses.replace(endpoint, model=_first_model(endpoint))
    # One request only: whoever pays for it asked for one.
    return session.run_passes(ask, endpoint, mode="url", passes=session.ONE_PASS, ui=ui)


def _first_model(endpoint: Endpoint) -> str:
    """The model of a server that offers exactly one; "" when it cannot be known."""
    import orjson

    from tokentrace.client.server import HttpServer

    server = HttpServer(endpoint)
    path = endpoint.base_url.removeprefix(server.root) or ""
    try:
        data = orjson.loads(server.get_text(f"{path}/models", timeout_s=min(5.0, endpoint.timeout_s)))
        names = [m["id"] for m in data["data"]]
    except (EndpointError, orjson.JSONDecodeError, KeyError, TypeError):
        return ""
    return str(names[0]) if len(names) == 1 else ""


def _local(ask: session.Ask, settings: Settings, ui: session.Ui) -> session.Outcome:
    from tokentrace.agent_client import AgentClient
    from tokentrace.client.settings import Endpoint
    from tokentrace.engines.local.process import LocalEngine

    passes = session.ONE_PASS if settings.once else session.THREE_PASSES
    progress: Callable[[str, float | None], None] = ui.progress
    with LocalEngine.start(settings.model, compile=settings.compile, progress=progress) as engine:
        agent = AgentClient.connect(engine.agent_socket) if engine.agent_socket is not None else None
        try:
            return session.run_passes(
                ask,
                Endpoint(engine.base_url, model=engine.model_name),
                mode="local",
                passes=passes,
                ui=ui,
                agent=agent,
                engine_facts=engine.facts,
                failure=engine.failure,
            )
        finally:
            if agent is not None:
                agent.close()


def _deliver(result: Run, settings: Settings) -> None:
    from tokentrace import emit, runs
    from tokentrace.emit.otlp_target import OtlpTarget, configured

    report = result.report
    if settings.save:
        try:
            result.folder = runs.save(result.trace, result.folded, report, settings.out)
        except UsageError as error:
            if settings.out is not None:
                raise
            result.warnings.append(f"{error}: the run is not saved")
    if settings.output is not None:
        emit.save(result.folded, settings.output)
        report.files.append(str(settings.output))
    asked = settings.otlp is not None
    if not asked and not configured():
        return
    from tokentrace.emit.otlp_send import send

    delivery = send(result.folded, OtlpTarget.from_env(settings.otlp or ""))
    report.spans.update(accepted=delivery.accepted, rejected=delivery.rejected)
    if delivery.ok:
        return
    again = f"tokentrace export {result.folder.name if result.folder else 'RUN'} --to otlp"
    message = f"{delivery.message}: {delivery.fix}; send it again with: {again}"
    if asked:
        from tokentrace.errors import ExportError

        result.export_error = ExportError(delivery.message, fix=f"{delivery.fix}; then: {again}")
    else:
        result.warnings.append(message)


def quiet() -> Any:
    """A Ui that says nothing."""

    class Quiet:
        def progress(self, sentence: str, fraction: float | None = None) -> None:
            return

        def text(self, piece: str) -> None:
            return

    return Quiet()
