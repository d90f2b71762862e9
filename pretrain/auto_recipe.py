"""From sources to a recipe: the store is built, the corpus looked at, steps are timed, and the recipe is written.

In: sources, settings that were given, a time. Out: a recipe and its text, which the run keeps as recipe.toml. Kept:
what a run keeps of a corpus (store, clusters, split); the loop writes recipe.toml with the first step.

A run directory that has a recipe.toml is continued with it, and nothing is proposed again.
"""

import os
import shlex
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.settings import DataSettings
from data.sources.resolve import require_files
from pretrain.machine import Machine, describe_machine
from pretrain.model.memory import require_memory
from pretrain.model.presets import EsmShape
from pretrain.proposal import rules
from pretrain.proposal.choose import ProposedRecipe, propose_settings
from pretrain.proposal.corpus import CorpusFacts, SplitFacts, facts_of, split_of
from pretrain.proposal.options import ProposalOptions
from pretrain.proposal.recipe_text import format_estimate, format_proposal, recipe_text, toml_value
from pretrain.recipe import Recipe
from zymogen.console.format import duration
from zymogen.console.progress import ProgressBar
from zymogen.console.safe_text import log
from zymogen.files.suggestions import format_list
from zymogen.settings.origin import COMMAND_LINE, SettingOrigin
from zymogen.settings.toml_file import check, overridden, sections
from zymogen.trainer.engine.settings import PRECISION
from zymogen.trainer.run.directory import RECIPE, RunDirectory

if TYPE_CHECKING:
    from data.corpus.stores import PreparedCorpus
    from zymogen.trainer.engine.engine import Engine

_MOST_BINS = 1 << 30
"""Bins of a step before they are chosen: enough for any number of processes."""
_ROUNDS = 3
"""Sizes that are timed at most."""


def provisional_recipe(request: ProposalOptions) -> Recipe:
    """What is known before anything is proposed, so that a mistake is named at once and the launch can begin.

    Raises:
        ValueError: a setting that was given is not allowed; the run directory holds something else.
    """
    for source in request.sources:
        if (Path(source) / "run.json").is_file():
            raise ValueError(
                f"{COMMAND_LINE}: {source} is the directory of a run, not of sequences: it is continued by the command "
                "that began it or by its recipe, and its model is in export/"
            )
    run = RunDirectory(Path(request.directory))
    run.require_usable()
    if run.recipe.exists():
        kept = overridden(_kept(request, run), request.settings)
        return check(Recipe, kept, SettingOrigin(str(run.recipe), request.settings))
    if (run.root / "run.json").exists() and run.has_trained:
        raise ValueError(
            f"{run.root} is the directory of a run that was started with a recipe: continue it with that command, or "
            "choose another with run.directory=..."
        )
    for source in request.sources:
        if "\N{REPLACEMENT CHARACTER}" in os.fsencode(source).decode("utf-8", "replace"):
            raise ValueError(f"{COMMAND_LINE}: {source!a} is no UTF-8, as a recipe must be; rename the file")
    given = request.given
    if "data.sources" in given or "data.mixture" in given:
        raise ValueError(
            f"{COMMAND_LINE}: data.sources is given beside {', '.join(request.sources)}; name all files one way"
        )
    if given.get("data.streaming"):
        raise ValueError(
            f"{COMMAND_LINE}: data.streaming is true, and a recipe is chosen for sequences that have all been read: "
            "leave it out, or write a recipe (docs/recipes.md)"
        )
    typed = SettingOrigin(COMMAND_LINE, request.overrides)
    # A name below one of a setting is left to `check`, which knows the nearest one.
    beside = {
        name: value
        for name, value in _beside(request).items()
        if not any(each.startswith(f"{name}.") for each in given)
    }
    named = {name: value for name, value in {**beside, **given}.items() if value is not None}
    recipe = check(Recipe, overridden({}, [f"{name}={toml_value(value)}" for name, value in named.items()]), typed)
    if os.path.realpath(recipe.run.directory) == os.path.realpath(recipe.data.store_dir):
        text = f"run.directory is {recipe.run.directory}, where token stores are kept (data.store_dir); choose another"
        raise ValueError(typed.error(text, "run.directory", "data.store_dir"))
    return recipe


