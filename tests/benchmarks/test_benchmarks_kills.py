"""The benchmark of kills: it runs to its last line; and what it reads of a run that was started several times."""

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from benchmarks.kills import __main__ as kills
from benchmarks.kills import killed
from benchmarks.kills.killed import history
from benchmarks.kills.peers import PROGRAMS


@pytest.mark.prove
def test_kills(capsys: pytest.CaptureFixture[str]) -> None:
    kills.main(["--quick"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["ratio"] for row in found["rows"]] == [0, 0, 0, 0]
    assert set(found["others"]) == {"Accelerate", "Accelerate by default", "Trainer", "kills of ours"}
    assert found["others"]["kills of ours"] == found["others"]["Trainer"]["kills"] == 4


@pytest.mark.slow
def test_a_loop_that_draws_another_order_after_a_start_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default Accelerate's does, where it continues from a checkpoint: when a second one is begun, one is whole."""

    def at_the_third(pid: int, saved: Path, draw: random.Random) -> None:
        while len(killed._names(saved)) < 3:
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(killed, "_kill_when_it_is_time", at_the_third)
    for name, same in (("Accelerate", True), ("Accelerate by default", False)):
        found = killed.kill(name, PROGRAMS[name], tmp_path / name, seed=1, most=1)
        assert found.kills == 1
        assert found.same == same
        assert (found.twice > 0) == (found.never > 0) == (not same)


def test_a_start_undoes_what_it_repeats(tmp_path: Path) -> None:
    steps = [(1, 1, [1]), (1, 2, [2]), (1, 3, [3]), (2, 3, [4]), (4, 2, [5]), (4, 3, [6])]
    lines = [json.dumps({"attempt": a, "step": s, "given": given}) for a, s, given in steps]
    (tmp_path / "trained.jsonl").write_text("\n".join([*lines, '{"attempt": 5']))
    assert list(history(tmp_path)) == [(1, [1]), (2, [5]), (3, [6])]
