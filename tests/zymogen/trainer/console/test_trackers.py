"""What a run writes down: metrics, attempts, errors, and trackers that need no account."""

import json
import math
from pathlib import Path

import pytest

from pretrain.__main__ import main
from zymogen.trainer.run import records

STEP_KEYS = {
    *(
        "step",
        "tokens",
        "attempt",
        "time",
        "loss",
        "perplexity",
        "learning_rate",
        "grad_norm",
        "tokens_per_s",
        "targets",
    ),
    *(
        "loader_wait",
        "memory_bytes",
        "flops_per_s",
        "mfu",
        "padding",
        "document_tokens",
        "imbalance",
        "skipped_steps",
        "failed_saves",
        "skipped_saves",
    ),
}
SCORE_KEYS = {"perplexity", "low", "high", "unigram", "gain", "gain_low", "gain_high", "sequences", "targets"}


def test_metrics_hold_one_line_a_logged_step(recipe_in, tmp_path: Path) -> None:
    words = [str(recipe_in(tmp_path)), "schedule.total_tokens=5_900", "schedule.warmup_tokens=2_000"]
    assert main([*words, "run.log_every=2", "run.evaluate_every=3"]) == 0

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    text = (tmp_path / "run/metrics.jsonl").read_text()
    every = [json.loads(line, parse_constant=refuse) for line in text.splitlines()]
    logged = [line for line in every if "loss" in line]
    validated = [line for line in every if "validation" in line]
    saved = [line for line in every if "checkpoint_s" in line]
    assert len(every) == len(logged) + len(validated) + len(saved)
    assert [line["step"] for line in logged] == [2, 4, 6, 8]
    assert [line["step"] for line in validated] == [3, 6, 8]
    assert [line["step"] for line in saved] == [8]
    assert 0 < saved[0]["checkpoint_s"] < 60
    tokens = [line["tokens"] for line in logged]
    assert tokens == sorted(set(tokens))
    for line in logged:
        assert set(line) == STEP_KEYS
        assert all(isinstance(line[key], (int, float)) and math.isfinite(line[key]) for key in STEP_KEYS - {"time"})
        assert line["time"].endswith("+00:00")
        assert (line["attempt"], line["skipped_steps"]) == (1, 0)
        assert 2.5 < line["loss"] < 3.8
        assert line["learning_rate"] == pytest.approx(
            1e-3 * line["tokens"] / 2000
            if line["tokens"] < 2000
            else 1e-3 * (0.1 + 0.9 * max(0.0, (5310 - line["tokens"]) / 3310))
        )
        assert 0 <= line["padding"] < 0.35
        # 15 % of residues; every document has two tokens that are none.
        assert 0.09 < line["targets"] / (7 * 128 * (1 - line["padding"])) < 0.19
        assert line["tokens_per_s"] > 100
    for line in validated:
        assert set(line) == {"step", "tokens", "attempt", "time", "validation", "set"}
        assert line["set"] == validated[0]["set"]
        assert set(line["validation"]) == {"mask_all", "80_10_10"}
        assert all(set(scores) == SCORE_KEYS for scores in line["validation"].values())


def test_a_torn_line_is_closed_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a/b.jsonl"
    records.append(path, {"n": 1})
    with path.open("a") as file:
        file.write('{"n": 2, "torn')
    records.append(path, {"n": 3, "inside": {"x": math.nan}, "y": -math.inf, "z": 0.5})
    records.append(path, {"n": 4})
    assert path.read_bytes().count(b"\n") == 4
    assert list(records.read(path)) == [{"n": 1}, {"n": 3, "inside": {"x": None}, "y": None, "z": 0.5}, {"n": 4}]
    assert list(records.read(tmp_path / "absent.jsonl")) == []
