"""The world that a launcher describes in environment variables: this process's rank, the world size, the address.

In: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Out: `World`. Kept:
nothing. This is the one place that reads them; torch is not imported.
"""

import os
from typing import NamedTuple

_LEAST = {
    **{"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_WORLD_SIZE": 1},
    "MASTER_PORT": 1,
}
"""Variables that hold a whole number, with the smallest one."""


class World(NamedTuple):
    """The processes of one launch; without a launcher, this one."""

    rank: int = 0
    world_size: int = 1
    local_world_size: int | None = None
    """Processes on this machine; None if the launcher does not say."""
    num_nodes: int = 1
    """Number of nodes, by torchelastic's count."""
    address: str = ""
    """Host of the store at which all processes meet; empty for one process."""
    port: int = 0


def launched_world() -> World:
    """Read the variables of the launcher.

    Raises:
        ValueError: one is empty, not a number or too large, or another one is missing.
    """
    given = {name: os.environ[name] for name in (*_LEAST, "MASTER_ADDR") if name in os.environ}
    numbers = {name: _number(name, text, _LEAST[name]) for name, text in given.items() if name in _LEAST}
    rank, world_size, local_rank = numbers.get("RANK", 0), numbers.get("WORLD_SIZE", 1), numbers.get("LOCAL_RANK")
    if world_size > 1 or rank or local_rank is not None:
        for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            if not given.get(name):
                present = ", ".join(f"{each}={text}" for each, text in given.items() if each != name)
                raise ValueError(
                    f"{name} is {'empty' if name in given else 'missing'} in the environment, which has {present}; a "
                    "process of several needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: set all of them, or none"
                )
    for name, number, limit in (
        ("RANK", rank, world_size),
        ("LOCAL_RANK", local_rank or 0, numbers.get("LOCAL_WORLD_SIZE", world_size)),
        ("MASTER_PORT", numbers.get("MASTER_PORT", 1), 2**16),
    ):
        if number >= limit:
            raise ValueError(f"{name} is {number} in the environment; it must be below {limit:,}: correct the launch")
    address, port = given.get("MASTER_ADDR", ""), numbers.get("MASTER_PORT", 0)
    return World(rank, world_size, numbers.get("LOCAL_WORLD_SIZE"), numbers.get("GROUP_WORLD_SIZE", 1), address, port)


def _number(name: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) >= least):
        raise ValueError(
            f"{name} is {text!r} in the environment; it must be a whole number from {least} on: correct it, or remove "
            f"it with unset {name}"
        )
    return int(text)
