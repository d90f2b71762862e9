"""The page of a fine-tuning run: what stands on it.

In: `Results`, the tested predictions of each objective, the directory of a member. Out: report.html. Kept: that file.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from data.safe_text import tell
from finetune.metrics.scores import TITLES, TaskScore
from finetune.report.pictures import MOST_TASKS, pictures
from finetune.results import sections, words
from finetune.results.joined import Joined
from finetune.results.results import Results
from finetune.results.sections import with_interval
from finetune.tasks.objective import Objective
from pretrain.report import facts
from pretrain.report.chart import Chart, Line
from pretrain.report.figures import short
from pretrain.report.history import History, read_history
from pretrain.report.page import put, render
from pretrain.report.section import Content, Drawing, Key, Section, Sheet
from pretrain.run.directory import RunDirectory

_MOST_SHEETS = 12
"""Tasks with a table of all baselines."""
_MOST_ROWS = 60


def write(root: Path, member: Path, results: Results, objectives: Sequence[Objective], tested: Sequence[Joined]) -> str:
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
        history, path = read_history(member), RunDirectory(root).report
        page = render(history, content=content(root.resolve().name, history, results, objectives, tested))
        put(path, page, shared=history.is_shared)
    except Exception as error:
        tell(f"the report was not drawn: {type(error).__name__}: {error}")
        return ""
    return str(path)


def content(
    name: str, history: History, results: Results, objectives: Sequence[Objective], tested: Sequence[Joined]
) -> Content:
    """All that a fine-tuning run puts on its page."""
    several = f", {len(results.members)} models" if len(results.members) > 1 else ""
    table = ", ".join(map(str, (history.recipe.get("data") or {}).get("table") or []))
    model = history.recipe.get("model") or {}
    kind = (history.recipe.get("adaptation") or {}).get("kind", "")
    scores = sections.scores(results, _MOST_ROWS)
    each = [_of_task(results, task) for task in results.scores.defined[:_MOST_SHEETS]]
    scores = replace(scores, sheets=(*scores.sheets, *each))
    return Content(
        name=name,
        subtitle=f"{model.get('init') or model.get('preset')}, {kind}{several}, {table}",
        judged=(*words.compared(results), *words.untrained(results), *words.calibrated(results)),
        keys=(*_keys(results), *facts.keys(history)),
        sections=(scores, *_pictured(results, objectives, tested), sections.split(results)),
        learning=tuple(_learning(history)),
        drawn_by="python -m finetune",
    )


def _keys(results: Results) -> list[Key]:
    skill = results.scores.stopping_metric
    defined, undefined = len(results.scores.defined), len(results.scores.undefined)
    found = [] if np.isnan(skill) else [Key("Skill", f"{skill:.3f}", "0 by chance, 1 for perfect rankings")]
    return [*found, Key("Tasks", f"{defined}", f"scored, {undefined} undefined" if undefined else "scored")]


def _of_task(results: Results, task: TaskScore) -> Sheet:
    """One task: the model, its seeds, and every baseline; what replicates allow."""
    rows = [("model", with_interval(task))]
    if spread := results.spread(task):
        rows.append(("single seeds", f"{spread[0]:.3f}, standard deviation {spread[1]:.3f}"))
    for baseline in results.baselines:
        found = [s for s in baseline.scores.tasks if (s.objective, s.task) == (task.objective, task.task)]
        value = with_interval(found[0]) if found and found[0].value is not None else ""
        rows.append((baseline.name, value or baseline.why_not.get(task.objective, "")))
    if ceiling := results.ceiling(task):
        rows.append(("replicates", f"perfect predictions would reach a Pearson correlation of {ceiling.pearson:.3f}"))
    others = {**task.values}
    shown = [f"{TITLES.get(name, name)} {value:.3g}" for name, value in others.items()]
    note = ". ".join([f"Of {task.labels:,} labels: {', '.join(shown)}", *task.notes]) if shown else ""
    return Sheet(f"{task.task}: {TITLES[task.metric]}", ("", "Value"), tuple(rows), note)


def _pictured(results: Results, objectives: Sequence[Objective], tested: Sequence[Joined]) -> list[Section]:
    squares: list[list[Drawing]] = []
    for objective, joined in zip(objectives, tested, strict=True):
        squares += [[*of_task] for of_task in pictures(objective, joined, results.scores, len(squares))]
    if not squares:
        return []
    more = len(results.scores.defined) > MOST_TASKS
    note = f"The first {len(squares)} tasks; predictions.csv has those of all." if more else ""
    return [Section("Predictions", drawings=tuple(each for of in squares for each in of), note=note)]


def _learning(history: History) -> list[Chart]:
    """Loss and skill over the tokens seen."""
    found, tokens = [], history.column("tokens")
    if len(loss := history.column("loss")):
        line = Line("", tokens, loss, "blue")
        found.append(_chart("loss", "Training loss", "weighted sum of the tasks' mean losses", (line,)))
    at = np.array([validation.tokens for validation in history.validations])
    skill = [validation.scores.get("all_tasks", {}).get("skill") for validation in history.validations]
    values = np.array([np.nan if value is None else value for value in skill], np.float64)
    if np.isfinite(values).any():
        line = Line("", at, values, "orange", marked=True)
        found.append(_chart("skill", "Skill in validation", "mean over tasks; 0 by chance, 1 perfect", (line,)))
    return found


def _chart(name: str, title: str, y_title: str, lines: tuple[Line, ...]) -> Chart:
    return Chart(
        name=name,
        title=title,
        lines=lines,
        x_title="tokens seen",
        y_title=y_title,
        value="{:.3g}".format,
        x_value=short,
        height=240,
        summary=f"{y_title}, over the tokens seen.",
    )