def _beside(request: ProposalOptions) -> dict[str, Any]:
    """Settings beside those that were given, with which these are refused only where no choice would fit them."""
    given = request.given
    crop, bin_tokens, context = map(given.get, ("data.crop_tokens", "data.bin_tokens", "parallel.context"))
    default: dict[str, Any] = {f.name: f.default for f in fields(DataSettings)}
    slots = max(default["bin_tokens"], crop) if isinstance(crop, int) else default["bin_tokens"]
    if isinstance(context, int) and context > 0:
        slots = -(-slots // context) * context
    muon = {"optimizer.momentum", "optimizer.newton_schulz"} & set(given)
    return {
        "run.directory": request.directory,
        "data.sources": list(request.sources),
        "data.crop_tokens": min(default["crop_tokens"], bin_tokens if isinstance(bin_tokens, int) else slots),
        "data.bin_tokens": slots,
        "data.bins_per_step": _MOST_BINS,
        "data.mask.mask_prob": 0.0,
        "data.mask.random_prob": 0.0,
        "schedule.decay_end": 1.0,
        **({} if given.get("model.init") else {"model.preset": rules.SMALLEST}),
        **({"optimizer.name": "muon"} if muon else {}),
    }


def _kept(request: ProposalOptions, run: RunDirectory) -> dict[str, Any]:
    """The recipe that the run directory has.

    Raises:
        ValueError: it is of other sources, or no TOML; a source that was typed does not exist.
    """
    content = sections(run.recipe)
    kept = content.get("data", {}).get("sources", [])
    if list(map(_place, kept)) != list(map(_place, request.sources)):
        try:
            require_files(DataSettings(sources=request.sources))
        except ValueError as error:
            raise ValueError(SettingOrigin(COMMAND_LINE).error(str(error))) from None
        moved = ""
        if not all("://" in each or glob(each) for each in map(str, kept)):
            setting = shlex.quote(f"data.sources={toml_value(request.sources)}")
            moved = f"; or, if its files were moved, continue it: {_program()} {run.recipe} {setting}"
        raise ValueError(
            f"{run.root} is the directory of a run on {format_list(kept)}: "
            f"choose another for {format_list(request.sources)} with run.directory=...{moved}"
        )
    return content


def _place(source: str) -> str:
    return source if "://" in source or not os.path.exists(source) else os.path.realpath(source)


def agree_on_recipe(request: ProposalOptions, engine: "Engine") -> tuple[Recipe, str, list[str]]:
    """The recipe, the same on every rank; collective.

    Returns:
        The recipe; its text if it was chosen now, else nothing; and the settings on top of the text that is kept.

    Raises:
        ValueError: the sources or the split are wrong.
    """
    run = RunDirectory(Path(request.directory))

    def found() -> tuple[str, list[str]] | None:
        if not run.recipe.exists():
            return None
        kept, later = run.recipe.read_text("utf-8-sig"), _later_length(run)
        by = f"continuing {run.root} by {run.recipe}, which was chosen when it began"
        to = f", to the {later:,} tokens that were asked for last" if later else ""
        log("\n".join((by + to, *_about_time(request, run, kept, later))))
        return kept, [f"schedule.total_tokens={later}"] if later else []

    if kept := engine.on_main(found):
        text, later = kept
        settings = request.settings if "schedule.total_tokens" in request.given else [*later, *request.settings]
        whole = overridden(tomllib.loads(text), settings)
        return check(Recipe, whole, SettingOrigin(str(run.recipe), settings)), "", settings
    text = propose(request, engine)
    return check(Recipe, tomllib.loads(text), f"the proposal for {run.root}"), text, []


def _later_length(run: RunDirectory) -> int | None:
    """The tokens that were asked for last, to which the same command continues; None where its recipe says them."""
    if not run.has_trained:
        return None
    last = int(run.read().recipe["schedule"]["total_tokens"])
    return last if last != _tokens(run.recipe.read_text("utf-8-sig")) else None


def _tokens(recipe: str) -> Any:
    return tomllib.loads(recipe).get("schedule", {}).get("total_tokens")


def describe_existing_run(request: ProposalOptions) -> list[str]:
    """What to know where a run that exists would be continued and nothing proposed; nothing for a new one."""
    run = RunDirectory(Path(request.directory))
    if not run.recipe.exists():
        return []
    line = f"nothing is proposed: without --plan, {run.root} is continued by {run.recipe}, chosen when it began"
    return [line, *_about_time(request, run, run.recipe.read_text("utf-8-sig"), _later_length(run))]


def _about_time(request: ProposalOptions, run: RunDirectory, kept: str, later: int | None) -> list[str]:
    """What to type if another time is asked for than the one for which a run's recipe was chosen."""
    from zymogen.processes.launcher import LaunchCommand

    tokens = later or _tokens(kept)
    if request.budget_s is None or tokens is None:
        return []
    longer = LaunchCommand(run.recipe, request.overrides, _program())
    command = longer.command({"schedule.total_tokens": 2 * tokens}, "--allow-schedule-change")
    return [f"its length stays {tokens:,} tokens, whatever time is given; for twice as long: {command}"]


def _program() -> str:
    """The words of the command that started this, up to its sources."""
    from zymogen.processes.launcher import command_line, launch_command

    return launch_command(command_line())


def propose(request: ProposalOptions, engine: "Engine", *, planned: bool = False) -> str:
    """Look at the corpus and the machine, choose, time and choose again; rank 0 prints it. Collective.

    Args:
        request: what was typed.
        engine: how it is spread.
        planned: whether the proposal is all that is asked for: it goes to standard output then.

    Returns:
        The text of the recipe that is proposed.
    """
    from data.corpus.stores import prepare_stores
    from pretrain.machine import machine_of
    from pretrain.timing import timed_tokens_per_s

    settings = provisional_recipe(request).data
    (found,) = engine.on_each_node(lambda: prepare_stores(settings))
    machine = engine.on_main(lambda: machine_of(engine))  # of rank 0: what other ranks see may differ
    corpus, shape = engine.on_main(lambda: _looked_at(found, settings, request))
    chosen = partial(_chosen, request, corpus, machine, shape)
    first = engine.on_main(lambda: _split(found, settings, request, corpus, cluster=False))
    require_memory(chosen(first, {}).plan.memory_bytes, machine)  # before the time that clustering takes
    split = engine.on_main(lambda: _split(found, settings, request, corpus, cluster=True))
    program = _program()
    speeds: dict[str, float] = {}
    while True:
        proposal = chosen(split, speeds)
        text = recipe_text(proposal, program, request.words(), corpus, machine, request.directory)
        size = proposal.plan.size
        if size in speeds or len(speeds) == _ROUNDS:
            break
        require_memory(proposal.plan.memory_bytes, machine)
        recipe = _in_short_steps(check(Recipe, tomllib.loads(text), "the proposal"), proposal, machine)
        with ProgressBar(f"timing steps of {size}", speaks=engine.is_main):
            speeds[size] = timed_tokens_per_s(recipe, engine, rules.TIMED_S)
    if engine.is_main:
        kept = Path(request.directory) / RECIPE
        place = f"would be written to {kept}" if planned else str(kept)
        lines = _words(request, proposal, corpus, machine, place, timed=bool(speeds))
        print(*lines, sep="\n", file=sys.stdout if planned else sys.stderr, flush=True)
    return text


def outline(request: ProposalOptions) -> list[str]:
    """The proposal for one process, as lines, without timed steps, clustering or torch; the store is built."""
    from data.corpus.stores import prepare_stores

    settings = provisional_recipe(request).data
    (found,) = prepare_stores(settings)
    gpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() not in ("1", "true", "yes", "on", "y", "t")
    machine = describe_machine(1, 1, os.environ.get("ACCELERATE_MIXED_PRECISION", PRECISION), "single", gpu=gpu)
    corpus, shape = _looked_at(found, settings, request)
    split = _split(found, settings, request, corpus, cluster=False)
    proposal = _chosen(request, corpus, machine, shape, split, {})
    return _words(request, proposal, corpus, machine, None, timed=False)


def _looked_at(
    found: "PreparedCorpus", settings: DataSettings, request: ProposalOptions
) -> tuple[CorpusFacts, EsmShape | None]:
    """The facts of the corpus, and the shape of the weights that `model.init` names, if it is given."""
    from data.store.token_store import TokenStore

    with ProgressBar("looking at the proteins"):
        facts = facts_of(TokenStore(found.folder, Path(settings.store_dir)))
    if not (init := request.given.get("model.init")):
        return facts, None
    from pretrain.model.weights.source import config_of, shape_of  # with torch

    return facts, shape_of(config_of(init))


def _split(
    found: "PreparedCorpus", settings: DataSettings, request: ProposalOptions, facts: CorpusFacts, *, cluster: bool
) -> SplitFacts:
    from data.store.token_store import TokenStore

    store, budget_s = TokenStore(found.folder, Path(settings.store_dir)), request.budget_s or rules.DEFAULT_BUDGET_S
    return split_of(store, facts, found.clusters, budget_s, request.given, cluster=cluster)


def _chosen(
    request: ProposalOptions,
    corpus: CorpusFacts,
    machine: Machine,
    shape: EsmShape | None,
    split: SplitFacts,
    speeds: Mapping[str, float],
) -> ProposedRecipe:
    """The same on every rank, because all that it depends on is."""
    given = {"run.directory": request.directory, "data.sources": list(request.sources), **request.given}
    return propose_settings(corpus, split, machine, request.budget_s or rules.DEFAULT_BUDGET_S, given, speeds, shape)


def _in_short_steps(recipe: Recipe, proposal: ProposedRecipe, machine: Machine) -> Recipe:
    """The recipe with fewer bins a step, if a step is estimated to take too long to be timed."""
    step_s = proposal.plan.step_slots / proposal.plan.tokens_per_s
    if step_s <= rules.MOST_TIMED_STEP_S:
        return recipe
    groups = max(1, machine.processes // recipe.parallel.context)
    each = max(1, int(recipe.data.bins_per_step * rules.MOST_TIMED_STEP_S / step_s) // groups)
    return replace(recipe, data=replace(recipe.data, bins_per_step=each * groups))


def _words(
    request: ProposalOptions,
    proposal: ProposedRecipe,
    corpus: CorpusFacts,
    machine: Machine,
    kept: str | None,
    timed: bool,
) -> list[str]:
    """The proposal for its reader; `kept` says where its recipe is, if it is kept; `timed` whether any size was."""
    rows = format_proposal(proposal, request.sources, corpus, machine)
    rows += [f"  {'recipe':10}{kept}"] if kept else []
    return [
        f"proposed for {duration(proposal.plan.budget_s)}:",
        *rows,
        format_estimate(proposal.plan, others_timed=timed),
    ]
