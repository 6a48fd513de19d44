"""A key is never written to a trace, a log, an error or a file: a server that repeats it in every way there is."""

from __future__ import annotations

import base64
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from support.http_servers import Answer, Request, ScriptedServer, body_answer, event, sse

from tokentrace.cli import cli
from tokentrace.errors import ConfigError

#: How a server writes the key into the JSON of its answer: what stands between the quotes there.
IN_JSON: dict[str, Callable[[str], str]] = {
    "as it is": lambda key: json.dumps(key)[1:-1],
    "capitals": lambda key: json.dumps(key.upper())[1:-1],
    "json of php": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "json of .net": lambda key: "".join(c if c.isalnum() else f"\\u{ord(c):04X}" for c in key),
    "json, all of it": lambda key: "".join(f"\\u{ord(c):04x}" for c in key),
    "json in json": lambda key: json.dumps(json.dumps(key))[1:-1],
    "percent": lambda key: quote(key, safe=""),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of user:key": lambda key: base64.b64encode(f"user:{key}".encode()).decode(),
}
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_+/=.~!*"
KEYS = st.text(st.sampled_from(ALPHABET), min_size=6, max_size=60)


class Echo:
    """Answers with the key that it was sent: as an error of this status, or (0) in a reply, cut after these bytes."""

    def __init__(self) -> None:
        self.status, self.way, self.cuts, self.place = 401, "as it is", [0], "content"

    def __call__(self, request: Request) -> Answer:
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        said = f"Incorrect API key provided: '{IN_JSON[self.way](key)}' <"
        if self.status:
            body = f'{{"error":{{"message":"{said}","code":"invalid_api_key"}}}}'
            return body_answer(body.encode(), "application/json", self.status, **{"x-request-id": f"of-{key}"})
        text = json.loads(f'"{said}"')
        ends = sorted(min(one, len(text)) for one in self.cuts)
        pieces = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
        events = [event({"id": "a", "choices": [{"index": 0, "delta": {self.place: one}}]}) for one in pieces]
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": len(pieces)}}
        return sse(*events, event(end), event(usage), b"data: [DONE]\n\n")


@pytest.fixture(scope="module")
def echo() -> Iterator[tuple[Echo, str]]:
    answers = Echo()
    with ScriptedServer().on("POST", "/v1/chat/completions", answers) as server:
        yield answers, server.url + "/v1"


@pytest.fixture
def own_signals() -> Iterator[None]:
    """The command sets what SIGTERM does; here it runs inside the test's own process."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def run(folder: Path, url: str, key: str, *more: str) -> tuple[Result, str]:
    """The command's result, and all that it wrote to the screen or to a file, names of files too."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    clean = {"TOKENTRACE_DATA_DIR": str(folder), "OPENAI_API_KEY": key, "OPENAI_BASE_URL": None, "COLUMNS": "500"}
    arguments = ["run", "Hi", "--url", url, "--model", "alpha", "-o", str(folder / "trace.html"), *more]
    done = CliRunner().invoke(cli, arguments, env={**clean, "TOKENTRACE_API_KEY": None})
    assert done.exception is None or isinstance(done.exception, (SystemExit, ConfigError)), done.exception
    files = [path for path in folder.rglob("*") if path.is_file()]
    return done, "\n".join([done.stdout, done.stderr, *(f"{p.name}\n{p.read_text('utf-8', 'replace')}" for p in files)])


@pytest.mark.usefixtures("own_signals")
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(key="hunter2", way="as it is", status=401, cuts=[0], place="content")
@example(key="mysecretpass", way="as it is", status=401, cuts=[0], place="content")
@example(key="mysecretpass", way="as it is", status=0, cuts=[33, 36], place="content")
@example(key="sk-abcdefghij0123456789", way="json, all of it", status=401, cuts=[0], place="content")
@example(key="ab+cd/ef==0123456789abcdef", way="json of php", status=500, cuts=[0], place="content")
@example(key="ab+cd/ef==0123456789abcdef", way="json of .net", status=403, cuts=[0], place="content")
@example(key="sk-AbCdEfGh0123456789", way="as it is", status=0, cuts=[36], place="reasoning_content")
@example(key="sk-AbCdEfGh0123456789", way="base64 of user:key", status=0, cuts=[31, 34, 37], place="content")
@given(
    key=KEYS,
    way=st.sampled_from(sorted(IN_JSON)),
    status=st.sampled_from([0, 0, 400, 401, 403, 404, 429, 500]),
    cuts=st.lists(st.integers(0, 100), min_size=1, max_size=6),
    place=st.sampled_from(["content", "reasoning_content"]),
)
def test_a_key_is_in_nothing_that_a_run_leaves(
    echo: tuple[Echo, str], tmp_path: Path, key: str, way: str, status: int, cuts: list[int], place: str
) -> None:
    answers, url = echo
    answers.status, answers.way, answers.cuts, answers.place = status, way, cuts, place
    done, said = run(tmp_path / "run", url, key)
    assume(not isinstance(done.exception, ConfigError))  # no key can look like this: refused before it was sent
    # What stands there without this key as well (names of fields, words of the page) is no leak. Shorter ones stand in
    # ids and in base64 by chance.
    written = {key, json.loads(f'"{IN_JSON[way](key)}"'), json.dumps(json.loads(f'"{IN_JSON[way](key)}"'))[1:-1]}
    at_stake = {one.lower() for one in written if len(one) >= 6}
    leaked = {one for one in at_stake if one in said.lower()}
    if leaked:
        _, without = run(tmp_path / "run", url, "no-key")
        leaked -= {one for one in leaked if one in without.lower()}
    assert not leaked
    assert done.exit_code == (0 if status == 0 else 2)
    if status == 0 or status in (400, 401):
        assert "(hidden)" in said and "Incorrect API key provided" in said


@pytest.mark.usefixtures("own_signals")
@pytest.mark.parametrize("key", ["EMPTY", "dummy", "sk-no-key-required", "not-needed"])
def test_a_stand_in_for_a_key_is_no_secret(echo: tuple[Echo, str], tmp_path: Path, key: str) -> None:
    """Everybody sends the same word to a server that wants no key: the reply is shown as the model wrote it."""
    answers, url = echo
    answers.status, answers.way, answers.cuts, answers.place = 0, "as it is", [31, 33], "content"
    done, said = run(tmp_path / "run", url, key)
    assert done.exit_code == 0 and f"'{key}' <" in done.stdout and "(hidden)" not in said


@pytest.mark.usefixtures("own_signals")
def test_a_reply_that_was_changed_says_so(echo: tuple[Echo, str], tmp_path: Path) -> None:
    answers, url = echo
    answers.status, answers.way, answers.cuts, answers.place = 0, "as it is", [31, 33], "content"
    done, _ = run(tmp_path / "run", url, "sk-AbCdEfGh0123456789")
    assert "Incorrect API key provided: '(hidden)' <" in done.stdout
    assert "the reply held the key that was sent" in done.stdout + done.stderr
