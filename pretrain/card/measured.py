"""What was measured of the exported weights after the run's end, as it stands on their card.

In: `Measurements` of a run directory, pictures beside the card. Out: Markdown, and `EvalResult`s. Kept: nothing.
"""

import math
from collections.abc import Iterator, Mapping

from huggingface_hub import EvalResult

from pretrain.card.text import NOT_MEASURED, literal, pictured, source_name, table
from pretrain.evaluation.contact_figures import CHANCE, CONTROL, ContactFigures
from pretrain.evaluation.corruptions import TITLES
from pretrain.evaluation.figures import ALL, IDENTITY, LENGTH, Figure, Figures
from pretrain.evaluation.scores import kind_of, shown, shown_interval
from pretrain.report.measured import Measurements, mean_of_proteins
from pretrain.report.section import Drawing

_GAINS = ("gain", "gain_low", "gain_high")
_HIDDEN = "mask_all"
"""The corruption whose buckets are shown."""


def sections(found: Measurements, pictures: Mapping[str, Drawing]) -> Iterator[str]:
    """The lines of the card, under a heading for each file; none for a file that is not there."""
    if (evaluation := found.evaluation) is not None:
        yield from _perplexities(evaluation)
        yield from pictured(pictures, f"perplexity-{LENGTH}.svg", f"perplexity-{IDENTITY}.svg")
    if found.contacts:
        yield from _contacts(found.contacts)
        yield from pictured(pictures, "contacts.svg", "contact-map.svg")
    for number, (column, selections) in enumerate(found.assays.items()):
        yield from _assays(column, selections)
        yield from pictured(pictures, f"assays-{number}.svg")


def _perplexities(evaluation: Figures) -> Iterator[str]:
    """Perplexities of all proteins under each corruption, and of each bucket under mask-all."""
    data = ", ".join(map(source_name, evaluation.data))
    yield from (f"### Perplexity of {kind_of(evaluation.held_out)}s of {data}", "")
    yield (
        f"Measured by `python -m pretrain.evaluate` on {evaluation.sequences:,} proteins, {evaluation.residues:,} "
        f"residues in crops of at most {evaluation.crop_tokens:,} tokens: the frozen set `{literal(evaluation.set)}`."
    )
    yield f"Intervals draw {literal(evaluation.groups)}; frequencies are those of {literal(evaluation.unigram_of)}."
    if any(row.by == IDENTITY for row in evaluation.rows) and evaluation.training:
        nearest, by = ", ".join(map(source_name, evaluation.training)), literal(str(evaluation.searched_by))
        yield f"Identity is that to the nearest training protein of {nearest} ({by})."
    else:
        yield f"Identity to the training corpus: {NOT_MEASURED}."
    yield ""
    head = ("corruption", "proteins", "number", "perplexity", "95 % interval", "residue frequencies")
    yield from table(head, map(_row, _rows(evaluation)))
    yield ""


def _rows(evaluation: Figures) -> list[Figure]:
    """Those of all proteins first."""
    rows = [row for row in evaluation.rows if row.sequences and (row.by == ALL or row.corruption == _HIDDEN)]
    return sorted(rows, key=lambda row: row.by != ALL)


def _row(of: Figure) -> tuple[str, ...]:
    titles = TITLES.get(of.corruption, literal(of.corruption)), literal(of.bucket)
    ends = shown_interval(of.low, of.high, _perplexity)
    return (*titles, f"{of.sequences:,}", _perplexity(of.perplexity), ends, _perplexity(of.unigram))


def _perplexity(value: float) -> str:
    return shown(value if math.isfinite(value) else None)


def _contacts(contacts: ContactFigures) -> Iterator[str]:
    """Precisions at long range, beside random weights and chance."""
    yield from ("### Contacts", "")
    yield (
        f"Measured by `python -m pretrain.contacts`: precision of the most probable pairs of residues at long range, "
        f"mean over {len(contacts.chains):,} chains. None of them is a relative of the "
        f"{len(contacts.fitted_on):,} chains on whose attention maps the regression was fitted."
    )
    if contacts.is_constant:
        yield "No attention map says enough of contacts: every weight of the regression is 0, and it ranks no pair."
    yield ""
    rows = []
    for what, of in contacts.means[contacts.model].items():
        ends = shown_interval(of.low, of.high, _share)
        rows.append((literal(what), _share(of.mean), ends, *map(_share, _beside(contacts, what).values())))
    yield from table(("pairs", "precision", "95 % interval", CONTROL, CHANCE), rows)
    yield ""


