"""Results as sections: of the page of a run, and of the card of a model.

In: `Results`. Out: `ReportSection`s, and the drawing of the scores. Kept: nothing.
"""

import math
from pathlib import Path

from finetune.metrics.scores import TaskScore
from finetune.results.results import Results
from finetune.splits.audit import PRETRAINING, SplitAudit
from pretrain.report.drawings import IntervalPlot, IntervalRow
from pretrain.report.section import NOT_MEASURED, ReportSection, ReportTable

_MOST_DISTANCES = 12


def evaluation(results: Results | None) -> list[ReportSection]:
    """Scores with their picture, the split and its audit; before the end of a run that there are none."""
    if results is None:
        return [ReportSection("", (f"Scores and relatives of tested proteins: {NOT_MEASURED}.",))]
    return [scores(results), split(results)]


def scores(results: Results, most: int | None = None) -> ReportSection:
    """The score of each task beside the best baseline, and why tasks have none.

    Args:
        results: of a run.
        most: of tasks with a score the first ones; None for all.
    """
    rows, drawn = [], []
    for task in results.scores.defined[:most]:
        name, value = results.best_baseline(task) or ("none", math.nan)
        best = name if math.isnan(value) else f"{value:.3f} ({name})"
        ends = [math.nan if end is None else end for end in (task.low, task.high)]
        drawn.append(IntervalRow(f"{task.task}, {task.title}", task.value, ((ends[0], ends[1]),), value))
        metric = f"{task.title} of {task.labels:,} labels, {task.chance} by chance"
        rows.append((task.task, metric, with_interval(task), best))
    more = len(results.scores.defined) - len(rows)
    note = f"{more:,} more tasks are in scores.json. " * bool(more)
    note += "In brackets the 95 % interval, over groups of the split."
    sheets = [ReportTable("", ("Task", "Metric", "Model", "Best baseline"), tuple(rows), note)] if rows else []
    if undefined := results.scores.undefined:
        reasons = tuple((task.task, task.undefined or "not measured") for task in undefined)
        sheets.append(ReportTable("Tasks without a score", ("Task", "Why"), reasons))
    drawing = IntervalPlot(
        name="scores",
        title="Scores of the tested proteins",
        rows=tuple(drawn),
        x_title="upright: the best baseline",
        number="{:.3f}".format,
        note="In brackets 95 % intervals.",
    )
    return ReportSection(
        f"Scores of {results.scored}",
        ("Baselines are fitted on the same training labels and scored on the same labels as the model.",),
        sheets,
        [drawing] if rows else [],
    )


def split(results: Results) -> ReportSection:
    """The split in the words that its audit allows, and the audit."""
    audit, paragraphs = results.audit, (f"It is {results.split}.", *results.notes)
    if audit is None:
        return ReportSection(
            "The split", (*paragraphs, f"Relatives among training and tested sequences: {NOT_MEASURED}.")
        )
    rows = [(str(number), f"{count:,}") for number, count in enumerate(audit.distances or ()) if count]
    distances = ReportTable(
        "Mutations to the nearest one that trains", ("Mutations", "Tested"), tuple(rows[:_MOST_DISTANCES])
    )
    sheets = [_relatives(audit), *([distances] if rows else [])]
    return ReportSection("The split", paragraphs, sheets, note=" ".join(audit.notes))


def _relatives(audit: SplitAudit) -> ReportTable:
    rows = []
    for each in audit.comparisons:
        # A card says no folder of a machine.
        part, _, folder = each.against.partition(PRETRAINING)
        name = part or f"{PRETRAINING}{Path(folder).name[:16]}"
        similar = zip(each.identities, each.similar, strict=True)
        counts = [(f"identity of at least {at:.0%}", count, each.searchable) for at, count in similar]
        for relation, count, of in (("equal", each.equal, each.queries), *counts):
            rows.append((name, relation, f"{count:,} of {of:,} ({count / max(of, 1):.1%})"))
    note = f"Relatives by {audit.searched_by}, over at least half of the tested sequence."
    lacking = audit.of_training.queries - audit.of_training.searchable
    note += f" {lacking:,} more do not find themselves, so that nothing is known of them." if lacking else ""
    head = ("Against", "Relation", "Tested sequences")
    return ReportTable(
        "Tested sequences that are known", head, tuple(rows), note if audit.of_training.identities else ""
    )


def with_interval(task: TaskScore) -> str:
    """The value of a task with the ends of its interval."""
    ends = "" if task.low is None else f" ({task.low:.3f} to {task.high:.3f})"
    return f"{task.value:.3f}{ends}"
