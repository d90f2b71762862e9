"""From sources to a recipe: the store is built, the corpus looked at, steps are timed, and the recipe is written.

In: sources, settings that were given, a time. Out: a recipe and its text, which the run keeps as recipe.toml. Kept:
what a run keeps of a corpus (store, clusters, split); the loop writes recipe.toml with the first step.

A run directory that has a recipe.toml is continued with it, and nothing is proposed again.
"""

import os
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from data.recipe.origin import COMMAND_LINE, Origin
from data.recipe.settings import DataSettings
from data.recipe.toml_file import check, overridden
from pretrain.model.presets import EsmShape
from pretrain.proposal import rules
from pretrain.proposal.choice import Proposal, choose
from pretrain.proposal.corpus import CorpusFacts, SplitFacts, facts_of, split_of
from pretrain.proposal.machine import Machine, seen
from pretrain.proposal.reasons import duration
from pretrain.proposal.written import budget_of, promise, recipe_text, told
from pretrain.recipe import Recipe
from pretrain.run.directory import RECIPE, RunDirectory

if TYPE_CHECKING:
    from data.corpus.stores import Prepared
    from pretrain.engine.engine import Engine

_MOST_BINS = 1 << 30
"""Bins of a step before they are chosen: enough for any number of processes."""
_SUFFIXES = "fasta|fas|faa|fa|tsv|csv|json|jsonl|parquet|xml|dat|gbk?|sto|txt|gz|bgz|bgzf|zstd?"
"""Endings that are left out of a run's name."""
_ROUNDS = 3
"""Sizes that are timed at most."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was typed."""

    sources: tuple[str, ...]
    overrides: tuple[str, ...]
    budget_s: float | None
    """None for the default."""

    @property
    def given(self) -> dict[str, Any]:
        """Dotted name of each setting that was given -> its value; None for one that was taken out."""
        return {override.partition("=")[0]: _value(override) for override in self.overrides}

    @property
    def directory(self) -> str:
        """The run directory: as given, or named after the first source."""
        return str(self.given.get("run.directory") or f"runs/{_name(self.sources)}")

    @property
    def command(self) -> str:
        """What to type to have the same again, without a launcher."""
        time = [] if self.budget_s is None else ["--minutes", f"{self.budget_s / 60:g}"]
        return shlex.join(["python", "-m", "pretrain", *self.sources, *self.overrides, *time])


def _value(override: str) -> Any:
    content: Any = overridden({}, [override])
    for part in override.partition("=")[0].split("."):
        content = content.get(part) if isinstance(content, dict) else None
    return content


def _name(sources: Sequence[str]) -> str:
    """A name for the runs on these sources: the first file's, without folders and suffixes; a pattern's folder's."""
    path = PurePosixPath(re.sub(r"[?#].*$", "", sources[0]))
    stem = path.parent.name if re.search(r"[*\[]", path.name) and path.parent.name else path.name
    stem = re.sub(rf"(\.({_SUFFIXES}))+$", "", stem, flags=re.I)
    name = re.sub(r"[^\w.-]+", "-", stem).strip("-.") or "run"
    return f"{name}_and_{len(sources) - 1}_more" if len(sources) > 1 else name


def first_recipe(request: Request) -> Recipe:
    """What is known before anything is proposed, so that a mistake is named at once and the launch can begin.

    Raises:
        ValueError: a setting that was given is not allowed; the run directory holds something else.
    """
    run = RunDirectory(Path(request.directory))
    run.require_usable()
    if run.recipe.exists():
        return check(Recipe, overridden(_kept(request, run), request.overrides), str(run.recipe))
    if (run.root / "run.json").exists() and run.has_trained:
        raise ValueError(
            f"{run.root} is the directory of a run that was started with a recipe: continue it with that command, or "
            "choose another with run.directory=..."
        )
    for source in request.sources:
        if "\N{REPLACEMENT CHARACTER}" in os.fsencode(source).decode("utf-8", "replace"):
            raise ValueError(f"{COMMAND_LINE}: {source!a} is no UTF-8, as a recipe must be; rename the file")
    content: dict[str, Any] = {
        "run": {"directory": request.directory},
        "model": {} if request.given.get("model.init") else {"preset": rules.SMALLEST},
        "data": {"sources": list(request.sources), "bins_per_step": _MOST_BINS},
    }
    if "data.sources" in request.given or "data.mixture" in request.given:
        raise ValueError(
            f"{COMMAND_LINE}: data.sources is given beside {', '.join(request.sources)}; name all files one way"
        )
    return check(Recipe, overridden(content, request.overrides), Origin(COMMAND_LINE, request.overrides))


def _kept(request: Request, run: RunDirectory) -> dict[str, Any]:
    """The recipe that the run directory has.

    Raises:
        ValueError: it is of other sources, or no TOML.
    """
    try:
        content = tomllib.loads(run.recipe.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"recipe {run.recipe}: {error}") from None
    kept = content.get("data", {}).get("sources", [])
    if list(map(_place, kept)) != list(map(_place, request.sources)):
        raise ValueError(
            f"{run.root} is the directory of a run on {', '.join(map(str, kept))}: choose another for "
            f"{', '.join(request.sources)} with run.directory=..."
        )
    return content


def _place(source: str) -> str:
    return source if "://" in source or not os.path.exists(source) else os.path.realpath(source)


