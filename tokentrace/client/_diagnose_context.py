"""The cause that prompt and reply do not fit into the model's context."""

from __future__ import annotations

import re

from tokentrace.client.causes import failure, some_lines
from tokentrace.client.facts import Facts
from tokentrace.errors import EndpointError


def too_long(facts: Facts) -> EndpointError:
    """With the numbers that the server's words give, and what would fit."""
    limit, prompt, wanted = context_numbers(facts.said)
    detail = some_lines(facts.said or facts.shown(facts.text))
    parts = [
        f"limit {limit}" if limit else "",
        f"prompt {prompt}" if prompt else "",
        f"reply asked for {wanted}" if wanted else "",
    ]
    numbers = ", ".join(p for p in parts if p)
    fix = "shorten the prompt or lower --max-tokens"
    if limit and prompt:
        room, most = limit - prompt, limit - (wanted if 0 < wanted < limit else 1)
        fix = f"--max-tokens {room} fits" if room > 0 else f"shorten the prompt to {most} tokens"
    return failure(
        "TT601",
        f"prompt and reply do not fit into the model's context{f' ({numbers} tokens)' if numbers else ''}",
        fix,
        detail,
    )


def context_numbers(said: str) -> tuple[int, int, int]:
    """(limit, prompt tokens, tokens asked for) as far as the server's words give them; 0 where they do not."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", said)

    def first(*patterns: str) -> int:
        for pattern in patterns:
            if match := re.search(pattern, text, re.IGNORECASE):
                return int(match[1])
        return 0

    limit = first(
        r"(?:context length|context window|context size|max_model_len)[^0-9]{0,30}?(\d+)",
        r"must be <= (\d+)",
        r"(\d+) tokens? (?:maximum|limit)",
    )
    prompt = first(
        r"(\d+) (?:in the (?:messages|prompt)|input tokens|tokens of prompt|tokens in the prompt|prompt tokens)",
        r"(?:your )?messages resulted in (\d+)",
        r"Given: (\d+)",
        r"(?:request|input|prompt)[^0-9.]{0,30}\((\d+) tokens",
        r"prompt (?:contains|has|is) (\d+)",
    )
    wanted = first(
        r"(\d+) (?:in the completion|of completion|output tokens|tokens for the completion)",
        r"is too large: (\d+)",
        r"and (\d+) .max_new_tokens",
    )
    return limit, prompt, wanted
