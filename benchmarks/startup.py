"""Process start to first token: the local engine against a bare script with the same model and libraries.

The bare script imports torch, transformers and tokenizers, loads the same folder, and generates the same greedy tokens
with `generate`; no server, no scheduler. Both are measured from outside, from the moment before the process is
started to the first token: for the engine, the first chunk with content arriving over HTTP. Runs alternate, so that
the machine's mood hits both alike, and the medians are compared. The model is converted first, and is not part of it.

    python benchmarks/startup.py [RUNS]

Exit code 1 when the ratio is above 1.5 or the tokens differ.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request

from tokentrace.engines.local.folder import ModelFolder
from tokentrace.engines.local.model import ensure_model
from tokentrace.engines.local.process import LocalEngine

LIMIT = 1.5

BARE = r"""
import sys, time
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging
from transformers.utils.chat_template_utils import render_jinja_template

torch.set_num_threads(int(sys.argv[2]))
logging.disable_progress_bar()
folder = sys.argv[1]
tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
template = open(folder + "/chat_template.jinja").read()
text = render_jinja_template(
    [[{"role": "user", "content": "Hi"}]], chat_template=template, add_generation_prompt=True
)[0][0]
ids = tokenizer.encode(text, add_special_tokens=False).ids


class First(BaseStreamer):
    seen = 0

    def put(self, value):
        self.seen += 1
        if self.seen == 2:  # the first call brings the prompt
            print("first", time.time_ns(), flush=True)

    def end(self):
        pass


out = model.generate(
    torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=64,
    do_sample=False, streamer=First(),
)
print("text", repr(tokenizer.decode(out[0, len(ids):].tolist())))
"""


def bare(folder: ModelFolder, threads: int) -> tuple[float, str]:
    """Seconds to the first token, and the text."""
    start = time.time_ns()
    command = [sys.executable, "-c", BARE, str(folder.path), str(threads)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = dict(line.split(" ", 1) for line in lines if line.startswith(("first ", "text ")))
    return (int(found["first"]) - start) / 1e9, str(ast.literal_eval(found["text"]))


def engine(folder: ModelFolder) -> tuple[float, str, int]:
    """Seconds to the first token over HTTP, the text, and the engine's threads."""
    start = time.time_ns()
    with LocalEngine.start(folder, agent=False) as running:
        body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "temperature": 0}
        request = urllib.request.Request(
            running.base_url + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        first, text = 0, ""
        with urllib.request.urlopen(request, timeout=120) as response:
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                content = json.loads(line[6:])["choices"][0]["delta"].get("content")
                if content:
                    first = first or time.time_ns()
                    text += content
        return (first - start) / 1e9, text, int(running.facts["threads"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=int, nargs="?", default=7)
    runs = parser.parse_args().runs
    folder = ensure_model()
    _, text, threads = engine(folder)  # also warms the page cache for both
    _, expected = bare(folder, threads)
    ours, theirs = [], []
    for index in range(runs):
        theirs.append(bare(folder, threads)[0])
        ours.append(engine(folder)[0])
        print(f"run {index + 1}: bare {theirs[-1]:.2f} s, engine {ours[-1]:.2f} s", flush=True)
    ratio = statistics.median(ours) / statistics.median(theirs)
    same = expected.replace("<|im_end|>", "") == text
    print(f"cores {os.cpu_count()}, threads {threads}, model {folder.name} in {folder.path.parent}")
    print(f"bare script  median {statistics.median(theirs):.2f} s (min {min(theirs):.2f})")
    print(f"local engine median {statistics.median(ours):.2f} s (min {min(ours):.2f})")
    print(f"same tokens  {same} ({text!r})")
    print(f"ratio {ratio:.2f} (limit {LIMIT})")
    return 0 if same and ratio <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
