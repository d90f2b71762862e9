"""Pretrain a protein language model.

    python -m pretrain your.fasta.gz --minutes 10
    accelerate launch --config_file accelerate_configs/ddp.yaml -m pretrain recipes/quickstart.toml run.seed=1

In: sources, for which a recipe is chosen, or a recipe; overrides. Out: a run directory; exit status 0, or that of the
class of what ended it (`zymogen.processes.exit_classes`).
"""

import argparse
import math
import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.model.memory import preset_table
from pretrain.recipe import Recipe
from zymogen.command_line.command import add_override_options, importing_torch, run_and_report
from zymogen.command_line.parser import CommandParser
from zymogen.processes.fresh_process import run_command
from zymogen.processes.launcher import launched_world
from zymogen.processes.signals import blame_signal, defer, handle_signals
from zymogen.settings.origin import COMMAND_LINE, SettingOrigin
from zymogen.settings.toml_file import read, settings_help
from zymogen.trainer.run.directory import RECIPE

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from zymogen.trainer.engine.engine import Engine

_OVERRIDE = re.compile(r"[a-z_]+(\.[a-z_0-9]+)+=")
"""The beginning of a setting; other words are sources."""


@handle_signals()
def main(arguments: list[str] | None = None) -> int:
    """Run one attempt of a training run; the exit status."""

    def attempt() -> None:
        options = _parser().parse_intermixed_args(arguments)
        _sort(options)
        with blame_signal():
            if options.sources:
                _train_on_sources(options)
            else:
                _train(read(Recipe, options.recipe, options.overrides), options)

    return run_and_report(attempt)


def _sort(options: argparse.Namespace) -> None:
    """Give `options` the words of the command line by their meaning: `recipe` or `sources`, and `overrides`.

    Raises:
        ValueError: there is neither; or options for sources stand beside a recipe.
    """
    first, *others = options.words
    options.recipe, options.sources, options.overrides = None, (), others
    if _OVERRIDE.match(first):
        raise ValueError(
            f"{COMMAND_LINE}: it begins with {first!r}: write a recipe, or files of sequences, before settings"
        )
    if not first.endswith(".toml"):
        options.overrides = [word for word in others if _OVERRIDE.match(word)]
        options.sources = (first, *(word for word in others if not _OVERRIDE.match(word)))
        bare = [word for word in others if re.match(r"[a-z_]+=[^*?\[]*$", word) and not os.path.exists(word)]
        if bare:
            raise ValueError(
                f"{COMMAND_LINE}: {bare[0]!r} is no file, and a setting is written with its section, such as "
                "schedule.peak_lr=1e-3 (--help-settings lists them)"
            )
    for name in ("minutes", "hours"):
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{COMMAND_LINE}: --{name} is {value}; it must be above 0")
    given = [name for name in ("minutes", "hours", "plan") if getattr(options, name)]
    if not options.sources:
        options.recipe = Path(first)
        if given:
            raise ValueError(
                f"{COMMAND_LINE}: --{given[0]} is for sequences, for which a recipe is chosen; {first} is a recipe, "
                "which says itself how long it is: set schedule.total_tokens"
            )
    if options.sources and any(re.match(r"schedule\.passes=(?!none$)", word) for word in options.overrides):
        raise ValueError(
            f"{COMMAND_LINE}: schedule.passes is for a recipe; where one is chosen for sequences, --minutes or --hours "
            "says how long it trains, or schedule.total_tokens"
        )
    if options.untimed and not options.plan:
        raise ValueError(f"{COMMAND_LINE}: --untimed is for --plan; without it, steps are timed before training")
    if options.untimed and (processes := launched_world().world_size) > 1:
        raise ValueError(
            f"{COMMAND_LINE}: --untimed estimates what one process does, and {processes} were launched: leave it out, "
            "so that steps are timed on all of them, or start one process without a launcher"
        )


