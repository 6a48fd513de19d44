"""Layer 7: chat template, special tokens, counts, the tokenizer's files, and how long tokenizing takes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from tokentrace.client.causes import one_line
from tokentrace.client.fetch import fetch
from tokentrace.client.urls import server_root
from tokentrace.doctor.check import Check, Result, Situation, fail, ok, skip, unknown, warn
from tokentrace.doctor.readings import NAME
from tokentrace.errors import EndpointError
from tokentrace.exchange import Exchange
from tokentrace.probes import _metrics
from tokentrace.wording import duration

#: Words and signs that tokenizers treat differently: digits, accents, other scripts, spaces, line breaks.
_SAMPLE = "Hello 12345 wörld  naïve\n\tfür 世界 🙂 don't"
_LONG = "The quick brown fox jumps over 12 lazy dogs. " * 250
_SLOW_S = 0.5
_CONFIG_BYTES = 4 * 2**20


def _reply(s: Situation) -> Exchange | None:
    x = s.live.first if s.live is not None else None
    return x if x is not None and x.complete else None


def _tokens(s: Situation, body: Mapping[str, Any]) -> tuple[list[int], float] | str:
    """(ids, seconds) from the server's /tokenize, or why there are none."""
    endpoint = s.endpoint
    if endpoint is None:
        return "there is no server to ask"
    url = server_root(endpoint.base_url) + "/tokenize"
    began = time.monotonic()
    try:
        limit = max(0.2, min(1.5, s.left_s + 0.5))
        answer = fetch(endpoint, "POST", url, orjson.dumps(body), timeout_s=limit, environ=s.environ)
    except EndpointError as error:
        return one_line(str(error))
    took = time.monotonic() - began
    if answer.status != 200:
        return f"the server's /tokenize answers with status {answer.status}"
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        return "the server's /tokenize does not answer with JSON"
    tokens = value.get("tokens") if isinstance(value, dict) else None
    ids = [t.get("id") if isinstance(t, dict) else t for t in tokens] if isinstance(tokens, list) else []
    whole = [t for t in ids if type(t) is int]
    return (whole, took) if whole and len(whole) == len(ids) else "the server's /tokenize gives no token ids"


def _counts(s: Situation) -> Iterable[Result]:
    """Text, template and the server's count: N + M = P."""
    x = _reply(s)
    if x is None or s.endpoint is None:
        yield from (unknown(i, "no request was answered, so there is no count") for i in ("TT702", "TT703"))
        return
    messages = {"model": x.model, "messages": x.request.get("messages"), "add_generation_prompt": True}
    whole = _tokens(s, messages)
    if isinstance(whole, str):
        why = f"the tokenizer lies inside the server, and {whole}"
        yield from (unknown(i, why, "ask a server with /tokenize (vLLM, tokentrace serve)") for i in ("TT702", "TT703"))
        return
    text = _tokens(s, {"model": x.model, "prompt": "Hi", "add_special_tokens": False})
    ids, counted = whole[0], x.input_tokens
    bare = len(text[0]) if not isinstance(text, str) else None
    split = (
        f"text {bare} + template {len(ids) - bare} = {len(ids)} tokens" if bare is not None else f"{len(ids)} tokens"
    )
    if counted is None:
        yield unknown("TT703", f"{split} by /tokenize; the server gave no count for the request")
    elif counted == len(ids):
        yield ok("TT703", f"{split}, and the server counted {counted} for the request")
    else:
        yield warn(
            "TT703",
            f"{split} by /tokenize, and the server counted {counted} for the same messages",
            "a gateway may add a system message or use another template; count with the server's usage",
        )
    yield _twice(s, x, ids)


def _twice(s: Situation, x: Exchange, ids: list[int]) -> Result:
    if len(ids) < 2 or ids[0] != ids[1]:
        return ok("TT702", f"the prompt begins with the ids {ids[:3]}: no special token comes twice")
    written = _text_of(s, x, ids[0])
    if written and not (written.strip().startswith(("<", "[")) and len(written.strip()) > 2):
        return ok("TT702", f"the prompt begins twice with {written!r}, which is no special token")
    name = f"{written!r} (id {ids[0]})" if written else f"id {ids[0]}"
    return warn(
        "TT702",
        f"the prompt begins with {name} twice: template and tokenizer both add it, which makes answers worse",
        "remove it from the chat template, or set add_bos_token to false in tokenizer_config.json",
        f"first ids: {ids[:6]}",
    )


