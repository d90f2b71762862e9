"""A run that continues on another machine: its newest checkpoint comes from the object store of `run.checkpoint_url`.

In: a run directory, which may be new. Out: the newest checkpoint that is whole, in the directory. Kept: the checkpoint,
the one that it calls the best, and, in a new directory, the records of the run as they were when the newest was saved.
The lines about all attempts are in the store from the beginning of the last attempt on, whether or not it saved.

The run directory is asked first. What the store has is fetched where it is newer, which it is on a machine that never
trained the run, or whose checkpoints are lost or damaged. The best one is fetched where the directory does not have it
whole. What the other machine published while this one looked, with its last grace perhaps, is fetched too: only once a
start has its number does the store refuse saves of earlier ones.
"""

import gzip
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from zymogen.console.safe_text import log
from zymogen.files.durable import write_atomic
from zymogen.processes import signals
from zymogen.processes.errors import CheckpointError, StorageError
from zymogen.settings import extension
from zymogen.trainer.checkpoint.best import BestCheckpoint
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError
from zymogen.trainer.checkpoint.commit import TEMPORARY, move_aside, publish
from zymogen.trainer.checkpoint.load import (
    VerifiedCheckpoint,
    folder_mode,
    newest_step,
    newest_valid,
    open_checkpoint,
    reject,
    unreadable,
    verify,
)
from zymogen.trainer.checkpoint.manifest import UnsupportedVersionError, checkpoint_name
from zymogen.trainer.checkpoint.object_store.bucket import CheckpointBucket, StoredCheckpoint
from zymogen.trainer.engine.ranks import Ranks
from zymogen.trainer.run.attempts import NO_RECORDS, AttemptRecords, move_base
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.run_json import run_record

_FETCHED = f"{TEMPORARY}step-fetched"


