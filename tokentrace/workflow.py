"""A whole run: choose where the prompt goes, trace it, analyse, save, send on. The command and the API share it."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokentrace import session
from tokentrace.analyze import Analysis, analyze
from tokentrace.carried import carry, carry_trees
from tokentrace.errors import ConfigError, EngineError, ExportError, TokentraceError, UsageError
from tokentrace.fold import BUDGET, fold
from tokentrace.interrupts import held
from tokentrace.report import Report, build

if TYPE_CHECKING:
    from tokentrace.agent_client import AgentClient
    from tokentrace.client.settings import Endpoint
    from tokentrace.engines.local.process import LocalEngine
    from tokentrace.model import Trace
    from tokentrace.receive import Receiver

MAX_PROMPT = 4_000_000
MAX_LOCAL_TEMPERATURE = 2


@dataclass(slots=True)
class Settings:
    """What a run may be told. `endpoint` None means the local engine. `receiver` listens for the server's own spans."""

    endpoint: Endpoint | None = None
    model: str | None = None
    once: bool = False
    detail: bool = False
    compile: bool = False
    cuda_graphs: bool = False
    cold_caches: Path | None = None  # the local engine's compile caches, in a folder that is new or empty
    timeout_s: float | None = None  # of the local engine; an endpoint has its own
    save: bool = True
    out: Path | None = None
    output: Path | None = None
    otlp: str | None = None
    receiver: Receiver | None = None


@dataclass(slots=True)
class Run:
    """What came of it. `error` is set when the request failed; the trace holds what was seen until then."""

    trace: Trace
    folded: Trace
    report: Report
    error: TokentraceError | None = None
    export_error: TokentraceError | None = None  # it could not be written or sent where that was asked for
    interrupted: bool = False
    folder: Path | None = None
    warnings: list[str] = field(default_factory=list)


def run(ask: session.Ask, settings: Settings, ui: session.Ui) -> Run:
    """Trace one prompt. Raises UsageError for a prompt that cannot be sent, EngineError without an engine."""
    check_prompt(ask)
    check_settings(settings)
    if settings.endpoint is not None:
        if settings.cold_caches is not None:
            raise UsageError(
                "--cold-caches is for the local engine: the caches of a server that runs cannot be changed",
                fix="start that server with TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR in new folders",
            )
        # One request only: whoever pays for it asked for one.
        outcome = session.run_passes(
            ask, settings.endpoint, mode="url", passes=session.ONE_PASS, ui=ui, receiver=settings.receiver
        )
    else:
        outcome = _local(ask, settings, ui)
    return conclude(outcome, settings)


def check_prompt(ask: session.Ask) -> None:
    """Raises UsageError for a prompt that cannot be sent."""
    if not ask.prompt.strip():
        raise UsageError("the prompt is empty", fix='for example tokentrace run "Hi"')
    if any("\ud800" <= c <= "\udfff" for c in ask.prompt + ask.system):
        raise UsageError("the prompt is not valid UTF-8 text", fix="give it as UTF-8, or check the terminal's encoding")
    if len(ask.prompt) > MAX_PROMPT:
        raise UsageError(f"the prompt has {len(ask.prompt)} characters", fix=f"at most {MAX_PROMPT} are sent")


def check_settings(settings: Settings) -> None:
    """What can be known to fail is told before anything is sent. Raises UsageError."""
    from tokentrace import layers, runs
    from tokentrace.emit import check_target
    from tokentrace.emit.otlp_target import OtlpTarget

    layers.load()
    if settings.output is not None:
        check_target(settings.output)
    if settings.otlp is not None:
        OtlpTarget.from_env(settings.otlp)
    if settings.out is not None:
        runs.check_out(settings.out)


def conclude(outcome: session.Outcome, settings: Settings) -> Run:
    """Analyse a trace, save it and send it on, as the settings say."""
    with held() as interrupt:
        found = analyze(outcome.trace)
        report = build(outcome.trace, found)
        folded = outcome.trace if settings.detail else fold(outcome.trace, BUDGET)
        report.spans = {"produced": len(folded), "recorded": len(outcome.trace)}
        if folded is not outcome.trace:
            carry(folded, report)
        result = Run(outcome.trace, folded, report, outcome.error, interrupted=outcome.interrupted)
        _deliver(result, settings, found)
        result.interrupted = result.interrupted or interrupt.came
    return result


