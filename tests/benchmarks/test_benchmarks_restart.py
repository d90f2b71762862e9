"""The benchmark of restarts runs, and each start that it times has continued from a checkpoint."""

import json

import pytest

from benchmarks.kills import restart


@pytest.mark.slow
def test_each_kind_of_start_is_measured(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    bases: dict[str, list[int]] = {}
    warm = restart._warm

    def looked(path, run, ranks, *, damage=False):
        seconds = warm(path, run, ranks, damage=damage)
        starts = [json.loads(line) for line in (run / "attempts.jsonl").read_text().splitlines()]
        found = [start["base_step"] for start in starts if "base_step" in start][-2:]
        bases[f"{ranks}{' damaged' if damage else ''}"] = found
        return seconds

    monkeypatch.setattr(restart, "_warm", looked)
    restart.main(["--quick"])
    content = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["work"] for row in content["rows"]] == [
        "esm2_60k, cold, 2 ranks",
        "esm2_60k, warm, 1 ranks",
        "esm2_60k, fallback, 1 ranks, more",
        "esm2_60k, warm, 2 ranks",
        "esm2_60k, fallback, 2 ranks, more",
    ]
    assert all(seconds > 0.05 for seconds in content["others"].values())
    assert all(base > 0 for found in bases.values() for base in found[1:])
