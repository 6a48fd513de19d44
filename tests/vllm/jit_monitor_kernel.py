"""A kernel of Triton's, in a module of its own: Triton reads its source."""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def add(x, y, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)
