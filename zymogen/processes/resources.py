"""Cores and memory that this process may use: those of the machine, within the limits of its control groups.

In: /proc and /sys/fs/cgroup, version 1 or 2. Out: `Resources`. Kept: nothing. A group's limit holds for all groups
below it, so each is read up to the root; a container whose own group is mounted as the root has its limits there.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Resources(NamedTuple):
    """What this process may use, together with others of its control group."""

    cores: int
    """CPU cores, at least 1; a part of one counts as a whole one."""
    memory_bytes: int
    available_bytes: int
    """The part of it that is free, on the machine and within each limit, or would be if files were not cached in it."""
    limits: str
    """The limits below what the machine has, such as ``1 core (cpu.max), 1.3 GB (memory.max)``; empty without any."""


def resources(root: Path = Path("/")) -> Resources:
    """The resources of this process; `root` is where /proc and /sys are found."""
    import psutil  # a bare GPU machine lacks it

    memory, said = psutil.virtual_memory(), []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    total = memory.total
    quotas = [(math.ceil(quota), name) for group in _groups(root, "cpu") for quota, name in _quotas(group)]
    if quotas and min(quotas)[0] < cores:
        cores, name = max(1, min(quotas)[0]), min(quotas)[1]
        said.append(f"{cores} core{'s' if cores > 1 else ''} ({name})")
    limits = [limit for group in _groups(root, "memory") for limit in _memory_limits(group)]
    if limits and min(limits)[0] < total:
        total, name, _ = min(limits)
        said.append(f"{total / 1e9:.1f} GB ({name})")
    available = min([memory.available, *(limit - used for limit, _, used in limits)])
    return Resources(cores, total, max(available, 0), ", ".join(said))


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the control groups of this process that may limit `controller`, each with those above it."""
    mounts = [line.split() for line in _text(root / "proc/self/mountinfo").splitlines()]
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        for mount in mounts:
            kind, _, options = mount[mount.index("-") + 1 :][:3]
            is_of_version_1 = kind == "cgroup" and controller in {*controllers.split(",")} & {*options.split(",")}
            if not (is_of_version_1 or (kind == "cgroup2" and not controllers)):
                continue
            top = root / mount[4].lstrip("/")
            below = os.path.relpath(group, mount[3])  # a container may see its own group as the root of the mount
            folder = top if below.startswith("..") else top / below
            yield from (each for each in (folder, *folder.parents) if each.is_relative_to(top))


def _quotas(group: Path) -> Iterator[tuple[float, str]]:
    """Cores by the quotas of a group, and the file that says so."""
    for quota, period, name in (
        (*[*_text(group / "cpu.max").split(), "", ""][:2], "cpu.max"),
        (_text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us"), "cpu.cfs_quota_us"),
    ):
        if quota.strip().isdecimal() and period.strip().isdecimal():  # not "max", and not -1
            yield int(quota) / int(period), name


def _memory_limits(group: Path) -> Iterator[tuple[int, str, int]]:
    """Bytes by the limits of a group, the file that says so, and bytes of it in use, cached files left out."""
    counts = dict(line.split() for line in _text(group / "memory.stat").splitlines())
    in_use = int(_text(group / "memory.current") or _text(group / "memory.usage_in_bytes") or 0)
    for kind in ("active_file", "inactive_file"):  # with groups below: version 1 has a name of its own for this sum
        in_use -= int(counts.get(f"total_{kind}", counts.get(kind, 0)))
    for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
        if (limit := _text(group / name).strip()).isdecimal():
            yield int(limit), name, in_use


def _text(path: Path) -> str:
    """The content of a file; empty if there is none, or it may not be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
