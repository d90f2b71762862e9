"""Which checkpoints are saved by their step, and stay."""

from pathlib import Path

import pytest

from pretrain.__main__ import main
from support.checkpoint_run import build, save
from support.launching import lines
from zymogen.trainer.checkpoint.load import find, verify
from zymogen.trainer.checkpoint.retention import retain
from zymogen.trainer.engine.named_state import TorchState
from zymogen.trainer.run.settings import RunSettings


def test_a_checkpoint_that_stays_is_never_removed(tmp_path: Path) -> None:
    state = TorchState(*build())
    for step in range(2, 8):
        committed = save(tmp_path, state, step)
    stays = RunSettings(directory="run", keep_checkpoints_every=3).stays
    retain(tmp_path, keep=1, committed=committed, stays=stays)
    assert [verify(path).manifest.step for path in find(tmp_path)] == [7, 6, 3]


@pytest.mark.slow
def test_every_so_manieth_checkpoint_stays(recipe_in, tmp_path: Path) -> None:
    words = ["run.checkpoint_every=2", "run.keep_checkpoints=1", "run.keep_checkpoints_every=3"]
    assert main([str(recipe_in(tmp_path)), "schedule.total_tokens=5_000", *words]) == 0
    found = [verify(path).manifest.step for path in find(tmp_path / "run/checkpoints")]
    assert found == [7, 6, 3]
    saved = [line["step"] for line in lines(tmp_path / "run/metrics.jsonl") if "stall_s" in line]
    assert saved == [2, 3, 4, 6, 7]


def test_an_interval_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"run\.checkpoint_every is 'sometimes'; .* '2 h'"):
        RunSettings(directory="run", checkpoint_every="sometimes")
