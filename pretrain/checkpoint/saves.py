"""The saves of an attempt: a checkpoint each, and what happens if the disk cannot store one.

In: where the run stands at a step. Out: a checkpoint; or, on every rank, the reason why there is none. Kept: the
newest checkpoint, and since when saves have failed.

After a failed save training continues. It is tried again after a share of `run.saves_may_fail_for`, or when the next
save is due, if that is sooner. A run ends where saves have failed for that time, or where its last one has failed
`LAST_TRIES` times. The clock of rank 0 decides for all.
"""

import sys
import time
from collections.abc import Callable, Mapping
from time import monotonic

from data.progress_line import clock_time
from data.recipe.interval import seconds
from pretrain.checkpoint.best import Best
from pretrain.checkpoint.commit import commit
from pretrain.checkpoint.free_space import require_room
from pretrain.checkpoint.load import Verified
from pretrain.checkpoint.manifest import MANIFEST_FILE, Manifest, Topology, TrainerState
from pretrain.checkpoint.retention import retain
from pretrain.engine.engine import Engine
from pretrain.engine.named_state import NamedState
from pretrain.run.directory import RunDirectory
from pretrain.run.errors import CheckpointError, StorageError
from pretrain.run.settings import RunSettings
from pretrain.run.versions import versions

LAST_TRIES = 3
"""How often the last save is tried: no other would come."""
_PAUSE_S = 10.0
"""Pause between these."""
_TRIES = 6
"""How often a save is tried at least in the time that saves may fail."""

Tell = Callable[[str, int], None]
"""Is called with why a save failed and what follows, and with how many have failed in this attempt."""


class Saves:
    """The saves of one attempt, and since when they have failed.

    Args:
        run: where the checkpoints are.
        engine: how the run is spread.
        named: the state that is saved.
        attempt: number of the attempt.
        fingerprints: for the manifest.
        settings: how many checkpoints stay, who may read them, and for how long saves may fail.
        newest: the checkpoint that the attempt starts from.
    """

    def __init__(
        self,
        run: RunDirectory,
        engine: Engine,
        named: NamedState,
        attempt: int,
        fingerprints: Mapping[str, str],
        settings: RunSettings,
        newest: Verified | None,
    ) -> None:
        self._run, self._engine, self._named, self._attempt = run, engine, named, attempt
        self._fingerprints, self._settings = fingerprints, settings
        self._bytes = sum(file.size for file in newest.manifest.files) if newest else None
        self._most_s = seconds("run.saves_may_fail_for", settings.saves_may_fail_for)
        self._parent = newest.manifest_sha256 if newest else None  # on the writer only, later ones too
        self.newest = newest.path if newest else None
        """The newest checkpoint that this attempt knows of, on every rank."""
        self._step = newest.manifest.step if newest else -1
        self._first, self._latest = 0.0, 0.0  # of the failed saves since the newest checkpoint, by rank 0's clock
        self._fails = False
        self.failed = 0
        """Saves of this attempt that failed, tries included."""

    def require_room(self, num_stored: int, *, with_best: bool) -> None:
        """Refuse to begin where the disk has no room for the checkpoints that the run will keep; collective.

        Args:
            num_stored: float32 numbers that a checkpoint will hold, for a run that has none yet.
            with_best: whether the best checkpoint stays beside the newest ones.

        Raises:
            StorageError: it has none; `PeerError` on the other ranks.
        """
        kept = self._settings.keep_checkpoints + with_best
        size = 4 * num_stored if self._bytes is None else self._bytes
        self._engine.on_main(lambda: require_room(self._run.checkpoints, kept=kept, checkpoint_bytes=size))

    @property
    def due(self) -> bool:
        """Whether a save that failed is to be tried again, by this rank's clock, so that one rank decides for all."""
        return self._fails and monotonic() - self._latest >= self._most_s / _TRIES

    def save(self, state: TrainerState, tell: Tell, *, last: bool = False, again: bool = False) -> bool:
        """Commit a checkpoint unless the step has one; collective.

        Args:
            state: of the current step.
            tell: called if the save fails.
            last: whether the run ends with this one, which is then tried again.
            again: whether to commit one also where the step has one, whose record has changed.

        Returns:
            Whether a checkpoint was committed.

        Raises:
            StorageError: no save has succeeded for too long; `PeerError` on the other ranks.
        """
        if self._step == state.step and not again:
            return False
        for left in range(LAST_TRIES - 1 if last else 0, -1, -1):
            reason, for_s = self._commit(state)
            self._fails = reason is not None
            if reason is None:
                return True
            self.failed += 1
            so_far = f"saves have failed for {clock_time(for_s)}"
            if left:
                tell(f"{reason}; {left} more {'tries' if left > 1 else 'try'}, {_PAUSE_S:.0f} s apart", self.failed)
                time.sleep(_PAUSE_S)
            elif last:
                tell(reason, self.failed)
                self._give_up(f"the last save has failed {LAST_TRIES} times: {reason}")
            elif for_s >= self._most_s:
                tell(reason, self.failed)
                self._give_up(f"{so_far} (run.saves_may_fail_for = {self._settings.saves_may_fail_for!r}): {reason}")
            else:
                tell(
                    f"{reason}; training continues, {self._newest_in_words()}; {so_far}, and the run ends if they do "
                    f"for {self._settings.saves_may_fail_for} (run.saves_may_fail_for)",
                    self.failed,
                )
        return False

    def _commit(self, state: TrainerState) -> tuple[str | None, float]:
        """Try to save.

        Returns:
            None, or the reason why the disk could not store it; and for how many seconds saves have failed. On every
            rank what rank 0 found.
        """
        full: str | None = None
        failure: CheckpointError | None = None
        try:
            committed = commit(
                self._run.checkpoints,
                state=self._named,
                trainer=state,
                attempt=self._attempt,
                parent=self._parent,
                fingerprints=self._fingerprints,
                topology=Topology(
                    world_size=self._engine.world_size, engine=self._engine.name, precision=self._engine.precision
                ),
                versions=versions(),
                is_writer=self._engine.is_main,
                shared=self._settings.shared,
            )
        except StorageError as error:  # on the writer, after the last collective of `commit`
            full = error.reason  # not the error, whose traceback would hold this frame and so the run's lock
        except CheckpointError as error:
            failure = error

        def conclude() -> tuple[str | None, str, float]:
            if full is not None:
                self._latest = monotonic()
                self._first = self._first if self._fails else self._latest
                return full, "", self._latest - self._first
            if failure:
                raise failure
            keep, best = self._settings.keep_checkpoints, Best.of(state).step
            try:
                self._parent = Manifest.from_bytes((committed / MANIFEST_FILE).read_bytes()).self_sha256
                retain(self._run.checkpoints, keep=keep, committed=committed, best=best)
            except OSError as error:
                print(f"{committed} is saved, older ones were not removed: {error}", file=sys.stderr, flush=True)
            return None, committed.name, 0.0

        reason, name, for_s = self._engine.on_main(conclude)
        if reason is None:
            self.newest, self._step = self._run.checkpoints / name, state.step
        return reason, for_s

    def _newest_in_words(self) -> str:
        return f"the newest checkpoint is {self.newest.name}" if self.newest else "there is no checkpoint yet"

    def _give_up(self, reason: str) -> None:
        def end() -> None:
            raise StorageError(
                self._run.checkpoints,
                f"the run ends, as {reason}; {self._newest_in_words()}",
                "free space or mend the disk, and start again: the run continues from there",
            )

        self._engine.on_main(end)
