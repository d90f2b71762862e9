"""Finalizing a fine-tuning run: predictions of the tested part, and scores compared with baselines.

In: the members that were trained. Out: `Results`; scores.json, predictions.csv and split.csv in the run directory.
Kept: these files. Rank 0 does it alone.

scores.json is written last and names its inputs by a hash: where it is there and the hash is the same, a finished run
that is started again computes nothing again.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from data.alphabet import FASTA_LETTERS
from data.homology.relatives import SearchHits, hits, search_method
from finetune.adaptation.features import cached_features
from finetune.adaptation.vectors import Pooling
from finetune.assays import Assays
from finetune.baselines.baseline import PartRecords, TaskBaseline
from finetune.baselines.features import Features
from finetune.bundle.folder import with_evaluation
from finetune.fold_predictions import FoldPredictions, KnownPredictions, TrainedMember, predict_fold
from finetune.job import FineTuneJob
from finetune.labels.replicates import replicate_agreement
from finetune.metrics.scores import TaskScores
from finetune.metrics.scoring import score
from finetune.recipe import Recipe
from finetune.report import page
from finetune.results import predictions_file, text
from finetune.results.baselines import fit_baselines
from finetune.results.calibration import check_calibration, fit_calibration
from finetune.results.merge import MergedPredictions, joined_predictions, merge_folds, objective_of_folds
from finetune.results.results import (
    FILE,
    FORMAT,
    BaselineScores,
    Ensemble,
    ReplicateCeiling,
    Results,
    SeedScores,
    TaskCalibration,
)
from finetune.splits import split_file
from finetune.splits.audit import SplitAudit
from finetune.splits.groups import resampling_units
from finetune.splits.parts import NAMES, TEST, TRAIN, VALIDATION
from finetune.splits.text import format_split
from finetune.tasks.task import Task
from zymogen.console.progress import ProgressBar
from zymogen.settings.json_file import read_bytes
from zymogen.trainer.checkpoint.best import best_valid
from zymogen.trainer.checkpoint.load import newest_valid, unreadable
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.versions import versions


def finalize(
    recipe: Recipe,
    assays: Assays,
    audited: SplitAudit | None,
    trained: Sequence[TrainedMember],
    device: torch.device,
    *,
    again: bool = False,
) -> Results:
    """Predict, score, compare, and write what was found; or read it, where that was done; called on rank 0 alone.

    Args:
        recipe: of the run.
        assays: with the parts of the whole split.
        audited: the audit of the split.
        trained: all members, in their order.
        device: where the models compute.
        again: whether everything is computed again, also where nothing that it depends on has changed.

    Raises:
        FloatingPointError: no validation of a member had a finite score.
        CheckpointError: a member's best checkpoint is not whole.
        ValueError: MMseqs2 failed; a file in the run directory cannot be written.
    """
    root, inputs = Path(recipe.run.directory), _inputs(recipe, assays, trained)
    before = [] if again else _complete(root, trained, inputs)
    if before:
        _evaluated(trained, before[0], before[1:] or before)  # into bundles that the start of the run has written
        said = f"{root / FILE} holds the results of these models on these labels; --again computes them once more"
        print(said, flush=True)
        return before[0]
    known, seeds = KnownPredictions(), recipe.run.seeds
    with ProgressBar("predicting what was held out", after_s=2.0):
        folds = [predict_fold(trained[at : at + seeds], device, known) for at in range(0, len(trained), seeds)]
        objectives, joined = _together(folds)
    with ProgressBar("finding the relatives that an interval leaves out together", after_s=2.0):
        is_scored = any(len(each.predictions.rows) for each in joined)
        parts = assays.division.parts
        clusters = resampling_units(parts, assays.store) if is_scored else parts.digests
    fits = _fits(assays, trained[0].job, folds, objectives, device)

    def results_of(some: Sequence[FoldPredictions], part: str, notes: Sequence[str] = ()) -> Results:
        of_some, predicted = _together(some)
        members = tuple(fact for fold in some for fact in fold.members)
        of_validation = len(some) == 1 and some[0].part != VALIDATION and len(some[0].assays.records(VALIDATION)) > 0
        made = Results(
            part=part,
            scores=_scored(of_some, predicted, clusters),
            validation=_scored(some[0].objectives, some[0].validation, clusters) if of_validation else None,
            baselines=_baselines(fits, of_some, some, clusters if some is folds else None),
            members=members,
            seeds=_of_seeds(some, of_some),
            ceilings=_ceilings(assays, of_some, [each.predictions.rows.records for each in predicted]),
            calibrations=_calibrations(some, of_some, predicted),
            split=format_split(recipe.split, assays.division, audited),
            split_fingerprint=assays.division.parts.fingerprint,
            audit=audited,
            notes=(*notes, *_nothing_tested(some[0]), *text.chosen_on_training(members)),
            said=tuple(trained[0].job.caveats),
            inputs=inputs,
        )
        return replace(made, caveats=tuple(text.caveats(made)))

    results = results_of(folds, "all folds" if assays.parts.num_folds else NAMES[folds[0].part])
    of_members = [results]
    if len(trained) > 1:
        alone = [predict_fold([one], device, known) for one in trained]
        several = f"one of the {len(trained)} models of the run"
        of_members = [
            results_of([fold], results.part if fold.number is None else f"fold {fold.number}", [
                f"These are the scores of {fold.members[0].name} alone, {several}."
            ])
            for fold in alone
        ]  # fmt: skip
        for one, each in zip(trained, of_members, strict=True):
            each.write(one.run.root / FILE)
    _write(root, assays, folds, joined, clusters)
    _evaluated(trained, results, of_members)
    with ProgressBar("drawing the report", after_s=2.0):
        page.write(root, trained[0].run.root, results, objectives, joined)
    results.write(root / FILE)  # last: it is there only where everything else is
    return results


def _together(folds: Sequence[FoldPredictions]) -> tuple[list[Task], list[MergedPredictions]]:
    """Objectives, and what was predicted of each, of several folds as those of one."""
    objectives = [objective_of_folds(of_folds) for of_folds in zip(*(fold.objectives for fold in folds), strict=True)]
    tested = zip(*(fold.tested for fold in folds), strict=True)
    each = zip(*(fold.objectives for fold in folds), strict=True)
    return objectives, [merge_folds(of_folds, of) for of_folds, of in zip(tested, each, strict=True)]


def _nothing_tested(fold: FoldPredictions) -> list[str]:
    said = {
        "training": "Nothing that is held out has a label: nothing is scored.",
        "validation": "No record is tested: these are scores of validation, which also chose the checkpoint.",
    }
    return [said[fold.assays.chosen_on]] if fold.part == VALIDATION else []


def _inputs(recipe: Recipe, assays: Assays, trained: Sequence[TrainedMember]) -> str:
    """Hash of everything on which the results depend: models, labels, the split, settings, programs."""
    models = []
    for one in trained:
        best = best_valid(one.run.checkpoints, unreadable)
        newest = newest_valid(one.run.checkpoints, writer=False, check=unreadable)
        weights = sorted((file.path, file.sha256) for file in best.manifest.files)
        models.append([one.member.name, best.trainer.step, weights, newest.trainer.step if newest else 0])
    settings = [asdict(part) for part in (recipe.model, recipe.split, recipe.adaptation, recipe.heads, *recipe.tasks)]
    searches = search_method() if assays.store.num_records else ""
    facts = [FORMAT, versions(), searches, assays.fingerprint, assays.division.parts.fingerprint, settings, models]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _complete(root: Path, trained: Sequence[TrainedMember], inputs: str) -> list[Results]:
    """The results of the same inputs, of the run and then of each of several members, if all files are there."""
    files = (predictions_file.FILE, split_file.FILE, RunDirectory(root).report.name)
    if not all((root / name).is_file() for name in (FILE, *files)):
        return []
    found = [read_bytes(Results, folder / FILE) for folder in dict.fromkeys([root, *(one.run.root for one in trained)])]
    same = [results for results in found if results and results.inputs == inputs]
    return same if len(same) == len(found) else []


def _evaluated(trained: Sequence[TrainedMember], results: Results, of_members: Sequence[Results]) -> None:
    """Write into the bundle of each member what was found of it alone, and of all of them together."""
    ensemble = Ensemble(results.members, results.calibrations) if len(trained) > 1 else None
    for one, evaluation in zip(trained, of_members, strict=True):
        with_evaluation(one.run.root / "bundle", replace(evaluation, inputs="", said=()), ensemble)


def _scored(
    objectives: Sequence[Task], joined: Sequence[MergedPredictions], clusters: NDArray[np.uint64]
) -> TaskScores:
    return TaskScores.joined(
        score(objective, each.predictions, clusters, calibrated=each.calibrated)
        for objective, each in zip(objectives, joined, strict=True)
    )


def _of_seeds(folds: Sequence[FoldPredictions], objectives: Sequence[Task]) -> tuple[SeedScores, ...]:
    """The scores of each seed alone; none with one seed."""
    seeds = [member.seed for member in folds[0].members]
    found, of_objectives = [], list(zip(*(fold.objectives for fold in folds), strict=True))
    for number, seed in enumerate(seeds if len(seeds) > 1 else []):
        of_folds = zip(*(fold.of_seeds[number] for fold in folds), strict=True)
        each = [
            score(objective, joined_predictions(parts, of_parts), intervals=False)
            for objective, parts, of_parts in zip(objectives, of_folds, of_objectives, strict=True)
        ]
        found.append(SeedScores(seed, TaskScores.joined(each)))
    return tuple(found)


def _ceilings(
    assays: Assays, objectives: Sequence[Task], tested_of: Sequence[NDArray[np.int64]]
) -> tuple[ReplicateCeiling, ...]:
    """How well replicates agree among the tested records."""
    found = []
    for objective, task, records in zip(objectives, assays.tasks, tested_of, strict=True):
        if not objective.settings.is_number:
            continue
        tested = np.zeros(assays.store.num_records, np.bool_)
        tested[records] = True
        for output, name in enumerate(objective.outputs):
            if agreed := replicate_agreement(task.labels, output, tested):
                found.append(ReplicateCeiling(objective.settings.name, name, *agreed))
    return tuple(found)


def _calibrations(
    folds: Sequence[FoldPredictions], objectives: Sequence[Task], joined: Sequence[MergedPredictions]
) -> tuple[TaskCalibration, ...]:
    """The calibration of every task, and what it is worth on the tested part.

    With folds it is fitted on the out-of-fold predictions of all of them, and judged by what the calibrations of single
    folds, which did not see the tested labels, are worth. Where nothing is tested, nothing is said of its worth.
    """
    found = []
    for number, (objective, of) in enumerate(zip(objectives, joined, strict=True)):
        # On the labels that it was fitted on it would always be kept.
        on_part = [dict[str, float]() for _ in objective.outputs]
        if folds[0].part != VALIDATION:
            on_part = check_calibration(objective, of.predictions, of.calibrated, of.low, of.high)
        maps = folds[0].maps[number] if len(folds) == 1 else fit_calibration(objective, of.predictions)
        of_outputs = zip(objective.outputs, maps, on_part, strict=True)
        found += [TaskCalibration(objective.settings.name, *of_output) for of_output in of_outputs]
    return tuple(found)


_Fits = dict[str, dict[int, dict[int | None, TaskBaseline | str]]]
"""Name of a baseline -> number of an objective -> fold -> the baseline, or why there is none."""


def _fits(
    assays: Assays,
    job: FineTuneJob,
    folds: Sequence[FoldPredictions],
    objectives: Sequence[Task],
    device: torch.device,
) -> _Fits:
    """All baselines on the labels that the models are scored on, of several folds each fitted on the fold's own."""
    store, began, found = assays.store, time.monotonic(), _Fits()

    def search(asked: NDArray[np.int64], train: NDArray[np.int64]) -> SearchHits:
        return hits(store, asked, store, train)  # the audit's, and kept: one alignment serves all tasks

    with ProgressBar("baselines", after_s=2.0):
        vectors = _vectors(assays, job, device)
        sequences = [FASTA_LETTERS[store.residues(n)].tobytes().decode("ascii") for n in range(store.num_records)]
        for number in range(len(objectives)):
            labels = assays.tasks[number].labels
            for fold in (each for each in folds if len(each.assays.records(each.part))):
                parts = PartRecords(*(fold.assays.records(part) for part in (TRAIN, VALIDATION, fold.part)))
                objective = fold.objectives[number]
                of_level = vectors[objective.settings.level]
                for name, baseline in fit_baselines(objective, labels, parts, sequences, of_level, began, search):
                    found.setdefault(name, {}).setdefault(number, {})[fold.number] = baseline
    return found


