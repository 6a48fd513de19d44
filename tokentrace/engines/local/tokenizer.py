"""Text to token ids and back: chat template, encoder, and a decoder that emits text as its tokens come.

The `tokenizers` package loads a tokenizer.json in 0.1 s where AutoTokenizer takes most of a second; folders that have
only an older tokenizer format go through AutoTokenizer, which converts it. Templates are rendered by transformers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokentrace.errors import EngineError, first_line


class TemplateError(Exception):
    """The chat template refused the messages, or there is none; the message is fit for the client."""


class Tokenizer:
    """The tokenizer of a model folder. `rid` is the request the work is for; it changes nothing in the result."""

    def __init__(self, folder: Path) -> None:
        """Raises EngineError when the folder's tokenizer cannot be loaded."""
        self.folder = folder
        config = _json(folder / "tokenizer_config.json")
        self.backend: Any = _load(folder)
        self.template = _template(folder, config)
        self.special_tokens = {
            name: token
            for name in ("bos_token", "eos_token", "pad_token", "unk_token")
            if (token := _token_text(config.get(name))) is not None
        }

    def render(self, rid: str, messages: list[dict[str, Any]]) -> str:
        """The prompt that the model's chat template makes of the messages. Raises TemplateError."""
        if self.template is None:
            raise TemplateError("this model has no chat template; use /v1/completions")
        from jinja2 import TemplateError as JinjaError
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            rendered, _ = render_jinja_template(
                [messages], chat_template=self.template, add_generation_prompt=True, **self.special_tokens
            )
        except (JinjaError, TypeError, ValueError, KeyError) as error:
            raise TemplateError(f"the model's chat template refused the messages: {error}") from error
        return str(rendered[0])

    def encode(self, rid: str, text: str, special: bool) -> list[int]:
        """Token ids of `text`; with `special` the tokenizer adds its own begin and end tokens (a template has them)."""
        ids: list[int] = self.backend.encode(text, add_special_tokens=special).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool) -> str:
        text: str = self.backend.decode(list(ids), skip_special_tokens=skip_special)
        return text


class Detokenizer:
    """Emits the text of one reply token by token.

    A token may end inside a UTF-8 character; its bytes are then held back until the character is whole. Special
    tokens give no text. `prompt_tail` (the prompt's last ids) tells tokenizers that mark word starts whether the
    reply's first word follows a space.
    """

    #: how many of the prompt's ids the stream is given; a character has at most four bytes, so at most four tokens
    TAIL = 6

    def __init__(self, tokenizer: Tokenizer, prompt_tail: Sequence[int] = ()) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._emitted = 0  # characters
        self._tail = list(prompt_tail)[-self.TAIL :]
        self._tail_characters = len(tokenizer.decode(self._tail, skip_special=True))
        try:
            self._stream: Any = DecodeStream(ids=self._tail, skip_special_tokens=True)
        except TypeError:  # tokenizers before 0.22 know no ids
            self._stream = DecodeStream(skip_special_tokens=True)

    def step(self, rid: str, index: int, token_id: int) -> str:
        """The text that token `index` completes, often "" inside a character."""
        self._ids.append(token_id)
        if self._stream is not None:
            try:
                text: str = self._stream.step(self._tokenizer.backend, token_id) or ""
            except Exception:  # noqa: BLE001 - bare Exception; some id sequences that no text encodes to break the stream
                self._stream = None
        if self._stream is None:  # decode all anew at each token: slower, and right
            text = self._rest()
            text = "" if text.endswith("\ufffd") else text
        self._emitted += len(text)
        return text

    def flush(self) -> str:
        """What is still held back at the end: an unfinished character, as the replacement character."""
        text = self._rest()
        self._emitted += len(text)
        return text

    def _rest(self) -> str:
        whole = self._tokenizer.decode([*self._tail, *self._ids], skip_special=True)
        return whole[self._tail_characters + self._emitted :]


class StopScanner:
    """Cuts a stream of text at the first stop string, which itself is not passed on.

    Text that may be the beginning of a stop string is held back until that is decided.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.hit: str | None = None

    def feed(self, text: str) -> str:
        """The part of what came so far that is safe to send. After a hit, always ""."""
        if self.hit is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.hit = min(found)
            self._held = ""
            return text[:at]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, when the stream ended without completing a stop string."""
        held, self._held = self._held, ""
        return held if self.hit is None else ""


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


def _load(folder: Path) -> Any:
    file = folder / "tokenizer.json"
    try:
        if file.is_file():
            import tokenizers

            return tokenizers.Tokenizer.from_file(str(file))
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True).backend_tokenizer
    except Exception as error:
        raise EngineError(
            f"the tokenizer in {folder} cannot be loaded: {first_line(error)}",
            fix="put the model's tokenizer.json into the folder again",
        ) from error


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    """chat_template.jinja, chat_template.json or the field in tokenizer_config.json; a list means named templates."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    value = _json(folder / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(value, list):
        named = {str(entry.get("name")): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EngineError(f"{path} is not valid JSON: {error}", fix="fetch the model folder again") from error
    return value if isinstance(value, dict) else {}


def _token_text(value: Any) -> str | None:
    """A special token is written as a text or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
