"""A process tree shaped like vLLM's, to be run as `python -m vllm.stand_in PLAN`: no engine, only names and a port.

PLAN is JSON: {"api": n, "children": [[title, [titles of its children]], …]}. Prints the port once everything is there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
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


CHILD = """
import json, os, subprocess, sys, time
parts = [subprocess.Popen([title, "-c", sys.argv[2], "[]", sys.argv[2]], executable=os.environ["STAND_IN_PYTHON"])
         for title in json.loads(sys.argv[1])]
time.sleep(60)
"""


def main() -> None:
    plan = json.loads(sys.argv[1])
    server = HTTPServer(("127.0.0.1", 0), Answer)
    python = os.environ["STAND_IN_PYTHON"]
    for title, below in plan:
        subprocess.Popen([title, "-c", CHILD, json.dumps(below), CHILD], executable=python)
    time.sleep(0.5)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
