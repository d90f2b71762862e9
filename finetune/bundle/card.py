"""The card of a fine-tuned model: its tasks, their scores beside baselines, what of the tested proteins was known.

In: a manifest. Out: the README.md of a bundle, or of its export. Kept: nothing. Every number stands in bundle.json.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from finetune.bundle.manifest import Manifest
from finetune.bundle.pictured import baselines, best_baseline, shown
from finetune.metrics.scores import CHANCE, TITLES
from finetune.tasks.objective import Objective
from pretrain.card.text import (
    FOLDER,
    NOT_MEASURED,
    NOT_STATED,
    card,
    how_to_load,
    hub_model,
    literal,
    metadata,
    source_name,
    started_from,
    table,
    versions,
)

CARD = "README.md"
_SEAL = "\n<!-- zymogen.card/1 {} -->\n"
_TAGS = {"sequence": "text-classification", "residue": "token-classification"}
_LICENCE = f"""\
The licence of these weights is {NOT_STATED}: the run does not know it. Anyone who publishes them adds `license` to the
metadata above, after a look at the licences of the assay data and of the weights that training started from. How to
cite this model is {NOT_STATED}, too."""


def sealed(text: str) -> str:
    """A card with the hash of its text at its end, by which a change is noticed."""
    return text + _SEAL.format(hashlib.sha256(text.encode()).hexdigest())


def is_sealed(path: Path) -> bool:
    """Whether a file is a card as it was written."""
    try:
        found = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return False
    return found == sealed(found.rpartition(_SEAL.partition("{")[0])[0])


def bundle_card(manifest: Manifest) -> str:
    """The card of a bundle, sealed."""
    names = ", ".join(record.settings.name for record in manifest.tasks)
    loads = [
        "The folder is a bundle of Zymogen, which predicts a table of sequences with it:",
        "",
        "```bash",
        f"python -m finetune.predict {FOLDER} variants.csv -o predicted.csv",
        "```",
    ]
    said = "It holds its calibration, where the run found one."
    levels = {record.settings.level for record in manifest.tasks}
    tag = _TAGS["residue" if levels == {"residue"} else "sequence"]
    return sealed(_text(manifest, names, loads, said, tag, "zymogen"))


def export_card(manifest: Manifest, objective: Objective, class_name: str) -> str:
    """The card of a bundle's export for transformers.

    Args:
        manifest: of the bundle.
        objective: the only one.
        class_name: of transformers' class.
    """
    task = objective.settings
    kind = f"AutoModelFor{'Sequence' if task.level == 'sequence' else 'Token'}Classification"
    said = {
        "regression": f"Each logit is a number in the scale of the task: transform {task.transform!r}"
        + (f" of {literal(objective.unit)}." if objective.unit else "."),
        "multiclass": "The softmax of the logits is the probability of each class.",
    }.get(task.type, "The sigmoid of each logit is the probability of its label.")
    if task.type in ("binary", "multilabel") and objective.classes:
        said += f" Yes is {literal(objective.classes[1])}."
    loads = [
        f"It is an `{class_name}` of transformers:",
        "",
        *how_to_load(kind, is_modern=manifest.encoder.is_modern),
    ]
    said += " They are not calibrated; the bundle that this was made from holds the calibration."
    return _text(manifest, task.name, loads, said, _TAGS[task.level], "transformers")


def _text(manifest: Manifest, name: str, loads: Sequence[str], said: str, tag: str, library: str) -> str:
    base, evaluation = manifest.base, manifest.evaluation
    body = [
        f"# {literal(name)}",
        "",
        f"A protein language model, fine-tuned with Zymogen on an assay table. {said}",
        "",
        *loads,
        "",
        "## Tasks",
        "",
        *table(("task", "type", "level", "columns", "unit or classes", "labels that trained"), _tasks(manifest)),
        "",
        "## Training",
        "",
        *table(
            ("", ""),
            [
                ("started from", started_from(base.init, base.preset)),
                ("hash of the weights that it started from", f"`{base.content_hash}`"),
                ("adapted by", literal(manifest.adaptation.kind)),
                ("table", ", ".join(map(source_name, manifest.reading.table)) or NOT_STATED),
                ("fingerprint of proteins and labels", f"`{manifest.labels}`"),
                ("split", f"{literal(str(evaluation.get('split') or manifest.split_method))}"),
                ("fingerprint of the split", f"`{manifest.split}`"),
                ("step with the best validation", f"{manifest.step}"),
                ("energy", NOT_MEASURED),
            ],
        ),
        "",
        "## Evaluation",
        "",
        *_scores(manifest),
        "",
        *shown(evaluation),
        *_audit(evaluation.get("audit")),
        "## Limits",
        "",
        *(f"- {line}" for line in _limits(manifest)),
        "",
        "## Licence and citation",
        "",
        _LICENCE,
        "",
        "## Versions",
        "",
        *versions(manifest.versions),
    ]
    data = metadata(
        name,
        [*_results(manifest)],
        pipeline_tag=tag,
        is_modern=manifest.encoder.is_modern,
        base_model=hub_model(base.init),
    )
    data.library_name = library
    return card(data, "\n".join(body))


def _tasks(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    for record in manifest.tasks:
        settings, counts = record.settings, record.num_labels
        labels = NOT_STATED if counts is None else ", ".join(f"{count:,}" for count in counts)
        unit = literal(record.unit or settings.unit) or (
            "" if not settings.classes else literal("; ".join(record.classes))
        )
        yield (
            *(literal(settings.name), settings.type, settings.level),
            *(literal(", ".join(record.outputs)), unit, labels),
        )


def _scored(manifest: Manifest) -> list[Mapping[str, Any]]:
    return list(manifest.evaluation.get("model") or [])


def _scores(manifest: Manifest) -> Iterator[str]:
    """The scores of every task, and why one has none."""
    scored = _scored(manifest)
    if not scored:
        yield f"Scores of tested proteins: {NOT_MEASURED}."
    rows, undefined = [], []
    for of in scored:
        task = literal(str(of["task"]))
        if of.get("value") is None:
            undefined.append((task, literal(str(of.get("undefined") or NOT_MEASURED))))
            continue
        low, high = of.get("low"), of.get("high")
        interval = "unknown" if low is None or high is None else f"{low:.3f} to {high:.3f}"
        theirs = best_baseline(manifest.evaluation, of)
        best = f"{theirs[1]:.3f} ({literal(theirs[0])})" if theirs else NOT_MEASURED
        count = f"{of['labels']:,}"
        rows.append((task, _title(of["metric"]), f"{of['value']:.3f}", interval, _chance(of["metric"]), best, count))
    if rows:
        part = literal(str(manifest.evaluation.get("part", "")))
        yield f"Of the part of the split that is called {part}; 95 % interval by bootstrap over groups of the split."
        yield "Baselines are fitted on the same training labels and scored on the same labels as the model."
        yield ""
        head = ("task", "metric", "model", "95 % interval", "by chance", "best baseline", "labels")
        yield from table(head, rows)
    if undefined:
        yield ""
        yield "Tasks whose score is undefined:"
        yield ""
        yield from table(("task", "why"), undefined)


def _title(metric: str) -> str:
    return TITLES.get(metric, literal(metric))


def _chance(metric: str) -> str:
    return f"{CHANCE[metric]}" if metric in CHANCE else NOT_MEASURED


def _results(manifest: Manifest) -> Iterator[EvalResult]:
    """The same for `model-index`, whose format has no place for intervals and baselines but the metric's arguments."""
    level = {record.settings.name: record.settings.level for record in manifest.tasks}
    for of in _scored(manifest):
        if of.get("value") is None:
            continue
        yield EvalResult(
            task_type=_TAGS[level.get(of["objective"], "sequence")],
            task_name=str(of["objective"]),
            dataset_type="assay-table",
            dataset_name=", ".join(map(source_name, manifest.reading.table)) or NOT_STATED,
            dataset_config=str(of["task"]),
            dataset_split=str(manifest.evaluation.get("part", "")),
            dataset_revision=manifest.split,
            metric_type=str(of["metric"]),
            metric_name=f"{TITLES.get(of['metric'], of['metric'])}, {of['task']}",
            metric_value=of["value"],
            metric_args={
                **{name: of.get(name) for name in ("low", "high", "labels", "groups")},
                "baselines": baselines(manifest.evaluation, of),
            },
        )


