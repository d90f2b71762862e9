"""The checkpoints of a run, or one of them, each compared with its manifest to the last byte.

In: a run directory, or a checkpoint. Out: lines of text, as each is read; an exit status. Kept: nothing, and nothing is
moved: only a start puts a damaged checkpoint into quarantine.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pretrain.checkpoint.canonical import InvalidCheckpointError
from pretrain.checkpoint.load import find, verify
from pretrain.checkpoint.manifest import UnsupportedVersionError, step_of_name
from pretrain.run.directory import RunDirectory
from zymogen.console.progress import ProgressBar
from zymogen.processes.errors import StorageError
from zymogen.processes.exit_classes import FINISHED, INPUT, STORAGE, ExitClass

WHOLE, DAMAGED, UNREADABLE, OTHER = "whole", "damaged", "unreadable", "other version"
_CLASSES: dict[str, ExitClass] = {WHOLE: FINISHED, OTHER: INPUT, DAMAGED: STORAGE, UNREADABLE: STORAGE}
_ROW = "{:>12}  {:>16}  {:13}  {}"


def verified(path: Path, say: Callable[[str], None]) -> int:
    """Compare all checkpoints of a run, the oldest first, or one.

    Args:
        path: a run directory, or a checkpoint in one.
        say: gets each line of the table as soon as it is known.

    Returns:
        The exit status: 0, or that of a damaged disk, or if none is damaged of a mistake where another version is
        needed to read one.

    Raises:
        ValueError: there is no checkpoint.
    """
    paths = _checkpoints(path)
    say(_ROW.format("step", "bytes", "verdict", "reason"))
    verdicts: dict[str, str] = {}
    for each in paths:
        num_bytes = _size(each)
        with ProgressBar(f"comparing {each.name} with its hashes", after_s=2.0):
            verdict, reason = _verdict(each)
        if not os.path.lexists(each):  # a run that trains removes its oldest one
            continue
        verdicts[each.name] = verdict
        say(_ROW.format(f"{step_of_name(each.name):,}", f"{num_bytes:,}", verdict, reason).rstrip())
    whole = [name for name, verdict in verdicts.items() if verdict == WHOLE]
    newest = f"the newest whole one is {whole[-1]}" if whole else "none is whole"
    say(f"{len(whole)} of {len(verdicts)} whole; {newest}")
    return max(
        map(_CLASSES.__getitem__, verdicts.values()), key=(FINISHED, INPUT, STORAGE).index, default=FINISHED
    ).status


def _checkpoints(path: Path) -> list[Path]:
    if step_of_name(path.absolute().name) is not None and os.path.lexists(path):
        return [path.absolute()]
    run = RunDirectory(path)
    run.read()
    if not (paths := find(run.checkpoints)):
        raise ValueError(f"{run.root} has no checkpoint yet; nothing is there to verify")
    return paths[::-1]


def _verdict(path: Path) -> tuple[str, str]:
    """What a checkpoint is, and why."""
    try:
        verify(path)
    except InvalidCheckpointError as error:
        return DAMAGED, f"{error.reason}: {error}"
    except UnsupportedVersionError as error:
        return OTHER, error.reason
    except StorageError as error:
        return UNREADABLE, error.reason
    return WHOLE, ""


def _size(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):  # a run that trains removes its oldest checkpoint
                total += os.lstat(os.path.join(folder, name)).st_size
    return total
