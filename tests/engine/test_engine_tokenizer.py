"""Text to ids and back. Emitted pieces always add up to the text that decoding all ids at once gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers")

import itertools

from support.model_folders import TEMPLATE, byte_level_tokenizer

from tokentrace.engines.local.tokenizer import Detokenizer, StopScanner, TemplateError, Tokenizer
from tokentrace.errors import EngineError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    byte_level_tokenizer().save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    (path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|end|>"}, "bos_token": null}')
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(folder)


def pieces(tokenizer: Tokenizer, ids: list[int], tail: list[int]) -> list[str]:
    stream = Detokenizer(tokenizer, tail)
    return [*(stream.step("r", index, one) for index, one in enumerate(ids)), stream.flush()]


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30))
def test_streamed_text_is_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode("r", text, False)
    assert "".join(pieces(tokenizer, ids, [])) == tokenizer.decode(ids, skip_special=True)
    tail = tokenizer.encode("r", "<|start|>assistant\n", False)
    assert "".join(pieces(tokenizer, ids, tail)) == tokenizer.decode(ids, skip_special=True)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_ids_stream_to_what_they_decode_to(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """A model may emit bytes that are no text; nothing is lost and nothing is sent twice."""
    size = tokenizer.backend.get_vocab_size()
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=25))
    assert "".join(pieces(tokenizer, ids, [])) == tokenizer.decode(ids, skip_special=True)


def test_no_piece_holds_half_a_character(tokenizer: Tokenizer) -> None:
    text = "a 🎉 你好 é"
    made = pieces(tokenizer, tokenizer.encode("r", text, False), [])
    assert "".join(made) == text
    assert not any("\ufffd" in piece for piece in made)
    assert "" in made, "the bytes of one character came as several tokens"


def test_a_cut_off_character_is_shown_as_such_at_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("r", "🎉", False)[:-1]
    assert pieces(tokenizer, ids, [])[:-1] == [""] * len(ids)
    assert pieces(tokenizer, ids, [])[-1] == "\ufffd"


def test_special_tokens_give_no_text(tokenizer: Tokenizer) -> None:
    end = tokenizer.encode("r", "<|end|>", False)
    assert len(end) == 1 and pieces(tokenizer, end, []) == ["", ""]


def test_the_first_word_keeps_its_space_when_the_prompt_stands_before_it(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    backend = Backend(models.WordLevel({"▁the": 0, "▁sea": 1, "<unk>": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert "".join(pieces(tokenizer, [1, 1], [0])) == " sea sea"
    assert "".join(pieces(tokenizer, [1, 1], [])) == "sea sea"


def test_template(tokenizer: Tokenizer) -> None:
    text = tokenizer.render("r", [{"role": "user", "content": "Hi"}])
    assert text == "<|start|>user\nHi<|end|>\n<|start|>assistant\n"
    assert tokenizer.special_tokens == {"eos_token": "<|end|>"}


def test_a_template_that_refuses_says_so(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    tokenizer.template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(TemplateError, match="roles must alternate"):
        tokenizer.render("r", [{"role": "user", "content": "Hi"}])
    tokenizer.template = None
    with pytest.raises(TemplateError, match="no chat template"):
        tokenizer.render("r", [{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    "value", ["{{ 1 }}", [{"name": "tool", "template": "x"}, {"name": "default", "template": "{{ 1 }}"}]]
)
def test_templates_in_the_tokenizer_config(folder: Path, tmp_path: Path, value: Any) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    assert Tokenizer(tmp_path).render("r", []) == "1"


def test_a_broken_tokenizer_is_an_engine_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(EngineError, match="cannot be loaded"):
        Tokenizer(tmp_path)


@given(
    text=st.text(alphabet="abc", max_size=30),
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 30), max_size=10),
)
def test_stop_strings_cut_where_a_search_in_the_whole_text_would(text: str, stops: list[str], cuts: list[int]) -> None:
    scanner = StopScanner(stops)
    edges = [0, *sorted({min(c, len(text)) for c in cuts}), len(text)]
    sent = ""
    for start, end in itertools.pairwise(edges):
        sent += scanner.feed(text[start:end])
        assert not any(stop in sent for stop in stops)
    sent += scanner.flush()
    found = [text.find(stop) for stop in stops if stop in text]
    if scanner.hit is None:
        assert not found and sent == text
    else:
        # The stop that completes first ends the stream; whatever stands before it is sent.
        assert text.startswith(sent + scanner.hit) and not any(stop in sent for stop in stops)
