"""transformers' generate in this very process, down to the operators: no server, no HTTP.

python examples/offline_generate.py [MODEL_FOLDER]
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tokentrace
from tokentrace.emit.terminal import print_report


def main() -> None:
    if len(sys.argv) > 1:
        folder = sys.argv[1]
    else:
        from tokentrace.engines.local.model import ensure_model

        folder = str(ensure_model().path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with tokentrace.trace("offline", deep=True) as trace:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": "Hi"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = model.generate(**ids, max_new_tokens=10, do_sample=False)
        print(tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True))
    print_report(trace.report)


if __name__ == "__main__":
    main()
