"""Compiles a small model with the hooks of the group "jit" (and the profiler) on; prints what they saw as JSON.

    python jit_program.py [late]     late: torch is imported only after the group is switched on
"""  # fmt: skip

from __future__ import annotations

import json
import sys


def main() -> None:
    from tokentrace.agent.compile_events import JitGroup
    from tokentrace.agent.profile import OpsGroup

    late = sys.argv[1:] == ["late"]
    if not late:
        import torch._dynamo.utils
    records: list[list[object]] = []
    group = JitGroup()
    group.enable(lambda *record: records.append(list(record)), {"variables": ["TORCHINDUCTOR_CACHE_DIR", "UNSET"]})
    import torch

    class Mlp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(torch.nn.functional.silu(self.up(x)) * 2)

    import torch._inductor.config

    torch._inductor.config.cpp.enable_kernel_profile = True
    model = Mlp().eval()
    x = torch.ones(3, 8)
    with torch.inference_mode():
        expected = model(x)
        model.compile(dynamic=False)
        compiled = model(x)
        ops = OpsGroup()
        ops.enable(lambda *record: None, {})
        model(x)
        ops.disable()
    group.disable()
    before = len(records)
    with torch.inference_mode():
        model(torch.ones(4, 8))  # compiles again, unseen: the group is off
    ((header, blobs),) = ops.bulk()
    print(
        json.dumps(
            {
                "same": bool(torch.allclose(expected, compiled, atol=1e-5)),
                "records": records,
                "after": len(records) - before,
                "facts": group.bulk()[0][0],
                "ops": [header, {name: [code, data.hex()] for name, (code, data) in blobs.items()}],
                "restored": torch._dynamo.utils.ChromiumEventLogger.log_event_start.__qualname__,
                "finders": [type(f).__name__ for f in sys.meta_path],
            }
        )
    )


if __name__ == "__main__":
    main()
