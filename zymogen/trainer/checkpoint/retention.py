"""Which checkpoints are kept, and the removal of what crashes left.

Only the writer calls these. Nothing is deleted under its published name: it is renamed first, so
that a crash in the middle leaves no `step-*` that is half gone.
"""

import os
import re
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from zymogen.console.safe_text import log
from zymogen.files.durable import flush
from zymogen.trainer.checkpoint.best import BestCheckpoint
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError
from zymogen.trainer.checkpoint.commit import TEMPORARY, SavePlan
from zymogen.trainer.checkpoint.files.blocks import read_small
from zymogen.trainer.checkpoint.load import MADE_WAY, QUARANTINE, QUARANTINED, find, sizes_of
from zymogen.trainer.checkpoint.manifest import (
    MANIFEST_FILE,
    CheckpointManifest,
    UnsupportedVersionError,
    checkpoint_name,
    step_of_name,
)

TRASH = ".trash-"
_MADE_WAY = re.compile(rf"(step-\d+)-{MADE_WAY}(?:-(\d+))?")


def retain(
    checkpoints_dir: Path,
    *,
    keep: int,
    committed: Path,
    best: int = 0,
    stays: Callable[[int], bool] = lambda step: False,
) -> list[Path]:
    """Delete all but the newest `keep` checkpoints, the best one and those that stay; call it after a commit.

    Of those in quarantine, the last `QUARANTINED` stay. A folder of such a name stays if it has no manifest, another
    version's, or files that its manifest does not list.

    Args:
        checkpoints_dir: the run's checkpoints.
        keep: how many stay, 1 or more. With 1, damage to the only one ends the run.
        committed: the checkpoint just committed; it stays, whatever its step.
        best: step of the best checkpoint, which stays too; 0 where there is none.
        stays: whether the checkpoint of a step is never removed.

    Returns:
        The paths that are gone.

    Raises:
        ValueError: `keep` is below 1, or `committed` does not exist; nothing is deleted then.
    """
    if keep < 1:
        raise ValueError(f"keep: got {keep}, allowed 1 or more")
    present = find(checkpoints_dir)
    if committed not in present or not (committed / MANIFEST_FILE).is_file():
        raise ValueError(f"{committed} is no committed checkpoint of {checkpoints_dir}")
    kept = {committed, checkpoints_dir / checkpoint_name(best)}
    surplus = [
        path
        for path in present[keep:]
        if path not in kept and not stays(step_of_name(path.name) or 0) and _holds_nothing_else(path)
    ]
    for path in surplus:
        trash = checkpoints_dir / f"{TRASH}{path.name}-{secrets.token_hex(4)}"
        os.rename(path, trash)
        flush(checkpoints_dir)
        shutil.rmtree(trash, ignore_errors=True)  # what cannot be removed is swept at the next start
    quarantined = [path for path in in_quarantine(checkpoints_dir) if _holds_nothing_else(path)]
    for path in quarantined[QUARANTINED:]:
        shutil.rmtree(path, ignore_errors=True)
    return surplus


def in_quarantine(checkpoints_dir: Path) -> list[Path]:
    """Checkpoints that were put aside, the last one first; not those that made way and may get their names back."""
    folder = checkpoints_dir / QUARANTINE
    found = folder.glob("step-*") if folder.is_dir() else ()
    aside = (path for path in found if not _MADE_WAY.fullmatch(path.name))
    return sorted(aside, key=lambda path: path.lstat().st_ctime_ns, reverse=True)  # which a rename changes


def retain_everywhere(plan: SavePlan, *, keep: int, stays: Callable[[int], bool]) -> None:
    """`retain` after the save of a plan, in its store too; what could not be removed is told, and raises nothing."""
    best = BestCheckpoint.of(plan.trainer).step
    try:
        retain(plan.checkpoints_dir, keep=keep, committed=plan.published, best=best, stays=stays)
        if plan.bucket:
            plan.bucket.retain(plan.prefix, keep=keep, kept=lambda step: 0 < step == best or stays(step))
    except OSError as error:
        log(f"{plan.published} is saved, older ones were not removed: {error}")


def sweep(checkpoints_dir: Path) -> list[Path]:
    """Remove what a crash left of commits and deletions; call it at the start, before the first commit.

    Where the newest checkpoint had made way for another one of its step, which did not come, it gets its name back.

    Returns:
        The paths that are gone.
    """
    if not checkpoints_dir.is_dir():
        return []
    prefixes = (f"{TEMPORARY}step-", f"{TRASH}step-")
    leftovers = [path for path in checkpoints_dir.iterdir() if path.name.startswith(prefixes)]
    for path in leftovers:
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            shutil.rmtree(path)
    _put_back(checkpoints_dir)
    return leftovers


def _put_back(checkpoints_dir: Path) -> None:
    quarantine = checkpoints_dir / QUARANTINE
    matches = [_MADE_WAY.fullmatch(path.name) for path in quarantine.iterdir()] if quarantine.is_dir() else []
    made_way = [(step_of_name(match[1]) or 0, int(match[2] or 1), match) for match in matches if match]
    newest = max((step_of_name(path.name) or 0 for path in find(checkpoints_dir)), default=-1)
    if made_way and (last := max(made_way, key=lambda each: each[:2]))[0] > newest:
        os.rename(quarantine / last[2][0], checkpoints_dir / last[2][1])
        flush(checkpoints_dir)
        flush(quarantine)


def _holds_nothing_else(path: Path) -> bool:
    """Whether a checkpoint has a manifest, and no file that the manifest does not list."""
    try:
        manifest = CheckpointManifest.from_bytes(read_small(path / MANIFEST_FILE), path)
        return not path.is_symlink() and sizes_of(path).keys() <= {MANIFEST_FILE, *manifest.entries}
    except (OSError, InvalidCheckpointError, UnsupportedVersionError):
        return False
