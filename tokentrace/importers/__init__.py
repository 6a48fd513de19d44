"""Recordings made by others: torch.profiler/Kineto, Nsight Systems, rocprofv3. `load` turns them into a Trace."""

from tokentrace.importers._collect import Imported
from tokentrace.importers._load import load

__all__ = ["Imported", "load"]
