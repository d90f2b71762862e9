"""What a page says and draws of a run: its state, its verdict, its numbers, and times."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data.order.plan import Cursor
from pretrain.evaluate.scores import CorruptionScores, HeldOutUnit, MaskedLanguageScores
from pretrain.evaluate.training_curve import training_curve
from pretrain.report.charts import loss_figure, short, time_line, training_figures
from pretrain.report.page_text import key_numbers, run_state, verdict_on
from pretrain.summary import format_summary
from support.inputs.written_runs import TOKENS_A_STEP, WrittenRun, write_lines
from zymogen.processes.launcher import LaunchCommand
from zymogen.trainer.run import records
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.reader import RunReader


@pytest.mark.parametrize(
    ("exit", "total", "last", "said"),
    [
        (None, 1600, 510, "At step 510, 32% of its 1.6k tokens, and still running or killed."),
        ("finished", 600, 600, "Finished at step 600, 100% of its 600 tokens."),  # continued with a shorter schedule
        ("storage", 600, 600, "Ended at step 600, 100% of its 600 tokens: storage."),
    ],
)
def test_run_state_without_lost_steps(tmp_path: Path, exit: str | None, total: int, last: int, said: str) -> None:
    """Killed at step 1,000 with a checkpoint at 500, where its loss has become worse; then started again."""
    root = WrittenRun(steps=0, exit=None).write(tmp_path / "run")
    described = json.loads((root / "run.json").read_text())
    described["recipe"]["schedule"]["total_tokens"] = total
    (root / "run.json").write_text(json.dumps(described))
    where = {"time": "2026-11-01T08:00:00+00:00"}
    attempts = [{**where, "attempt": n, "base_step": base, "world_size": 2} for n, base in ((1, 0), (2, 500))]
    write_lines(root / "attempts.jsonl", attempts + [{**where, "attempt": 2, "exit": exit}] * bool(exit))
    taken = [(1, step) for step in range(10, 1001, 10)] + [(2, step) for step in range(510, last + 1, 10)]
    write_lines(
        root / "metrics.jsonl",
        [{**where, "attempt": a, "step": s, "tokens": s, "loss": 2.0 if s <= 500 else 7.0 + a} for a, s in taken],
    )
    run = RunReader(root)
    assert (run_state(run), run.is_finished, run.has_ended) == (said, exit == "finished", exit is not None)
    assert (run.metric("tokens")[-1], run.metric("loss")[-1]) == (last, 9.0)
    assert len(run.metric("loss")) == last // 10
    assert training_curve(run.lines).steps == last


def test_numbers_that_json_lacks_are_nan(tmp_path: Path) -> None:
    run = RunReader(WrittenRun(steps=10, diverges_at=7).write(tmp_path / "run"))
    assert np.isnan(run.metric("loss")).tolist() == [False] * 6 + [True] * 4
    chart = loss_figure(run)
    assert chart is not None
    assert "training NaN" in chart.draw()
    assert chart.has_gaps
    assert ("Perplexity", "not finite") in [(name, value) for name, value, _ in key_numbers(run)]


def test_scores_of_another_job_are_left_out(tmp_path: Path) -> None:
    """Those of a job that has no perplexity."""
    root = WrittenRun(steps=3, validate_every=0).write(tmp_path / "run")
    lines = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    lines.append(lines[-1] | {"validation": {"enzymes": {"accuracy": 0.7}}})
    del lines[-1]["loss"]
    write_lines(root / "metrics.jsonl", lines)
    run = RunReader(root)
    assert len(run.validations) == 1
    chart = loss_figure(run)
    assert chart is not None
    assert [line.label for line in chart.lines] == ["training"]
    assert [name for name, _, _ in key_numbers(run)] == ["Tokens seen", "Steps", "Time"]


def test_no_step_yet(tmp_path: Path) -> None:
    root = WrittenRun(steps=0, exit=None).write(tmp_path / "run")
    run = RunReader(root)
    assert (loss_figure(run), training_figures(run), key_numbers(run)) == (None, [], [])
    assert run_state(run) == "No step has been logged yet."
    (root / "attempts.jsonl").unlink()
    assert time_line(RunReader(root)) is None


def test_run_state_has_the_first_cause(tmp_path: Path) -> None:
    root = WrittenRun(attempts=2, exit="error", diverges_at=60).write(tmp_path / "run")
    (root / "ranks").mkdir()
    of_rank_1 = {"rank": 1, "class": "error", "step": 99, "phase": "train", "time": "2026-11-01T09:00:00+00:00"}
    of_rank_1 |= {"attempt": 2, "error": "RuntimeError", "message": "the gradient was not finite,\nin attempt 2"}
    lost = of_rank_1 | {"rank": 0, "step": 98, "error": "DistNetworkError", "message": "connection reset"}
    write_lines(root / "ranks/rank-00000.jsonl", [of_rank_1 | {"attempt": 1, "message": "another"}, lost])
    write_lines(root / "ranks/rank-00001.jsonl", [of_rank_1])
    said = "Ended at step 100, 100% of its 800k tokens: error: the gradient was not finite, in attempt 2."
    assert run_state(RunReader(root)) == said
    write_lines(root / "ranks/rank-00001.jsonl", [of_rank_1 | {"message": "x " * 1000}])
    assert len(run_state(RunReader(root))) < 500


BETTER = ("It beats residue frequencies by 0.814 nats", "It is 0.814 nats a residue better than residue frequencies on")
RUNS = {
    "with a floor": (WrittenRun(floor=7.0), *BETTER),
    "with restarts": (WrittenRun(attempts=3), *BETTER),
    "worse": (
        WrittenRun(unigram=1.5),
        "It is worse than residue frequencies, by 1.660 nats",
        "It is 1.660 nats a residue worse than residue frequencies on proteins that it was trained on",
    ),
    "diverged": (
        WrittenRun(diverges_at=60),
        "Its loss on the validation proteins is no finite number",
        "Its loss on the training proteins is no finite number",
    ),
}


@pytest.mark.parametrize("held_out", HeldOutUnit)
@pytest.mark.parametrize("name", RUNS)
def test_verdict_equals_the_closing_words(tmp_path: Path, name: str, held_out: HeldOutUnit) -> None:
    written, begins, begins_of_training = RUNS[name]
    root = replace(written, held_out=held_out.value).write(tmp_path / "run")
    metrics = list(records.read(root / "metrics.jsonl"))
    for line in metrics:  # the third attempt began at step 64
        if "loss" in line and line["attempt"] == 2 and line["step"] > 64:
            line["loss"] = None
    write_lines(root / "metrics.jsonl", metrics)
    run = RunReader(root)
    evaluations = {of: CorruptionScores.read(numbers) for of, numbers in run.scores.items()}
    summary: Any = SimpleNamespace(
        scores=MaskedLanguageScores(evaluations, held_out),
        state=SimpleNamespace(tokens_seen=1024, step=10, cursor=Cursor()),
        run=RunDirectory(root),
        seconds=3.0,
        job=SimpleNamespace(corpus_progress=lambda _: None),
    )
    said = format_summary(summary, LaunchCommand(Path("r.toml")))
    found = verdict_on(run)
    assert found is not None
    assert said.partition("\n\nThe model, as")[0].rpartition("\n\n")[2] == "\n".join(found.sentences)
    assert len(found.sentences) >= (1 if held_out is HeldOutUnit.NOTHING else 2)
    assert ("infinite or no number" in said) == (name == "diverged")
    assert found.finding.startswith(begins_of_training if held_out is HeldOutUnit.NOTHING else begins)
    assert ("validation" in said.lower()) == (held_out is not HeldOutUnit.NOTHING)
    assert ("cluster" in said) == (held_out is HeldOutUnit.CLUSTERS)


@pytest.mark.parametrize("run", [WrittenRun(exit=None), WrittenRun(held_out=None), WrittenRun(held_out="who knows")])
def test_no_verdict_before_the_end_or_without_the_held_out_unit(tmp_path: Path, run: WrittenRun) -> None:
    assert verdict_on(RunReader(run.write(tmp_path / "run"))) is None


def test_scores_are_read_as_they_were() -> None:
    scores = CorruptionScores(9.0, 8.5, 9.5, 18.0, 0.7, 0.6, 0.8, 7.5, 40, 900)
    assert CorruptionScores.read(scores.numbers()) == scores
    assert CorruptionScores.read(replace(scores, floor=None).numbers()).floor is None
    assert math.isnan(CorruptionScores.read(scores.numbers() | {"low": None}).low)


def test_last_values_of_the_loss_figure(tmp_path: Path) -> None:
    chart = loss_figure(RunReader(WrittenRun(steps=50, floor=7.5).write(tmp_path / "run")))
    assert chart is not None
    last = {line.label: float(line.y[-1]) for line in chart.lines}
    assert last["frequencies"] == pytest.approx(math.log(17.8))
    assert last["floor"] == pytest.approx(math.log(7.5))
    assert last["80/10/10"] == pytest.approx(last["mask-all"] + math.log(0.9))
    assert last["training"] == pytest.approx(last["mask-all"])
    assert len({(line.colour, line.dash) for line in chart.lines}) == len({line.dash for line in chart.lines}) + 1
    assert f"mask-all {math.exp(last['mask-all']):.3g}" in chart.draw()


def test_time_line_has_saves_and_failed_saves(tmp_path: Path) -> None:
    root = WrittenRun(steps=40, attempts=2, validate_every=10).write(tmp_path / "run")
    place = {"step": 40, "tokens": 40 * TOKENS_A_STEP, "attempt": 2, "time": WrittenRun().at(2, 40)}
    records.append(root / "metrics.jsonl", {**place, "save_error": "full", "failed_saves": 1})
    line = time_line(RunReader(root))
    assert line is not None
    attempts, saves, validations = line.rows
    assert line.x_title == "minutes since the first start"
    assert [60 * start for start, _ in attempts.bars] == pytest.approx([0, 96])  # a minute, and 18 steps of 2 s
    assert attempts.crosses == pytest.approx((40 / 60,))  # where the first was killed
    assert (len(saves.points), len(saves.crosses)) == (5, 1)  # step 20 is saved twice
    assert len(validations.points) == 4
    assert line.summary == "2 attempts, 5 checkpoints saved, 1 failed save, 4 validations."


@pytest.mark.parametrize(
    ("exit", "crosses"),
    [("finished", 0), ("interrupted", 0), ("stopped by SIGTERM at step 7", 0), ("storage", 1), (None, 0)],
)
def test_a_cross_is_an_attempt_that_failed(tmp_path: Path, exit: str | None, crosses: int) -> None:
    line = time_line(RunReader(WrittenRun(exit=exit).write(tmp_path / "run")))
    assert line is not None
    assert len(line.rows[0].crosses) == crosses
    assert ("Crosses are attempts that were killed or failed." in line.note) == (crosses > 0)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        *((0, "0"), (0.00123, "0.00123"), (999.4, "999"), (999.9, "1k"), (12_345, "12.3k"), (999_700, "1 M")),
        *((1_603_329, "1.6 M"), (4.19e9, "4.19 B"), (1.05e12, "1.05 T"), (5e15, "5000 T")),
    ],
)
def test_short_numbers(value: float, said: str) -> None:
    assert short(value) == said
