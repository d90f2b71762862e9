"""The benchmark of scoring: both sides give the same scores, and it runs to its last line."""

import json
from dataclasses import replace

import pytest

from benchmarks import scoring
from finetune.score.scorer import VariantScorer


def test_it_compares_equal_scores_and_runs(capfd: pytest.CaptureFixture[str]) -> None:
    scoring.main(["--quick"])
    *said, last = capfd.readouterr().out.strip().splitlines()
    assert [line.split(":")[0] for line in said if "largest difference" in line] == [
        f"esm2_60k, {scheme}" for scheme in scoring.BARS
    ]
    rows = json.loads(last)["rows"]
    assert [(row["bar"], row["ratio"]) for row in rows] == [(12.0, None), (0.0, None), (0.0, None)]


def test_scores_that_differ_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    target, variants = scoring.drawn(12, 4)
    ours = VariantScorer.__call__

    def off(self: VariantScorer, *given: object) -> object:
        found = ours(self, *given)  # type: ignore[arg-type]
        return replace(found, values=found.values + 2e-4)

    monkeypatch.setattr(VariantScorer, "__call__", off)
    with pytest.raises(RuntimeError, match=r"esm2_60k, wt-marginal: the scores differ by 2.0e-04; must be 1e-4"):
        scoring.measured("esm2_60k", target, variants, "wt-marginal", 2, 1)
