"""The end of a fine-tuning run: what its models predict of the tested part, beside what is simple.

In: the members that were trained. Out: `Results`; scores.json, predictions.csv and split.csv in the run directory.
Kept: these files, and until they are complete what `finetune.results.kept` holds. Rank 0 does it alone.

scores.json is written last and names its inputs by a hash: where it is there and the hash is the same, a finished run
that is started again computes nothing again.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from data.alphabet import FASTA_LETTERS
from data.homology.relatives import Hits, hits, searched_by
from data.progress_line import WorkLine
from finetune.adaptation.features import Pooling, cached_features
from finetune.assays import Assays
from finetune.baselines.baseline import Baseline, Parts
from finetune.bundle.folder import with_evaluation
from finetune.held_out import Fold, Trained, by_fold, of_fold
from finetune.job import FineTuneJob
from finetune.labels.replicates import agreement
from finetune.metrics.predictions import Predictions
from finetune.metrics.scores import Scores
from finetune.metrics.scoring import score
from finetune.recipe import Recipe
from finetune.report import page
from finetune.results import predictions_file, words
from finetune.results.beside import Clock, Found, Vectors, beside
from finetune.results.calibrated import checked, fitted
from finetune.results.joined import Joined, joined_predictions, objective_of_folds, over_folds
from finetune.results.kept import Kept
from finetune.results.results import FILE, FORMAT, BaselineScores, CalibratedTask, Ceiling, Results, SeedScores
from finetune.splits import split_file
from finetune.splits.audit import Audit, audit
from finetune.splits.parts import NAMES, TEST, TRAIN, VALIDATION
from finetune.splits.words import in_words
from finetune.tasks.objective import Objective
from pretrain.checkpoint.best import best_valid
from pretrain.checkpoint.load import newest_valid, unread
from pretrain.run.directory import RunDirectory
from pretrain.run.versions import versions


def end(
    recipe: Recipe, assays: Assays, trained: Sequence[Trained], device: torch.device, *, again: bool = False
) -> Results:
    """Predict, score, compare, and write what was found; or read it, where that was done; called on rank 0 alone.

    Args:
        recipe: of the run.
        assays: with the parts of the whole split.
        trained: all members, in their order.
        device: where the models compute.
        again: whether everything is computed again, also where nothing that it depends on has changed.

    Raises:
        FloatingPointError: no validation of a member had a finite score.
        CheckpointError: a member's best checkpoint is not whole.
        ValueError: MMseqs2 failed; a file in the run directory cannot be written.
    """
    root, inputs = Path(recipe.run.directory), _inputs(recipe, assays, trained)
    before = None if again else _complete(root, inputs)
    if before is not None:
        _evaluated(trained, before)  # into bundles that the start of the run has written
        said = f"{root / FILE} holds the results of these models on these labels; --again computes them once more"
        print(said, flush=True)
        return before
    kept = Kept(root, inputs, again=again)
    with WorkLine("predicting what was held out", after_s=2.0):
        folds = [of_fold(members, device, kept) for members in by_fold(trained, recipe.run.seeds)]
        objectives = [objective_of_folds(of_folds) for of_folds in zip(*(f.objectives for f in folds), strict=True)]
        joined = [over_folds(of_folds) for of_folds in zip(*(fold.tested for fold in folds), strict=True)]
        scores = _scored(assays, objectives, [each.predictions for each in joined])
    tested, notes = NAMES[folds[0].part], list[str]()
    members = tuple(fact for fold in folds for fact in fold.members)
    if folds[0].part == VALIDATION and folds[0].assays.chosen_on == "training":
        notes.append("Nothing that is held out has a label: nothing is scored.")
    elif folds[0].part == VALIDATION:
        notes.append("No record is tested: these are scores of validation, which also chose the checkpoint.")
    notes += words.chosen_on_training(members)
    found = None if folds[0].part == VALIDATION else _audited(recipe, assays)
    of_validation = len(folds) == 1 and folds[0].part != VALIDATION
    results = Results(
        part="all folds" if assays.parts.num_folds else tested,
        scores=scores,
        validation=_validation(assays, folds[0]) if of_validation else None,
        baselines=_baselines(assays, trained[0].job, folds, objectives, device, kept),
        members=members,
        seeds=_of_seeds(assays, folds, objectives),
        ceilings=_ceilings(assays, objectives, joined),
        calibrations=_calibrations(folds, objectives, joined),
        split=in_words(recipe.split, assays.division, found),
        split_fingerprint=assays.division.parts.fingerprint,
        audit=found,
        notes=tuple(notes),
        inputs=inputs,
    )
    _write(root, assays, folds, joined)
    _evaluated(trained, results)
    with WorkLine("drawing the report", after_s=2.0):
        page.write(root, trained[0].run.root, results, objectives, joined)
    results.write(root / FILE)  # last: it is there only where everything else is
    kept.remove()
    return results


def _inputs(recipe: Recipe, assays: Assays, trained: Sequence[Trained]) -> str:
    """Hash of everything on which the results depend: models, labels, the split, settings, programs."""
    models = []
    for one in trained:
        best = best_valid(one.run.checkpoints, unread)
        newest = newest_valid(one.run.checkpoints, writer=False, check=unread)
        weights = sorted((file.path, file.sha256) for file in best.manifest.files)
        models.append([one.member.name, best.trainer.step, weights, newest.trainer.step if newest else 0])
    settings = [asdict(part) for part in (recipe.model, recipe.split, recipe.adaptation, recipe.losses, *recipe.tasks)]
    searches = searched_by() if assays.store.num_records else ""
    facts = [FORMAT, versions(), searches, assays.fingerprint, assays.division.parts.fingerprint, settings, models]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _complete(root: Path, inputs: str) -> Results | None:
    """The results of the same inputs, if all files are there."""
    files = (predictions_file.FILE, split_file.FILE, RunDirectory(root).report.name)
    if not all((root / name).is_file() for name in (FILE, *files)):
        return None
    try:
        results = Results.read(root / FILE)
    except ValueError:
        return None
    return results if results.inputs == inputs else None


def _evaluated(trained: Sequence[Trained], results: Results) -> None:
    """Write what was found into the bundle of each member."""
    evaluation = replace(results, inputs="")
    if results.part == "all folds":  # the model of each fold would need a calibration of its own
        evaluation = replace(evaluation, calibrations=())
    for one in trained:
        with_evaluation(one.run.root / "bundle", evaluation)


def _scored(assays: Assays, objectives: Sequence[Objective], predictions: Sequence[Predictions]) -> Scores:
    groups = assays.parts.group
    return Scores.joined(score(o, each, groups) for o, each in zip(objectives, predictions, strict=True))


def _validation(assays: Assays, fold: Fold) -> Scores | None:
    if not len(fold.assays.records(VALIDATION)):
        return None
    return _scored(assays, fold.objectives, [each.predictions for each in fold.validation])


def _of_seeds(assays: Assays, folds: Sequence[Fold], objectives: Sequence[Objective]) -> tuple[SeedScores, ...]:
    """The scores of each seed alone; none with one seed."""
    seeds = [member.seed for member in folds[0].members]
    groups, found = assays.parts.group, []
    for number, seed in enumerate(seeds if len(seeds) > 1 else []):
        of_folds = zip(*(fold.of_seeds[number] for fold in folds), strict=True)
        each = [
            score(objective, joined_predictions(parts), groups, resamples=0)
            for objective, parts in zip(objectives, of_folds, strict=True)
        ]
        found.append(SeedScores(seed, Scores.joined(each)))
    return tuple(found)


def _audited(recipe: Recipe, assays: Assays) -> Audit:
    init = recipe.model.init
    pretrained = Path(init) if init is not None and (Path(init) / "run.json").is_file() else None
    settings = recipe.split
    parts = assays.division.parts
    return audit(assays.store, parts, settings.audited_identities, pretrained, settings.search_pretraining)


def _ceilings(assays: Assays, objectives: Sequence[Objective], joined: Sequence[Joined]) -> tuple[Ceiling, ...]:
    """How well replicates agree among the tested records."""
    found = []
    for objective, task, of in zip(objectives, assays.tasks, joined, strict=True):
        if not objective.settings.is_number:
            continue
        tested = np.zeros(assays.store.num_records, np.bool_)
        tested[of.predictions.rows.records] = True
        for output, name in enumerate(objective.outputs):
            if agreed := agreement(task.labels, output, tested):
                ceiling = Ceiling(objective.settings.name, name, agreed.num_replicated, agreed.icc, agreed.ceiling)
                found.append(ceiling)
    return tuple(found)


def _calibrations(
    folds: Sequence[Fold], objectives: Sequence[Objective], joined: Sequence[Joined]
) -> tuple[CalibratedTask, ...]:
    """The calibration of every task, and what it is worth on the tested part.

    With folds it is fitted on the out-of-fold predictions of all of them, and judged by what the calibrations of single
    folds, which did not see the tested labels, are worth. Where nothing is tested, nothing is said of its worth.
    """
    found = []
    for number, (objective, of) in enumerate(zip(objectives, joined, strict=True)):
        # On the labels that it was fitted on it would always be kept.
        on_part = [dict[str, float]() for _ in objective.outputs]
        if folds[0].part != VALIDATION:
            on_part = checked(objective, of.predictions, of.calibrated, of.low, of.high)
        maps = folds[0].maps[number] if len(folds) == 1 else fitted(objective, of.predictions)
        for name, calibration, numbers in zip(objective.outputs, maps, on_part, strict=True):
            found.append(CalibratedTask(objective.settings.name, name, calibration, numbers))
    return tuple(found)


def _baselines(
    assays: Assays,
    job: FineTuneJob,
    folds: Sequence[Fold],
    objectives: Sequence[Objective],
    device: torch.device,
    kept: Kept,
) -> tuple[BaselineScores, ...]:
    """All baselines on the labels that the models are scored on, of several folds each fitted on the fold's own."""
    store, groups, clock = assays.store, assays.parts.group, Clock()
    folds = [fold for fold in folds if len(fold.assays.records(fold.part))]

    def search(asked: NDArray[np.int64], train: NDArray[np.int64]) -> Hits:
        return hits(store, asked, store, train)  # the audit's, and kept: one alignment serves all tasks

    with WorkLine("baselines", after_s=2.0):
        vectors = _vectors(assays, job, device)
        sequences = [FASTA_LETTERS[store.residues(n)].tobytes().decode("ascii") for n in range(store.num_records)]
        found: dict[str, list[tuple[Objective, list[Found]]]] = {}
        for number, objective in enumerate(objectives):
            labels, of_names = assays.tasks[number].labels, dict[str, list[Found]]()
            for at, fold in enumerate(folds):
                step = partial(_step, kept, number, at)
                parts = Parts(*(fold.assays.records(part) for part in (TRAIN, VALIDATION, fold.part)))
                for each in beside(fold.objectives[number], labels, parts, sequences, vectors, clock, search, step):
                    of_names.setdefault(each.name, []).append(each)
            for name, of_folds in of_names.items():
                found.setdefault(name, []).append((objective, of_folds))
        return tuple(_of_baseline(name, of_objectives, groups) for name, of_objectives in found.items())


