"""The charts of a pretraining run.

In: a `RunReader`. Out: charts, those for which the run has numbers. Kept: nothing.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pretrain.evaluate.scores import TITLES
from pretrain.report.chart import Chart, ChartSeries, Dash, Numbers
from pretrain.report.drawings import IntervalPlot, IntervalRow
from zymogen.console.format import count
from zymogen.trainer.run.reader import RunReader

_STYLES: dict[str, tuple[str, Dash]] = {"mask_all": ("blue", "solid"), "80_10_10": ("orange", "dashed")}
_CONSTANTS: tuple[tuple[str, str, tuple[str, Dash]], ...] = (
    ("unigram", "frequencies", ("ink", "dashdot")),
    ("floor", "floor", ("green", "dotted")),
)
_WELL = ("finished", "interrupted", "stopped")
"""Beginnings of an attempt's `exit` that are no failure."""
X_TITLE = "tokens seen"


def short(value: float) -> str:
    """A number with three digits and a thousand's name: 12.3k, 1.6 M, 4.05 B."""
    for size, name in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}{name}" if abs(value) < 999.5 * size else f"{value / size:.0f}{name}"
    return f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def loss_figure(run: RunReader) -> Chart | None:
    """Loss and perplexity of training and validation, with residue frequencies and the floor; None before a step."""
    lines = []
    if len(loss := run.metric("loss")):
        lines.append(ChartSeries("training", run.metric("tokens"), loss, "train"))
    last = run.scores
    tokens = np.array([validation.tokens for validation in run.validations])
    for name in (name for name, of in last.items() if "perplexity" in of):
        colour, dash = _STYLES.get(name, ("blue", "dotted"))
        nats = _nats(run, name, "perplexity")
        lines.append(ChartSeries(TITLES.get(name, name), tokens, nats, colour, dash, marked=True))
    if judged := next(iter(last), None):
        for key, label, (colour, dash) in _CONSTANTS:
            if np.isfinite(constant := _nats(run, judged, key)).any():
                lines.append(ChartSeries(label, tokens, constant, colour, dash, across=True))
    if not lines:
        return None
    return Chart(
        name="loss",
        title="Loss and perplexity",
        lines=tuple(lines),
        x_title=X_TITLE,
        y_title="loss, nats a residue",
        x_value=short,
        has_perplexity=True,
        stages=_stages(run),
        height=380,
        note="Lower is better. Training is scored under its own corruption. Perplexity is exp of the loss, and stands "
        "beside the name of each line. "
        + ("The floor is what no model can go below. " if judged and "floor" in last[judged] else ""),
    )


def training_figures(run: RunReader) -> list[Chart]:
    """Small charts of how training went, over the same axis."""
    norm = run.metric("grad_norm")
    spread = norm[np.isfinite(norm) & (norm > 0)]
    wide = len(spread) > 1 and spread.max() > 30 * spread.min()
    found = [
        column_chart(run, "learning_rate", "Learning rate", "of each update", from_zero=True),
        column_chart(run, "grad_norm", "Gradient norm", "before clipping", short, logarithmic=wide, from_zero=not wide),
        column_chart(run, "tokens_per_s", "Throughput", "tokens a second", short, from_zero=True),
        column_chart(run, "mfu", "MFU", "share of the machine's peak FLOPs", _percent, from_zero=True),
        column_chart(run, "padding", "Padding", "share of slots without a token", _percent, from_zero=True),
        column_chart(
            run, "document_tokens", "Length of documents", "mean over tokens, in tokens", short, from_zero=True
        ),
        column_chart(run, "loader_wait", "Waiting for data", "share of the time", _percent, from_zero=True),
        column_chart(run, "imbalance", "Imbalance of ranks", "slowest over mean, in attention")
        if any(start.world_size > 1 for start in run.attempts)
        else None,
        column_chart(run, "loss_scale", "Loss scale", "of float16", short, logarithmic=True),
    ]
    return [chart for chart in found if chart]


def time_line(run: RunReader) -> IntervalPlot | None:
    """Attempts, saves and validations by wall time; None before the first start."""
    if not run.attempts:
        return None
    began, took = run.attempts[0].began, max(each.ended for each in run.attempts) - run.attempts[0].began
    units = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 0.0))
    unit, size = next((unit, size or 1.0) for unit, size in units if took >= 1.5 * size)

    def since(times: Iterable[float]) -> tuple[float, ...]:
        return tuple((time - began) / size for time in times)

    ended = run.attempts[: None if run.has_ended else -1]
    ends = since(start.ended for start in ended if not start.exit.startswith(_WELL))
    saved, failed = since(run.saves), since(run.failed_saves)
    validated = since(each.time for each in run.validations)
    bars = tuple(
        zip(since(each.began for each in run.attempts), since(each.ended for each in run.attempts), strict=True)
    )
    rows = (
        IntervalRow("attempts", bars=bars, crosses=ends),
        IntervalRow("saves", points=saved, crosses=failed),
        IntervalRow("validations", points=validated),
    )
    summary = (
        f"{count(len(bars), 'attempt')}, {count(len(saved), 'checkpoint')} saved, "
        f"{count(len(failed), 'failed save')}, {count(len(validated), 'validation')}."
    )
    named = ["attempts that were killed or failed"] * bool(ends) + ["saves that failed"] * bool(failed)
    return IntervalPlot(
        name="time",
        title="Attempts, saves and validations",
        rows=rows,
        x_title=f"{unit} since the first start",
        number="{:g}".format,
        in_words=summary,
        note=summary + (f" Crosses are {' and '.join(named)}." if named else ""),
    )


def column_chart(
    run: RunReader,
    column: str,
    title: str,
    y_title: str,
    value: Callable[[float], str] = "{:.3g}".format,
    **more: Any,
) -> Chart | None:
    """A chart of one column, with `more` fields; None where it was never logged."""
    if column not in run.metrics:
        return None
    return Chart(
        name=column.replace("_", "-"),
        title=title,
        lines=(ChartSeries("", run.metric("tokens"), run.metric(column), "blue"),),
        x_title=X_TITLE,
        y_title=y_title,
        value=value,
        x_value=short,
        **more,
    )


def _nats(run: RunReader, corruption: str, key: str) -> Numbers:
    """(validations,) the logarithm of a perplexity; NaN where it was not finite or not known."""
    values = [validation.scores.get(corruption, {}).get(key) for validation in run.validations]
    return np.array([math.log(value) if value and value > 0 else math.nan for value in values])


def _stages(run: RunReader) -> tuple[tuple[float, str], ...]:
    """The curriculum's stages, by the length of crops; none where it has one length throughout."""
    data = run.settings.get("data", {})
    stages = data.get("curriculum") or []
    if not stages:
        return ()
    starts = [0.0, *(float(end) for end, _ in stages)]
    crops = [*(crop for _, crop in stages), data.get("crop_tokens", "all tokens")]
    return tuple((start, f"crops of {crop}") for start, crop in zip(starts, crops, strict=True))
