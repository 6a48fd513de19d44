"""The checks of layers 5 to 1: what the machine, its drivers and the server's process allow to be seen and done.

view          the machine as one process sees it; every other module reads through it
hardware      GPUs on the bus, their drivers and device nodes     surroundings  container, virtual machine, WSL
torches       which torch, built for what                         visible       variables that hide GPUs
5 devices builds cards busy · 4 trial rights route · 3 tools launching · 2 caches compilers keys compiled · 1 power load
"""

#: Modules with a tuple `CHECKS`, from layer 5 down.
MODULES = tuple(
    f"{__name__}.{name}"
    for name in (
        *("devices", "builds", "cards", "busy"),
        *("trial", "rights", "route"),
        *("tools", "launching"),
        *("caches", "compilers", "keys", "compiled"),
        *("power", "load"),
    )
)  # fmt: skip
