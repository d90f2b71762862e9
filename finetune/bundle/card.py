"""The card of a fine-tuned model: its tasks, their scores beside baselines, what of the tested proteins was known.

In: a manifest. Out: the README.md of a bundle, or of its export. Kept: nothing. Every number stands in bundle.json.
"""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from huggingface_hub import EvalResult

from finetune.bundle.manifest import BundleManifest
from finetune.results import report_sections
from finetune.tasks.task import Task
from pretrain.card.text import (
    FOLDER,
    NOT_STATED,
    card,
    how_to_load,
    literal,
    section_lines,
    started_from,
    table,
)
from pretrain.report.pictures import card_pictures
from pretrain.report.section import NOT_MEASURED, source_names

CARD = "README.md"
_TAGS = {"sequence": "text-classification", "residue": "token-classification"}


def write_pictures(manifest: BundleManifest, folder: Path) -> list[str]:
    """Write the pictures of a bundle's evaluation beside its card; the names of their files."""
    shown = report_sections.evaluation(manifest.evaluation)
    return card_pictures((drawing for section in shown for drawing in section.drawings), folder)


def bundle_card(manifest: BundleManifest, pictures: Collection[str] = ()) -> str:
    """The card of a bundle, which shows the named pictures that lie beside it."""
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
    return _text(manifest, pictures, names, loads, said, tag, "zymogen")


def export_card(manifest: BundleManifest, objective: Task, class_name: str, pictures: Collection[str] = ()) -> str:
    """The card of a bundle's export for transformers.

    Args:
        manifest: of the bundle.
        objective: the only one.
        class_name: of transformers' class.
        pictures: names of those that lie beside it.
    """
    task = objective.settings
    kind = f"AutoModelFor{'Sequence' if task.level == 'sequence' else 'Token'}Classification"
    unit = f" of {literal(objective.unit)}" if objective.unit else ""
    number = f"Each logit is a number in the scale of the task: transform {task.transform!r}{unit}."
    said = task.kind.logits_are or number
    if task.kind.is_binary and objective.classes:
        said += f" Yes is {literal(objective.classes[1])}."
    loads = [
        f"It is an `{class_name}` of transformers:",
        "",
        *how_to_load(kind, is_modern=manifest.encoder.is_modern),
    ]
    said += " They are not calibrated; the bundle that this was made from holds the calibration."
    return _text(manifest, pictures, task.name, loads, said, _TAGS[task.level], "transformers")


def _text(
    manifest: BundleManifest,
    pictures: Collection[str],
    name: str,
    loads: Sequence[str],
    said: str,
    tag: str,
    library: str,
) -> str:
    base = manifest.base
    of_tasks = table(("task", "type", "level", "columns", "unit or classes", "labels that trained"), _tasks(manifest))
    of_training = [
        ("started from", started_from(base.init, base.preset)),
        ("hash of the weights that it started from", f"`{base.content_hash}`"),
        ("adapted by", literal(manifest.adaptation.kind)),
        ("table", literal(source_names(manifest.reading.table)) or NOT_STATED),
        ("fingerprint of proteins and labels", f"`{manifest.labels}`"),
        ("split", literal(manifest.split_method)),
        ("fingerprint of the split", f"`{manifest.split}`"),
        (
            f"step, chosen on {'validation' if manifest.chosen_on == 'validation' else 'training rows'}",
            f"{manifest.step}",
        ),
        ("energy", NOT_MEASURED),
    ]
    parts = {
        "": [f"A protein language model, fine-tuned with Zymogen on an assay table. {said}", "", *loads],
        "Tasks": of_tasks,
        "Training": table(("", ""), of_training),
        "Evaluation": [
            line
            for section in report_sections.evaluation(manifest.evaluation)
            for line in section_lines(section, pictures)
        ],
    }
    return card(
        name,
        parts,
        _results(manifest),
        limits=_limits(manifest),
        made_of="the assay data and of the weights that training started from",
        versions=manifest.versions,
        pipeline_tag=tag,
        is_modern=manifest.encoder.is_modern,
        init=base.init,
        library=library,
    )


def _tasks(manifest: BundleManifest) -> Iterator[tuple[str, ...]]:
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


def _results(manifest: BundleManifest) -> list[EvalResult]:
    """The same for `model-index`, whose format has no place for intervals and baselines but the metric's arguments."""
    level = {record.settings.name: record.settings.level for record in manifest.tasks}
    if (results := manifest.evaluation) is None:
        return []
    return [
        EvalResult(
            task_type=_TAGS[level.get(of.objective, "sequence")],
            task_name=of.objective,
            dataset_type="assay-table",
            dataset_name=source_names(manifest.reading.table) or NOT_STATED,
            dataset_config=of.task,
            dataset_split=results.part,
            dataset_revision=manifest.split,
            metric_type=of.metric,
            metric_name=f"{of.title}, {of.task}",
            metric_value=of.value,
            metric_args={
                **{"low": of.low, "high": of.high, "labels": of.labels, "groups": of.groups},
                "baselines": results.of_baselines(of),
            },
        )
        for of in results.scores.defined
    ]


def _limits(manifest: BundleManifest) -> Iterator[str]:
    shortest, longest = manifest.training_residues
    yield f"Proteins of {shortest} to {longest} residues trained; of shorter and longer ones nothing is known."
    if (results := manifest.evaluation) is not None:
        yield from map(literal, results.caveats)
    else:
        yield "The run had not come to its end: there are no scores of tested proteins."
    yield f"Other assays, conditions and hosts than those of the table: {NOT_MEASURED}."
