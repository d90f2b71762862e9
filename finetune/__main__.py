"""Fine-tune a protein language model on a table of assays.

    python -m finetune recipes/mine.toml
    accelerate launch --config_file accelerate_configs/ddp.yaml -m finetune recipes/mine.toml run.seed=1

In: a recipe, which `python -m finetune.look` writes; overrides. Out: a run directory; exit status 0, or that of the
class of what ended it (`zymogen.processes.exit_classes`).
"""

import argparse
import shlex
from functools import partial
from pathlib import Path
from typing import cast

from finetune.bundle.locate import bundles_in
from finetune.recipe import Recipe
from zymogen.command_line.command import add_override_options, importing_torch, run_and_report
from zymogen.command_line.parser import CommandParser
from zymogen.processes.fresh_process import run_command
from zymogen.processes.signals import blame_signal, handle_signals
from zymogen.settings.toml_file import read, settings_help


@handle_signals()
def main(arguments: list[str] | None = None) -> int:
    """Train what a recipe describes; the exit status."""

    def attempt() -> None:
        options = _parser().parse_intermixed_args(arguments)
        with blame_signal():
            _train(read(Recipe, options.recipe, options.overrides), options)

    return run_and_report(attempt)


def _train(recipe: Recipe, options: argparse.Namespace) -> None:
    # Imported here, so that --help and a mistake in the recipe are answered at once.
    with importing_torch():
        from finetune.assays import open_on_every_rank
        from finetune.ensemble import ensemble_members
        from finetune.finalize import finalize
        from finetune.fold_predictions import TrainedMember
        from finetune.job import FineTuneJob
        from finetune.results.text import format_summary
        from finetune.splits.text import format_split
        from zymogen.trainer.attempt import train
        from zymogen.trainer.engine.launch import launch
    recipe.check_classes()  # before data is read
    with launch(recipe) as engine:
        assays = open_on_every_rank(recipe, engine)
        chosen = list(ensemble_members(recipe, assays))  # a task that cannot be trained is refused before the search
        audited = engine.on_main(lambda: assays.audited(recipe.split, recipe.model.init))
        if engine.is_main:
            said = format_split(recipe.split, assays.division, audited)
            print(f"Split: {said}.", *(audited.notes if audited else ()), sep="\n", flush=True)
        trained: list[TrainedMember] = []
        for member in chosen:
            if member.name and engine.is_main:
                print(f"\n{member.name}: {member.recipe.run.directory}", flush=True)
            summary = train(
                member.recipe,
                partial(FineTuneJob, assays=member.assays),
                engine,
                allow_schedule_change=options.allow_schedule_change,
                allow_code_change=options.allow_code_change,
                despite_failures=options.despite_failures,
            )
            trained.append(TrainedMember(member, cast(FineTuneJob, summary.job), summary.run))
        lines = engine.on_main(
            lambda: format_summary(finalize(recipe, assays, audited, trained, engine.device, again=options.again))
        )
        if engine.is_main:
            print("", *lines, *_next(Path(recipe.run.directory)), sep="\n", flush=True)


def _next(run: Path) -> list[str]:
    """Where the results are, and the command that uses the model."""
    lines = [f"All numbers: {run / 'scores.json'}; each prediction: {run / 'predictions.csv'}"]
    if (run / "report.html").exists():
        lines.append(f"The run in pictures: {run / 'report.html'}")
    if bundles_in(run):
        lines.append(f"Predict other proteins: python -m finetune.predict {shlex.quote(str(run))} in.csv -o out.csv")
    return ["", *lines]


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="python -m finetune",
        description="Fine-tune a protein language model on a table of assays, as a recipe says; "
        "`python -m finetune.look TABLE` writes a recipe.",
    )
    parser.add_argument("recipe", type=Path, help="a TOML file")
    parser.add_argument(
        "overrides",
        nargs="*",
        help="settings on top of it, section.field=value, of one task tasks.NAME.field=value; values as in TOML; "
        "'none' takes one out",
    )
    add_override_options(parser, partial(settings_help, Recipe))
    parser.add_argument(
        "--again",
        action="store_true",
        help="compute the results of a finished run once more, although nothing that they depend on has changed",
    )
    return parser


if __name__ == "__main__":
    run_command(main)