class RunCheckpoints:
    """The checkpoints of a run, in its directory and in its store, for one start of it. Rank 0 alone looks there.

    Args:
        run: the directory, which rank 0 has claimed before it looks.
        recipe: of the start, which a run that another machine began must have had, too.
        allow_schedule_change: whether settings of class "schedule" may differ from those of the run.
        allow_code_change: whether classes of the user's may have changed.
        ranks: all of them.
    """

    def __init__(
        self, run: RunDirectory, recipe: Any, allow_schedule_change: bool, allow_code_change: bool, ranks: Ranks
    ) -> None:
        self._run, self._recipe, self._ranks = run, recipe, ranks
        self._allow_schedule_change, self._allow_code_change = allow_schedule_change, allow_code_change
        url = recipe.run.checkpoint_url
        self._bucket = CheckpointBucket(url) if url and ranks.is_main else None
        self._has_records = False
        self._seen: list[StoredCheckpoint] = []
        self._stored = NO_RECORDS

    def attempts(self) -> tuple[AttemptRecords, int]:
        """What the directory and the store know of the run's attempts, and the step of its newest checkpoint.

        Raises:
            StorageError: the store does not answer.
        """
        newest, here = newest_step(self._run.checkpoints), AttemptRecords.read(self._run)
        self._has_records = bool(here.attempts)
        if self._bucket:
            with _answered(self._bucket.url):
                newest = max([newest, *(saved.step for saved in _whole(self._bucket))])
                self._stored = _stored_records(self._bucket)
        return here.followed_by(self._stored), newest

    def store_records(self, attempt: int) -> None:
        """Put what the directory knows of the run's attempts into the store, under the number of the newest."""
        if self._bucket:
            with _answered(self._bucket.url):
                self._bucket.put_records(attempt, AttemptRecords.read(self._run).to_bytes())

    def newest(self) -> VerifiedCheckpoint | None:
        """The newest checkpoint that is whole, fetched if need be, or None where the run begins.

        Raises:
            CheckpointError: there are checkpoints, and none verifies; `StorageError` if the store does not answer.
            ValueError: the store has another run, or the directory is not the run's newest, or the recipe ends before
                it.
        """
        bucket = self._bucket
        if bucket is None:
            found = newest_valid(self._run.checkpoints, writer=True, check=unreadable)
        else:
            with _answered(bucket.url):
                self._seen = _whole(bucket)
                found = self._newest_of(bucket)
                if found:
                    self._fetch_best(bucket, found)
        if found:
            self._run.require_longer(self._recipe.schedule.total_tokens, found.trainer.tokens_seen)
        return found

    def fall_back(self, damaged: VerifiedCheckpoint, error: InvalidCheckpointError, attempt: int) -> VerifiedCheckpoint:
        """Put a checkpoint aside whose damage was found as it was restored, and find an earlier one; collective.

        Raises:
            CheckpointError: none is left; otherwise as of `newest`.
        """

        def work() -> tuple[Path, str]:
            reject(damaged.path, error, writer=True)
            found = self.newest()
            assert found is not None, "where none is left, the one in quarantine makes that an error"
            move_base(self._run, attempt, found.trainer.step)
            return found.path, found.manifest.self_sha256

        return open_checkpoint(*self._ranks.on_main(work))

    @contextmanager
    def stored_at_the_end(self, attempt: int) -> Iterator[None]:
        """Context of an attempt, whose end is stored with the records of all attempts."""
        try:
            yield
        finally:
            try:
                self.store_records(attempt)
            except (StorageError, OSError) as error:
                log(f"the end of attempt {attempt} is in the run directory alone: {error}")

    def start_attempt(
        self, found: VerifiedCheckpoint | None, world_size: int, *, despite_failures: bool
    ) -> tuple[int, VerifiedCheckpoint | None]:
        """Number the attempt that starts now, after those of all machines, of which none may save any more.

        Args:
            found: what `newest` returned.
            world_size: as of `RunDirectory.start_attempt`.
            despite_failures: likewise.

        Returns:
            The number, and the checkpoint from which the attempt begins: a newer one, if one came in the meantime.

        Raises:
            CheckpointError: another machine has started the same attempt; `StorageError` if the store does not answer.
                Nothing is written down before the number is claimed.
            ValueError: as of `newest`.
            OSError: as of `RunDirectory.start_attempt`.
        """
        run, bucket, before = self._run, self._bucket, 0
        if bucket is not None:
            with _answered(bucket.url):
                before = max(run.last_attempt(), bucket.last_attempt())
                # First: the line of a start that another machine has made would say that this directory has its
                # records. A number that was claimed and has no line is left out, as numbers only grow.
                bucket.claim(before + 1)
                has_grown = any(saved not in self._seen for saved in _whole(bucket))
            if has_grown:
                with signals.immediate():
                    found = self.newest()
        self._stored.after(run.last_attempt()).append_to(run)
        step = found.trainer.step if found else 0
        code = extension.code_of(self._recipe)
        attempt = run.start_attempt(world_size, step, despite_failures=despite_failures, after=before, code=code)
        self.store_records(attempt)
        return attempt, found

    def _newest_of(self, bucket: CheckpointBucket) -> VerifiedCheckpoint | None:
        run, refused = self._run, None
        try:
            local = newest_valid(run.checkpoints, writer=True, check=unreadable)
        except (StorageError, UnsupportedVersionError):
            raise
        except CheckpointError as error:
            local, refused = None, error
        here = (local.manifest.attempt, local.manifest.step) if local else (0, -1)
        newer = [saved for saved in self._seen if (saved.attempt, saved.step) > here]
        if newer:
            self._require_newest(bucket, newer[0])
        found, rejected = self._first_whole(bucket, newer, with_records=not self._has_records)
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

    def _require_newest(self, bucket: CheckpointBucket, saved: StoredCheckpoint) -> None:
        """Refuse to mix the records of two machines, of which the other one's are the run's."""
        last = self._run.last_attempt()
        if self._has_records and last < saved.attempt:
            raise ValueError(
                f"{self._run.root} knows {last} starts of the run, and {bucket.url} has a checkpoint of start "
                f"{saved.attempt}, which another machine has made; move the directory away, or choose another "
                "run.directory, and start again: the run continues from there"
            )

    def _fetch_best(self, bucket: CheckpointBucket, newest: VerifiedCheckpoint) -> None:
        """Fetch the best checkpoint where it is not whole: without it the next validation would be taken for the best.

        What the store does not have whole either is left to `best.drop_if_missing`.

        Args:
            bucket: the store.
            newest: the checkpoint that the start continues from, which names the best one.
        """
        step = BestCheckpoint.of(newest.trainer).step
        if step in (0, newest.manifest.step):
            return
        try:
            verify(self._run.checkpoints / checkpoint_name(step))
        except InvalidCheckpointError:
            self._first_whole(bucket, (saved for saved in self._seen if saved.step == step), with_records=False)

    def _first_whole(
        self, bucket: CheckpointBucket, saves: Iterable[StoredCheckpoint], *, with_records: bool
    ) -> tuple[VerifiedCheckpoint | None, list[str]]:
        """The first of some saves that verifies, fetched; and a line for each one before it, which did not."""
        rejected: list[str] = []
        for saved in saves:
            try:
                found = self._fetched(bucket, saved, with_records=with_records)
                return replace(found, rejected=tuple(rejected)), rejected
            except InvalidCheckpointError as error:
                rejected.append(f"{bucket.url}/{saved.prefix}: {error}")
                log(f"checkpoint rejected: {rejected[-1]}")
            finally:
                shutil.rmtree(self._run.checkpoints / _FETCHED, ignore_errors=True)
                with suppress(OSError):  # unless it holds a checkpoint
                    self._run.checkpoints.rmdir()
        return None, rejected

    def _fetched(self, bucket: CheckpointBucket, saved: StoredCheckpoint, *, with_records: bool) -> VerifiedCheckpoint:
        checkpoints = self._run.checkpoints
        folder = checkpoints / _FETCHED / checkpoint_name(saved.step)
        shutil.rmtree(folder.parent, ignore_errors=True)
        checkpoints.mkdir(folder_mode(self._recipe.run.shared), exist_ok=True)
        folder.parent.mkdir()
        bucket.fetch(saved, folder)
        found = verify(folder)
        if with_records:
            self._restore_records(bucket.records(saved))
        target = checkpoints / folder.name
        if move_aside(target, found.manifest):
            publish(folder, target)
        log(f"fetched: {bucket.url}/{saved.prefix} -> {target}")
        return replace(found, path=target)

    def _restore_records(self, content: dict[str, str]) -> None:
        """Give a new directory the records of the run; until it has its attempts, they are restored once more."""
        described = run_record(content["run.json"].encode(), f"run.json of {self._recipe.run.checkpoint_url}")
        self._run.require_same(
            self._recipe, self._allow_schedule_change, described, allow_code_change=self._allow_code_change
        )
        for name in content:
            write_atomic(self._run.root / name, content[name])


def _stored_records(bucket: CheckpointBucket) -> AttemptRecords:
    content = bucket.attempt_records()
    try:
        return AttemptRecords.from_bytes(content) if content else NO_RECORDS
    except (ValueError, TypeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        remedy = "restore the newest object below attempts/ from an earlier version of it, or choose another URL"
        raise CheckpointError(bucket.url, f"the records of its attempts are damaged: {error}", remedy) from error


@contextmanager
def _answered(url: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "mend what it says, and start again; without run.checkpoint_url the run is kept on this machine alone"
        raise StorageError(url, str(error.strerror or error).removeprefix(f"{url}: "), remedy) from error


def _whole(bucket: CheckpointBucket) -> list[StoredCheckpoint]:
    """The checkpoints of a store, the newest first."""
    return [saved for saved in bucket.saves() if saved.is_whole]
