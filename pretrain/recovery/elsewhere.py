"""A run that continues on another machine: its newest checkpoint comes from the object store of `run.checkpoint_url`.

In: a run directory, which may be new. Out: the newest checkpoint that is whole, in the directory. Kept: the checkpoint,
the one that it calls the best, and, in a new directory, the records of the run as they were when the newest was saved.

The run directory is asked first. What the store has is fetched where it is newer, which it is on a machine that never
trained the run, or whose checkpoints are lost or damaged. The best one is fetched where the directory does not have it
whole.
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from data.durable import write_whole
from pretrain.checkpoint.best import Best
from pretrain.checkpoint.canonical import InvalidCheckpoint
from pretrain.checkpoint.commit import TEMPORARY, give_name, make_way
from pretrain.checkpoint.continued import Check
from pretrain.checkpoint.load import Verified, newest_valid, verify
from pretrain.checkpoint.manifest import OtherVersion, UnknownForm, checkpoint_name
from pretrain.checkpoint.object_store.stored import Bucket, Saved
from pretrain.checkpoint.tensors import PRIVATE, SHARED
from pretrain.run.directory import Allowed, RunDirectory
from pretrain.run.errors import CheckpointError, StorageError
from pretrain.run.settings import RunSettings

_FETCHED = f"{TEMPORARY}step-fetched"


def newest_anywhere(
    run: RunDirectory, recipe: object, settings: RunSettings, allowed: Allowed, check: Check
) -> Verified | None:
    """The newest checkpoint that is whole, fetched if need be; rank 0 only, which has claimed the directory.

    Args:
        run: the directory.
        recipe: of this start, which a run that another machine began must have had, too.
        settings: the recipe's section of the run.
        allowed: what this start may do.
        check: compares the data files of a checkpoint with their hashes.

    Returns:
        It, or None where the run begins.

    Raises:
        CheckpointError: there are checkpoints, and none verifies; `StorageError` if the store does not answer.
        ValueError: the store has another run, or the directory is not the run's newest.
    """
    if settings.checkpoint_url is None:
        return newest_valid(run.checkpoints, writer=True, check=check)
    with _answered(settings.checkpoint_url):
        bucket = Bucket(settings.checkpoint_url)
        found = _newest(run, recipe, settings, allowed, bucket, check)
        if found:
            _fetch_best(run, settings, bucket, found, check)
        return found


def numbered(run: RunDirectory, settings: RunSettings, world_size: int, step: int, *, despite_failures: bool) -> int:
    """Number the attempt that starts now, after those of all machines, of which none may save any more; rank 0 only.

    Args:
        run: the directory.
        settings: the recipe's section of the run.
        world_size: as of `start_attempt`.
        step: likewise.
        despite_failures: likewise.

    Raises:
        CheckpointError: another machine has started the same attempt; `StorageError` if the store does not answer.
            Nothing is written down then.
        OSError: as of `start_attempt`.
    """
    if settings.checkpoint_url is None:
        return run.start_attempt(world_size, step, despite_failures=despite_failures)
    with _answered(settings.checkpoint_url):
        bucket = Bucket(settings.checkpoint_url)
        before = max(run.last_attempt(), bucket.last_attempt())
        # First: the line of a start that another machine has made would say that this directory has its records. A
        # number that was claimed and has no line is left out, as numbers only grow.
        bucket.claim(before + 1)
    return run.start_attempt(world_size, step, despite_failures=despite_failures, after=before)


@contextmanager
def _answered(url: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "mend what it says, and start again; without run.checkpoint_url the run is kept on this machine alone"
        raise StorageError(url, str(error.strerror or error).removeprefix(f"{url}: "), remedy) from error


def _newest(
    run: RunDirectory, recipe: object, settings: RunSettings, allowed: Allowed, bucket: Bucket, check: Check
) -> Verified | None:
    refused = None
    try:
        local = newest_valid(run.checkpoints, writer=True, check=check)
    except (StorageError, OtherVersion):
        raise
    except CheckpointError as error:
        local, refused = None, error
    here = (local.manifest.attempt, local.manifest.step) if local else (0, -1)
    newer = [saved for saved in bucket.saves() if saved.is_whole and (saved.attempt, saved.step) > here]
    if newer:
        _require_newest(run, bucket, newer[0])

    def restore_records(saved: Saved) -> None:
        if not run.last_attempt():
            _restore_records(run, recipe, allowed, bucket.records(saved))

    found, rejected = _first_whole(run, settings, bucket, newer, restore_records)
    if found:
        return found
    if local:
        return local
    if refused:
        raise refused
    if rejected:
        raise CheckpointError(
            bucket.url, f"no checkpoint verifies (rejected now: {rejected})", "restore one, or choose another URL"
        )
    return None


def _require_newest(run: RunDirectory, bucket: Bucket, saved: Saved) -> None:
    """Refuse to mix the records of two machines, of which the other one's are the run's."""
    last = run.last_attempt()
    if 0 < last < saved.attempt:
        raise ValueError(
            f"{run.root} knows {last} starts of the run, and {bucket.url} has a checkpoint of start {saved.attempt}, "
            "which another machine has made; move the directory away, or choose another run.directory, and start "
            "again: the run continues from there"
        )


def _fetch_best(run: RunDirectory, settings: RunSettings, bucket: Bucket, newest: Verified, check: Check) -> None:
    """Fetch the best checkpoint where it is not whole here: without it the next validation would be taken for the best.

    What the store does not have whole either is left to `best.still_there`.

    Args:
        run: the directory.
        settings: the recipe's section of the run.
        bucket: the store.
        newest: the checkpoint that the start continues from, which names the best one.
        check: as of `newest_anywhere`.
    """
    step = Best.of(newest.trainer).step
    if step in (0, newest.manifest.step):
        return
    try:
        verify(run.checkpoints / checkpoint_name(step), check)
    except InvalidCheckpoint:
        saves = [saved for saved in bucket.saves() if saved.is_whole and saved.step == step]
        _first_whole(run, settings, bucket, saves)


def _first_whole(
    run: RunDirectory,
    settings: RunSettings,
    bucket: Bucket,
    saves: Iterable[Saved],
    restore_records: Callable[[Saved], None] = lambda saved: None,
) -> tuple[Verified | None, list[str]]:
    """The first of some saves that verifies, fetched; and a line for each one before it, which did not."""
    rejected: list[str] = []
    for saved in saves:
        try:
            found = _fetched(run, settings, bucket, saved, restore_records)
            return replace(found, rejected=tuple(rejected)), rejected
        except InvalidCheckpoint as error:
            rejected.append(f"{bucket.url}/{saved.prefix}: {error}")
            print(f"checkpoint rejected: {rejected[-1]}", file=sys.stderr, flush=True)
        finally:
            shutil.rmtree(run.checkpoints / _FETCHED, ignore_errors=True)
            with suppress(OSError):  # unless it holds a checkpoint
                run.checkpoints.rmdir()
    return None, rejected


def _fetched(
    run: RunDirectory, settings: RunSettings, bucket: Bucket, saved: Saved, restore_records: Callable[[Saved], None]
) -> Verified:
    folder, modes = run.checkpoints / _FETCHED / checkpoint_name(saved.step), SHARED if settings.shared else PRIVATE
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.parent.mkdir(mode=modes.folder, parents=True)
    try:
        bucket.fetch(saved, folder, modes)
    except UnknownForm as error:
        raise OtherVersion(Path(saved.prefix), error.writer, str(error)) from error
    found = verify(folder)
    restore_records(saved)
    target = run.checkpoints / folder.name
    if make_way(target, found.manifest):
        give_name(folder, target)
    print(f"fetched: {bucket.url}/{saved.prefix} -> {target}", file=sys.stderr, flush=True)
    return replace(found, path=target)


def _restore_records(run: RunDirectory, recipe: object, allowed: Allowed, content: dict[str, str]) -> None:
    """Give a new directory the records of the run. attempts.jsonl is last: until then, they are restored once more."""
    run.require_same(recipe, allowed.schedule_change, json.loads(content["run.json"]))
    for name in sorted(content, key=lambda name: (name == run.attempts.name, name)):
        write_whole(run.root / name, content[name])
