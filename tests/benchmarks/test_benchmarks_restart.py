"""The benchmark of restarts runs; it checks by itself that each start that it times has continued from a checkpoint."""

import json
import subprocess
import sys

import pytest


@pytest.mark.prove
def test_each_kind_of_start_is_measured() -> None:
    # A process of its own, because it forks its ranks: a fork keeps the locks and none of the threads of tests before.
    words = [sys.executable, "-m", "benchmarks.kills.restart", "--quick"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    content = json.loads(done.stdout.splitlines()[-1])
    assert [row["work"] for row in content["rows"]] == [
        "esm2_60k, cold, 2 ranks",
        "esm2_60k, warm, 1 ranks",
        "esm2_60k, fallback, 1 ranks, more",
        "esm2_60k, warm, 2 ranks",
        "esm2_60k, fallback, 2 ranks, more",
    ]
    assert all(seconds > 0.05 for seconds in content["others"].values())
