"""The words and numbers of a pretraining run's page.

In: a `RunHistory`. Out: what the template fills in. Kept: nothing. Texts are as they were read; the page escapes them.
"""

import textwrap
from datetime import UTC, datetime
from typing import Any

from pretrain.evaluate.scores import CORRUPTIONS, TITLES, CorruptionScores, Prediction
from pretrain.evaluate.verdict import Verdict, verdict
from pretrain.report.charts import short
from pretrain.report.drawings import ProteinLetters
from pretrain.report.history import RunHistory
from pretrain.report.section import KeyNumber, ReportTable
from zymogen.console.format import count, duration, format_number
from zymogen.console.safe_text import printable
from zymogen.settings.section import flat, listed
from zymogen.trainer.run.attempts import KILLED, Attempt

_MOST_ATTEMPTS = 12
"""Most attempts that the table shows."""
_MOST_LETTERS = 400
"""Most letters of an error's message."""


def subtitle(history: RunHistory) -> str:
    """What was trained, in a line."""
    model, data = history.described.model, history.recipe.get("data", {})
    start = history.recipe.get("model") or {}
    sources = [str(source) for corpus in data.get("mixture") or [data] for source in corpus.get("sources") or []]
    parts = (
        str(start.get("preset") or start.get("init") or "model"),
        f"{short(history.described.parameters)} parameters" if history.described.parameters else "",
        f"{model['layers']} layers of width {model.get('dim')}" if "layers" in model else "",
        listed(sources, 3, "more sources"),
    )
    return ", ".join(filter(None, parts))


def run_state(history: RunHistory) -> str:
    """How far the run is, and why it ended there if it failed, in a sentence or two."""
    if not history.course.steps:
        return "No step has been logged yet."
    total = (history.recipe.get("schedule") or {}).get("total_tokens")
    share = f", {min(1.0, history.tokens / total):.0%} of its {short(total)} tokens" if total else ""
    at = f"step {history.course.steps:,}{share}"
    if history.is_finished:
        return f"Finished at {at}."
    if not history.has_ended:
        return f"At {at}, and still running or killed."
    last = history.starts[-1]
    failure = last.cause or next(iter(last.errors), None)
    why = textwrap.shorten(f": {failure.message}", _MOST_LETTERS) if failure else ""
    return f"Ended at {at}: {last.exit}{why}."


def format_verdict(history: RunHistory) -> list[str]:
    """The verdict on a finished run, line by line; none before that."""
    found = verdict_on(history)
    return [line for sentence in found.sentences for line in sentence.splitlines()] if found else []


def verdict_on(history: RunHistory) -> Verdict | None:
    """The verdict on a finished pretraining run; None before its end."""
    scores = history.validations[-1].scores if history.validations else {}
    if not (history.is_finished and history.held_out and "mask_all" in scores):
        return None
    judged, corrupted = (CorruptionScores.read(scores[name]) for name in CORRUPTIONS)
    return verdict(judged, history.course, history.held_out, corrupted)


def key_numbers(history: RunHistory) -> list[KeyNumber]:
    """The numbers that a reader looks for first."""
    scores = history.validations[-1].scores if history.validations else {}
    name = "mask_all" if "mask_all" in scores else next(iter(scores), "")
    of, found = scores.get(name, {}), list[KeyNumber]()
    if "perplexity" in of:
        low, high = of.get("low"), of.get("high")
        interval = (
            "no interval" if low is None or high is None else f"{format_number(low)} to {format_number(high)} (95 %)"
        )
        found += [
            KeyNumber("Perplexity", format_number(of.get("perplexity")), f"{TITLES.get(name, name)}, {interval}"),
            KeyNumber("Frequencies", format_number(of.get("unigram")), "of residues, without a model"),
            *(
                [KeyNumber("Floor", format_number(of["floor"]), "no model can go below")]
                if of.get("floor") is not None
                else []
            ),
        ]
    if "loss" in of:
        beside = f"{name}, baseline {format_number(of['baseline'])}" if "baseline" in of else name
        found.append(KeyNumber("Validation loss", format_number(of["loss"]), beside))
    if steps := history.course.steps:
        proteins = history.described.corpus.get("training_records")
        seconds = sum(start.ended - start.began for start in history.starts)
        found += [
            KeyNumber("Tokens seen", short(history.tokens), f"of {proteins:,} proteins" if proteins else ""),
            KeyNumber("Steps", f"{steps:,}", f"{short(history.tokens / steps)} tokens each"),
            KeyNumber("Time", duration(seconds), f"in {count(len(history.starts), 'attempt')}"),
        ]
    return found


def proteins(history: RunHistory) -> list[ProteinLetters]:
    """A few of the scored proteins with their predictions."""
    return [_protein(number, found) for number, found in enumerate(history.proteins)]


def _protein(number: int, found: Prediction) -> ProteinLetters:
    last = found.first + len(found.residues)
    part = f"residues {found.first + 1} to {last} of {found.whole}"
    size = f"{found.whole} residues" if len(found.residues) == found.whole else part
    scored = [prob for prob in found.probabilities if prob is not None]
    note = f"Probability of the true residue: {sum(scored) / max(1, len(scored)):.3f} on average; "
    return ProteinLetters(
        name=f"protein-{number}",
        title=f"{f'corpus {found.corpus + 1}, ' * bool(found.corpus)}{printable(found.name)}, {size}",
        found=found,
        note=f"{note}by residue frequencies {found.by_frequencies:.3f}." if scored else "No residue was predicted.",
    )


def attempts(history: RunHistory) -> list[ReportTable]:
    """The latest attempts, the last one below; nothing before the first."""
    shown = history.starts[-_MOST_ATTEMPTS:]
    more = len(history.starts) - len(shown)
    note = f"{more} earlier attempts are in attempts.jsonl." if more else ""
    head = ("Attempt", "Began (UTC)", "Took", "From step", "Processes", "Ended")
    rows = tuple(_row(start, start is shown[-1]) for start in shown)
    return [ReportTable("", head, rows, note)] if rows else []


def _row(start: Attempt, is_last: bool) -> tuple[str, ...]:
    return (
        str(start.attempt),
        datetime.fromtimestamp(start.began, UTC).strftime("%-d %b %H:%M"),
        duration(start.ended - start.began),
        f"{start.base_step:,}",
        str(start.world_size),
        "running or killed" if is_last and start.exit == KILLED else start.exit,
    )


def recipe(history: RunHistory) -> list[tuple[str, list[tuple[str, str]]]]:
    """Each section of the recipe with its settings."""
    return [
        (section, [(name, _text(value)) for name, value in flat(each).items()])
        for section, settings in history.recipe.items()
        for each in (settings if isinstance(settings, list) else [settings])  # a list is one of tables of one name
        if isinstance(each, dict)
    ]


def environment(history: RunHistory) -> list[tuple[str, list[tuple[str, str]]]]:
    """Where and how the run computed, as names and texts."""
    found = [*(("", line) for line in history.described.compute), *history.described.versions.items()]
    return [("", found)] if found else []


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    return str(value)
