"""Digests of steps: one hash of all that a step feeds to the model, the same for any number of ranks and workers.

    python -m data digest recipes/quickstart.toml --steps 500:520 --world 8 --workers 2

In: a recipe, a range of steps, a world to simulate. Out: one line a step. Kept: under `data.store_dir`, for each plan,
where its windows begin, so that a step far into a run is found without planning all steps before it again.
"""

import argparse
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from data.batches.loader import Loader
from data.corpus.corpora import Corpora
from data.order.plan import EMPTY_CHAIN, Cursor, Plan, extend_chain, next_cursor
from data.settings import DataSettings
from data.store import derived
from zymogen.console.progress import ProgressBar
from zymogen.settings.extension import is_external
from zymogen.settings.origin import SettingOrigin
from zymogen.settings.section import SettingClass, require, seed_setting
from zymogen.settings.toml_file import check, sections

_ORDER = 2
"""Number of the rules that decide where windows begin: an index that was written under other rules is not read."""
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
    data = replace(recipe.data, bins_per_forward=1)  # which is no part of a digest, and may be "auto"
    corpora = open_corpora(data, prepare_corpora(data))
    plan = corpora.plan(recipe.run.seed)
    with ProgressBar(f"planning the steps before {start:,}"):
        cursor = cursor_at(corpora, plan, start)
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


def cursor_at(corpora: Corpora, plan: Plan, step: int) -> Cursor:
    """The cursor at which a step begins, from the index of windows; missing windows are planned and added to it."""
    settings = corpora.settings
    identity = _identity(corpora, plan.seed)
    key = hashlib.blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=10).hexdigest()
    path = Path(settings.store_dir) / "plans" / f"{key}.json"
    index: dict[str, Any] = {"of": identity, "windows": [[0, 0, 0, 0]]}
    if path.exists():
        index = derived.read_json(path, index, path)
        if index["of"] != identity:
            raise ValueError(f"{path} is not of this plan; delete it, it is written again")
    windows: list[list[int]] = index["windows"]  # pass, window, tokens before, bins before
    known, wanted = len(windows), step * settings.bins_per_step
    while windows[-1][3] <= wanted:
        pass_index, window, tokens, bins_before = windows[-1]
        cursor = Cursor(pass_index=pass_index, window=window, tokens_before_window=tokens)
        bins = plan.window(pass_index, window, tokens)
        after = (
            Cursor(pass_index=pass_index + 1, tokens_before_window=tokens)
            if bins is None
            else next_cursor(cursor, bins)
        )
        windows.append([after.pass_index, after.window, after.tokens_before_window, bins_before + len(bins or ())])
    if len(windows) > known:
        derived.write_json(path, json.dumps(index))
    pass_index, window, tokens, bins_before = next(w for w in reversed(windows) if w[3] <= wanted)
    return Cursor(pass_index=pass_index, window=window, bin=wanted - bins_before, tokens_before_window=tokens)


def _identity(corpora: Corpora, seed: int) -> dict[str, Any]:
    """Everything that decides where windows begin."""
    settings = corpora.settings
    named = {
        f.name: getattr(settings, f.name)
        for f in fields(settings)
        if f.metadata.get("class") is SettingClass.IDENTITY and f.name != "mixture"
    }
    mixture = [asdict(corpus) for corpus in settings.mixture]
    fingerprints = corpora.fingerprint, corpora.split_fingerprint
    identity: dict[str, Any] = json.loads(
        json.dumps({"order": _ORDER, "seed": seed, "corpus": fingerprints, "settings": named, "mixture": mixture})
    )
    return identity
