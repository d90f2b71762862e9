"""What was measured of the exported weights after the run's end, as it stands in the metadata of their card.

In: `RunResults` of a run directory. Out: `EvalResult`s. Kept: nothing.
"""

import math
from collections.abc import Mapping

from huggingface_hub import EvalResult

from pretrain.evaluate.results import ALL, ContactScores, EvaluationResult
from pretrain.evaluate.scores import TITLES, kind_of
from pretrain.report.results import (
    RunResults,
    format_comparison,
    mean_of_proteins,
    mean_of_types,
    result_rows,
)
from pretrain.report.section import source_names

_ARGUMENTS = ("low", "high", "unigram", "gain", "gain_low", "gain_high", "sequences", "groups", "targets")


def measured_results(found: RunResults, validated: str) -> list[EvalResult]:
    """What was measured, with intervals and baselines as arguments of the metric; only numbers that are finite.

    Args:
        found: what was measured.
        validated: hash of the frozen set of the validation that stands on the card already, whose figures over all
            proteins are not repeated; empty without one.
    """
    return [
        *(_perplexity_results(found.evaluation, validated) if found.evaluation else []),
        *(_contact_results(found.contacts) if found.contacts else []),
        *(_assay_result(*of) for of in found.assays.items()),
    ]


def _perplexity_results(evaluation: EvaluationResult, validated: str) -> list[EvalResult]:
    kind = kind_of(evaluation.held_out)
    return [
        EvalResult(
            task_type="fill-mask",
            task_name="Masked language modelling",
            dataset_type="protein-sequences",
            dataset_name=f"{kind}s of {source_names(evaluation.data)}",
            dataset_config=None if of.by == ALL else f"{of.by}: {of.bucket}",
            dataset_split={"protein": None, "training protein": "train"}.get(kind, "validation"),
            dataset_revision=evaluation.set,
            metric_type="perplexity",
            metric_name=f"Perplexity, {TITLES.get(of.corruption, of.corruption)}"
            + ("" if of.by == ALL else f", {of.by}: {of.bucket}"),
            metric_value=of.perplexity,
            metric_args=_known({name: getattr(of, name) for name in _ARGUMENTS}),
        )
        for of in result_rows(evaluation)
        if math.isfinite(of.perplexity) and (of.by != ALL or evaluation.set != validated)
    ]


def _contact_results(contacts: ContactScores) -> list[EvalResult]:
    return [
        EvalResult(
            task_type="contact-prediction",
            task_name="Contacts at long range",
            dataset_type="protein-structures",
            dataset_name=f"{len(contacts.chains)} protein chains",
            metric_type="precision",
            metric_name=precision,
            metric_value=of.mean,
            metric_args=_known({"low": of.low, "high": of.high, **format_comparison(contacts, precision)}),
        )
        for precision, of in contacts.means[contacts.model].items()
        if math.isfinite(of.mean)
    ]


def _assay_result(column: str, selections: Mapping[str, Mapping[str, list[float]]]) -> EvalResult:
    return EvalResult(
        task_type="variant-effect-prediction",
        task_name="Effects of variants",
        dataset_type="proteingym",
        dataset_name="ProteinGym",
        dataset_config=column,
        metric_type="spearman",
        metric_name=f"Spearman, {column}",
        metric_value=mean_of_types(selections),
        metric_args={
            "assays": sum(len(own) for proteins in selections.values() for own in proteins.values()),
            **{name: mean_of_proteins(of) for name, of in sorted(selections.items())},
        },
    )


def _known(values: Mapping[str, float]) -> dict[str, float | None]:
    """The numbers, without those that are not finite."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
