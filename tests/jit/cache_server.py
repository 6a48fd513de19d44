"""A program with tokentrace's agent in it that loads libraries when it is told to, as a server loads its kernels.

    python cache_server.py SOCKET      prints "ready"; on stdin: `load PATH`, or `extension FOLDER NAME` for a torch one
"""  # fmt: skip

from __future__ import annotations

import ctypes
import sys


def main(path: str) -> None:
    from tokentrace import agent

    agent.start(path)
    print("ready", flush=True)
    for line in sys.stdin:
        what, _, rest = line.strip().partition(" ")
        if what == "load":
            ctypes.CDLL(rest)
        elif what == "extension":
            from torch.utils.cpp_extension import load

            source, _, name = rest.partition(" ")
            load(name, [source], is_python_module=False, extra_cflags=["-O0"])
        print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
