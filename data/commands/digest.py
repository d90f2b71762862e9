"""Digests of steps: one hash of all that a step feeds to the model, the same for any number of ranks and workers.

    python -m data digest recipes/quickstart.toml --steps 500:520 --world 8 --workers 2

In: a recipe, a range of steps, a world to simulate. Out: one line a step. Kept: nothing.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from data.batches.loader import Loader
from data.corpus.corpora import Corpora
from data.order.plan import EMPTY_CHAIN, Cursor, Plan, extend_chain, next_cursor
from data.settings import DataSettings
from zymogen.console.progress import ProgressBar
from zymogen.settings.extension import external_names, is_external, search_in
from zymogen.settings.origin import SettingOrigin
from zymogen.settings.section import require, seed_setting
from zymogen.settings.toml_file import check, sections

_STRETCH = 256
"""How many steps one simulated rank takes before the next one takes them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedSettings:
    """The part of a recipe's [run] that `python -m data` needs."""

    seed: int = seed_setting()


@dataclass(frozen=True, kw_only=True, slots=True)
class DataRecipe:
    """The part of a recipe that `python -m data` needs."""

    data: DataSettings
    run: SeedSettings = field(default=SeedSettings())


def run(options: argparse.Namespace) -> int:
    """Print the digest of each step, and return the exit status."""
    match = re.fullmatch(r"(\d+):(\d+)", options.steps)
    if match is None or int(match[1]) >= int(match[2]):
        raise ValueError(
            f"--steps is {options.steps!r}; write A:B with whole numbers A < B, for example 500:520 for the twenty "
            "steps from 500 to 519"
        )
    require(options.world >= 1, "--world", options.world, "it must be at least 1")
    require(options.workers >= 0, "--workers", options.workers, "it must be at least 0")
    start, stop = int(match[1]), int(match[2])
    for line in digest_command(options.recipe, options.overrides, start, stop, options.world, options.workers):
        print(line, flush=True)
    return 0


def digest_command(
    recipe_path: Path, overrides: Sequence[str], start: int, stop: int, world_size: int, workers: int
) -> Iterator[str]:
    """Lines ``step, hash, tokens, slowest over mean rank cost`` of the steps [start, stop).

    Args:
        recipe_path: the recipe, of which [data] and the seed are used.
        overrides: settings that replace those of the recipe.
        start: the first step.
        stop: the step after the last one.
        world_size: number of ranks to simulate.
        workers: number of workers of each rank.

    Raises:
        ValueError: the recipe or the corpus is wrong, or there are more ranks than bins in a step.
    """
    from data.corpus.prepare import open_corpora, prepare_corpora

    content = sections(recipe_path, overrides)
    if is_external(objective := content.get("objective", {}).get("name")):
        raise ValueError(f"objective.name is {objective!r}, a class of your own, which fills bins as only a run knows")
    run = content.get("run", {})
    wanted = {"data": content.get("data", {}) | {"workers": workers}, "run": {k: run[k] for k in ("seed",) if k in run}}
    recipe = check(DataRecipe, wanted, SettingOrigin(str(recipe_path), overrides))
    if external_names(recipe.data):
        search_in(recipe_path.parent)
    data = replace(recipe.data, bins_per_forward=1)  # which is no part of a digest, and may be "auto"
    corpora = open_corpora(data, prepare_corpora(data))
    plan = corpora.plan(recipe.run.seed)
    with ProgressBar(f"planning the steps before {start:,}"):
        cursor = cursor_at(plan, start)
    for step, digests, num_tokens, imbalance in digests_of_steps(corpora, plan, cursor, start, stop, world_size):
        yield f"step {step}  {extend_chain(EMPTY_CHAIN, digests)}  {num_tokens} tokens  {imbalance:.4f} slowest/mean"


def digests_of_steps(
    corpora: Corpora, plan: Plan, cursor: Cursor, start: int, stop: int, world_size: int
) -> Iterator[tuple[int, list[int], int, float]]:
    """(step, digest of each bin in global order, real tokens, imbalance) of each step, gathered over simulated ranks.

    The ranks run one after the other over `_STRETCH` steps, each with a loader of its own.
    """
    contents = corpora.masked(plan.seed)
    while start < stop:
        numbers = range(start, min(start + _STRETCH, stop))
        digests: list[dict[int, int]] = [{} for _ in numbers]
        facts: list[tuple[int, float]] = []
        after = cursor
        for rank in range(world_size):
            with closing(Loader(contents, plan, cursor, start, rank, world_size)) as loader:
                for of_step in digests:
                    step = next(loader)
                    of_rank = [int(d) for batch in step.batches for d in batch.digests]
                    of_step.update(zip(step.bins, of_rank, strict=True))
                    if not rank:
                        facts.append((step.num_tokens, step.imbalance))
                        after = step.cursor
        for number, of_step, fact in zip(numbers, digests, facts, strict=True):
            yield number, [of_step[i] for i in range(len(of_step))], *fact
        start, cursor = numbers.stop, after


def cursor_at(plan: Plan, step: int) -> Cursor:
    """The cursor at which a step begins; all windows before it are planned."""
    cursor, left = Cursor(), step * plan.settings.bins_per_step
    while True:
        bins = plan.window(cursor.epoch, cursor.window, cursor.tokens_before_window)
        if bins is not None and left < len(bins):
            return replace(cursor, bin=left)
        if bins is None:
            cursor = Cursor(epoch=cursor.epoch + 1, tokens_before_window=cursor.tokens_before_window)
        else:
            cursor, left = next_cursor(cursor, bins), left - len(bins)
