"""Power cuts during a save and a deletion: whatever reached the disk, the last good checkpoint is found."""

import shutil
from pathlib import Path

import pytest

from support.chaos.power import Disk, write
from support.checkpoint_run import build, plan_of, save, shares, train
from zymogen.trainer.checkpoint.commit import commit
from zymogen.trainer.checkpoint.load import find, newest_valid, verify
from zymogen.trainer.checkpoint.retention import retain
from zymogen.trainer.engine.named_state import TorchState


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("samples", [2, pytest.param(60, marks=pytest.mark.prove)])
def test_every_state_that_a_power_cut_may_leave(samples: int, ranks: int, tmp_path: Path) -> None:
    """Two checkpoints are there, a third is saved, and the first is deleted."""
    model, optimizer = build()
    folder = tmp_path / "checkpoints"
    for step in (1, 2):
        train(model, optimizer, step - 1, step)
        save(folder, TorchState(model, optimizer), step)
    train(model, optimizer, 2, 3)
    disk = Disk(folder)
    with pytest.MonkeyPatch.context() as patch:
        disk.record(patch)
        plan = plan_of(folder, 3, ranks)
        for rank, staged in reversed(list(enumerate(shares(TorchState(model, optimizer), ranks)))):
            commit(plan, staged, rank=rank)
        disk.mark("returned")
        retain(folder, keep=2, committed=plan.published)
    assert [path.name[-1] for path in find(folder)] == ["3", "2"]
    returned = next(number for number, op in enumerate(disk.ops) if op.name == "returned")
    found, count = set(), 0
    for cut, tree in disk.states(samples):
        write(tree, tmp_path / "after")
        checkpoint = newest_valid(tmp_path / "after", writer=False)
        assert checkpoint is not None
        assert not checkpoint.rejected, disk.ops[:cut][-3:]
        assert checkpoint.manifest.step in ((3,) if cut > returned else (2, 3)), disk.ops[:cut][-3:]
        for path in find(tmp_path / "after"):  # what has its name is whole, the oldest too
            verify(path)
        found.add((checkpoint.manifest.step, len(find(tmp_path / "after"))))
        count += 1
        shutil.rmtree(tmp_path / "after")
    assert found == {(2, 2), (3, 3), (3, 2)}
    assert count > len(disk.ops)
    print(f"{len(disk.ops)} calls, {count} states")