def _text_of(s: Situation, x: Exchange, token: int) -> str:
    endpoint = s.endpoint
    assert endpoint is not None
    url = server_root(endpoint.base_url) + "/detokenize"
    try:
        body = orjson.dumps({"model": x.model, "tokens": [token]})
        answer = fetch(endpoint, "POST", url, body, timeout_s=1.0, environ=s.environ)
        value = json.loads(answer.body) if answer.status == 200 else None
    except (EndpointError, ValueError, RecursionError):
        return ""
    text = value.get("prompt") if isinstance(value, dict) else None
    return one_line(text, 40) if isinstance(text, str) else ""


def _speed(s: Situation) -> Iterable[Result]:
    """The time before the engine: what is left of the time to the first token, and a long text by /tokenize."""
    yield _before_engine(s) or _long_text(s)


def _before_engine(s: Situation) -> Result | None:
    samples = s.live.of(NAME) if s.live is not None else []
    if len(samples) < 2:
        return None
    for one in _metrics.change(samples[0].values["engines"], samples[-1].values["engines"]):
        means = one.means
        if not {"time_to_first_token", "queue", "prefill"} <= means.keys():
            continue
        first, inside = means["time_to_first_token"], means["queue"] + means["prefill"]
        before = first - inside
        told = f"first token {first:.2f} s, of it queue {means['queue']:.2f} s and prefill {means['prefill']:.2f} s"
        if before > _SLOW_S and before > inside:
            return warn(
                "TT705",
                f"{before:.2f} s pass before a request comes to the engine: template, tokenizer or the web server",
                "it is the CPU, not the GPU: give the API server more processes or a fast tokenizer",
                told,
            )
    return None


def _long_text(s: Situation) -> Result:
    x = _reply(s)
    if x is None:
        return unknown("TT705", "no request was answered, so the tokenizer was not timed")
    short = _tokens(s, {"model": x.model, "prompt": "Hi"})
    long = _tokens(s, {"model": x.model, "prompt": _LONG})
    if isinstance(short, str) or isinstance(long, str):
        return unknown("TT705", short if isinstance(short, str) else str(long))
    spent = max(0.0, long[1] - short[1])
    if spent > _SLOW_S:  # once more: what only this moment held up is no slow tokenizer
        again = _tokens(s, {"model": x.model, "prompt": _LONG})
        spent = spent if isinstance(again, str) else max(0.0, min(spent, again[1] - short[1]))
    told = f"{duration(spent * 1e9) if spent else 'no time to speak of'} for {len(long[0])} tokens"
    if spent > _SLOW_S:
        return warn(
            "TT705",
            f"the tokenizer is slow: {told}",
            "use its fast form (tokenizer.json), or give the API server more processes",
        )
    return ok("TT705", f"the tokenizer takes {told}")


def _local(s: Situation) -> Iterable[Result]:
    """The same text by the tokenizer's files here and by the server: ids must be equal."""
    x = _reply(s)
    folder = _folder(s, x)
    if x is None:
        yield unknown("TT706", "no request was answered, so the tokenizers were not compared")
        return
    if folder is None:
        yield skip("TT706", "the model's folder is not on this machine, so there is no tokenizer here to compare with")
        return
    try:
        from tokenizers import Tokenizer
    except ImportError:
        yield unknown("TT706", "the package tokenizers is not installed", "pip install tokenizers")
        return
    ours = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(_SAMPLE, add_special_tokens=False).ids
    theirs = _tokens(s, {"model": x.model, "prompt": _SAMPLE, "add_special_tokens": False})
    if isinstance(theirs, str):
        yield unknown("TT706", theirs)
    elif theirs[0] == ours:
        yield ok("TT706", f"the server's ids equal those of {folder / 'tokenizer.json'} ({len(ours)} tokens)")
    else:
        at = next(
            (i for i, (a, b) in enumerate(zip(ours, theirs[0], strict=False)) if a != b), min(len(ours), len(theirs[0]))
        )
        yield warn(
            "TT706",
            f"the server's ids differ from those of {folder / 'tokenizer.json'} from position {at} on",
            "count tokens with the server; the folder may hold another tokenizer than the one it loaded",
            f"here {ours[at : at + 5]}, there {theirs[0][at : at + 5]}",
        )


