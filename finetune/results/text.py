"""The end of a run in words: a table of the model beside baselines, and sentences that say what it means.

In: `Results`. Out: lines for a console and sentences for a report. Kept: nothing.
"""

from collections.abc import Sequence

from finetune.metrics.scores import NO_VALIDATION, TaskScore
from finetune.results.calibration import TOO_SHORT
from finetune.results.results import EnsembleMemberFacts, Results
from zymogen.console.progress import in_columns
from zymogen.settings.section import listed

_MOST_TASKS = 12
"""Tasks in the table of a console; of more the first are shown, all stand in scores.json."""
_MOST_NAMED = 3


def format_table(results: Results) -> list[str]:
    """Lines: each task with its metric, the model with its interval, and every baseline on the same labels."""
    defined = results.scores.defined[:_MOST_TASKS]
    values = [results.of_baselines(task) for task in defined]
    names = [each.name for each in results.baselines if any(each.name in of_task for of_task in values)]
    has_seeds, has_ceiling = bool(results.seeds), bool(results.ceilings)
    rows = [["task", "metric", "model", "95 % interval", *["over seeds"] * has_seeds, *names]]
    rows[0] += [*["replicates agree to"] * has_ceiling, "labels"]
    for task, of_task in zip(defined, values, strict=True):
        row = [task.task, task.title, _number(task.value), _interval(task)]
        if has_seeds:
            found = results.spread(task)
            row.append("" if found is None else f"{found[0]:.3f} +- {found[1]:.3f}")
        row += [_number(of_task.get(name)) for name in names]
        if has_ceiling:
            ceiling = results.ceiling(task)
            row.append("" if ceiling is None else f"Pearson {ceiling.pearson:.3f} ({ceiling.replicated:,} labels)")
        rows.append([*row, f"{task.labels:,}"])
    if len(rows) == 1:
        return []
    lines = in_columns(rows)
    more = len(results.scores.defined) - len(defined)
    return lines + ([f"{more:,} more tasks are in scores.json"] if more > 0 else [])


def chosen_on_training(members: Sequence[EnsembleMemberFacts]) -> list[str]:
    """A sentence where checkpoints are chosen on training rows."""
    names = [member.name for member in members if member.chosen_on == "training"]
    if not names:
        return []
    which = "The checkpoint is" if len(members) == 1 else f"The checkpoints of {', '.join(names)} are"
    said = "overfitting goes unnoticed, and predictions have no calibration"
    return [f"{which} chosen on training rows, as {NO_VALIDATION}: {said}."]


def compared(results: Results) -> list[str]:
    """Sentences: where the model is better than every baseline, and where one is better than the model."""
    better, clearly, worse = [], 0, []
    for task in results.scores.defined:
        best = results.best_baseline(task)
        if best is None or task.value is None:
            continue
        name, value = best
        if value >= task.value:
            worse.append((task, name, value))
        else:
            better.append(task)
            clearly += task.low is not None and task.low > value
    count = len(better) + len(worse)
    if not count:
        return []
    found = []
    if better:
        where = "the only task" if count == 1 else f"{len(better)} of {count} tasks"
        sure = f", in {clearly} of these by more than its interval" if clearly and count > 1 else ""
        sure = sure or ("" if clearly else ", within its interval")
        found.append(f"The model is better than every baseline in {where}{sure}.")
    if worse:
        named = [f"{task.task} ({name} {value:.3f}, model {task.value:.3f})" for task, name, value in worse]
        where = "the only task" if count == 1 else f"{len(worse)} of {count} tasks"
        found.append(f"A baseline is as good or better in {where}: {listed(named, _MOST_NAMED, 'others')}.")
    return found


def format_missing(results: Results) -> list[str]:
    """Sentences: which baselines an objective lacks, and why."""
    tasks: dict[tuple[str, str], list[str]] = {}
    for baseline in results.baselines:
        for objective, reason in baseline.why_not.items():
            tasks.setdefault((objective, reason), []).append(baseline.name)
    return [f"{objective} has no {', no '.join(names)}: {reason}." for (objective, reason), names in tasks.items()]


def undefined(results: Results) -> list[str]:
    """Sentences: which tasks have no score, and why."""
    reasons: dict[str, list[str]] = {}
    for task in results.scores.undefined:
        reasons.setdefault(task.undefined, []).append(task.task)
    shown = {reason: listed(tasks, _MOST_NAMED, "others") for reason, tasks in reasons.items()}
    return [f"Undefined in {results.part}: {tasks}: {reason}." for reason, tasks in shown.items()]


def untrained(results: Results) -> list[str]:
    """Sentences: labels of classes that training lacked."""
    return [
        f"{task.task}: {count} label{'s' if count > 1 else ''} of {name!r} left out, because training has none."
        for task in results.scores.tasks
        for name, count in task.untrained.items()
    ]


def calibrated(results: Results) -> list[str]:
    """A sentence about intervals, and one about probabilities, of the tasks that have a score."""
    defined = {(task.objective, task.task) for task in results.scores.defined}
    of_defined = [each for each in results.calibrations if (each.objective, each.task) in defined]
    numbers = [each.on_part["coverage"] for each in of_defined if "coverage" in each.on_part]
    found = []
    if numbers:
        shown = f"{numbers[0]:.0%}" if len(numbers) == 1 else f"{min(numbers):.0%} to {max(numbers):.0%}"
        why = f"; {TOO_SHORT}" if any(each.calibration.chose for each in of_defined) else ""
        found.append(f"Intervals that promise 90 % hold {shown} of the truth in {results.part}{why}.")
    fits = [each for each in of_defined if not each.calibration.why_not]
    errors = [each for each in fits if "calibration_error_before" in each.on_part]
    before, after = ([each.on_part[f"calibration_error_{when}"] for each in errors] for when in ("before", "after"))
    if before:
        mean_before, mean_after = (f"{sum(each) / len(each):.3f}" for each in (before, after))
        harm = "Calibration made probabilities worse: they" if mean_after > mean_before else "Probabilities"
        worse = [each.task for each, first, last in zip(errors, before, after, strict=True) if last > first]
        which = f"; worse in {listed(worse, _MOST_NAMED, 'others')}" if 0 < len(worse) < len(before) else ""
        found.append(
            f"{harm} are off by {mean_before} before and {mean_after} after their calibration "
            f"(mean calibration error in {results.part}{which})."
        )
    return found


def caveats(results: Results) -> list[str]:
    """What limits the scores, in sentences."""
    known = [*format_missing(results), *untrained(results), *undefined(results), *calibrated(results)]
    if results.validation is not None and not results.validation.defined:
        known.append(
            "Checkpoints are chosen by the loss in validation: no task has enough labels there for its metric."
        )
    audited = results.audit.notes if results.audit else ()
    return [*known, f"Split: {results.split}.", *results.notes, *audited]


def format_summary(results: Results) -> list[str]:
    """All of it, for a console; what the start of the run said is not said again."""
    scored = {"all folds": "out-of-fold predictions of all folds"}.get(results.part, results.scored)
    title = f"scores of {scored}, beside baselines on the same labels"
    of_table = format_table(results)
    lines = [title, *of_table] if of_table else [f"{title}: no task could be scored"]
    return [*lines, "", *compared(results), *results.caveats]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _interval(task: TaskScore) -> str:
    return "" if task.low is None else f"{task.low:.3f} to {task.high:.3f}"