def _baselines(
    fits: _Fits,
    objectives: Sequence[Task],
    folds: Sequence[FoldPredictions],
    clusters: NDArray[np.uint64] | None,
) -> tuple[BaselineScores, ...]:
    """The scores of the baselines in some folds, each of all objectives that it could be fitted to in every fold.

    Without `clusters` they have no intervals.
    """
    found = []
    for name, of_objectives in fits.items():
        scores, descriptions, why_not, seconds = [], dict[str, str](), dict[str, str](), 0.0
        for number, of_folds in of_objectives.items():
            task, scored = objectives[number].settings.name, [fold for fold in folds if fold.number in of_folds]
            each = [of_folds[fold.number] for fold in scored]
            fitted = [one for one in each if not isinstance(one, str)]
            seconds += sum(one.seconds for one in fitted)
            if len(fitted) < len(each):
                why_not[task] = next(one for one in each if isinstance(one, str))
            elif fitted:
                descriptions[task] = fitted[0].description
                of = [fold.objectives[number] for fold in scored]
                predictions = joined_predictions([one.predictions for one in fitted], of)
                scores.append(score(objectives[number], predictions, clusters, intervals=clusters is not None))
        found.append(BaselineScores(name, TaskScores.joined(scores), descriptions, why_not, round(seconds, 3)))
    return tuple(found)


