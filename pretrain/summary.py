"""The closing words of a run: what was learned, where the model is, what comes next.

In: a `TrainingResult` and how the run was started. Out: text. Each command in it works as printed.
"""

import itertools
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrain.evaluate.scores import TITLES, MaskedLanguageScores, format_interval
from pretrain.evaluate.training_curve import training_curve
from pretrain.evaluate.verdict import Advice, Judgement, Verdict, verdict
from pretrain.model.presets import PRESETS
from pretrain.proposal import rules
from zymogen.console.format import count, format_number
from zymogen.console.progress import in_columns
from zymogen.processes.launcher import LaunchCommand, this_python
from zymogen.trainer.attempt import TrainingResult
from zymogen.trainer.optimizer.settings import ScheduleSettings
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.reader import RunReader
from zymogen.trainer.run_console import format_epochs

PEPTIDE = "MKTAYIAKQRQISFVKSHFSRQ<mask>EERLGLIEVQ"
"""An example to fill in: the start of asparagine synthetase A of E. coli, with a leucine hidden."""

_PUBLISHED = "facebook/esm2_t6_8M_UR50D"

Command = tuple[str, str]
"""(what it does, the command)."""


def schedule_differs(
    said: str, before: Mapping[str, object], total_tokens: int | None, directory: Path, start: LaunchCommand
) -> str:
    """What to type where only the schedule differs from that of the run's earlier starts: commands that work.

    Args:
        said: what differs.
        before: the settings that differ, as they were.
        total_tokens: what is asked for now; with no more than was trained on, the run cannot be continued to it.
        directory: of the run.
        start: how it was started now.
    """
    run = RunReader(directory)
    ended = run.settings["schedule"]["total_tokens"]
    number = next(n for n in itertools.count(2) if not Path(f"{directory}-{n}").exists())
    commands = [start.command({"run.directory": f"{directory}-{number}"}), start.command(before)]
    ways = "Train it in a directory of its own, or continue as it was"
    if total_tokens is not None and (total_tokens == ended or total_tokens > run.tokens):
        commands.append(start.command(None, "--allow-schedule-change"))
        ways = "Train it in a directory of its own, continue it as it was, or as given with --allow-schedule-change"
    return "\n    ".join([f"{said}. {ways}:", *commands])


def format_summary(summary: TrainingResult[Any], start: LaunchCommand) -> str:
    """A few lines for the user who started the run.

    Args:
        summary: the run's results.
        start: how it was started.
    """
    scores, described = summary.scores, summary.run.read()
    if not isinstance(scores, MaskedLanguageScores):
        return "\n".join(["", _trained_on(summary), f"{scores.line()}.", "", *_with_encoder(summary.run)])
    recipe = described.recipe
    judged = scores.evaluations["mask_all"]
    head = ("corruption", "model", "95 % interval", "unigram", "floor")[: 4 if judged.floor is None else 5]
    rows = [
        (
            TITLES[name],
            format_number(s.perplexity),
            format_interval(s.low, s.high),
            format_number(s.unigram),
            format_number(s.floor),
        )[: len(head)]
        for name, s in scores.evaluations.items()
    ]
    lines = [
        "",
        _trained_on(summary),
        f"{scores.held_out.heading(judged.sequences, described.corpus)}:",
        "",
        *(f"    {line}" for line in in_columns([head, *rows])),
    ]
    curve = training_curve(RunReader(summary.run.root).lines)
    found = verdict(judged, curve, scores.held_out, scores.evaluations["80_10_10"])
    lines += [
        "",
        *found.sentences,
        "",
        f"The model, as transformers loads it: {summary.run.export}",
        *([f"The run in pictures: {summary.run.report}"] if summary.run.report.exists() else []),
        "",
        "Try next:",
        "",
    ]
    commands = next_commands(start, found, recipe, summary.run.export, is_embedded=judged.floor is not None)
    return "\n".join([*lines, *(f"  {what}\n    {command}" for what, command in commands)])