def _train_on_sources(options: argparse.Namespace) -> None:
    from pretrain.auto_recipe import agree_on_recipe, describe_existing_run, outline, propose, provisional_recipe
    from pretrain.proposal.options import ProposalOptions

    budget_s = options.minutes * 60 if options.minutes else options.hours * 3600 if options.hours else None
    request = ProposalOptions(options.sources, tuple(options.overrides), budget_s)
    recipe = provisional_recipe(request)
    typed = SettingOrigin(COMMAND_LINE, options.overrides)
    _require_files(recipe, typed)
    rank, world_size, *_ = launched_world()
    is_alone = world_size == 1  # else rank 0 says for all whether the run exists
    lines = describe_existing_run(request) if options.plan and is_alone else []
    if options.untimed:
        lines = lines or outline(request)
    if lines:
        if rank == 0:
            print("\n".join(lines), flush=True)
        return
    with _launched(recipe) as engine:
        if options.plan:
            lines = engine.on_main(lambda: describe_existing_run(request))
            if not lines:
                propose(request, engine, planned=True)
            elif engine.is_main:
                print("\n".join(lines), flush=True)
            return
        recipe, written, options.overrides = agree_on_recipe(request, engine)
        options.recipe = Path(recipe.run.directory) / RECIPE
        _train_with(engine, recipe, options, written)


def _train(recipe: Recipe, options: argparse.Namespace) -> None:
    _require_files(recipe, SettingOrigin(str(options.recipe), options.overrides))
    with _launched(recipe) as engine:
        _train_with(engine, recipe, options)


def _train_with(engine: "Engine", recipe: Recipe, options: argparse.Namespace, written: str = "") -> None:
    from pretrain.corpora import resolve_epochs
    from pretrain.job import open_job
    from pretrain.proposal.recipe_text import toml_value
    from pretrain.summary import format_summary, schedule_differs
    from zymogen.processes.launcher import LaunchCommand, command_line, launch_command
    from zymogen.trainer.attempt import train
    from zymogen.trainer.run.directory import ScheduleDiffersError

    is_in_passes = recipe.schedule.passes is not None
    start = LaunchCommand(options.recipe, options.overrides, launch_command(command_line()), is_in_passes)
    recipe = resolve_epochs(recipe, engine)
    try:
        summary = train(
            recipe,
            open_job,
            engine,
            allow_schedule_change=options.allow_schedule_change,
            allow_code_change=options.allow_code_change,
            despite_failures=options.despite_failures,
            written=written,
        )
    except ScheduleDiffersError as error:
        before = {name: "none" if value is None else toml_value(value) for name, value in error.before.items()}
        words = schedule_differs(str(error), before, recipe.schedule.total_tokens, Path(recipe.run.directory), start)
        raise ValueError(words) from None
    defer()
    if engine.is_main:
        # Imported here: every rank of a restart would spend a tenth of its time on it, and one needs it, at the end.
        from pretrain.report.page import write_last_report

        write_last_report(summary.run.root)
        print(format_summary(summary, start), flush=True)


def _launched(recipe: Recipe) -> "AbstractContextManager[Engine]":
    # Imported here, so that --help and a mistake in the recipe or in a file's name are answered at once.
    with importing_torch():
        import pretrain.job
        import pretrain.summary  # noqa: F401
        from zymogen.trainer.engine.launch import launch
    return launch(recipe)


def _require_files(recipe: Recipe, origin: SettingOrigin) -> None:
    """Refuse names of files that do not exist, before torch is imported and the run directory is made."""
    from data.sources.resolve import require_files

    try:
        require_files(recipe.data)
    except ValueError as error:
        named = [name for name in ("data.clusters", "data.exclude") if name in str(error)]
        sources = "data.mixture" if recipe.data.mixture else "data.sources"
        raise ValueError(origin.error(str(error), *(named or [sources]))) from None


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="python -m pretrain",
        description="Pretrain a protein language model: on files of sequences, or by a recipe.",
        epilog="presets, for model.preset:\n" + "\n".join(f"  {line}" for line in preset_table()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs="+",
        metavar="RECIPE_OR_SOURCE",
        help="A recipe (TOML), or files of sequences, for which a recipe is generated, printed with its reasons and "
        "saved in the run directory. Then settings: section.field=value. 'none' removes one from a recipe.",
    )
    time = parser.add_mutually_exclusive_group()
    time.add_argument("--minutes", type=float, metavar="M", help="Generate a recipe for M minutes. Default: an hour.")
    time.add_argument("--hours", type=float, metavar="H", help="Generate a recipe for H hours.")
    parser.add_argument("--plan", action="store_true", help="Print the recipe's choices and the time, and exit.")
    parser.add_argument(
        "--untimed", action="store_true", help="With --plan: estimate the speed of one process without timing steps."
    )
    add_override_options(parser, partial(settings_help, Recipe))
    return parser


if __name__ == "__main__":
    run_command(main)
