"""The saves of an attempt: a checkpoint each, written while training continues, and what happens if a disk stores none.

In: where the run stands at a step. Out: a checkpoint, some steps later; or, on every rank, the reason why there is
none. Kept: the newest checkpoint, and since when saves have failed.

Training waits while the state is copied; a thread of each rank writes it (`checkpoint.writer`).
One save is written at a time. With each step the ranks tell each other what has become of it (`flags`), so that all of
them know at the same step that it ended (`update`). A save that is due before that waits for it once, for `_PATIENCE_S`
seconds, and is skipped if it takes longer; the last save of a run waits as long as it takes.

After a failed save training continues. It is tried again after a share of `run.saves_may_fail_for`, or when the next
save is due, if that is sooner. A run ends where saves have failed for that time, where one has not ended in that time,
or where the last one has failed `LAST_TRIES` times. The clock of rank 0 decides for all.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from time import monotonic

from zymogen.console.progress import clock_time
from zymogen.console.safe_text import log
from zymogen.processes import signals
from zymogen.processes.errors import PeerError, StorageError
from zymogen.settings.interval import seconds
from zymogen.trainer.checkpoint.commit import SaveAbandoned, SavePlan, commit
from zymogen.trainer.checkpoint.digests.replicas import ReplicaCheck
from zymogen.trainer.checkpoint.free_space import require_room
from zymogen.trainer.checkpoint.load import VerifiedCheckpoint
from zymogen.trainer.checkpoint.manifest import CheckpointManifest, TrainerState, checkpoint_name
from zymogen.trainer.checkpoint.object_store.bucket import CheckpointBucket
from zymogen.trainer.checkpoint.retention import retain_everywhere
from zymogen.trainer.checkpoint.writer import BackgroundWrite, StagingBuffer
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.named_state import NamedState
from zymogen.trainer.flags import NO_FLAGS, StepFlags
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.grace_period import GracePeriod
from zymogen.trainer.run.interval_schedule import IntervalSchedule
from zymogen.trainer.run.settings import RunSettings
from zymogen.trainer.run.versions import versions

LAST_TRIES = 3
"""How often the last save is tried: no other would come."""
_PAUSE_S = 10.0
"""Pause between these."""
_TRIES = 6
"""How often a save is tried at least in the time that saves may fail."""
_PATIENCE_S = 2.0
"""How long a save that is due waits for the one that is being written, and the end of an attempt too."""
_MARGIN = 2.0
"""The last save of a run that a signal stops is begun if so many times what saves take is left of `run.grace_s`."""
_LATEST = 5
"""Saves whose time counts."""
_LOOK_S = 1.0
"""How often the ranks tell each other of the last save."""

Note = Callable[[TrainerState, Mapping[str, object]], None]
"""Writes down what became of the save of a state."""


@dataclass(frozen=True, slots=True)
class _PendingSave:
    """A save that is being written."""

    state: TrainerState
    write: BackgroundWrite[CheckpointManifest | None]
    stall_s: float
    tries_left: int | None
    """How often the last save of a run is tried again; None for others."""


class CheckpointSaver:
    """The saves of one attempt, and since when they have failed. Every rank has one and calls it at the same time.

    Args:
        run: where the checkpoints are.
        engine: how the run is spread.
        named: the state that is saved.
        attempt: number of the attempt.
        fingerprints: for the manifest.
        settings: how many checkpoints stay, who may read them, and for how long saves may fail.
        newest: the checkpoint that the attempt starts from.
        note: writes a line about a save.
    """

    def __init__(
        self,
        run: RunDirectory,
        engine: Engine,
        named: NamedState,
        attempt: int,
        fingerprints: Mapping[str, str],
        settings: RunSettings,
        newest: VerifiedCheckpoint | None,
        note: Note = lambda state, values: None,
    ) -> None:
        self._run, self._engine, self._named, self._attempt = run, engine, named, attempt
        self._fingerprints, self._settings, self._note = fingerprints, settings, note
        self._bytes = sum(file.size for file in newest.manifest.files) if newest else None
        self._most_s = seconds("run.saves_may_fail_for", settings.saves_may_fail_for)
        self._parent = newest.manifest.self_sha256 if newest else None  # on the writer only, later ones too
        self.newest = newest.path if newest else None
        """The newest checkpoint that this attempt knows of, on every rank."""
        self._step = newest.manifest.step if newest else -1
        self._fails = False
        self._failing_since: float | None = None  # these two on rank 0, whose clock decides for all
        self._failed_at = 0.0
        self._grace = GracePeriod(settings.grace_s, engine.gather)
        self._staging, self._number = StagingBuffer(), 0
        self._copies = ReplicaCheck(named, engine, settings.compare_copies_every, run.root)
        self._bucket = CheckpointBucket(settings.checkpoint_url) if settings.checkpoint_url else None
        self._touching: threading.Thread | None = None
        self._begun: _PendingSave | None = None
        self._has_waited = False  # for the save that is being written
        self.log: Callable[[str], None] = log
        """Prints what failed."""
        self.schedule = IntervalSchedule("run.checkpoint_every", settings.checkpoint_every)
        """When a save is due, apart from steps whose checkpoint is never removed."""
        self._seconds: deque[float] = deque(maxlen=_LATEST)
        self.failed = 0
        """Saves of this attempt that failed, tries included."""
        self.skipped = 0
        """Saves of this attempt that were due while another one was written."""

    def require_free_space(self, num_stored: int, *, with_best: bool, steps: int) -> None:
        """Refuse to begin where the disk has no room for the checkpoints that the run will keep; collective.

        Args:
            num_stored: float32 numbers that a checkpoint will hold, for a run that has none yet.
            with_best: whether the best checkpoint stays beside the newest ones.
            steps: that the run has at least, some of whose checkpoints may stay for good.

        Raises:
            StorageError: it has none; `PeerError` on the other ranks.
        """
        for_good = steps // self._settings.keep_checkpoints_every if self._settings.keep_checkpoints_every else 0
        kept = max(self._settings.keep_checkpoints, for_good) + with_best  # the newest ones may be such, too
        size = 4 * num_stored if self._bytes is None else self._bytes
        self._engine.on_main(lambda: require_room(self._run.checkpoints, kept=kept, checkpoint_bytes=size))

    def due_at_step(self, step: int) -> bool:
        """Whether a save is due with this step, on every rank: also of one that is never removed."""
        return self.schedule.due_at_step(step) or self._settings.stays(step)

    def due_by_clock(self) -> bool:
        """Whether the interval has passed by this rank's clock, or a save that failed is to be tried again.

        While another save is being written, none is due.
        """
        if self.is_writing:
            return False
        return self.schedule.due_by_clock() or (self._fails and monotonic() - self._failed_at >= self._most_s / _TRIES)

    @property
    def usual_s(self) -> float:
        """Median seconds of the latest saves; 0 before the first one, and on ranks other than 0."""
        return median(self._seconds) if self._seconds else 0.0

    @property
    def is_writing(self) -> bool:
        """Whether a save has begun of whose end not all ranks know."""
        return self._begun is not None

    def flags(self) -> StepFlags:
        """What this rank has to tell the others with the next step."""
        if self._begun is None:
            return NO_FLAGS
        write = self._begun.write
        is_late = not write.has_ended and write.seconds >= self._most_s
        return StepFlags(
            writing=not write.has_ended,
            failed=write.error is not None,
            overdue=self._engine.is_main and is_late,
        )

    def update(self, flags: StepFlags, step: int | None = None) -> None:
        """Learn what has become of the save that is being written; collective, after every step.

        After the first one, when the optimizer has its moments, the buffers of saves are made ready in a thread.

        Args:
            flags: the sums over ranks.
            step: that was taken; after some, copies of the state are compared.

        Raises:
            CheckpointError: copies differ, or rank 0 may not write this run's checkpoints any more; `StorageError`: no
                save has succeeded for too long; `PeerError` on the other ranks.
        """
        if self._touching is None:
            self._touching = threading.Thread(
                target=self._staging.make_ready, args=(self._named.pieces(),), name="staging", daemon=True
            )
            self._touching.start()
        if step is not None:
            self._copies.check_if_due(step, self._newest_at_the_end)
        if self._begun is None:
            return
        if flags.failed:
            self._begun.write.give_up()
        if not flags.writing:
            self._conclude(self._begun)
        elif flags.overdue:
            self._give_up(
                f"the save of step {self._begun.state.step} has not ended in {clock_time(self._most_s)} "
                f"(run.saves_may_fail_for = {self._settings.saves_may_fail_for!r})"
            )

    def save(self, state: TrainerState, *, wait: bool = False, final: bool = False, overwrite: bool = False) -> bool:
        """Begin to save unless the step has a checkpoint; collective.

        Args:
            state: of the current step.
            wait: whether to return only when the checkpoint is published, or could not be.
            final: whether the run ends with this one, which is then waited for, and tried again.
            overwrite: whether to save also where the step has a checkpoint, whose record has changed.

        Returns:
            Whether a save was begun; with `wait` or `final`, whether a checkpoint was published.

        Raises:
            CheckpointError: ranks that must hold the same weights do not, and nothing is saved; `StorageError`: no save
                has succeeded for too long; `PeerError` on the other ranks.
            Interrupted: a signal came, and too little is left of `run.grace_s`.
        """
        wait = wait or final
        if self._begun and not self.wait(patiently=wait or self._settings.stays(state.step)):
            self.skipped += 1
            return False
        if self._step == state.step and not overwrite:
            return False
        for left in range(LAST_TRIES - 1 if final else 0, -1, -1):
            if final:
                needs_s = _MARGIN * self.usual_s
                self._grace.require(needs_s, f"a save takes up to {needs_s:.2g} s")
            self._begin(state, left if final else None)
            if not wait:
                return True
            self.wait(patiently=True)
            if not self._fails:
                return True
            if left:
                time.sleep(_PAUSE_S)
        return False

    def wait(self, *, patiently: bool) -> bool:
        """Wait for the save that is being written, if there is one; collective.

        Args:
            patiently: whether to wait as long as it takes; else once for `_PATIENCE_S`.

        Returns:
            Whether none is being written any more.

        Raises:
            StorageError: as of `update`.
        """
        while self._begun:
            may_wait = patiently or not self._has_waited
            self._begun.write.wait(
                (self._grace.poll_interval(_LOOK_S) if patiently else _PATIENCE_S) if may_wait else 0.0
            )
            step = self._begun.state.step
            self.update(StepFlags.total(self._engine.gather(self.flags())))
            if self._begun and patiently:
                self._grace.require(0.0, f"the save of step {step} had not ended")
            if self._begun and not patiently:
                if may_wait:
                    self.log(f"save skipped: the checkpoint of step {step} is still being written; training continues")
                self._has_waited = True
                return False
        return True

    def close(self) -> None:
        """Let a save that is being written end if it does so soon; the attempt is over, and no other rank is asked."""
        if self._begun and not self._grace.is_running:
            self._begun.write.wait(_PATIENCE_S)

    def _begin(self, state: TrainerState, tries_left: int | None) -> None:
        """Copy the state, and have it written."""
        if self._touching:
            self._touching.join()
        began, engine = time.perf_counter(), self._engine
        self._copies.require_same(state.step, self._newest_at_the_end)
        self._number += 1
        signals.clear_save_request()
        self._has_waited = False
        staged = self._staging.stage(self._named)
        plan = SavePlan(
            checkpoints_dir=self._run.checkpoints,
            trainer=state,
            attempt=self._attempt,
            parent=self._parent,
            fingerprints=self._fingerprints,
            world_size=engine.world_size,
            engine=engine.name,
            precision=engine.precision,
            versions=versions(),
            number=self._number,
            shared=self._settings.shared,
            bucket=self._bucket,
        )
        rank, keep, stays = engine.rank, self._settings.keep_checkpoints, self._settings.stays

        def work(is_given_up: Callable[[], bool]) -> CheckpointManifest | None:
            manifest = commit(plan, staged, rank=rank, is_given_up=is_given_up)
            if rank == 0:
                retain_everywhere(plan, keep=keep, stays=stays)
            return manifest

        stall_s = time.perf_counter() - began
        self._begun = _PendingSave(state, BackgroundWrite(work, staged.num_bytes, began), stall_s, tries_left)

    def _conclude(self, begun: _PendingSave) -> None:
        """All ranks have ended their parts: note the checkpoint, or why there is none; collective."""
        error, self._begun = begun.write.error, None
        reason = error.reason if isinstance(error, StorageError) else None
        # Whether the error is of the run, which ends by it, and not of a disk; and whether it follows from another's.
        told = (
            reason is None,
            isinstance(error and error.__cause__, SaveAbandoned),
            reason or f"{type(error).__name__}: {error}",
        )
        ends = self._engine.gather(None if error is None else told)
        if error is not None and reason is None:
            raise error
        failures = [(rank, *end) for rank, end in enumerate(ends) if end is not None]
        for rank, is_of_the_run, _, text in failures:
            if is_of_the_run:
                raise PeerError(f"rank {rank} failed: {text}")
        if failures:
            # Rank 0 may only have given up; where it failed itself, others miss the folder that it removed.
            self._tell_failure(begun, min(failures, key=lambda failure: failure[2])[-1])
            return
        if self._engine.is_main:
            assert begun.write.result is not None, "rank 0 publishes"
            self._parent = begun.write.result.self_sha256
            self._seconds.append(begun.write.seconds)
        self._fails = False
        self._failing_since = None
        self.newest, self._step = self._run.checkpoints / checkpoint_name(begun.state.step), begun.state.step
        self._note(begun.state, {"checkpoint_s": begun.write.seconds, "stall_s": begun.stall_s})

    def _tell_failure(self, begun: _PendingSave, reason: str) -> None:
        """Say what failed and what follows; collective."""
        for_s = self._engine.on_main(self._count_failure)
        self._fails = True
        self.failed += 1
        so_far, left = f"saves have failed for {clock_time(for_s)}", begun.tries_left
        setting = self._settings.saves_may_fail_for
        if left:
            follows = f"; {left} more {'tries' if left > 1 else 'try'}, {_PAUSE_S:.0f} s apart"
        elif left == 0:
            follows, ends = "", f"the last save has failed {LAST_TRIES} times"
        elif for_s >= self._most_s:
            follows, ends = "", f"{so_far} (run.saves_may_fail_for = {setting!r})"
        else:
            follows = (
                f"; training continues, {self._newest_in_words()}; {so_far}, and the run ends if they do for {setting} "
                "(run.saves_may_fail_for)"
            )
        self.log(f"save failed: {reason}{follows}")
        self._note(begun.state, {"save_error": f"{reason}{follows}", "failed_saves": self.failed})
        if not follows:
            self._give_up(f"{ends}: {reason}")

    def _count_failure(self) -> float:
        """Note that a save has failed; for how many seconds saves have failed now."""
        self._failed_at = monotonic()
        if self._failing_since is None:
            self._failing_since = self._failed_at
        return self._failed_at - self._failing_since

    def _newest_at_the_end(self) -> str:
        self.wait(patiently=True)
        return self._newest_in_words()

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
