"""A process tree shaped like vLLM's, to be run as `python -m vllm.stand_in PLAN`: no engine, only names and a port.

PLAN is JSON: {"api": n, "children": [[title, [titles of its children]], …]}. Prints the port once everything is there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = {"/v1/models": {"data": [{"id": "m", "owned_by": "vllm"}]}, "/version": {"version": "0.32.0"}}
        text = json.dumps(body.get(self.path, {})).encode()
        self.send_response(200 if self.path in body else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        return


#: Says on its output that it is there, and ends when its parent does.
CHILD = """
import json, os, subprocess, sys
os.write(1, b".")
parts = [subprocess.Popen([title, "-c", sys.argv[2], "[]", sys.argv[2]], executable=os.environ["STAND_IN_PYTHON"],
                          stdin=subprocess.PIPE) for title in json.loads(sys.argv[1])]
sys.stdin.read()
"""


def main() -> None:
    plan = json.loads(sys.argv[1])
    server = HTTPServer(("127.0.0.1", 0), Answer)
    python = os.environ["STAND_IN_PYTHON"]
    reading, writing = os.pipe()
    parts = [
        subprocess.Popen([title, "-c", CHILD, json.dumps(below), CHILD], executable=python, stdin=subprocess.PIPE,
                         stdout=writing)
        for title, below in plan
    ]  # fmt: skip
    there = 0
    while there < len(parts) + sum(len(below) for _, below in plan):
        there += len(os.read(reading, 100))
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