def _audit(audit: Mapping[str, Any] | None) -> Iterator[str]:
    """What of the tested sequences is known elsewhere."""
    yield "### What of the tested sequences is known"
    yield ""
    if not audit:
        yield f"Relatives among training and tested sequences: {NOT_MEASURED}."
        yield ""
        return
    rows = []
    for each in audit.get("comparisons") or []:
        against = "pretraining" if str(each["against"]).startswith("pretraining") else literal(str(each["against"]))
        queries = f"{each['queries']:,}"
        rows.append((against, "equal", f"{each['equal']:,} of {queries}"))
        for at, count in zip(each["identities"], each["similar"], strict=True):
            rows.append((against, f"identity of at least {at:.0%}", f"{count:,} of {queries}"))
    yield from table(("against", "relation", "tested sequences"), rows)
    yield ""
    yield f"Searched by {literal(str(audit.get('searched_by')))}."
    yield from map(literal, map(str, audit.get("notes") or []))
    yield ""


def _limits(manifest: Manifest) -> Iterator[str]:
    shortest, longest = manifest.training_residues
    yield f"Proteins of {shortest} to {longest} residues trained; of shorter and longer ones nothing is known."
    if not _scored(manifest):
        yield "The run had not come to its end: there are no scores of tested proteins."
    yield f"Other assays, conditions and hosts than those of the table: {NOT_MEASURED}."
