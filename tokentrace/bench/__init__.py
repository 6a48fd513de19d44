"""Bench: many requests of one prompt, percentiles that say how sure they are, and fair comparisons of two endpoints.

    result = bench(Plan("Hi", count=20, concurrency=4), [Target("local", endpoint)])
    result.targets[0].figures["ttft"].quantiles["p50"].value

`load` sends, `measured` keeps what each request showed, `stats` and `versus` say what can be said, `result` is all of
it as data.
"""

from tokentrace.bench.plan import Plan, Target
from tokentrace.bench.result import SCHEMA, Result
from tokentrace.bench.session import bench

__all__ = ["SCHEMA", "Plan", "Result", "Target", "bench"]
