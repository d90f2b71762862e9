"""The ensemble of a recipe: one run for each fold of the split and each seed.

In: a recipe with its length in tokens, or in passes, and the assays. Out: members, each with a recipe and assays of its
own. Kept: nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from data.order.plan_size import tokens_per_epoch
from finetune.assays import Assays
from finetune.recipe import Recipe


@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """One run."""

    name: str
    """Its folder in the run directory, such as "fold-0-seed-1"; empty where there is only one member."""
    recipe: Recipe
    """With its directory, its seed and its length in tokens."""
    assays: Assays
    """With the parts of its fold."""
    fold: int | None = None


def ensemble_members(recipe: Recipe, assays: Assays) -> Iterator[EnsembleMember]:
    """The members in the order in which they are trained: the seeds of the first fold, then those of the next one.

    Raises:
        ValueError: a task cannot be trained in one of the folds; before the first member is trained.
    """
    folds, seeds = assays.parts.num_folds, recipe.run.seeds
    of_folds = [assays.of_fold(fold) for fold in range(folds)] or [assays]
    for fold, of_fold in enumerate(of_folds):
        try:
            of_fold.objectives  # noqa: B018
        except ValueError as error:
            raise ValueError(f"fold {fold} of {folds}: {error}" if folds else str(error)) from error
    for fold, of_fold in enumerate(of_folds):
        length = tokens_per_epoch(of_fold.plan(recipe.run.seed)) if recipe.schedule.passes is not None else 0
        for number in range(seeds):
            seed = recipe.run.seed + number
            name = "-".join([f"fold-{fold}"] * bool(folds) + [f"seed-{seed}"] * (seeds > 1))
            directory = str(Path(recipe.run.directory) / name) if name else recipe.run.directory
            url = (
                f"{recipe.run.checkpoint_url}/{name}"
                if name and recipe.run.checkpoint_url
                else recipe.run.checkpoint_url
            )
            run = replace(recipe.run, directory=directory, checkpoint_url=url, seed=seed, seeds=1)
            schedule = recipe.schedule.in_tokens(length)
            yield EnsembleMember(name, replace(recipe, run=run, schedule=schedule), of_fold, fold if folds else None)
