"""A program that uses the openai package, traced without a change to its calls (pip install openai).

python examples/openai_sdk.py
OPENAI_BASE_URL=… OPENAI_API_KEY=… OPENAI_MODEL=… python examples/openai_sdk.py
"""

from __future__ import annotations

from _server import server
from openai import OpenAI

import tokentrace


def main() -> None:
    with server() as (url, key, model):
        client = OpenAI(base_url=url, api_key=key)
        with tokentrace.trace("openai sdk") as trace:
            stream = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=16, stream=True
            )
            for part in stream:
                print(part.choices[0].delta.content or "" if part.choices else "", end="", flush=True)
            print()
    for call in trace.spans:
        if call.name.startswith("chat"):
            chunks = [event.time_ns for event in call.events if event.name == "tokentrace.token"]
            first_ms = (chunks[0] - call.start_ns) / 1e6
            print(f"{call.name}: {len(chunks)} chunks with text, the first after {first_ms:.0f} ms")
    print(f"one trace of {len(trace)} spans, id {trace.trace_id}")


if __name__ == "__main__":
    main()
