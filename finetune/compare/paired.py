"""Two runs on the same tested labels: the difference of each task's ranking metric, with its paired interval.

In: two `ComparedPredictions`. Out: a `ModelComparison` with a `ModelDifference` for each task that both define. Kept:
nothing.

Both models are scored on the same labels whenever a cluster of relatives is left out, so what makes a cluster hard for
both cancels. Values are those of scores.json, from the column `ranking` of predictions.csv.
"""

from collections.abc import Sequence

import numpy as np

from finetune.compare.predicted import ComparedPredictions, LabelPrediction
from finetune.labels.labels import ABOVE, BELOW, EXACT
from finetune.metrics.resampling import SHARED_TRAINING, difference_interval, jackknife
from finetune.metrics.scores import title
from finetune.metrics.weighted import Metric, of_all
from finetune.tasks.task import Task
from pretrain.compare.comparison import ModelComparison, ModelDifference

_CENSORING = {"<": BELOW, ">": ABOVE}


def compare(first: ComparedPredictions, second: ComparedPredictions, decide: Sequence[str] = ()) -> ModelComparison:
    """Compare two runs on all tasks that both define, with sentences about the others.

    Args:
        first: the current model.
        second: the candidate.
        decide: names of the tasks that decide; all of them if empty.

    Raises:
        ValueError: the runs have different splits, or were scored on different parts or labels; they share no task, or
            not one that decides.
    """
    a, b = first.results, second.results
    if a.split_fingerprint != b.split_fingerprint:
        raise ValueError(
            f"{first.root} and {second.root} have different splits, {a.split_fingerprint} and {b.split_fingerprint}: "
            "what one was tested on may have trained the other; give both the same table and [split]"
        )
    if a.part != b.part:
        raise ValueError(f"{first.root} was scored on {a.part}, {second.root} on {b.part}; compare runs of one recipe")
    undefined = {task.task: task.undefined for each in (b, a) for task in each.scores.tasks if task.undefined}
    said = [f"{task}: undefined: {reason}" for task, reason in undefined.items()]
    lacking = [name for name in first.tasks if name not in second.tasks and name not in undefined]
    said += [f"{name}: {second.root} does not have it" for name in lacking]
    said += [f"{name}: {first.root} does not have it" for name in second.tasks if name not in first.tasks]
    names = [name for name in first.tasks if name in second.tasks and name not in undefined]
    found = [_difference(name, first, second) for name in names]
    if not found:
        raise ValueError(f"{first.root} and {second.root} share no task that is defined in both")
    if unknown := [name for name in decide if name not in names]:
        raise ValueError(f"--task {unknown[0]!r} is none of those that both define: {', '.join(names)}")
    return ModelComparison(
        models=(str(first.root), str(second.root)),
        on=f"{a.part}, split",
        set=a.split_fingerprint,
        unit="the metric",
        differences=tuple(found),
        decide=tuple(decide or names),
        notes=tuple(said),
    )


def _difference(name: str, first: ComparedPredictions, second: ComparedPredictions) -> ModelDifference:
    theirs, ours = first.tasks[name], second.tasks[name]
    differing = [key for key, cell in theirs.items() if key not in ours or ours[key].truth != cell.truth]
    differing += [key for key in ours if key not in theirs]
    if differing:
        digest, position = differing[0]
        shown = (first if differing[0] in theirs else second).ids.get(digest, digest)
        place = f", residue {position}" if position else ""
        raise ValueError(
            f"{first.root} and {second.root} have different labels of task {name!r} for {len(differing):,} of "
            f"{len(theirs):,}, such as {shown!r}{place}; compare runs on one table"
        )
    objectives = [_objective(name, each) for each in (first, second)]
    keys = [key for key in theirs if all(_is_scored(theirs[key], name, each) for each in objectives)]
    metric = _metric(objectives[0], [theirs[key] for key in keys])
    of_first, of_second = metric.statistic, _metric(objectives[1], [ours[key] for key in keys]).statistic
    clusters = np.array([first.clusters[key[0]] for key in keys])
    values = of_all(of_first, len(keys)), of_all(of_second, len(keys))
    found = jackknife(lambda weights: of_second(weights) - of_first(weights), clusters)
    low, high = difference_interval(found, SHARED_TRAINING if first.results.part == "all folds" else 1.0)
    return ModelDifference(
        name=name,
        metric=title(metric.name),
        values=values,
        gain=values[1] - values[0],
        low=low,
        high=high,
        labels=len(keys),
        groups=found.clusters,
    )


def _objective(name: str, run: ComparedPredictions) -> Task:
    found = [objective for objective in run.objectives if name in objective.outputs]
    if len(found) != 1:
        raise ValueError(f"{run.root} has {len(found)} tasks that are called {name!r}; tasks are compared by name")
    return found[0]


def _is_scored(cell: LabelPrediction, name: str, objective: Task) -> bool:
    """Whether a label enters the scores: classes that training lacked do not."""
    if not objective.settings.kind.predicts_each_class:
        return True
    return bool(objective.is_trained[objective.outputs.index(name)][objective.classes.index(cell.truth)])


def _metric(objective: Task, cells: Sequence[LabelPrediction]) -> Metric:
    """The metric of weighted labels."""
    ranks = np.array([cell.ranking.split() for cell in cells], np.float64)
    ranks = ranks if ranks.shape[1] > 1 else ranks[:, 0]
    censoring = np.full(len(cells), EXACT, np.int8)
    if objective.settings.is_number:
        truth = np.array([float(cell.truth.lstrip("<>")) for cell in cells])
        censoring = np.array([_CENSORING.get(cell.truth[:1], EXACT) for cell in cells], np.int8)
    else:
        truth = np.array([objective.classes.index(cell.truth) for cell in cells], np.float64)
    return objective.settings.kind.metric(truth, ranks, censoring)
