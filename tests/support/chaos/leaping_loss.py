"""`python -m pretrain` on data of which one bin makes the loss leap; it first says what its process holds already."""

import os

import psutil

from pretrain.__main__ import main
from support.jobs.numerical_faults import BINS, bad_labels
from zymogen.processes.fresh_process import run_command

BIN = 21 * BINS + 3
"""In step 22."""
HELD = "descriptors {}, children {}"


def held() -> str:
    """Open descriptors that are no standard streams, and processes that this one started."""
    names = {name: os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
    held = [place for name, place in names.items() if int(name) > 2 and os.path.lexists(f"/proc/self/fd/{name}")]
    return HELD.format(held, [child.name() for child in psutil.Process().children()])


if __name__ == "__main__":
    print(held(), flush=True)
    with bad_labels(BIN, 5):
        run_command(main)