def next_commands(
    start: LaunchCommand, found: Verdict, recipe: Mapping[str, Any], export: Path, *, is_embedded: bool
) -> list[Command]:
    """What to do after a run; nothing that its verdict speaks against.

    Args:
        start: how it was started.
        found: the verdict on it.
        recipe: its recipe, as run.json has it.
        export: folder of its model.
        is_embedded: whether it trained on the embedded corpus, and not on sequences of the user's own.
    """
    directory, total = recipe["run"]["directory"], recipe["schedule"]["total_tokens"]
    sources = recipe["data"].get("sources")
    folder, python, run = json.dumps(str(export), ensure_ascii=False), this_python(), shlex.quote(directory)
    fill_in = f'from transformers import pipeline; print(pipeline("fill-mask", {folder})("{PEPTIDE}")[0])'
    commands = [("fill in a hidden residue, with transformers alone:", f"{python} -c {shlex.quote(fill_in)}")]
    if found.is_little and found.advice is not Advice.LOWER_RATE and sources and recipe["model"].get("init") is None:
        words = shlex.join([*sources, f"model.init={_PUBLISHED}", f"run.directory={directory}_continued"])
        commands.append(("continue from a published model on the same sequences:", f"{start.launcher} {words}"))
    if found.advice is Advice.LOWER_RATE:
        lower = {"schedule.peak_lr": f"{_peak_lr(recipe) / 10:.2g}", "run.directory": f"{directory}_lower"}
        commands.append(("train again at a tenth of the peak rate:", start.command(lower)))
    elif found.best_tokens:
        tokens = found.best_tokens
        fewer = {"schedule.total_tokens": f"{tokens:_}", "run.directory": f"{directory}_shorter"}
        if warmup := recipe["schedule"].get("warmup_tokens"):
            fewer["schedule.warmup_tokens"] = f"{warmup * tokens // total:_}"  # or it may not fit
        commands.append(("train again with fewer passes, as many as were best:", start.command(fewer)))
    else:
        if found.advice is not Advice.LARGER:
            longer = start.command({"schedule.total_tokens": f"{2 * total:_}"}, "--allow-schedule-change")
            commands.append(("train the same model for as long again:", longer))
        if found.judgement is Judgement.BETTER:
            commands += _train_larger(start, recipe)
    if is_embedded:
        commands.append(("train on your own sequences:", f"{start.launcher} your.fasta.gz"))
    elif found.judgement is Judgement.BETTER and not found.is_little:
        score = f"{python} -m finetune.score {run} variants.csv --wild-type wild.fasta -o scored.csv"
        commands += [
            ("score variants:", score),
            ("embed proteins:", f"{python} -m finetune.embed {run} proteins.fasta embedded.parquet"),
            ("fine-tune on a table:", f"{python} -m finetune.look assays.csv --init {run} -o assays.toml"),
        ]
    return commands


def _with_encoder(run: RunDirectory) -> list[str]:
    """What can be done with a model that has a head of the user's."""
    root = shlex.quote(str(run.root))
    return [
        *([f"The run in pictures: {run.report}"] if run.report.exists() else []),
        "There is no export: its objective is a class of your own. Its encoder is read from the run:",
        f"  {this_python()} -m finetune.embed {root} proteins.fasta embedded.parquet",
    ]


def _peak_lr(recipe: Mapping[str, Any]) -> float:
    return float(ScheduleSettings.resolved(recipe["schedule"])["peak_lr"])


def _train_larger(start: LaunchCommand, recipe: Mapping[str, Any]) -> list[Command]:
    """The same on the next preset of the architecture, with tokens enough for it and at the rate of its width.

    Nothing after the largest, and for a model without a preset.
    """
    preset, before = recipe["model"]["preset"], recipe["schedule"]["total_tokens"]
    shape = PRESETS.get(preset)
    family = [name for name, each in PRESETS.items() if shape and each.architecture == shape.architecture]
    if shape is None or preset == family[-1]:
        return []
    larger = family[family.index(preset) + 1]
    wider = PRESETS[larger]
    tokens = max(before, round(float(f"{rules.TOKENS_PER_PARAMETER * wider.num_parameters:.2g}")))
    changed = {"model.preset": larger, "run.directory": f"{recipe['run']['directory']}_{larger}"}
    if tokens > before:
        changed["schedule.total_tokens"] = f"{tokens:_}"
    if (narrower := max(shape.dim, 128)) < wider.dim:
        changed["schedule.peak_lr"] = f"{_peak_lr(recipe) * narrower / wider.dim:.2g}"
    times = tokens * wider.num_parameters / (before * shape.num_parameters)
    what = f"train a larger model, {larger}, on {tokens / wider.num_parameters:,.0f} tokens for each parameter"
    return [(f"{what} (some {float(f'{times:.1g}'):,.0f} times the time of this run):", start.command(changed))]


def _trained_on(summary: TrainingResult[Any]) -> str:
    state = summary.state
    seen = summary.job.corpus_progress(state.cursor)
    proteins = f" of {count(seen.proteins, 'distinct protein')}" if seen and seen.proteins is not None else ""
    passes = f", {format_epochs(seen.passes)}" if seen and seen.passes is not None else ""
    steps = f"{',' if passes else ''} in {state.step:,} steps ({summary.seconds:.0f} s this time)"
    return f"Trained on {state.tokens_seen:,} tokens{proteins}{passes}{steps}."