def _vectors(assays: Assays, job: FineTuneJob, device: torch.device) -> dict[str, Features | str]:
    """By level the vectors of the encoder before fine-tuning, or why they do not fit into the cache of the run."""
    levels = {objective.settings.level for objective in job.tasks}
    poolings: list[Pooling] = ["residue"] if "residue" in levels else []
    features, said = job.features, "vectors of the encoder before fine-tuning"
    if "sequence" in levels:
        kept = {*features.rows} & {"mean", "begin"} if features is not None else set()
        poolings.append("begin" if "begin" in kept else "mean")
    if poolings and (features is None or not {*poolings} <= features.rows.keys()):
        recipe = job.recipe
        features, lines = cached_features(
            job.source,
            job.documents(),
            assays.reader,
            recipe.data,
            poolings,
            Path(recipe.data.store_dir),
            recipe.adaptation.cache_gb,
            device=device,
        )
        said = said if features is not None else lines[0]
    rows = {} if features is None else features.rows
    found: dict[str, Features | str] = dict.fromkeys(levels, said)
    for pooling, matrix in rows.items():
        first = assays.store.offsets[:-1].astype(np.int64) if pooling == "residue" else None
        found["sequence" if first is None else "residue"] = Features(matrix, said, first)
    return found


def _write(
    root: Path,
    assays: Assays,
    folds: Sequence[FoldPredictions],
    joined: Sequence[MergedPredictions],
    clusters: NDArray[np.uint64],
) -> None:
    """predictions.csv and split.csv."""
    store, parts = assays.store, list[tuple[str, Sequence[Task], Sequence[MergedPredictions]]]()
    if len(folds) == 1 and folds[0].part == TEST:
        parts.append((NAMES[VALIDATION], folds[0].objectives, folds[0].validation))
    parts.append((NAMES[folds[0].part], folds[0].objectives, joined))
    predictions_file.write(root / predictions_file.FILE, parts, store.header)
    ids = [store.header(record) for record in range(store.num_records)]
    split_file.write(root / split_file.FILE, ids, assays.division.parts, clusters)
