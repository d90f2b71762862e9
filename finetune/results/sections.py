"""Results as sections: of the page of a run, and of the card of a model.

In: `Results`. Out: `Section`s, and the drawing of the scores. Kept: nothing.
"""

import math
from pathlib import Path

from finetune.metrics.scores import CHANCE, TITLES, TaskScore
from finetune.results.results import Results
from finetune.splits.audit import PRETRAINING, Audit
from pretrain.report.rows import Row, Rows
from pretrain.report.section import Section, Sheet

_MOST_DISTANCES = 12


def scores(results: Results, most: int | None = None) -> Section:
    """The score of each task beside the best baseline, and why tasks have none.

    Args:
        results: of a run.
        most: of tasks with a score the first ones; None for all.
    """
    rows = []
    for task in results.scores.defined[:most]:
        name, value = results.best_baseline(task) or ("none", None)
        best = name if value is None else f"{value:.3f} ({name})"
        metric = f"{TITLES[task.metric]} of {task.labels:,} labels, {CHANCE[task.metric]} by chance"
        rows.append((task.task, metric, with_interval(task), best))
    more = len(results.scores.defined) - len(rows)
    note = f"{more:,} more tasks are in scores.json. " * bool(more)
    note += "In brackets the 95 % interval, over groups of the split."
    sheets = [Sheet("", ("Task", "Metric", "Model", "Best baseline"), tuple(rows), note)] if rows else []
    if undefined := results.scores.undefined:
        reasons = tuple((task.task, task.undefined or "not measured") for task in undefined)
        sheets.append(Sheet("Tasks without a score", ("Task", "Why"), reasons))
    return Section(
        f"Scores of {results.scored}",
        ("Baselines are fitted on the same training labels and scored on the same labels as the model.",),
        tuple(sheets),
    )


def split(results: Results) -> Section:
    """The split in the words that its audit allows, and the audit."""
    audit, sheets = results.audit, list[Sheet]()
    paragraphs = (f"It is {results.split}.", *results.notes)
    if audit is None:
        return Section("The split", (*paragraphs, "Relatives among training and tested sequences: not measured."))
    sheets.append(_relatives(audit))
    if audit.distances is not None:
        rows = tuple((str(n), f"{count:,}") for n, count in enumerate(audit.distances) if count)
        sheets.append(
            Sheet("Mutations to the nearest one that trains", ("Mutations", "Tested"), rows[:_MOST_DISTANCES])
        )
    return Section("The split", paragraphs, tuple(sheets), note=" ".join(audit.notes))


def _relatives(audit: Audit) -> Sheet:
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
    return Sheet("Tested sequences that are known", head, tuple(rows), note if audit.of_training.identities else "")


def drawings(results: Results) -> list[Rows]:
    """The scores of all tasks with their intervals; nothing where no task has a score."""
    rows = []
    for task in results.scores.defined:
        value, low, high = (math.nan if end is None else end for end in (task.value, task.low, task.high))
        _, baseline = results.best_baseline(task) or ("", math.nan)
        rows.append(Row(f"{task.task}, {TITLES[task.metric]}", value, ((low, high),), baseline))
    drawn = Rows(
        name="scores",
        title="Scores of the tested proteins",
        rows=tuple(rows),
        x_title="upright: the best baseline",
        number="{:.3f}".format,
        note="In brackets 95 % intervals.",
    )
    return [drawn] if rows else []


def with_interval(task: TaskScore) -> str:
    """The value of a task with the ends of its interval."""
    ends = "" if task.low is None else f" ({task.low:.3f} to {task.high:.3f})"
    return f"{task.value:.3f}{ends}"
