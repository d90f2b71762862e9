"""One run directory for all nodes: a start on several nodes proves it before the directory is claimed.

In: the run directory, by its name on each node. Out: one error on every rank where a node sees another folder. Kept:
nothing.

Rank 0 makes a file of a name that nobody has seen, and the first rank of every other node looks for it. A file
system over the network may show it late: its client keeps for up to a minute what it knows of a folder.
"""

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from zymogen.files.durable import describe_os_error
from zymogen.processes import signals
from zymogen.processes.launcher import launched_world
from zymogen.trainer.engine.ranks import Ranks
from zymogen.trainer.run.directory import UNCLAIMED, RunDirectory

_CACHED_S = 60.0
_LOOK_S = 0.2


def require_shared(run: RunDirectory, ranks: Ranks) -> None:
    """Check that all nodes see one run directory; collective.

    Raises:
        ValueError: a node sees another one, or nothing can be written there.
    """
    ranks_per_node = launched_world().local_world_size or 1
    if ranks.world_size == ranks_per_node:
        return

    def write() -> tuple[int, str]:
        run.require_usable()
        # Above a directory that is still to be made, so that only the claim makes it.
        level, name = next(n for n, path in enumerate(folders) if path.exists()), f"{UNCLAIMED}{uuid4().hex}"
        try:
            (folders[level] / name).touch()
        except OSError as error:
            raise ValueError(f"{run.root}: {describe_os_error(error)}; choose another run.directory") from error
        return level, name

    root = run.root.absolute()
    folders = (root, *root.parents)
    level, name = ranks.on_main(write)
    try:
        is_reader = ranks.rank % ranks_per_node == 0 and not ranks.is_main
        sees = not is_reader or _sees(folders[level] / name)
        answers = ranks.gather((sees, socket.gethostname(), str(root)))
    finally:
        if ranks.is_main:
            (folders[level] / name).unlink(missing_ok=True)
    if all(sees for sees, _, _ in answers):
        return
    ranks.raise_if_interrupted()
    (_, host, path), blind = answers[0], sorted({f"{path} of {host}" for sees, host, path in answers if not sees})
    raise ValueError(
        f"run.directory is not one folder on all nodes: rank 0 wrote a file to {path} of {host}, which is not seen in "
        f"{blind[0]}" + (f" and {len(blind) - 1} more" if blind[1:] else "") + "; all nodes need one file system for "
        "the run directory: mount it on every node, and give run.directory as an absolute path there"
    )


def _sees(file: Path) -> bool:
    """Wait until this node sees a file, a signal comes, or it would have been seen."""
    until = time.monotonic() + _CACHED_S
    while True:
        with suppress(OSError):
            os.listdir(file.parent)  # to open a folder asks its server whether it has changed
            os.stat(file)
            return True
        if time.monotonic() > until or signals.first_signal() is not None:
            return False
        time.sleep(_LOOK_S)
