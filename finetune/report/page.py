"""The page of a fine-tuning run: what stands on it.

In: `Results`, the tested predictions of each objective, the directory of a member. Out: report.html. Kept: that file.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from finetune.metrics.scores import TaskScore, title
from finetune.report.pictures import MOST_TASKS, pictures
from finetune.results import report_sections, text
from finetune.results.merge import MergedPredictions
from finetune.results.report_sections import with_interval
from finetune.results.results import Results
from finetune.tasks.task import Task
from pretrain.report import page_text
from pretrain.report.chart import Chart, ChartSeries
from pretrain.report.charts import X_TITLE, column_chart, short
from pretrain.report.page import write_report
from pretrain.report.section import ReportContent, ReportSection, ReportTable
from zymogen.console.safe_text import log
from zymogen.trainer.run.reader import RunReader

_MOST_SHEETS = 12
"""Tasks with a table of all baselines."""
_MOST_ROWS = 60


def write(
    root: Path, member: Path, results: Results, objectives: Sequence[Task], tested: Sequence[MergedPredictions]
) -> str:
    """Draw the page of a run that has ended; whatever prevents it costs a line and not the run.

    Args:
        root: the run directory, which gets report.html.
        member: directory of the model whose curves are shown; `root` where there is one model.
        results: of the run.
        objectives: all of them.
        tested: what was predicted of each.

    Returns:
        The path of the page; empty where it was not drawn.
    """
    try:
        run = RunReader(member)
        found = content(root.resolve().name, run, results, objectives, tested)
        return str(write_report(root, run=run, content=found))
    except Exception as error:
        log(f"the report was not drawn: {type(error).__name__}: {error}")
        return ""


def content(
    name: str, run: RunReader, results: Results, objectives: Sequence[Task], tested: Sequence[MergedPredictions]
) -> ReportContent:
    """All that a fine-tuning run puts on its page."""
    several = f", {len(results.members)} models" if len(results.members) > 1 else ""
    table = ", ".join(map(str, (run.settings.get("data") or {}).get("table") or []))
    model = run.settings.get("model") or {}
    kind = (run.settings.get("adaptation") or {}).get("kind", "")
    scores = report_sections.scores(results, _MOST_ROWS)
    each = [_of_task(results, task) for task in results.scores.defined[:_MOST_SHEETS]]
    scores = replace(scores, sheets=(*scores.sheets, *each))
    return ReportContent(
        name=name,
        subtitle=f"{model.get('init') or model.get('preset')}, {kind}{several}, {table}",
        judged=(*text.compared(results), *text.untrained(results), *text.calibrated(results)),
        keys=(*_keys(results), *page_text.key_numbers(run)),
        sections=(
            scores,
            _pictured(results, objectives, tested),
            report_sections.split(results),
            ReportSection("Caveats", (*results.caveats, *results.said)),
            _learning(run),
        ),
        drawn_by="python -m finetune",
    )


def _keys(results: Results) -> list[tuple[str, str, str]]:
    skill = results.scores.stopping_metric
    defined, undefined = len(results.scores.defined), len(results.scores.undefined)
    found = [] if np.isnan(skill) else [("Skill", f"{skill:.3f}", "0 by chance, 1 for perfect rankings")]
    return [*found, ("Tasks", f"{defined}", f"scored, {undefined} undefined" if undefined else "scored")]


def _of_task(results: Results, task: TaskScore) -> ReportTable:
    """One task: the model, its seeds, and every baseline; what replicates allow."""
    rows = [("model", with_interval(task))]
    if spread := results.spread(task):
        rows.append(("single seeds", f"{spread[0]:.3f}, standard deviation {spread[1]:.3f}"))
    for baseline in results.baselines:
        found = [s for s in baseline.scores.tasks if (s.objective, s.task) == (task.objective, task.task)]
        value = with_interval(found[0]) if found and found[0].value is not None else ""
        rows.append((baseline.name, value or baseline.why_not.get(task.objective, "")))
    if ceiling := results.ceiling(task):
        said = (
            f"a Pearson correlation of {ceiling.pearson:.3f}, by {ceiling.replicated:,} labels of several measurements"
        )
        rows.append(("replicates", f"perfect predictions would reach {said}"))
    shown = [f"{title(name)} {value:.3g}" for name, value in task.values.items()]
    note = ". ".join([f"Of {task.labels:,} labels: {', '.join(shown)}", *task.notes]) if shown else ""
    return ReportTable(f"{task.task}: {task.title}", ("", "Value"), tuple(rows), note)


def _pictured(results: Results, objectives: Sequence[Task], tested: Sequence[MergedPredictions]) -> ReportSection:
    of_tasks: list[list[Chart]] = []
    for objective, joined in zip(objectives, tested, strict=True):
        of_tasks += pictures(objective, joined, results.scores, len(of_tasks))
    more = len(results.scores.defined) > MOST_TASKS
    note = f"The first {len(of_tasks)} tasks; predictions.csv has those of all." if more else ""
    return ReportSection("Predictions", drawings=tuple(itertools.chain(*of_tasks)), note=note)


def _learning(run: RunReader) -> ReportSection:
    """Loss and skill over the tokens seen, if any was logged."""
    values = [validation.scores.get("all_tasks", {}).get("skill") for validation in run.validations]
    skill = np.array([np.nan if value is None else value for value in values], np.float64)
    of_training = any(validation.part == "training" for validation in run.validations)
    chart = Chart(
        name="skill",
        title="Skill on training rows, which choose the checkpoint" if of_training else "Skill in validation",
        lines=(ChartSeries("", np.array([each.tokens for each in run.validations]), skill, "orange", marked=True),),
        x_title=X_TITLE,
        y_title="mean over tasks; 0 by chance, 1 perfect",
        x_value=short,
        height=240,
    )
    loss = column_chart(run, "loss", "Training loss", "weighted sum of the tasks' mean losses", height=240)
    return ReportSection("How it learned", drawings=(loss, chart if np.isfinite(skill).any() else None))
