"""The checkpoints of a run, or one of them, each compared with its manifest to the last byte.

In: a run directory, or a checkpoint. Out: lines of text, as each is read; an exit status. Kept: nothing, and nothing is
moved: only a start puts a damaged checkpoint into quarantine.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pretrain.checkpoint.canonical import InvalidCheckpoint
from pretrain.checkpoint.load import find, verify
from pretrain.checkpoint.manifest import OtherVersion, step_of_name
from pretrain.run.classes import FINISHED, INPUT, STORAGE, ExitClass
from pretrain.run.directory import RunDirectory
from pretrain.run.errors import StorageError

WHOLE, DAMAGED, UNREADABLE, OTHER = "whole", "damaged", "unreadable", "other version"
_CLASSES: dict[str, ExitClass] = {WHOLE: FINISHED, OTHER: INPUT, DAMAGED: STORAGE, UNREADABLE: STORAGE}
_ROW = "{:>12}  {:>16}  {:13}  {}"


class Found(NamedTuple):
    """What a checkpoint is found to be."""

    path: Path
    num_bytes: int
    """Size of its files on the disk."""
    verdict: str
    """One of `WHOLE`, `DAMAGED`, `UNREADABLE`, `OTHER`."""
    reason: str = ""


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
    found = []
    for each in _judged(paths):
        found.append(each)
        step = step_of_name(each.path.name)
        say(_ROW.format(f"{step:,}", f"{each.num_bytes:,}", each.verdict, each.reason).rstrip())
    whole = [each for each in found if each.verdict == WHOLE]
    newest = f"the newest whole one is {whole[-1].path.name}" if whole else "none is whole"
    say(f"{len(whole)} of {len(found)} whole; {newest}")
    return max((_CLASSES[each.verdict] for each in found), key=_severity, default=FINISHED).status


def _severity(each: ExitClass) -> int:
    return (FINISHED, INPUT, STORAGE).index(each)


def _checkpoints(path: Path) -> list[Path]:
    if step_of_name(path.absolute().name) is not None and os.path.lexists(path):
        return [path.absolute()]
    run = RunDirectory(path)
    run.read()
    if not (paths := find(run.checkpoints)):
        raise ValueError(f"{run.root} has no checkpoint yet; nothing is there to verify")
    return paths[::-1]


def _judged(paths: list[Path]) -> Iterator[Found]:
    """What each is; one that the run removes meanwhile is left out."""
    for path in paths:
        num_bytes = _size(path)
        try:
            verify(path)
        except InvalidCheckpoint as error:
            if os.path.lexists(path):
                yield Found(path, num_bytes, DAMAGED, f"{error.reason}: {error}")
        except OtherVersion as error:
            yield Found(path, num_bytes, OTHER, error.reason)
        except StorageError as error:
            yield Found(path, num_bytes, UNREADABLE, error.reason)
        else:
            yield Found(path, num_bytes, WHOLE)


def _size(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:  # a run that trains removes its oldest checkpoint
                continue
    return total
