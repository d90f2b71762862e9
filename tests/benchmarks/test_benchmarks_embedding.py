"""The benchmark of embedding: both sides give the same vectors, and it runs to its last line."""

import json

import pytest

from benchmarks import embedding
from benchmarks.finetune.rows import drawn


def test_it_compares_equal_vectors_and_runs(capfd: pytest.CaptureFixture[str]) -> None:
    embedding.main(["--quick"])
    *said, last = capfd.readouterr().out.strip().splitlines()
    assert any(line.startswith("esm2_60k: largest difference ") for line in said)
    rows = json.loads(last)["rows"]
    assert [(row["bar"], row["ratio"]) for row in rows] == [(1.4, None), (2.5, None), (0.0, None), (0.0, None)]


def test_vectors_that_differ_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = embedding.Ours.__call__
    monkeypatch.setattr(embedding.Ours, "__call__", lambda self, sequences: ours(self, sequences) * 1.0001)
    with pytest.raises(RuntimeError, match=r"esm2_60k: the vectors differ by 1.0e-04 of the largest number"):
        embedding.measured("esm2_60k", drawn(6, 64), 1, 8, 4096)
