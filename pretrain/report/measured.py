"""What was measured of a run after its end: perplexity of groups of proteins, contacts, scores of assays.

In: evaluation.json, contacts.json and proteingym.csv of the run directory, as `python -m pretrain.evaluate -o`, `python
-m pretrain.contacts -o` and `python -m finetune.proteingym -o` write them. Out: drawings, none for a file that is not
there or not whole. Kept: nothing.
"""

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pretrain.evaluation.corruptions import TITLES
from pretrain.evaluation.figures import IDENTITY, LENGTH, Figures
from pretrain.report.contact_map import ContactMap
from pretrain.report.intervals import Intervals, Measured
from pretrain.report.section import Section

EVALUATION, CONTACTS, ASSAYS = "evaluation.json", "contacts.json", "proteingym.csv"
_CONTACTS_FORMAT = "zymogen.contacts/1"


def section(root: Path) -> Section | None:
    """What was measured of a run, for its page; None where nothing was."""
    drawings = measured(root)
    if not drawings:
        return None
    return Section("Measured afterwards", ("In brackets 95 % intervals by bootstrap.",), drawings=tuple(drawings))


def measured(root: Path) -> list[Intervals | ContactMap]:
    """The drawings of what the run directory has."""
    evaluation = _evaluation(root / EVALUATION)
    of_lengths = [] if evaluation is None else [_perplexity(evaluation, by) for by in (LENGTH, IDENTITY)]
    contacts = _read(root / CONTACTS)
    found = (*of_lengths, _contacts(contacts), _map(contacts), *_assays(root / ASSAYS))
    return [drawn for drawn in found if drawn is not None]


def _evaluation(path: Path) -> Figures | None:
    try:
        return Figures.read(path)
    except ValueError:
        return None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if content["format"] == _CONTACTS_FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _perplexity(evaluation: Figures, by: str) -> Intervals | None:
    """Perplexity under mask-all in each bucket."""
    rows = tuple(
        Measured(row.bucket, row.perplexity, row.low, row.high, row.unigram)
        for row in evaluation.rows
        if row.by == by and row.corruption == "mask_all" and row.sequences
    )
    if not rows:
        return None
    return Intervals(
        name=f"perplexity-{by}",
        title={LENGTH: "Perplexity by length", IDENTITY: "Perplexity by identity to the training corpus"}[by],
        rows=rows,
        x_title=f"perplexity, {TITLES['mask_all']}; upright: residue frequencies",
        value="{:.2f}".format,
        note=f"Frozen set {evaluation.set[:12]}.",
    )


def _contacts(content: Mapping[str, Any]) -> Intervals | None:
    """Mean precision at long range of the model, random weights and chance."""
    try:
        rows = tuple(
            Measured(
                _label(str(who), str(what)), _number(of_one["mean"]), _number(of_one["low"]), _number(of_one["high"])
            )
            for who, of in content.get("means", {}).items()
            for what, of_one in of.items()
        )
        chains = len(content.get("chains", []))
    except (KeyError, TypeError, AttributeError):
        return None
    if not rows:
        return None
    return Intervals(
        name="contacts",
        title="Contacts at long range",
        rows=rows,
        x_title="precision, mean over chains",
        value="{:.3f}".format,
        note=f"Of {chains:,} chains, none a relative of those that the regression was fitted on.",
    )


def _map(content: Mapping[str, Any]) -> ContactMap | None:
    """The contacts of one chain."""
    try:
        of = content["map"]
        touching, predicted = (tuple((int(i), int(j)) for i, j in of[which]) for which in ("touching", "predicted"))
        name, residues, model = str(of["name"]), int(of["residues"]), str(content["model"])
    except (KeyError, TypeError, ValueError):
        return None
    if residues < 1 or not touching:
        return None
    return ContactMap(
        name="contact-map",
        title=f"Contacts of {name}",
        residues=residues,
        touching=touching,
        predicted=predicted,
        note=f"Grey, below the diagonal: pairs that touch. Above it the {len(predicted)} most probable pairs of "
        f"{model}, blue where they touch, orange where not. Of all chains this one's precision is in the middle.",
    )


def _assays(path: Path) -> list[Intervals]:
    """Spearman of each assay, by type of selection, for each column of scores."""
    columns: dict[str, dict[str, dict[str, list[float]]]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["spearman"]:
                    of_column = columns.setdefault(row["column"], {}).setdefault(row["selection_type"], {})
                    of_column.setdefault(row["UniProt_ID"], []).append(float(row["spearman"]))
    except (OSError, ValueError, KeyError, TypeError):
        return []
    drawn = []
    for number, (column, selections) in enumerate(columns.items()):
        rows = []
        for selection, proteins in sorted(selections.items()):
            points = tuple(value for own in proteins.values() for value in own)
            mean = math.fsum(math.fsum(own) / len(own) for own in proteins.values()) / len(proteins)
            rows.append(
                Measured(
                    f"{selection}, {len(points)} assay{'s' * (len(points) > 1)}",
                    mean,
                    math.nan,
                    math.nan,
                    points=points,
                )
            )
        drawn.append(
            Intervals(
                name=f"assays-{number}",
                title=f"ProteinGym, {column}",
                rows=tuple(rows),
                x_title="Spearman; a stroke is an assay",
                value="{:.3f}".format,
                note="The dot is the mean over proteins of the mean over a protein's assays.",
            )
        )
    return drawn


def _label(who: str, what: str) -> str:
    return who if who == what else f"{what}, {who}"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
