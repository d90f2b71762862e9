"""The benchmark of kills: it runs to its last line; and what it reads of a run that was started several times."""

import json
from pathlib import Path

import pytest

from benchmarks.kills import __main__ as kills
from benchmarks.kills.killed import history


@pytest.mark.slow
def test_kills(capsys: pytest.CaptureFixture[str]) -> None:
    kills.main(["--quick"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["ratio"] for row in found["rows"]] == [0, 0, 0, 0]
    assert set(found["others"]) == {"Accelerate", "Accelerate by default", "Trainer", "kills of ours"}
    assert found["others"]["kills of ours"] == found["others"]["Trainer"]["kills"] == 4
    # What it can find: by default, this loop draws another order after each start.
    assert found["others"]["Accelerate by default"]["same"] == 0


def test_a_start_undoes_what_it_repeats(tmp_path: Path) -> None:
    steps = [(1, 1, [1]), (1, 2, [2]), (1, 3, [3]), (2, 3, [4]), (4, 2, [5]), (4, 3, [6])]
    lines = [json.dumps({"attempt": a, "step": s, "given": given}) for a, s, given in steps]
    (tmp_path / "trained.jsonl").write_text("\n".join([*lines, '{"attempt": 5']))
    assert list(history(tmp_path)) == [(1, [1]), (2, [5]), (3, [6])]
