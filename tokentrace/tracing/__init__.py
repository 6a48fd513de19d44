"""Tracing from a program of one's own: `tokentrace.run`, `tokentrace.load` and `with tokentrace.trace(...)`.

result      what all three give: spans, layers, findings, and the ways out
block       the with statement: watches what happens inside it, and makes one trace of it
stages      what the program says that it is doing
passes      what each layer saw of every request and generation
http_calls  requests that go through httpx, which the openai package uses: offered to the blocks that are open
call        one such request and its reply
in_process  a model that runs in this process: transformers' generate
"""
