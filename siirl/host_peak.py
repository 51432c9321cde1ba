"""Peak of this process's resident memory, since the process began or since a reset.

Linux forgets the peak when a process writes to its own `clear_refs`. Containers may refuse that;
the peak is then that of the process so far.
"""

from pathlib import Path

RESET_PEAK = "5"  # man 5 proc, /proc/PID/clear_refs: the peak becomes the present size
KIB = 1024
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak(clear: Path = CLEAR) -> bool:
    """Begin a new peak; False if the kernel refuses."""
    try:
        clear.write_text(RESET_PEAK)
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """Largest resident memory since `reset_peak`, or since the process began."""
    [line] = (line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * KIB
