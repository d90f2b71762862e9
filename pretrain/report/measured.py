"""What was measured of a run after its end: perplexity of groups of proteins, contacts, scores of assays.

In: evaluation.json, contacts.json and proteingym.csv of the run directory, as `python -m pretrain.evaluate -o`, `python
-m pretrain.contacts -o` and `python -m finetune.proteingym -o` write them. Out: `Measurements` and their drawings, none
for a file that is not there or not whole. Kept: nothing.
"""

import csv
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.recipe import json_file
from pretrain.evaluation.corruptions import TITLES
from pretrain.evaluation.course import number
from pretrain.evaluation.figures import IDENTITY, LENGTH, Figures
from pretrain.report.contact_map import ContactMap
from pretrain.report.intervals import Intervals, Measured
from pretrain.report.section import Section

EVALUATION, CONTACTS, ASSAYS = "evaluation.json", "contacts.json", "proteingym.csv"
_CONTACTS_FORMAT = "zymogen.contacts/1"
Assays = Mapping[str, Mapping[str, Mapping[str, list[float]]]]
"""Column of scores -> type of selection -> protein -> Spearman of each of its assays."""


@dataclass(frozen=True, slots=True)
class Measurements:
    """What the files of a run directory hold; nothing of one that is not there or not whole."""

    evaluation: Figures | None
    contacts: Mapping[str, Any]
    """Content of contacts.json; empty without one."""
    assays: Assays
    of_others: tuple[str, ...] = ()
    """Files that hold nothing of the weights that were asked for."""

    def drawings(self) -> list[Intervals | ContactMap]:
        """All that can be drawn, in the order in which it is shown."""
        of_groups = [_perplexity(self.evaluation, by) for by in (LENGTH, IDENTITY)] if self.evaluation else []
        found = (*of_groups, _contacts(self.contacts), _map(self.contacts), *_assays(self.assays))
        return [drawn for drawn in found if drawn is not None]


def section(root: Path) -> Section | None:
    """What was measured of a run, for its page; None where nothing was."""
    if not (drawings := read(root).drawings()):
        return None
    return Section("Measured afterwards", ("In brackets 95 % intervals by bootstrap.",), drawings=tuple(drawings))


def is_any(root: Path) -> bool:
    """Whether a run directory has one of the files."""
    return any((root / name).is_file() for name in (EVALUATION, CONTACTS, ASSAYS))


def read(root: Path, weights: Collection[str] | None = None) -> Measurements:
    """What the files of a run directory hold.

    Args:
        root: the run directory.
        weights: content hashes, as `pretrain.checkpoint.frozen` defines them. What was measured of other weights, or
            does not say of which, is left out. None for all that there is.
    """
    evaluation, contacts, assays = _evaluation(root / EVALUATION), _read(root / CONTACTS), _read_assays(root / ASSAYS)
    if weights is None:
        return Measurements(evaluation, contacts, {column: of for (column, _), of in assays.items()})
    own_evaluation = evaluation if evaluation and evaluation.weights in weights else None
    own_contacts = contacts if str(contacts.get("weights")) in weights else {}
    own_assays = {column: of for (column, made_of), of in assays.items() if made_of in weights}
    kept = ((EVALUATION, evaluation, own_evaluation), (CONTACTS, contacts, own_contacts), (ASSAYS, assays, own_assays))
    of_others = tuple(name for name, found, own in kept if found and not own)
    return Measurements(own_evaluation, own_contacts, own_assays, of_others)


def precisions(contacts: Mapping[str, Any]) -> dict[str, dict[str, Measured]]:
    """Model, control or chance -> name of a precision -> its mean over chains; empty where the file is not whole."""
    try:
        return {
            str(who): {
                str(what): Measured(
                    _label(str(who), str(what)), number(of["mean"]), number(of["low"]), number(of["high"])
                )
                for what, of in each.items()
            }
            for who, each in contacts.get("means", {}).items()
        }
    except (KeyError, TypeError, AttributeError):
        return {}


def num_chains(contacts: Mapping[str, Any], which: str = "chains") -> int:
    """Number of the chains that the precisions are means over, or of those "fitted_on"."""
    chains = contacts.get(which)
    return len(chains) if isinstance(chains, list) else 0


def is_constant(contacts: Mapping[str, Any]) -> bool:
    """Whether every weight of the regression is 0, so that all pairs have one probability."""
    head = contacts.get("head")
    weight = head.get("weight") if isinstance(head, dict) else None
    return isinstance(weight, list) and bool(weight) and not any(weight)


def mean_of_proteins(proteins: Mapping[str, list[float]]) -> float:
    """Mean over proteins of the mean over a protein's assays."""
    return math.fsum(math.fsum(own) / len(own) for own in proteins.values()) / len(proteins)


def _evaluation(path: Path) -> Figures | None:
    try:
        return json_file.read(Figures, path, "file of python -m pretrain.evaluate", "write it again")
    except ValueError:
        return None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if content["format"] == _CONTACTS_FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _read_assays(path: Path) -> dict[tuple[str, str | None], dict[str, dict[str, list[float]]]]:
    """`Assays` by column and content hash of the weights that it was scored with, None where that is not said."""
    columns: dict[tuple[str, str | None], dict[str, dict[str, list[float]]]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["spearman"]:
                    of_column = columns.setdefault((row["column"], row.get("weights")), {})
                    of_proteins = of_column.setdefault(row["selection_type"], {})
                    of_proteins.setdefault(row["UniProt_ID"], []).append(float(row["spearman"]))
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return columns


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
    rows = tuple(row for each in precisions(content).values() for row in each.values())
    if not rows:
        return None
    return Intervals(
        name="contacts",
        title="Contacts at long range",
        rows=rows,
        x_title="precision, mean over chains",
        value="{:.3f}".format,
        note=f"Of {num_chains(content):,} chains, none a relative of those that the regression was fitted on.",
    )


def _map(content: Mapping[str, Any]) -> ContactMap | None:
    """The contacts of one chain; none where all pairs have one probability, so that none is more probable."""
    if is_constant(content):
        return None
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


def _assays(columns: Assays) -> list[Intervals]:
    """Spearman of each assay, by type of selection, for each column of scores."""
    drawn = []
    for place, (column, selections) in enumerate(columns.items()):
        rows = []
        for selection, proteins in sorted(selections.items()):
            points = tuple(value for own in proteins.values() for value in own)
            label = f"{selection}, {len(points)} assay{'s' * (len(points) > 1)}"
            rows.append(Measured(label, mean_of_proteins(proteins), math.nan, math.nan, points=points))
        drawn.append(
            Intervals(
                name=f"assays-{place}",
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