def agreed(request: Request, engine: "Engine") -> tuple[Recipe, str]:
    """The recipe, the same on every rank, and its text if it was chosen now, else nothing; collective.

    Raises:
        ValueError: the sources or the split are wrong.
    """
    run = RunDirectory(Path(request.directory))
    kept = engine.on_main(lambda: run.recipe.read_text() if run.recipe.exists() else None)
    if kept is not None:
        if engine.is_main:
            for line in _about_kept(request, run, kept):
                print(line, file=sys.stderr, flush=True)
        return check(Recipe, overridden(tomllib.loads(kept), request.overrides), str(run.recipe)), ""
    _, text = propose(request, engine)
    return check(Recipe, tomllib.loads(text), f"the proposal for {run.root}"), text


def _about_kept(request: Request, run: RunDirectory, kept: str) -> list[str]:
    """What to know about a run that has a recipe already."""
    lines = [f"continuing {run.root} by {run.recipe}, which was chosen when it began"]
    before = budget_of(kept)
    if request.budget_s is None or before is None or abs(request.budget_s - before) < 1:
        return lines
    total = round(tomllib.loads(kept)["schedule"]["total_tokens"] * request.budget_s / before)
    longer = replace(request, budget_s=None)
    command = f"{longer.command} schedule.total_tokens={total} --allow-schedule-change"
    wanted = duration(request.budget_s)
    return [*lines, f"its length stays that of {duration(before)}; to train about {wanted} in all: {command}"]


def propose(request: Request, engine: "Engine") -> tuple[Proposal, str]:
    """Look at the corpus and the machine, choose, time and choose again; rank 0 prints it. Collective.

    Returns:
        The proposal, and the text of its recipe.
    """
    from data.corpus.stores import stores
    from pretrain.timing import timed_tokens_per_s

    settings = replace(first_recipe(request).data, streaming=False)
    (found,) = engine.on_each_node(lambda: stores(settings))
    machine = seen(engine.world_size, engine.ranks_per_node, engine.precision, engine.name)
    looked = engine.on_main(lambda: _looked_at(found, settings, request, machine, cluster=True))
    speeds: dict[str, float] = {}
    proposal, text = _chosen(request, looked, speeds)
    for _ in range(_ROUNDS):
        if proposal.plan.size in speeds:
            break
        recipe = _in_short_steps(check(Recipe, tomllib.loads(text), "the proposal"), proposal, looked.machine)
        speeds[proposal.plan.size] = timed_tokens_per_s(recipe, engine, rules.TIMED_S)
        proposal, text = _chosen(request, looked, speeds)
    if engine.is_main:
        print("\n".join(_words(request, proposal, looked)), file=sys.stderr, flush=True)
    return proposal, text


def outlined(request: Request) -> list[str]:
    """The proposal for this machine, as lines, without timed steps, clustering or torch; the store is built."""
    from data.corpus.stores import stores

    settings = replace(first_recipe(request).data, streaming=False)
    (found,) = stores(settings)
    looked = _looked_at(found, settings, request, seen(1, 1, "no", "single"), cluster=False)
    proposal, _ = _chosen(request, looked, {})
    return _words(request, proposal, looked)


@dataclass(frozen=True, slots=True)
class _Looked:
    """What rank 0 found, for all."""

    corpus: CorpusFacts
    split: SplitFacts
    machine: Machine
    init: EsmShape | None


def _looked_at(
    found: "Prepared", settings: DataSettings, request: Request, machine: Machine, *, cluster: bool
) -> _Looked:
    from data.store.token_store import Store

    store = Store(found.folder, Path(settings.store_dir))
    facts = facts_of(store)
    budget_s = request.budget_s or rules.DEFAULT_BUDGET_S
    split = split_of(store, facts, found.clusters, budget_s, request.given, cluster=cluster)
    init = request.given.get("model.init")
    return _Looked(facts, split, machine, _shape_of(init) if init else None)


def _chosen(request: Request, looked: _Looked, speeds: Mapping[str, float]) -> tuple[Proposal, str]:
    """The same on every rank, because all that it depends on is."""
    given = {"run.directory": request.directory, "data.sources": list(request.sources), **request.given}
    budget_s = request.budget_s or rules.DEFAULT_BUDGET_S
    proposal = choose(looked.corpus, looked.split, looked.machine, budget_s, given, speeds, looked.init)
    return proposal, recipe_text(proposal, request.command, looked.corpus, looked.machine, request.directory)


def _in_short_steps(recipe: Recipe, proposal: Proposal, machine: Machine) -> Recipe:
    """The recipe with fewer bins a step, if a step is estimated to take too long to be timed."""
    step_s = proposal.plan.step_slots / proposal.plan.tokens_per_s
    if step_s <= rules.MOST_TIMED_STEP_S:
        return recipe
    each = max(1, int(recipe.data.bins_per_step * rules.MOST_TIMED_STEP_S / step_s) // machine.processes)
    return replace(recipe, data=replace(recipe.data, bins_per_step=each * machine.processes))


def _words(request: Request, proposal: Proposal, looked: _Looked) -> list[str]:
    rows = told(proposal, request.sources, looked.corpus, looked.machine)
    kept = f"  {'recipe':10}{Path(request.directory) / RECIPE}"
    return [f"proposed for {duration(proposal.plan.budget_s)}:", *rows, kept, promise(proposal.plan)]


def _shape_of(init: str) -> EsmShape:
    from pretrain.model.weights.source import config_of, shape_of

    return shape_of(config_of(init))