def _local(ask: session.Ask, settings: Settings, ui: session.Ui) -> session.Outcome:
    from tokentrace.client.settings import Endpoint
    from tokentrace.engines.local.cold import fresh_caches
    from tokentrace.engines.local.process import LocalEngine

    if ask.temperature is not None and ask.temperature > MAX_LOCAL_TEMPERATURE:
        raise UsageError(
            f"the local engine takes a temperature of at most {MAX_LOCAL_TEMPERATURE}", fix="lower --temperature"
        )
    env = fresh_caches(settings.cold_caches) if settings.cold_caches is not None else None
    passes = session.ONE_PASS if settings.once else session.THREE_PASSES
    progress: Callable[[str, float | None], None] = ui.progress
    outcome: session.Outcome | None = None
    try:
        with LocalEngine.start(
            settings.model, compile=settings.compile, cuda_graphs=settings.cuda_graphs, progress=progress, env=env
        ) as engine:
            endpoint = Endpoint(engine.base_url, model=engine.model_name)
            if settings.timeout_s is not None:
                endpoint = replace(endpoint, timeout_s=settings.timeout_s)
            agent, no_agent = _agent_of(engine)
            if agent is None:  # it would have told the process that power and processor time are of
                ask = replace(ask, options={"pids": [engine.pid], **ask.options})
            try:
                outcome = session.run_passes(
                    ask,
                    endpoint,
                    mode="local",
                    passes=passes,
                    ui=ui,
                    agent=agent,
                    engine_facts=engine.facts,
                    failure=engine.failure,
                    no_agent=no_agent,
                )
            finally:
                if agent is not None:
                    agent.close()
    except KeyboardInterrupt:
        if outcome is None:
            raise
        outcome.interrupted = True  # while the engine was being ended: the trace is whole
    assert outcome is not None
    return outcome


def _agent_of(engine: LocalEngine) -> tuple[AgentClient | None, str]:
    """The agent in the engine, or None and why: an engine that cannot be looked into still answers."""
    from tokentrace.agent_client import AgentClient

    problem = engine.agent_problem
    if engine.agent_socket is not None and not problem:
        try:
            # It listened before the engine was ready: there is nothing to wait for.
            return AgentClient.connect(engine.agent_socket, timeout_s=2.0), ""
        except EngineError as error:
            problem = str(error)
    return None, f"tokentrace's agent did not start in the engine: {problem or 'it was switched off'}"


def _deliver(result: Run, settings: Settings, found: Analysis) -> None:
    """Save, write and send. The report is saved last: it tells where the files are and what arrived."""
    from tokentrace import emit, runs

    report = result.report
    if settings.save:
        try:
            result.folder = runs.save(result.trace, result.folded, report, settings.out)
        except (UsageError, ExportError) as error:
            if settings.out is not None:
                result.export_error = error
            else:
                result.warnings.append(f"{error}: the run is not saved")
    if settings.output is not None:
        page = emit.format_of(settings.output) == "html" and len(result.trace) <= emit.MOST_ON_A_PAGE
        if result.folded is not result.trace and emit.format_of(settings.output) == "otlp-file":
            carry_trees(result.folded, result.trace, found)
        try:
            emit.save(result.trace if page else result.folded, settings.output, report=report)
            report.files.append(str(settings.output.absolute()))  # the saved report is read from elsewhere too
        except (UsageError, ExportError) as error:
            result.export_error = error
    _send(result, settings.otlp)
    if result.folder is not None:
        with contextlib.suppress(UsageError):  # the report that was saved with the run lacks only what was sent
            runs.save_report(report, result.folder)


def _send(result: Run, endpoint: str | None) -> None:
    """Over OTLP, where that was asked for (`endpoint`, "" for the one of the environment) or is configured."""
    from tokentrace.emit.otlp_target import OtlpTarget, configured

    if endpoint is None and not configured():
        return
    from tokentrace.emit.otlp_send import send

    try:
        target = OtlpTarget.from_env(endpoint or "")
    except ConfigError as error:
        if endpoint is not None:
            raise
        result.warnings.append(f"the trace was not sent: {error}: {error.fix}")
        return
    result.warnings += [str(remark) for remark in target.remarks]
    delivery = send(result.folded, target)
    result.report.spans.update(accepted=delivery.accepted, rejected=delivery.rejected)
    if delivery.ok:
        return
    from tokentrace import runs

    fix = delivery.fix
    if result.folder is not None:
        where = f" --endpoint {shlex.quote(endpoint)}" if endpoint else ""
        fix = f"{fix}; then: tokentrace export {runs.shown(result.folder)} --to otlp{where}"
    if endpoint is None:
        result.warnings.append(f"{delivery.message}: {fix}")
    else:
        result.export_error = ExportError(delivery.message, fix=fix)


class Quiet:
    """A Ui that says nothing."""

    def progress(self, sentence: str, fraction: float | None = None) -> None:
        return

    def text(self, piece: str) -> None:
        return
