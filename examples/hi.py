"""One prompt through the local engine, and what the trace says of it.

python examples/hi.py
"""

from __future__ import annotations

import tokentrace


def main() -> None:
    trace = tokentrace.run("Hi")
    print(f"{trace.reply!r} after {trace.wall_ns / 1e6:.0f} ms, first token after {(trace.ttft_ns or 0) / 1e6:.0f} ms")
    for row in trace.layers:
        if row.status == "seen":
            down, up = row.own_ns_down or 0, row.own_ns_up or 0
            print(f"  {row.layer} {row.title:<18} {(down + up) / 1e6:8.2f} ms   {row.form_in} -> {row.form_out}")
        else:
            print(f"  {row.layer} {row.title:<18} {row.status}: {row.reason}")


if __name__ == "__main__":
    main()
