"""The words and numbers of a pretraining run's page.

In: a `RunReader`. Out: what the template fills in. Kept: nothing. Texts are as they were read; the page escapes them.
"""

import textwrap
from datetime import UTC, datetime
from typing import Any

from pretrain.evaluate.scores import (
    CORRUPTIONS,
    TITLES,
    CorruptionScores,
    HeldOutUnit,
    Prediction,
    ProteinPredictions,
    format_interval,
)
from pretrain.evaluate.training_curve import training_curve
from pretrain.evaluate.verdict import Verdict, verdict
from pretrain.report.charts import short
from pretrain.report.drawings import ProteinLetters
from pretrain.report.section import ReportTable
from zymogen.console.format import count, duration, format_number
from zymogen.console.safe_text import printable
from zymogen.settings.json_file import read_bytes
from zymogen.settings.section import flat, listed
from zymogen.trainer.run.attempts import KILLED
from zymogen.trainer.run.directory import RunDirectory
from zymogen.trainer.run.reader import RunReader

_MOST_ATTEMPTS = 12
"""Most attempts that the table shows."""
_MOST_LETTERS = 400
"""Most letters of an error's message."""


def subtitle(run: RunReader) -> str:
    """What was trained, in a line."""
    model, data = run.record.model, run.settings.get("data", {})
    start = run.settings.get("model") or {}
    sources = [str(source) for corpus in data.get("mixture") or [data] for source in corpus.get("sources") or []]
    parts = (
        str(start.get("preset") or start.get("init") or "model"),
        f"{short(run.record.parameters)} parameters" if run.record.parameters else "",
        f"{model['layers']} layers of width {model.get('dim')}" if "layers" in model else "",
        listed(sources, 3, "more sources"),
    )
    return ", ".join(filter(None, parts))


def run_state(run: RunReader) -> str:
    """How far the run is, and why it ended there if it failed, in a sentence or two."""
    if not run.steps:
        return "No step has been logged yet."
    total = (run.settings.get("schedule") or {}).get("total_tokens")
    share = f", {min(1.0, run.tokens / total):.0%} of its {short(total)} tokens" if total else ""
    at = f"step {run.steps:,}{share}"
    if run.is_finished:
        return f"Finished at {at}."
    if not run.has_ended:
        return f"At {at}, and still running or killed."
    last = run.attempts[-1]
    failure = last.cause or next(iter(last.errors), None)
    why = textwrap.shorten(f": {failure.message}", _MOST_LETTERS) if failure else ""
    return f"Ended at {at}: {last.exit}{why}."


def verdict_on(run: RunReader) -> Verdict | None:
    """The verdict on a finished pretraining run; None before its end."""
    scores, held_out = run.scores, HeldOutUnit.of(run.record.corpus)
    if not (run.is_finished and held_out and "mask_all" in scores):
        return None
    judged, corrupted = (CorruptionScores.read(scores[name]) for name in CORRUPTIONS)
    return verdict(judged, training_curve(run.lines), held_out, corrupted)


def key_numbers(run: RunReader) -> list[tuple[str, str, str]]:
    """The numbers that a reader looks for first: name, value and a remark each."""
    scores, steps, found = run.scores, run.steps, list[tuple[str, str, str]]()
    name = "mask_all" if "mask_all" in scores else next(iter(scores), "")
    of = scores.get(name, {})
    if "perplexity" in of:
        low, high = of.get("low"), of.get("high")
        interval = "no interval" if low is None or high is None else f"{format_interval(low, high)} (95 %)"
        found += [
            ("Perplexity", format_number(of["perplexity"]), f"{TITLES.get(name, name)}, {interval}"),
            ("Frequencies", format_number(of.get("unigram")), "of residues, without a model"),
        ]
        if of.get("floor") is not None:
            found.append(("Floor", format_number(of["floor"]), "no model can go below"))
    if "loss" in of:
        compared = f"{name}, baseline {format_number(of['baseline'])}" if "baseline" in of else name
        found.append(("Validation loss", format_number(of["loss"]), compared))
    if steps:
        proteins = run.record.corpus.get("training_records")
        seconds = sum(each.ended - each.began for each in run.attempts)
        found += [
            ("Tokens seen", short(run.tokens), f"of {proteins:,} proteins" if proteins else ""),
            ("Steps", f"{steps:,}", f"{short(run.tokens / steps)} tokens each"),
            ("Time", duration(seconds), f"in {count(len(run.attempts), 'attempt')}"),
        ]
    return found


def proteins(run: RunReader) -> list[ProteinLetters]:
    """A few of the scored proteins with their predictions."""
    predictions = read_bytes(ProteinPredictions, RunDirectory(run.root).predictions)
    return [_protein(number, found) for number, found in enumerate(predictions.proteins if predictions else ())]


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


def attempts(run: RunReader) -> list[ReportTable]:
    """The latest attempts, the last one below; nothing before the first."""
    shown = run.attempts[-_MOST_ATTEMPTS:]
    more = len(run.attempts) - len(shown)
    note = f"{more} earlier attempts are in attempts.jsonl." if more else ""
    head = ("Attempt", "Began (UTC)", "Took", "From step", "Processes", "Ended")
    rows = tuple(
        (
            str(each.attempt),
            datetime.fromtimestamp(each.began, UTC).strftime("%-d %b %H:%M"),
            duration(each.ended - each.began),
            f"{each.base_step:,}",
            str(each.world_size),
            "running or killed" if each is shown[-1] and each.exit == KILLED else each.exit,
        )
        for each in shown
    )
    return [ReportTable("", head, rows, note)] if rows else []


def recipe(run: RunReader) -> list[tuple[str, list[tuple[str, str]]]]:
    """Each section of the recipe with its settings."""
    return [
        (section, [(name, _text(value)) for name, value in flat(each).items()])
        for section, settings in run.settings.items()
        for each in (settings if isinstance(settings, list) else [settings])  # a list is one of tables of one name
        if isinstance(each, dict)
    ]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)
