"""Which check answers which report of the field, for layers 5 to 1: report -> (checks, how it is shown, note).

How: `real` a real process, folder, mount, socket or profile of a machine without a GPU; `tree` a folder with the files
that the driver leaves; `stub` a small library in the vendor's place; `recording` a file recorded on such a machine;
`elsewhere` another command answers it; `open` nothing answers it yet.
"""

from __future__ import annotations

REPORTS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "M01": (("TT304",), "tree", "--enforce-eager and the number of ranks in vLLM's command"),
    "M02": (("TT507", "TT107"), "stub", "utilization is shown beside power and never called work"),
    "M03": (("TT505",), "stub", "config.json and --dtype against compute capability"),
    "M04": (("TT506",), "stub", "free memory, who holds it, the share that fits"),
    "M05": (("TT501",), "tree", "one line per platform with its own reason"),
    "M06": ((), "elsewhere", "tokentrace run: layer 5 tells the devices of the weights"),
    "M07": ((), "open", "the kernels' names are in the trace; the backend asked for is not compared"),
    "M08": (("TT502", "TT506"), "stub", "mapping of numbers; a lost card hides no other"),
    "M09": (("TT506",), "stub", "memory not supported: the machine's memory is told"),
    "P01": ((), "elsewhere", "tokentrace run records few steps and stops in time"),
    "P02": ((), "elsewhere", "tokentrace import reads a truncated file up to the cut"),
    "P03": (("TT405",), "real", "the route is asked over a socket, the flag of each version is named"),
    "P04": (("TT405",), "tree", "an empty folder of profiles is explained"),
    "P05": (("TT403", "TT301"), "recording", "CUPTI of another CUDA; launches without kernels are a blind profiler"),
    "P06": (("TT402",), "tree", "RmProfilingAdminOnly and capabilities, with the host's fix"),
    "P07": (("TT404",), "real", "a process named nsys; DCGM holds counters only"),
    "P08": ((), "elsewhere", "tokentrace import"),
    "P09": ((), "elsewhere", "tokentrace import"),
    "P10": ((), "elsewhere", "tokentrace import summarizes"),
    "P11": (("TT406", "TT301"), "recording", "WSL is named, an unseen GPU is not called idle"),
    "P12": ((), "elsewhere", "tokentrace run tells what recording cost"),
    "K03": ((), "elsewhere", "tokentrace import joins graph launches one to many"),
    "K04": ((), "elsewhere", "tokentrace import"),
    "K06": ((), "elsewhere", "tokentrace import joins by correlation id"),
    "K07": (("TT304",), "tree", "--max-num-seqs against the captured sizes"),
    "K08": ((), "elsewhere", "tokentrace import"),
    "K09": ((), "elsewhere", "tokentrace import tells the delay from launch to kernel"),
    "K10": ((), "elsewhere", "tokentrace import unites overlapping kernels"),
    "K11": ((), "open", "conditional nodes are not looked for"),
    "J01": (("TT201",), "real", "HOME=/dev/null: every bad folder at once with its variable"),
    "J02": (("TT202",), "real", "tmpfs for real, overlay by its mount table; the mount to type"),
    "J03": (("TT208",), "tree", "keys of a week compared, the factor that changed is named"),
    "J04": (("TT201",), "real", "a table of every cache: path, variable, size, age, file system"),
    "J05": (("TT207", "TT204"), "tree", "cuda_home of build.ninja against today's; network file systems"),
    "J06": (("TT206",), "real", "who holds a lock; a lock of a killed build"),
    "J07": (("TT209",), "real", "new files during the live call, and the time they cost"),
    "J08": ((), "elsewhere", "tokentrace run: layer 2 names what was compiled during the request"),
    "J09": (
        (),
        "open",
        "MIOpen's database is listed by TT201; whether a process used it cannot be told from its files",
    ),
    "J10": (("TT201", "TT202"), "real", "a folder of another user; memory file systems"),
    "J11": (("TT212",), "tree", "engine files that differ in a number only, TensorRT's version"),
    "W02": (("TT102",), "stub", "a warning of layer 1 only"),
    "W03": (("TT501", "TT101"), "tree", "permission of each device node; AMD SMI, then hwmon"),
    "W04": (("TT101",), "tree", "PYTHONPATH for the module in /opt/rocm"),
    "W05": (("TT108",), "real", "a counter that only root may read, read as another user"),
    "W07": (("TT107",), "stub", "too short: 150 ms < 1.00 s"),
    "W08": (("TT109",), "stub", "two distributions of the module"),
    "W09": (("TT104", "TT107"), "stub", "throttle reasons, the limit asked for against the one in force"),
    "W10": ((), "elsewhere", "tokentrace run attributes joules to the request"),
}
