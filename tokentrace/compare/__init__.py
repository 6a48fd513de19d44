"""Compare: what got slower between two sides, by layer, step, module, operator and kernel, and whether it is noise.

    found = compare(["run-1", "run-2"], ["run-3", "run-4"])
    found.verdict.sentence, found.wall.beyond_noise, found.levels["layers"]

Things are aligned by the number of their step and their place in the tree (`tree`), measured by own time (`sample`),
tested against noise (`noise`), and told in one sentence (`verdict`).
"""

from tokentrace.compare.diff import SCHEMA, Diff, compare, compare_samples
from tokentrace.compare.sides import load, split

__all__ = ["SCHEMA", "Diff", "compare", "compare_samples", "load", "split"]