def _beside(found: ContactFigures, what: str) -> dict[str, float]:
    """The same precision of random weights, and chance, which is one for all."""
    return {CONTROL: found.means[CONTROL][what].mean, CHANCE: found.means[CHANCE][CHANCE].mean}


def _share(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else NOT_MEASURED


def _assays(column: str, selections: Mapping[str, Mapping[str, list[float]]]) -> Iterator[str]:
    """Spearman by type of selection."""
    yield from (f"### ProteinGym, {literal(column)}", "")
    yield (
        "Measured by `python -m finetune.proteingym`: Spearman of the scores and what was measured, mean over the "
        "assays of a protein, then over proteins, then over types of selection."
    )
    yield ""
    rows = [(literal(name), f"{_count(of):,}", _share(mean_of_proteins(of))) for name, of in sorted(selections.items())]
    every = sum(_count(of) for of in selections.values())
    rows.append(("mean over types", f"{every:,}", _share(_mean_of_types(selections))))
    yield from table(("type of selection", "assays", "Spearman"), rows)
    yield ""


def _count(proteins: Mapping[str, list[float]]) -> int:
    return sum(map(len, proteins.values()))


def _mean_of_types(selections: Mapping[str, Mapping[str, list[float]]]) -> float:
    return math.fsum(map(mean_of_proteins, selections.values())) / len(selections)


# The same for `model-index` -----------------------------------------------------------------------


def results(found: Measurements, validated: str) -> list[EvalResult]:
    """What was measured, with intervals and baselines as arguments of the metric; only numbers that are finite.

    Args:
        found: what was measured.
        validated: hash of the frozen set of the validation that stands on the card already, whose figures over all
            proteins are not repeated; empty without one.
    """
    each = [*_perplexity_results(found.evaluation, validated)] if found.evaluation else []
    each += _contact_results(found.contacts) if found.contacts else []
    return [*each, *(_assay_result(*of) for of in found.assays.items())]


def _perplexity_results(evaluation: Figures, validated: str) -> Iterator[EvalResult]:
    split = {"protein": None, "training protein": "train"}.get(kind_of(evaluation.held_out), "validation")
    for of in _rows(evaluation):
        if not math.isfinite(of.perplexity) or (of.by == ALL and evaluation.set == validated):
            continue
        title = TITLES.get(of.corruption, of.corruption)
        yield EvalResult(
            task_type="fill-mask",
            task_name="Masked language modelling",
            dataset_type="protein-sequences",
            dataset_name=f"{kind_of(evaluation.held_out)}s of {', '.join(map(source_name, evaluation.data))}",
            dataset_config=None if of.by == ALL else f"{of.by}: {of.bucket}",
            dataset_split=split,
            dataset_revision=evaluation.set,
            metric_type="perplexity",
            metric_name=f"Perplexity, {title}" + ("" if of.by == ALL else f", {of.by}: {of.bucket}"),
            metric_value=of.perplexity,
            metric_args={
                **{name: _known(getattr(of, name)) for name in ("low", "high", "unigram", *_GAINS)},
                **{name: getattr(of, name) for name in ("sequences", "groups", "targets")},
            },
        )


def _contact_results(contacts: ContactFigures) -> Iterator[EvalResult]:
    for what, of in contacts.means[contacts.model].items():
        if math.isfinite(of.mean):
            beside = {name: _known(value) for name, value in _beside(contacts, what).items()}
            yield EvalResult(
                task_type="contact-prediction",
                task_name="Contacts at long range",
                dataset_type="protein-structures",
                dataset_name=f"{len(contacts.chains)} protein chains",
                metric_type="precision",
                metric_name=what,
                metric_value=of.mean,
                metric_args={"low": _known(of.low), "high": _known(of.high), **beside},
            )


def _assay_result(column: str, selections: Mapping[str, Mapping[str, list[float]]]) -> EvalResult:
    return EvalResult(
        task_type="variant-effect-prediction",
        task_name="Effects of variants",
        dataset_type="proteingym",
        dataset_name="ProteinGym",
        dataset_config=column,
        metric_type="spearman",
        metric_name=f"Spearman, {column}",
        metric_value=_mean_of_types(selections),
        metric_args={
            "assays": sum(map(_count, selections.values())),
            **{name: mean_of_proteins(of) for name, of in sorted(selections.items())},
        },
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
