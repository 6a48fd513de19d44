"""One HTML file with the comparison: no script, no network, everything from traces escaped. Also the frame for others.

Light and dark as the reader's system has it, printable, readable without colour: signs stand beside every colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from tokentrace.compare import legend
from tokentrace.compare.diff import Diff
from tokentrace.compare.rows import Row
from tokentrace.compare.terminal import TITLES, _noise, _pass, _sample, _time, short_label
from tokentrace.emit._atomic import atomic
from tokentrace.emit._signs import clean
from tokentrace.wording import duration

#: Rows of a level that are seen at once.
_SHOWN = 12
_CSS = """
:root{color-scheme:light dark;--ink:#1d1d1f;--dim:#62666d;--line:#d9dce1;--back:#fff;--slow:#b3261e;--fast:#11703c}
@media(prefers-color-scheme:dark){:root{--ink:#e8e8ea;--dim:#9aa0a8;--line:#3a3d42;--back:#17181a;--slow:#ff8a80;
--fast:#6fd39a}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:64rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.35rem}h2{font-size:1.05rem;margin-top:2rem}p.dim,.dim,caption{color:var(--dim)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.2rem .5rem;border-bottom:1px solid var(--line);vertical-align:top}
th,td:not(:first-child):not(:last-child){white-space:nowrap}
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere;min-width:7ch}td:last-child,th:last-child{text-align:left}
.slow{color:var(--slow)}.fast{color:var(--fast)}.bar{display:inline-block;height:.6em;background:currentColor}
h1,h2,p{overflow-wrap:anywhere}
.name{display:-webkit-box;-webkit-box-orient:vertical;-webkit-line-clamp:5;overflow:hidden}
td:last-child{min-width:9rem}
code{overflow-wrap:anywhere}summary{cursor:pointer;padding:.4rem 0}summary:focus-visible{outline:2px solid}
.scroll{overflow-x:auto;background:
linear-gradient(to right,var(--back) 40%,transparent) 0/2rem 100% no-repeat local,
linear-gradient(to left,var(--back) 40%,transparent) 100%/2rem 100% no-repeat local,
linear-gradient(to right,var(--line),transparent) 0/.7rem 100% no-repeat,
linear-gradient(to left,var(--line),transparent) 100%/.7rem 100% no-repeat}
.scroll:focus-visible{outline:2px solid currentColor}
@media(max-width:40rem){body{margin:1rem auto}h1{font-size:1.15rem}table{font-size:.85rem}th,td{padding:.2rem .3rem}
td:first-child{min-width:9rem}td:last-child{min-width:12rem}}
@media(max-width:60rem){td .dim{display:block;font-size:.75rem}}
@media print{body{margin:0;max-width:none}.scroll{overflow:visible;background:none}.name{display:block}}
"""


def text(value: object) -> str:
    """Escaped for HTML, control characters as escapes."""
    return escape(clean(str(value)), quote=True)


def write(path: Path, title: str, body: str, css: str = "") -> None:
    """Write a page that needs nothing else. `css`: more for its style sheet.

    Raises UsageError when the file cannot be written.
    """
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{text(title)}</title><style>{_CSS}{css}</style></head><body><main>{body}</main></body></html>\n"
    )
    with atomic(path) as out:
        out.write(page.encode("utf-8"))


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], most: int = 0) -> str:
    """Cells are HTML already; the caption and heads are not. Rows after `most` are folded away, unless they are few."""
    if most and len(rows) > most + 3:
        rest = _table(f"{caption}, the rest", heads, rows[most:])
        more = f"<details><summary>{len(rows) - most} more that differ less</summary>{rest}</details>"
        return f"<h2>{text(caption)}</h2>{_table(caption, heads, rows[:most])}{more}"
    return f"<h2>{text(caption)}</h2>{_table(caption, heads, rows)}"


def _table(label: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{text(h)}</th>' for h in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(label)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def write_diff(found: Diff, path: Path) -> None:
    """The comparison as a page. Raises UsageError when the file cannot be written."""
    parts = [f"<h1>{text(found.verdict.headline)}</h1>"]
    if found.verdict.more:
        parts.append(f"<p>{text(found.verdict.more)}</p>")
    if found.verdict.fix:
        before, colon, command = found.verdict.fix.partition(": ")
        parts.append(f"<p>To know: {text(before + colon)}<code>{text(command)}</code></p>")
    for name, samples in (("base", found.base), ("new", found.new)):
        parts.append(f"<p><b>{name}</b> {text(', '.join(map(_sample, samples)))}</p>")
    parts.append(f'<p class="dim">Noise: {text(found.noise)}.</p>')
    parts += [f"<p>Note: {text(note)}.</p>" for note in found.notes]
    parts.append(_rows(found.title, [row for row in (found.wall, found.ttft) if row is not None]))
    for level, rows in found.levels.items():
        if rows:
            parts.append(_rows(TITLES[level] + _pass(found, level), rows))
    parts += [f'<p class="dim">{text(level)}: not compared: {text(why)}.</p>' for level, why in found.missing.items()]
    parts += [f'<p class="dim">{text(line[0].upper() + line[1:])}.</p>' for line in legend.lines(found)]
    write(path, "tokentrace diff", "".join(parts))


def _rows(title: str, rows: Sequence[Row]) -> str:
    longest = max((abs(row.difference_ns) for row in rows), default=0) or 1
    cells = []
    for row in rows:
        style = "" if not row.beyond_noise else "slow" if row.difference_ns > 0 else "fast"
        change = "" if row.change is None else f"{row.change:+.1%}".replace("%", " %")
        plus = "+" if row.difference_ns > 0 else ""
        bar = f'<span class="bar" style="width:{5 * abs(row.difference_ns) / longest:.2f}rem"></span>'
        cells.append(
            [
                f'<span class="name" title="{text(row.label)}">{text(short_label(row))}</span>',
                text(_time(row.base_ns)),
                text(_time(row.new_ns)),
                f'<span class="{style}">{text(plus + duration(row.difference_ns))}</span>',
                text(change),
                f'<span class="{style}">{bar}</span> {text(_noise(row))}',
            ]
        )
    return table(title, ("", "base", "new", "change", "", "noise"), cells, _SHOWN)
