"""The recipe of a proposal as a text: TOML with a comment on every value, and the lines that a start prints.

In: a `Proposal` and how it was asked for. Out: text. Kept: the time that was asked for, in the first lines of the
recipe, so that a later start can tell whether it asks for another.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pretrain.proposal.choice import Proposal
from pretrain.proposal.corpus import CorpusFacts
from pretrain.proposal.machine import Machine
from pretrain.proposal.plan import Plan
from pretrain.proposal.reasons import Choice, count, duration

_WIDTH = 110
_BUDGET = re.compile(r"^# Chosen for (\d+(?:\.\d+)?) seconds ", re.M)


def recipe_text(proposal: Proposal, command: str, corpus: CorpusFacts, machine: Machine, directory: str) -> str:
    """The recipe as TOML.

    Args:
        proposal: what is written.
        command: how it was asked for, to be typed again.
        corpus: facts of the corpus.
        machine: what it was chosen for.
        directory: the run directory, in which the recipe is put.
    """
    plan = proposal.plan
    words = (
        f"Chosen for {plan.budget_s:.10g} seconds on {machine.name}, and {corpus.proteins:,} proteins of "
        f"{corpus.residues:,} residues, by: {command}"
    )
    after = (
        "The same command continues the run. To change something, edit a copy and start it in another directory: "
        f"python -m pretrain COPY.toml run.directory={directory}-2 (docs/recipes.md has every setting)."
    )
    lines = [*_comment(words), *(line for note in proposal.notes for line in _comment(f"Note: {note}.")), "#"]
    lines += _comment(after)
    sections: dict[str, list[Choice]] = {}
    for choice in proposal.choices:
        sections.setdefault(choice.name.rpartition(".")[0], []).append(choice)
    for section in sorted(sections, key=_place):
        lines += ["", f"[{section}]"]
        for choice in sections[section]:
            reason = "given by you" if choice.is_given else choice.reason
            lines += _comment(f"{reason[:1].upper()}{reason[1:]}.") if reason else []
            lines.append(f"{choice.name.rpartition('.')[2]} = {toml_value(choice.value)}")
    return "\n".join(lines) + "\n"


def budget_of(recipe: str) -> float | None:
    """The time in seconds for which a recipe was chosen; None if its text does not say."""
    found = _BUDGET.search(recipe)
    return float(found[1]) if found else None


def told(proposal: Proposal, sources: Sequence[str], corpus: CorpusFacts, machine: Machine) -> list[str]:
    """What is proposed and why, as lines for the reader who started it."""
    plan = proposal.plan
    values = {c.name: c.value for c in proposal.choices}
    because = {c.name: f"{'given by you, ' * c.is_given}{c.reason}".rstrip(", ") for c in proposal.choices}
    distinct = f", {corpus.distinct:,} of them distinct" if corpus.distinct not in (None, corpus.proteins) else ""
    rows = [
        ("corpus", f"{', '.join(sources)}: {corpus.proteins:,} proteins{distinct}, {corpus.residues:,} residues"),
        ("machine", machine.name),
        ("model", f"{plan.size}, {because.get('model.preset', 'whose weights training starts from')}"),
        ("length", f"{plan.total_tokens:,} tokens: {because['schedule.total_tokens']}"),
        ("step", f"{count(plan.bins_per_step, 'bin')} of {plan.bin_tokens:,} slots: {because['data.bins_per_step']}"),
        ("rate", _rate(values)),
        ("crop", f"{plan.crop_tokens} tokens: {because['data.crop_tokens']}"),
        ("held out", because["data.validation_fraction"]),
        *([("split", because["data.split_identity"])] if "data.split_identity" in because else []),
        ("saves", _saves(values)),
        ("memory", f"about {_gigabytes(plan.memory_bytes)} for each process"),
        *(("note", note) for note in proposal.notes),
    ]
    return [
        line
        for name, text in rows
        for line in textwrap.wrap(text, _WIDTH, initial_indent=f"  {name:10}", subsequent_indent=" " * 12)
    ]


def promise(plan: Plan) -> str:
    """How long the run takes from here, in one line."""
    basis = "" if plan.is_timed else " (by an estimate of this machine's speed: no step was timed)"
    return (
        f"about {duration(plan.seconds)} for {count(plan.steps, 'step')}, of which validation "
        f"{duration(plan.validation_s)}, start, saves and export {duration(plan.rest_s)}{basis}"
    )


def toml_value(value: Any) -> str:
    """A value as TOML, whose strings, lists and truth values are those of JSON."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:_}"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _rate(values: Mapping[str, Any]) -> str:
    """The learning rate; settings that were taken out are not mentioned."""
    peak = values.get("schedule.peak_lr")
    parts = ["peak of weights that are trained already" if peak is None else f"peak {peak:g}"]
    if (warmup := values.get("schedule.warmup")) is not None:
        parts.append(f"a warm-up over {warmup:.0%} of the tokens")
    if (start := values.get("schedule.decay_start")) is not None:
        parts.append(f"falling after {start:.0%} of them")
    return ", ".join(parts)


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


def _comment(text: str) -> Iterator[str]:
    yield from textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
