"""A worker that fills bins is killed: the run names it, and the same command continues where it was."""

import itertools
import json
import os
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

import zymogen.trainer.loop
from pretrain.__main__ import main
from support.kept_runs import STEPS_12
from support.launching import bit_equal, end_of


@pytest.mark.slow
def test_a_worker_that_is_killed_is_named(recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_step, steps, killed = zymogen.trainer.loop.train_step, itertools.count(1), []
    others = set(psutil.Process().children(recursive=True))

    def faulty(*arguments: Any, **how: Any) -> Any:
        if next(steps) == 6:
            below = set(psutil.Process().children(recursive=True)) - others  # such as those that compile for torch
            killed.append(next(each for each in below if each.ppid() != os.getpid()))  # the fork server is between
            killed[0].kill()
        return train_step(*arguments, **how)

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    words = [str(recipe_in(tmp_path / "one")), *STEPS_12, "data.workers=2", "run.checkpoint_every=4"]
    with monkeypatch.context() as patch:
        patch.setattr(zymogen.trainer.loop, "train_step", faulty)
        assert main(words) == 70
    [line] = map(json.loads, (tmp_path / "one/run/ranks/rank-00000.jsonl").read_text().splitlines())
    assert (line["phase"], line["error"]) == ("load", "RuntimeError")
    assert re.sub("^worker [01] ", "", line["message"]).startswith(
        f"of 2 that fill bins (pid {killed[0].pid}) was killed by SIGKILL; if the machine has run out of memory, lower "
    )
    assert main(words) == 0
    assert main([str(recipe_in(tmp_path / "two")), *words[1:]]) == 0
    ended, other = end_of(tmp_path / "one/run"), end_of(tmp_path / "two/run")
    assert (ended.step, ended.chain) == (other.step, other.chain)
    assert bit_equal(ended, other)
