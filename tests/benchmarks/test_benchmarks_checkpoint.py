"""The benchmarks of checkpoints: they run to their last lines, and both sides save as much."""

import json
import re

import pytest

from benchmarks.checkpoint import __main__ as checkpoint
from benchmarks.checkpoint import blocked


@pytest.mark.prove
def test_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint.main(["--quick"])
    said = capsys.readouterr().out
    found = json.loads(said.splitlines()[-1])
    assert [row["work"] for row in found["rows"]] == [
        "8m: stall, seconds",
        "8m: first stall, seconds",
        "8m: a step beside a save",
        "8m: stall",
    ]
    assert all(row["ratio"] > 0 for row in found["rows"])
    # Weights and two moments of 7,512,353 parameters in float32 are 90.15 MB; hashes, digests and indexes come on top.
    (stated,) = re.findall(r" ([\d.]+) MB; save_state", said)
    assert 90.1 < float(stated) < 90.5
    assert "90.2 MB\n" in said


@pytest.mark.prove
def test_blocked(capsys: pytest.CaptureFixture[str]) -> None:
    blocked.main(["--quick"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["work"] for row in found["rows"]] == [
        "a step meanwhile",
        "the wait of one save, seconds",
        "longest other pause, seconds",
    ]
    assert found["others"]["steps meanwhile"] > 10, "in five seconds, of 15 ms each"
