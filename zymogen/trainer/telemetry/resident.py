"""The most memory of the machine that this process has had.

In: what Linux says of the process. Out: bytes. Kept: nothing. Only the standard library is imported, so that a process
which measures itself has no other memory for that.
"""

import re
from pathlib import Path


def peak_resident_bytes() -> int:
    """Largest resident size of this process so far, mapped files included.

    It is read from /proc, because what `getrusage` reports of a child begins at its parent's size.
    """
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kib) * 1024
