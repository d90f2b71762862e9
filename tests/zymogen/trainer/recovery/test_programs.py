"""Programs of steps, saves, kills, damage and other numbers of ranks: the newest good state is always found again."""

import os
import shutil
import signal
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from support.checkpoint_run import assert_same, build, everything, files_of, flip, plan_of, restore, shares, train
from support.forked import forked, status_of
from zymogen.processes.errors import CheckpointError
from zymogen.trainer.checkpoint.canonical import InvalidCheckpointError
from zymogen.trainer.checkpoint.commit import commit
from zymogen.trainer.checkpoint.load import find, newest_valid, verify
from zymogen.trainer.checkpoint.retention import retain, sweep
from zymogen.trainer.engine.named_state import TorchState

KEEP = 2
CALLS = ("open", "fsync", "mkdir", "rename", "unlink", "rmdir")
MOST_CALLS = 60
RANKS = st.integers(1, 3)


class Program(RuleBasedStateMachine):
    """A run in one process: its model, its checkpoints, and what each of them must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "checkpoints"
        self.attempt, self.number = 1, 0
        self._begin()
        self.good: dict[int, dict] = {}
        """Step -> all tensors of it, of the checkpoints that are whole."""
        self.is_damaged = False
        """Whether there is one that is not."""

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @rule(steps=st.integers(1, 3))
    def train(self, steps: int) -> None:
        train(self.model, self.optimizer, self.step, self.step + steps)
        self.step += steps

    @rule(ranks=RANKS)
    def save(self, ranks: int) -> None:
        self._commit(ranks)
        self._note_saved()

    @rule(ranks=RANKS, after=st.integers(0, MOST_CALLS))
    def kill_in_a_save(self, ranks: int, after: int) -> None:
        """The process ends before one of its calls, or after the last one; then the run starts again."""
        left = [after]

        def counted(call):
            def counting(*arguments, **how):
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return call(*arguments, **how)

            return counting

        def work() -> None:
            with mock.patch.multiple(os, **{name: counted(getattr(os, name)) for name in CALLS}):
                self._commit(ranks)

        status = status_of(forked(work))
        assert status in (0, -signal.SIGKILL)
        if status == 0 or self._is_published():
            self._note_saved()
        self.start()

    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """Flip a byte of a checkpoint, or cut a file off."""
        if not self.good:
            return
        step = data.draw(st.sampled_from(sorted(self.good)), "step")
        path = next(path for path in find(self.folder) if path.name.endswith(f"{step:09d}"))
        file = data.draw(st.sampled_from(sorted(files_of(path))), "file")
        if data.draw(st.booleans(), "flips"):
            flip(file, data.draw(st.integers(0, file.stat().st_size - 1), "at"))
        else:
            os.truncate(file, data.draw(st.integers(0, file.stat().st_size - 1), "to"))
        del self.good[step]
        self.is_damaged = True

    @rule()
    def start(self) -> None:
        """A new process continues from the newest good checkpoint."""
        self.attempt += 1
        sweep(self.folder)
        self.model, self.optimizer = build(seed=self.attempt)
        try:
            found = newest_valid(self.folder, writer=True)
        except CheckpointError:
            assert not self.good
            assert self.is_damaged
            shutil.rmtree(self.folder)
            found, self.is_damaged = None, False
        assert (found.manifest.step if found else None) == max(self.good, default=None)
        if found:
            state = restore(found, TorchState(self.model, self.optimizer))
            assert_same(everything(self.model, self.optimizer), self.good[state.step])
            self.step = state.step
        else:
            self._begin()

    @invariant()
    def what_has_a_name_is_whole_or_was_damaged(self) -> None:
        for path in find(self.folder):
            if int(path.name[5:]) in self.good:
                assert verify(path).manifest.step in self.good

    def _begin(self) -> None:
        """At step 1, from which on there are moments."""
        self.model, self.optimizer = build()
        train(self.model, self.optimizer, 0, 1)
        self.step = 1

    def _commit(self, ranks: int) -> None:
        self.number += 1
        newest = max(self.good, default=None)
        parent = None
        if newest is not None:
            parent = verify(self.folder / f"step-{newest:09d}").manifest.self_sha256
        plan = plan_of(self.folder, self.step, ranks, attempt=self.attempt, number=self.number, parent=parent)
        for rank, staged in reversed(list(enumerate(shares(TorchState(self.model, self.optimizer), ranks)))):
            commit(plan, staged, rank=rank)
        retain(self.folder, keep=KEEP, committed=plan.published)

    def _is_published(self) -> bool:
        try:
            return verify(self.folder / f"step-{self.step:09d}").manifest.attempt == self.attempt
        except InvalidCheckpointError:  # it is not there, or it is one that was damaged
            return False

    def _note_saved(self) -> None:
        self.good[self.step] = everything(self.model, self.optimizer)
        there = {int(path.name[5:]) for path in find(self.folder)}
        self.good = {step: tensors for step, tensors in self.good.items() if step in there}


@pytest.mark.parametrize(
    "programs",
    [
        pytest.param(8, marks=pytest.mark.slow),
        # A minute and a half; beside other work it has taken more than the five that a test is given.
        pytest.param(300, marks=[pytest.mark.prove, pytest.mark.timeout(1200)]),
    ],
)
def test_the_newest_good_state_is_always_found_again(programs: int) -> None:
    run_state_machine_as_test(
        Program,
        settings=settings(
            max_examples=programs,
            stateful_step_count=20,
            deadline=None,
            derandomize=programs < 100,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate,),
        ),
    )
