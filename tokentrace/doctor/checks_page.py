"""docs/checks.md, made from the checks themselves: `python -m tokentrace.doctor.checks_page > docs/checks.md`."""

from __future__ import annotations

import sys

from tokentrace.doctor.check import Check
from tokentrace.doctor.registry import checks
from tokentrace.doctor.verdict import layer_name
from tokentrace.layers import by_number

_HEAD = """# The doctor's checks

Made from the code by `python -m tokentrace.doctor.checks_page`; `tokentrace doctor --explain ID` prints the same.

Each check has a stable id: TT, the layer's digit (0 is the plumbing around the trace) and two more. A check is `ok`,
`warn` (it will hurt or surprise), `fail` (something is broken), `unknown` (it could not be told, and why) or `skip` (it
does not apply, and why). Ids marked "cause" are reasons for which a real request failed; `tokentrace run` names the
same ones.
"""


def page() -> str:
    """The whole document."""
    parts = [_HEAD]
    layer: int | None = None
    for check in checks():
        if check.layer != layer:
            layer = check.layer
            question = f"\n{by_number(layer).question}\n" if layer else "\nDoes the trace arrive where it is sent?\n"
            name = layer_name(layer)
            parts.append(f"\n## {name[0].upper()}{name[1:]}\n{question}")
        parts.append(_entry(check))
    return "".join(parts)


def _entry(check: Check) -> str:
    kind = "cause" if check.run is None else "needs the live call" if check.live else "static"
    return (
        f"\n### {check.id} {check.title}\n\n{check.meaning}\n\n"
        f"- looks at: {check.looks}\n- what to do: {check.fix}\n- kind: {kind}\n"
    )


if __name__ == "__main__":
    sys.stdout.write(page())
