"""What is read of a run: whole lines alone, each step once, and whatever else is there."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data.order.plan import Cursor
from pretrain.evaluate.scores import CorruptionScores, HeldOutUnit, MaskedLanguageScores, kind_of
from pretrain.report.charts import loss_figure, short, time_line, training_figures
from pretrain.report.history import read_history
from pretrain.report.page_text import format_verdict, key_numbers, run_state
from pretrain.summary import LaunchCommand, format_summary
from support.inputs.written_runs import TOKENS_A_STEP, WrittenRun, write_lines
from zymogen.trainer.run import records
from zymogen.trainer.run.directory import RunDirectory


def test_a_step_that_was_taken_again_counts_once(tmp_path: Path) -> None:
    history = read_history(WrittenRun(steps=40, attempts=4).write(tmp_path / "run"))
    assert history.column("step").tolist() == list(range(1, 41))
    text = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in text if "loss" in line]
    assert len(steps) == 46  # the written lines do hold steps twice
    assert [start.base_step for start in history.starts] == [0, 8, 18, 28]
    assert [start.exit for start in history.starts] == ["killed", "killed", "killed", "finished"]
    assert (history.course.steps, history.tokens) == (40, 40 * TOKENS_A_STEP)


def test_of_a_step_taken_again_the_later_line_stays(tmp_path: Path) -> None:
    root = WrittenRun(steps=0, exit=None).write(tmp_path / "run")
    where = {"time": "2026-11-01T08:00:00+00:00"}
    starts = [{**where, "attempt": n, "base_step": base, "world_size": 2} for n, base in ((1, 0), (2, 2), (3, 1))]
    write_lines(root / "attempts.jsonl", starts)
    taken = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (3, 2), (3, 3)]  # the third goes on from before the second
    write_lines(
        root / "metrics.jsonl",
        [{**where, "attempt": a, "step": s, "tokens": s, "loss": 10.0 * a + s} for a, s in taken],
    )
    # 14 is of no checkpoint that the run has: the second and the third began before it.
    assert read_history(root).column("loss").tolist() == [11, 32, 33]


@pytest.mark.parametrize(
    ("exit", "total", "last", "said"),
    [
        (None, 1600, 510, "At step 510, 32% of its 1.6k tokens, and still running or killed."),
        ("finished", 600, 600, "Finished at step 600, 100% of its 600 tokens."),  # continued with a shorter schedule
    ],
)
def test_steps_that_no_checkpoint_holds_are_not_the_runs(
    tmp_path: Path, exit: str | None, total: int, last: int, said: str
) -> None:
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
    history = read_history(root)
    assert run_state(history) == said
    assert (history.column("tokens")[-1], history.column("loss")[-1]) == (last, 9.0)
    assert len(history.column("loss")) == last // 10
    assert history.course.steps == last


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    root = WrittenRun(steps=5, validate_every=0).write(tmp_path / "run")
    whole = read_history(root)
    for name in ("metrics.jsonl", "attempts.jsonl"):
        with (root / name).open("ab") as file:
            file.write(b'\xff\xfe\n[]\n3\n"step"\nnull\n{"step": "x"}\n{"attempt": [1]}\n{"step": 6, "tokens": 4')
    begun = {"attempt": 9, "base_step": 5, "world_size": 1}
    with (root / "attempts.jsonl").open("a") as file:
        file.writelines(f"\n{json.dumps(begun | more)}" for more in ({}, {"time": "x"}, {"time": 3}))
    (root / "predictions.json").write_text('{"format": "zymogen.predictions/1", "proteins": [{"residues": 3}]}')
    found = read_history(root)
    assert found.column("loss").tolist() == whole.column("loss").tolist()
    assert found.starts == whole.starts
    assert (len(whole.proteins), found.proteins) == (1, ())


def test_a_number_that_only_some_steps_have_is_a_column(tmp_path: Path) -> None:
    root = WrittenRun(steps=0).write(tmp_path / "run")
    losses, where = [{}, {"loss/rare": 2.0}, {}], {"time": "2026-11-01T08:00:00+00:00"}
    write_lines(
        root / "metrics.jsonl",
        [{**where, "attempt": 1, "step": n, "tokens": n, "loss": 1.0, **loss} for n, loss in enumerate(losses, 1)],
    )
    np.testing.assert_array_equal(read_history(root).column("loss/rare"), [np.nan, 2.0, np.nan])


def test_numbers_that_json_lacks_are_nan(tmp_path: Path) -> None:
    history = read_history(WrittenRun(steps=10, diverges_at=7).write(tmp_path / "run"))
    assert np.isnan(history.column("loss")).tolist() == [False] * 6 + [True] * 4
    chart = loss_figure(history)
    assert chart is not None
    assert "training NaN" in chart.draw(420)
    assert chart.has_gaps
    by_name = {key.name: key.value for key in key_numbers(history)}
    assert by_name["Perplexity"] == "not finite"


def test_scores_of_another_kind_are_left_out(tmp_path: Path) -> None:
    """Those of a job that has no perplexity."""
    root = WrittenRun(steps=3, validate_every=0).write(tmp_path / "run")
    lines = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    lines.append(lines[-1] | {"validation": {"enzymes": {"accuracy": 0.7}}})
    del lines[-1]["loss"]
    write_lines(root / "metrics.jsonl", lines)
    history = read_history(root)
    assert len(history.validations) == 1
    chart = loss_figure(history)
    assert chart is not None
    assert [line.label for line in chart.lines] == ["training"]
    assert [key.name for key in key_numbers(history)] == ["Tokens seen", "Steps", "Time"]


def test_no_step_yet(tmp_path: Path) -> None:
    root = WrittenRun(steps=0, exit=None).write(tmp_path / "run")
    history = read_history(root)
    assert (loss_figure(history), training_figures(history), key_numbers(history)) == (None, [], [])
    assert run_state(history) == "No step has been logged yet."
    (root / "attempts.jsonl").unlink()
    assert time_line(read_history(root)) is None


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"run\.json cannot be read.*is .* a run directory\?"):
        read_history(tmp_path)
    for content, said in (
        ('{"format": "other/9"}', "has the format 'other/9'"),
        ('{"format": "zymogen.run/2", "recipe": 3}', "is damaged: recipe: Input should be an object"),
        ('{"format": "zymogen.run/2", "compute": [1]}', "is damaged: compute.0: Input should be a valid string"),
    ):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(ValueError, match=rf"run\.json {said}"):
            read_history(tmp_path)


@pytest.mark.parametrize(
    ("exit", "said"),
    [
        ("finished", "Finished at step 100, 100% of its 800k tokens."),
        ("storage", "Ended at step 100, 100% of its 800k tokens: storage."),
        (None, "At step 100, 100% of its 800k tokens, and still running or killed."),
    ],
)
def test_how_far_it_is(tmp_path: Path, exit: str | None, said: str) -> None:
    history = read_history(WrittenRun(exit=exit).write(tmp_path / "run"))
    assert run_state(history) == said
    assert (history.is_finished, history.has_ended) == (exit == "finished", exit is not None)


BETTER = ("It beats residue frequencies by 0.814 nats", "It is 0.814 nats a residue better than residue frequencies on")


def test_why_it_ended_is_said(tmp_path: Path) -> None:
    root = WrittenRun(attempts=2, exit="error", diverges_at=60).write(tmp_path / "run")
    (root / "ranks").mkdir()
    of_rank_1 = {"rank": 1, "class": "error", "step": 99, "phase": "train", "time": "2026-11-01T09:00:00+00:00"}
    of_rank_1 |= {"attempt": 2, "error": "RuntimeError", "message": "the gradient was not finite,\nin attempt 2"}
    lost = of_rank_1 | {"rank": 0, "step": 98, "error": "DistNetworkError", "message": "connection reset"}
    write_lines(root / "ranks/rank-00000.jsonl", [of_rank_1 | {"attempt": 1, "message": "another"}, lost])
    write_lines(root / "ranks/rank-00001.jsonl", [of_rank_1])
    said = "Ended at step 100, 100% of its 800k tokens: error: the gradient was not finite, in attempt 2."
    assert run_state(read_history(root)) == said
    write_lines(root / "ranks/rank-00001.jsonl", [of_rank_1 | {"message": "x " * 1000}])
    assert len(run_state(read_history(root))) < 500


RUNS = {
    "better": (WrittenRun(), *BETTER),
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
def test_the_verdict_is_that_of_the_closing_words(tmp_path: Path, name: str, held_out: HeldOutUnit) -> None:
    run, begins, begins_of_training = RUNS[name]
    root = replace(run, held_out=held_out.value).write(tmp_path / "run")
    metrics = list(records.read(root / "metrics.jsonl"))
    lost = [line for line in metrics if "loss" in line and line["attempt"] == 2 and line["step"] > 64]
    for line in lost:  # the third attempt began at step 64
        line["loss"] = None
    assert len(lost) == (2 if run.attempts == 3 else 0)
    write_lines(root / "metrics.jsonl", metrics)
    (*_, last) = (line["validation"] for line in metrics if "validation" in line)
    summary: Any = SimpleNamespace(
        scores=MaskedLanguageScores({of: CorruptionScores.read(numbers) for of, numbers in last.items()}, held_out),
        state=SimpleNamespace(tokens_seen=1024, step=10, cursor=Cursor()),
        run=RunDirectory(root),
        seconds=3.0,
        job=SimpleNamespace(corpus_progress=lambda _: None),
    )
    said = format_summary(summary, LaunchCommand(Path("r.toml")))
    shown = format_verdict(read_history(root))
    assert said.partition("\n\nThe model, as")[0].rpartition("\n\n")[2] == "\n".join(shown)
    assert len(shown) >= (1 if held_out is HeldOutUnit.NOTHING else 2)
    assert ("infinite or no number" in said) == (name == "diverged")
    assert shown[0].startswith(begins_of_training if held_out is HeldOutUnit.NOTHING else begins)
    assert ("validation" in f"{said} {shown}".lower()) == (held_out is not HeldOutUnit.NOTHING)
    assert ("cluster" in said) == (held_out is HeldOutUnit.CLUSTERS)


@pytest.mark.parametrize(
    ("held_out", "kind"),
    [
        *(("clusters", "held-out protein"), ("equal sequences", "held-out protein"), ("nothing", "training protein")),
        *((None, "protein"), ("who knows", "protein")),
    ],
)
def test_what_the_shown_proteins_are(tmp_path: Path, held_out: str | None, kind: str) -> None:
    assert kind_of(read_history(WrittenRun(held_out=held_out).write(tmp_path / "run")).held_out) == kind


def test_there_is_no_verdict_before_the_end_nor_where_nothing_says_what_was_scored(tmp_path: Path) -> None:
    assert format_verdict(read_history(WrittenRun(exit=None).write(tmp_path / "running"))) == []
    assert format_verdict(read_history(WrittenRun(held_out=None).write(tmp_path / "unknown"))) == []


def test_numbers_of_an_evaluation_are_read_as_they_were() -> None:
    scores = CorruptionScores(9.0, 8.5, 9.5, 18.0, 0.7, 0.6, 0.8, 7.5, 40, 900)
    assert CorruptionScores.read(scores.numbers()) == scores
    assert CorruptionScores.read(replace(scores, floor=None).numbers()).floor is None
    assert math.isnan(CorruptionScores.read(scores.numbers() | {"low": None}).low)


def test_the_constants_and_the_end_of_the_loss_figure(tmp_path: Path) -> None:
    run = WrittenRun(steps=50, floor=7.5)
    chart = loss_figure(read_history(run.write(tmp_path / "run")))
    assert chart is not None
    last = {line.label: float(line.y[-1]) for line in chart.lines}
    assert last["frequencies"] == pytest.approx(math.log(17.8))
    assert last["floor"] == pytest.approx(math.log(7.5))
    assert last["80/10/10"] == pytest.approx(last["mask-all"] + math.log(0.9))
    assert last["training"] == pytest.approx(last["mask-all"])
    assert len({(line.colour, line.dash) for line in chart.lines}) == len({line.dash for line in chart.lines}) + 1
    assert f"mask-all {math.exp(last['mask-all']):.3g}" in chart.draw(342)


def test_the_time_line_tells_saves_from_failed_ones(tmp_path: Path) -> None:
    root = WrittenRun(steps=40, attempts=2, validate_every=10).write(tmp_path / "run")
    with (root / "metrics.jsonl").open("a") as file:
        place = {"step": 40, "tokens": 40 * TOKENS_A_STEP, "attempt": 2, "time": WrittenRun().at(2, 40)}
        file.write(json.dumps({**place, "save_error": "full", "failed_saves": 1}) + "\n")
    line = time_line(read_history(root))
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
    line = time_line(read_history(WrittenRun(exit=exit).write(tmp_path / "run")))
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