def _step(kept: Kept, objective: int, fold: int, name: str, fit: Callable[[], Baseline]) -> Baseline:
    return kept.baseline(f"{name}-{objective}-{fold}", fit)


def _of_baseline(
    name: str, of_objectives: Sequence[tuple[Objective, Sequence[Found]]], groups: NDArray[np.int64]
) -> BaselineScores:
    """One baseline of all objectives that it could be fitted to in every fold."""
    scores, descriptions, why_not, seconds = [], {}, {}, 0.0
    for objective, of_folds in of_objectives:
        task = objective.settings.name
        fitted = [each.baseline for each in of_folds if each.baseline is not None]
        seconds += sum(each.seconds for each in fitted)
        if len(fitted) < len(of_folds):
            why_not[task] = next(each.why_not for each in of_folds if each.baseline is None)
            continue
        descriptions[task] = fitted[0].description
        scores.append(score(objective, joined_predictions([each.predictions for each in fitted]), groups))
    return BaselineScores(name, Scores.joined(scores), descriptions, why_not, round(seconds, 3))


def _vectors(assays: Assays, job: FineTuneJob, device: torch.device) -> Vectors:
    """Vectors of the encoder before fine-tuning, where they fit into the cache of the run."""
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
            assays.shelves,
            recipe.data,
            poolings,
            Path(recipe.data.store_dir),
            recipe.adaptation.cache_gb,
            device=device,
        )
        said = said if features is not None else lines[0]
    rows = {} if features is None else features.rows
    of_sequences = next((rows[pooling] for pooling in ("mean", "begin") if pooling in rows), None)
    return Vectors(of_sequences, rows.get("residue"), assays.store.offsets[:-1].astype(np.int64), said)


def _write(root: Path, assays: Assays, folds: Sequence[Fold], joined: Sequence[Joined]) -> None:
    """predictions.csv and split.csv."""
    store, parts = assays.store, list[tuple[str, Sequence[Objective], Sequence[Joined]]]()
    if len(folds) == 1 and folds[0].part == TEST:
        parts.append((NAMES[VALIDATION], folds[0].objectives, folds[0].validation))
    parts.append((NAMES[folds[0].part], folds[0].objectives, joined))
    predictions_file.write(root / predictions_file.FILE, parts, store.header)
    ids = [store.header(record) for record in range(store.num_records)]
    split_file.write(root / split_file.FILE, ids, assays.division.parts)
