"""The saves of an attempt: a checkpoint each, and what happens if the disk cannot store one.

In: where the run stands at a step. Out: a checkpoint; or, on every rank, the reason why there is none. Kept: the
newest checkpoint, and how many saves have failed since.

After a failed save training continues, and the next save is due when it would have been. A run ends after `MOST_FAILED`
failed saves in a row, or as many tries of the last one.
"""

import sys
import time
from collections.abc import Callable, Mapping

from pretrain.checkpoint.best import Best
from pretrain.checkpoint.commit import commit
from pretrain.checkpoint.load import Verified
from pretrain.checkpoint.manifest import MANIFEST_FILE, Manifest, Topology, TrainerState
from pretrain.checkpoint.retention import retain
from pretrain.engine.engine import Engine
from pretrain.engine.named_state import NamedState
from pretrain.run.directory import RunDirectory
from pretrain.run.errors import CheckpointError, StorageError
from pretrain.run.versions import versions

MOST_FAILED = 3
_PAUSE_S = 10.0
"""Pause before the last save is tried again."""

Tell = Callable[[str, int], None]
"""Is called with why a save failed and what follows, and with how many have failed in this attempt."""


class Saves:
    """The saves of one attempt, and how many have failed in a row.

    Args:
        run: where the checkpoints are.
        engine: how the run is spread.
        named: the state that is saved.
        attempt: number of the attempt.
        fingerprints: for the manifest.
        keep: how many checkpoints stay.
        newest: the checkpoint that the attempt starts from.
        shared: whether others may read them, as far as the umask lets them.
    """

    def __init__(
        self,
        run: RunDirectory,
        engine: Engine,
        named: NamedState,
        attempt: int,
        fingerprints: Mapping[str, str],
        keep: int,
        newest: Verified | None,
        *,
        shared: bool = False,
    ) -> None:
        self._run, self._engine, self._named, self._attempt = run, engine, named, attempt
        self._fingerprints, self._keep, self._shared = fingerprints, keep, shared
        self._parent = newest.manifest_sha256 if newest else None  # on the writer only, later ones too
        self.newest = newest.path if newest else None
        """The newest checkpoint that this attempt knows of, on every rank."""
        self._step = newest.manifest.step if newest else -1
        self._in_a_row = 0
        self.failed = 0
        """Saves of this attempt that failed, tries included."""

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
        for left in range(MOST_FAILED - 1 if last else 0, -1, -1):
            reason = self._commit(state)
            if reason is None:
                self._in_a_row = 0
                return True
            self.failed += 1
            self._in_a_row += 1
            if left:
                tell(f"{reason}; {left} more {'tries' if left > 1 else 'try'}, {_PAUSE_S:.0f} s apart", self.failed)
                time.sleep(_PAUSE_S)
            elif last or self._in_a_row == MOST_FAILED:
                tell(reason, self.failed)
                self._give_up(reason)
            else:
                tell(
                    f"{reason}; training continues, {self._newest_in_words()}; {MOST_FAILED} failed saves in a row end "
                    f"the run, this is number {self._in_a_row}",
                    self.failed,
                )
        return False

    def _commit(self, state: TrainerState) -> str | None:
        """Try to save; None, or on every rank the reason why the disk could not store it."""
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
                shared=self._shared,
            )
        except StorageError as error:  # on the writer, after the last collective of `commit`
            full = error.reason  # not the error, whose traceback would hold this frame and so the run's lock
        except CheckpointError as error:
            failure = error

        def conclude() -> tuple[str | None, str]:
            if full is not None:
                return full, ""
            if failure:
                raise failure
            try:
                self._parent = Manifest.from_bytes((committed / MANIFEST_FILE).read_bytes()).self_sha256
                retain(self._run.checkpoints, keep=self._keep, committed=committed, best=Best.of(state).step)
            except OSError as error:
                print(f"{committed} is saved, older ones were not removed: {error}", file=sys.stderr, flush=True)
            return None, committed.name

        reason, name = self._engine.on_main(conclude)
        if reason is None:
            self.newest, self._step = self._run.checkpoints / name, state.step
        return reason

    def _newest_in_words(self) -> str:
        return f"the newest checkpoint is {self.newest.name}" if self.newest else "there is no checkpoint yet"

    def _give_up(self, reason: str) -> None:
        def end() -> None:
            raise StorageError(
                self._run.checkpoints,
                f"the run ends after {self._in_a_row} failed saves in a row: {reason}; {self._newest_in_words()}",
                "free space or mend the disk, and start again: the run continues from there",
            )

        self._engine.on_main(end)
