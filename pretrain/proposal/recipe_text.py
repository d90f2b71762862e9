"""The recipe of a proposal as a text: TOML with a comment on every value, and the lines that a start prints.

In: a `ProposedRecipe` and how it was asked for. Out: text. Kept: nothing.
"""

import json
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from pretrain.machine import Machine
from pretrain.proposal.choose import ProposedRecipe
from pretrain.proposal.corpus import CorpusFacts
from pretrain.proposal.plan import TrainingPlan
from pretrain.proposal.reasons import SettingChoice
from zymogen.console.format import aligned, count, duration
from zymogen.console.safe_text import printable
from zymogen.files.suggestions import format_list

Table = tuple[str, str, Sequence[SettingChoice]]
"""A table of a recipe: its head, such as ``[data]`` or ``[[tasks]]``, the comment above it, and its settings."""
_WIDTH = 110
_OF_THE_COMMAND = ("run.directory", "data.sources")
"""Settings that follow from the files that were named, and need no reason."""


def recipe_text(
    proposal: ProposedRecipe, program: str, words: str, corpus: CorpusFacts, machine: Machine, directory: str
) -> str:
    """The recipe as TOML.

    Args:
        proposal: what is written.
        program: the command that was typed, up to the sources.
        words: the rest of it.
        corpus: facts of the corpus.
        machine: what it was chosen for.
        directory: the run directory, in which the recipe is put.
    """
    plan = proposal.plan
    before = (
        f"Chosen for {duration(plan.budget_s)} on {machine.name} and {corpus.num_records:,} proteins of "
        f"{corpus.num_residues:,} residues, by: {program} {words}"
    )
    after = (
        "The same command continues the run. To change something, edit a copy and start it in another directory: "
        f"{program} COPY.toml {shlex.quote(f'run.directory={directory}-2')} (docs/recipes.md has every setting)."
    )
    notes = (f"Note: {note}." for note in proposal.notes)
    sections: dict[str, list[SettingChoice]] = {}
    for choice in proposal.choices:
        sections.setdefault(choice.name.rpartition(".")[0], []).append(choice)
    tables = ((f"[{section}]", "", sections[section]) for section in sorted(sections, key=_place))
    return commented([[before, *notes], [after]], tables)


def commented(before: Iterable[Iterable[str]], tables: Iterable[Table]) -> str:
    """A recipe as TOML, with the reason of each value as a comment above it.

    Args:
        before: paragraphs at its beginning, each of texts that begin a line.
        tables: of the recipe, in their order.
    """
    lines = [line for texts in before for line in (*chain(*map(comment, texts)), "#")][:-1]
    for head, about, choices in tables:
        lines += ("", *comment(_sentence(about)), head)
        for choice in choices:
            reason = "given by you" if choice.is_given and choice.name not in _OF_THE_COMMAND else choice.reason
            lines += (*comment(_sentence(reason)), f"{choice.name.rpartition('.')[2]} = {toml_value(choice.value)}")
    return "\n".join(lines) + "\n"


def format_proposal(
    proposal: ProposedRecipe, sources: Sequence[str], corpus: CorpusFacts, machine: Machine
) -> list[str]:
    """What is proposed and why, as lines for the reader who started it."""
    plan = proposal.plan
    values = {c.name: c.value for c in proposal.choices}
    because = {c.name: f"{'given by you, ' * c.is_given}{c.reason}".rstrip(", ") for c in proposal.choices}
    distinct = f", {corpus.distinct:,} of them distinct" if corpus.distinct not in (None, corpus.num_records) else ""
    rows = [
        (
            "corpus",
            f"{format_list(sources)}: {corpus.num_records:,} proteins{distinct}, {corpus.num_residues:,} residues",
        ),
        ("machine", machine.name),
        ("model", f"{plan.size}, {because.get('model.preset', 'whose weights training starts from')}"),
        ("length", f"{plan.total_tokens:,} tokens: {because['schedule.total_tokens']}"),
        ("step", f"{count(plan.bins_per_step, 'bin')} of {plan.bin_tokens:,} slots: {because['data.bins_per_step']}"),
        ("rate", _rate(values)),
        ("crop", f"{plan.crop_tokens} tokens: {because['data.crop_tokens']}"),
        ("held out", because["data.validation_fraction"]),
        *([("split", because["data.split_identity"])] if "data.split_identity" in because else []),
        ("saves", _saves(values)),
        ("memory", f"about {plan.memory_bytes / 1e9:.1f} GB for each process"),
        *(("note", note) for note in proposal.notes),
    ]
    return aligned(((name, printable(text)) for name, text in rows), columns=_WIDTH, name_columns=9, indent="  ")


def format_estimate(plan: TrainingPlan, *, others_timed: bool) -> str:
    """How long the run takes from here, in one line.

    Args:
        plan: what is run.
        others_timed: whether steps of other sizes were timed, if not those of this one.
    """
    basis = " (by an estimate of this machine's speed: no step was timed)"
    if others_timed:
        basis = " (by an estimate of this size's speed, from those of the sizes that were timed)"
    if plan.is_timed:
        basis = ""
    return (
        f"about {duration(plan.seconds)} for {count(plan.steps, 'step')}, of which validation "
        f"{duration(plan.validation_s)}, start, saves and export {duration(plan.rest_s)}{basis}"
    )


def toml_value(value: Any) -> str:
    """A value as TOML, whose strings, lists and truth values are those of JSON."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:_}"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{toml_value(key)} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which JSON has as it is


def _rate(values: Mapping[str, Any]) -> str:
    """The learning rate; settings that were taken out are not mentioned."""
    peak, warmup, start = (values.get(f"schedule.{name}") for name in ("peak_lr", "warmup", "decay_start"))
    parts = (
        "peak of weights that are trained already" if peak is None else f"peak {peak:g}",
        "" if warmup is None else f"a warm-up over {warmup:.0%} of the tokens",
        "" if start is None else f"falling after {start:.0%} of them",
    )
    return ", ".join(filter(None, parts))


def _saves(values: Mapping[str, Any]) -> str:
    named = (("a checkpoint", "checkpoint"), ("a validation", "evaluate"), ("a line", "log"))
    every = ((what, values.get(f"run.{name}_every")) for what, name in named)
    words = (
        f"{what} every {count(value, 'step') if isinstance(value, int) else value}" for what, value in every if value
    )
    return f"{', '.join(words)}, and at the end"


def _place(section: str) -> tuple[int, str]:
    order = ("run", "model", "data", "data.mask", "optimizer", "schedule")
    return (order.index(section) if section in order else len(order), section)


def comment(text: str) -> list[str]:
    """A text as lines of comment; none for an empty one."""
    lines = textwrap.wrap(printable(text), _WIDTH - 2, break_on_hyphens=False, break_long_words=False)
    return [f"# {line}" for line in lines]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
