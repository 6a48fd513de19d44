"""A kernel of TileLang's for the CPU, in a module of its own: TileLang reads its source."""
# mypy: ignore-errors

import tilelang
import tilelang.language as T


@tilelang.jit(target="c", execution_backend="cython")
def my_tile(n: int):
    @T.prim_func
    def main(a: T.Tensor((n,), "float32"), b: T.Tensor((n,), "float32")):
        with T.Kernel(1):
            for i in T.serial(n):
                b[i] = a[i] + 1.0

    return main