def _folder(s: Situation, x: Exchange | None) -> Path | None:
    root = s.look.model(x.model).get("root") if s.look is not None and x is not None and s.here else None
    for one in (s.model_path, root):
        if isinstance(one, str) and one and (Path(one) / "tokenizer.json").is_file():
            return Path(one)
    return None


def _files(s: Situation) -> Iterable[Result]:
    """Of a model's folder on this machine: the tokenizer's files and the chat template."""
    if not s.model_path or not Path(s.model_path).is_dir():
        yield from (skip(i, "no model folder on this machine is known") for i in ("TT701", "TT704"))
        return
    folder = Path(s.model_path)
    present = [n for n in _TOKENIZERS if (folder / n).is_file()]
    vendor = sorted(p.name for p in folder.glob("tekken*.json")) + sorted(
        p.name for p in folder.glob("tokenizer.model.v*")
    )
    if not present and not vendor:
        yield fail(
            "TT704",
            f"{folder} has no tokenizer",
            f"put its tokenizer.json there; looked for {', '.join(_TOKENIZERS)}",
            explains=("TT608", "TT803", "TT846", "TT602"),
        )
    elif "tokenizer.json" not in present:
        yield warn(
            "TT704",
            f"{folder} has {', '.join(present + vendor)} but no tokenizer.json: slow, or in need of a special mode",
            "vLLM: --tokenizer-mode mistral for vendor files; else save a fast tokenizer",
        )
    else:
        yield ok("TT704", f"{folder} has {', '.join(present)}", *([f"and {', '.join(vendor)}"] if vendor else []))
    yield _template(folder)


_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")


def _template(folder: Path) -> Result:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return ok("TT701", "the model's folder has a chat template")
    file = folder / "tokenizer_config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8")) if file.stat().st_size <= _CONFIG_BYTES else None
    except FileNotFoundError:
        config = {}
    except (OSError, ValueError, RecursionError):
        return unknown("TT701", f"{file} cannot be read as JSON", "fetch the model folder again")
    if isinstance(config, dict) and config.get("chat_template"):
        return ok("TT701", "the model's folder has a chat template")
    return warn(
        "TT701",
        f"{folder} has no chat template: chat requests will be refused",
        "use /v1/completions for a base model, or give the server --chat-template with this model's own",
    )


CHECKS = (
    Check(
        "TT704",
        "tokenizer's files",
        "The folder of the model has the tokenizer's files, and its fast form; and a chat template (TT701).",
        "the folder that is given with --model, or the local engine's, or the server's own on this machine",
        "Fetch the files again, or choose the tokenizer mode that the files are for.",
        _files,
    ),
    Check(
        "TT703",
        "count of tokens",
        "The tokens of the text and those that the chat template adds make up the server's count. A count above the "
        "text's alone is no fault: roles and special tokens are in it.",
        "the server's /tokenize with and without the template, and usage.prompt_tokens",
        "Count with the server's own usage; it is what the model saw.",
        _counts,
        live=True,
        network=True,
        seconds=6.0,
    ),
    Check(
        "TT702",
        "special token twice",
        "No special token stands twice at the beginning of the prompt, as when both template and tokenizer add it.",
        "the first ids that the server's /tokenize gives for the messages (reported together with TT703)",
        "Remove it from the chat template, or set add_bos_token to false.",
    ),
    Check(
        "TT705",
        "tokenizer's speed",
        "Little time passes before a request comes to the engine. Long prompts are tokenized on one CPU thread while "
        "the GPU waits.",
        "first token less queue and prefill, where /metrics tells them; else a text of 11,000 characters by /tokenize",
        "Use the fast tokenizer, or more API server processes.",
        _speed,
        live=True,
        network=True,
        seconds=5.0,
    ),
    Check(
        "TT706",
        "local and server tokenizer",
        "The tokenizer's files on this machine give the same ids as the server for a text with digits, accents, other "
        "scripts and spaces. A library's warning about a tokenizer is not repeated: ids are compared.",
        "tokenizer.json of the model's folder, and the server's /tokenize",
        "Count with the server, and fetch the folder again.",
        _local,
        live=True,
        network=True,
        seconds=4.0,
    ),
)
