"""A kernel of Triton's, in a module of its own: Triton reads its source."""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def one(x, y, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


def compiled_only(call, quantiles):
    """Compiles the candidate. Nothing can be measured without a device: all are as fast."""
    call()
    return [1.0, 1.0, 1.0]


SIZES = [triton.Config({"SIZE": 128}), triton.Config({"SIZE": 256})]
tuned = triton.autotune(SIZES, key=["n"], do_bench=compiled_only)(one)


@triton.jit
def add(x, y, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)
