"""A look at one table: from its cells to a recipe that trains, and the words for it.

In: a `Request`. Out: `Proposal`: the text of the recipe and of the screen. Kept: the token store and its clusters.
"""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finetune.look.column import Column, columns_of
from finetune.look.dividing import Divided, divided
from finetune.look.guess import Guess
from finetune.look.opened import Opened, opened, proteins_for
from finetune.look.protein import Place, place_of
from finetune.look.roles import Roles, roles_of
from finetune.look.sizes import LONGEST, Sizes, crop_of, sizes
from finetune.look.written import Part, recipe_text
from finetune.tables.proteins import SPECIAL_TOKENS
from finetune.tables.read import read_table
from finetune.tables.table import Table
from pretrain.model.presets import PRESETS, EsmShape
from pretrain.proposal.machine import Machine, seen
from pretrain.proposal.reasons import Choice, duration

SMALLEST = "esm2_60k"
_WIDTH = 110
_WITHOUT_MODEL = (
    "none was given: random weights of the smallest size, a baseline only; set init to a pretraining run, a folder or "
    "a Hub name of an ESM-2 or ESM C, and take the preset out (or: python -m finetune.look TABLE --init MODEL)"
)


@dataclass(frozen=True, slots=True)
class Request:
    """What the user gave."""

    table: str
    recipe: Path
    """Where the recipe is written."""
    wild_type: str | None = None
    init: str | None = None
    preset: str | None = None
    tasks: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    store_dir: str = "runs/stores"
    runs: str = "runs"


@dataclass(frozen=True, slots=True)
class Proposal:
    """What was found and is proposed."""

    recipe: str
    told: tuple[str, ...]
    roles: dict[str, tuple[str, str]]
    """Column -> (role, reason)."""
    wild_type: tuple[Path, str] | None
    """A FASTA file that must be written beside the recipe."""


def name_of(table: str) -> str:
    """A name for the recipe and the run of a table."""
    bare = re.split(r"[?]", table)[0].rstrip("/").rpartition("/")[2]
    bare = re.sub(r"\.(gz|bgz|zst|csv|tsv|txt|tab|fasta|fa|faa|parquet|xlsx|json|jsonl|zip)(?=\.|$)", "", bare)
    return re.sub(r"[^A-Za-z0-9_-]+", "_", bare).strip("_") or "assays"


def propose(request: Request) -> Proposal:
    """Look at a table.

    Raises:
        ValueError: it cannot be read, has no protein, or nothing that could be learned.
    """
    table = read_table(request.table)
    columns = columns_of(table)
    for name in request.tasks:
        table.require(name, "--task")
    place = place_of(table, columns, request.wild_type, request.sequence)
    beside = None
    if place.wild_type is not None:
        path = request.recipe.with_suffix(".wild_type.fasta")
        beside = path, f">{place.wild_type[0]}\n{place.wild_type[1]}\n"
        place.settings["wild_type"] = str(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(beside[1])
    data = {name: value for name, value in place.settings.items() if value is not None}
    signs = {column.decimal for column in columns if column.decimal}
    if signs:
        data["decimal"] = signs.pop()
        place.reasons["decimal"] = "some columns do not show what their comma is; others of the table do"
    proteins = proteins_for(table, data, place.reasons)
    roles = roles_of(columns, place.roles, proteins.whole_residues, request.tasks)
    crop = crop_of(proteins.num_residues, may_cut=len(place.settings.get("sequence") or "") != 2 or "mutation" in data)
    if isinstance(data.get("sequence"), list):
        crop = crop_of(proteins.num_residues, may_cut=False)
    if int(proteins.num_residues.max()) + SPECIAL_TOKENS > crop:
        data["too_long"] = "start"
        num = int((proteins.num_residues + SPECIAL_TOKENS > crop).sum())
        place.reasons["too_long"] = f"{num:,} proteins are longer than crop_tokens; their beginning is kept"
    found = opened(table, data, crop, roles.tasks, request.store_dir)
    for name, why in found.left_out.items():
        roles.of[name] = "not learned", why
    split = divided(found, roles)
    labelled = found.is_labelled
    machine = seen(1, 1, "no", "single", gpu=True)
    lengths = found.proteins.num_residues[labelled]
    chosen = sizes(lengths, split.num_training, int(labelled.sum()), crop, _shape(request), machine)
    text = recipe_text(_before(request), _parts(request, data, place, found, split, chosen))
    told = _told(request, table, columns, roles, found, split, chosen, place, machine)
    return Proposal(text, tuple(told), roles.of, beside)


def _shape(request: Request) -> EsmShape:
    if request.init is None:
        return PRESETS[request.preset or SMALLEST]
    if (Path(request.init) / "run.json").is_file():
        from pretrain.run.directory import RunDirectory

        return EsmShape(**RunDirectory(Path(request.init)).model())
    from pretrain.model.weights.source import config_of, shape_of

    return shape_of(config_of(request.init))


def _before(request: Request) -> list[str]:
    return [
        f"What was found in {request.table}, and what is proposed. Every value is a guess with its reason; change "
        "what you know better.",
        f"To train: python -m finetune {request.recipe}",
    ]


def _parts(
    request: Request, data: dict[str, Any], place: Place, found: Opened, split: Divided, chosen: Sizes
) -> list[Part]:
    name = name_of(request.table)
    run = [
        Choice("directory", f"{request.runs}/{name}", "where the run is kept"),
        Choice("evaluate_every", chosen.evaluate_every, "steps between two validations, about a pass"),
        Choice("patience", chosen.patience, "validations without a better score after which training ends"),
    ]
    model = Choice("preset", SMALLEST, _WITHOUT_MODEL)
    if request.init is not None:
        model = Choice("init", request.init, "given by you")
    elif request.preset is not None:
        model = Choice("preset", request.preset, "given by you; random weights, a baseline only")
    settings = [Choice(n, v, place.reasons.get(n, "")) for n, v in data.items() if n != "table"]
    longest = int(found.proteins.whole_residues.max())
    step = f"{chosen.steps_per_pass} steps a pass over {split.num_training:,} proteins that train"
    settings += [
        Choice("crop_tokens", chosen.crop_tokens, f"tokens of the longest protein, which has {longest:,} residues"),
        Choice("bin_tokens", chosen.bin_tokens, "slots that are computed at once"),
        Choice("bins_per_step", chosen.bins_per_step, f"about {step}"),
        Choice("store_dir", request.store_dir, "where proteins and labels are kept"),
    ]
    parts = [
        Part("[run]", "", run),
        Part("[model]", "", [model]),
        Part("[data]", "", [Choice("table", request.table, ""), *settings]),
    ]
    for guess in found.guesses:
        columns = [] if guess.columns == (guess.name,) else [Choice("columns", list(guess.columns), "")]
        each = [Choice(n, v, "") for n, v in guess.settings.items()]
        parts.append(Part("[[tasks]]", guess.reason, [Choice("name", guess.name, ""), *columns, *each]))
    against = "".join(f"; not {text}" for text in split.rejected)
    parts.append(Part("[split]", split.reason + against, [Choice(n, v, "") for n, v in split.settings.items()]))
    labelled = int(found.is_labelled.sum())
    why = {
        "frozen": f"{labelled:,} labelled proteins are few: heads alone learn, on features of the encoder",
        "lora": f"{labelled:,} labelled proteins: adapters of the encoder learn too",
    }[chosen.kind]
    parts.append(Part("[adaptation]", "", [Choice("kind", chosen.kind, why)]))
    length = f"{chosen.steps:,} steps at most, about {duration(max(1.0, chosen.seconds))}, estimated"
    parts.append(Part("[schedule]", "", [Choice("passes", chosen.passes, length)]))
    return parts


def _told(
    request: Request,
    table: Table,
    columns: list[Column],
    roles: Roles,
    found: Opened,
    split: Divided,
    chosen: Sizes,
    place: Place,
    machine: Machine,
) -> list[str]:
    """The words on the screen."""
    proteins = found.proteins
    used = int(np.count_nonzero(proteins.record_of_row >= 0))
    lengths = np.sort(proteins.num_residues)
    span = f"{lengths[0]} to {lengths[-1]} residues, half of them up to {lengths[len(lengths) // 2]}"
    lines = [f"{request.table}: {table.num_rows:,} rows, {len(columns)} columns"]
    lines += _wrapped("", "; ".join(table.said)) if table.said else []
    lines += ["", "columns"]
    by_name = {column.name: column for column in columns}
    width = min(28, max(len(name) for name in roles.of))
    kind_width = max(len(kind) for kind, _ in roles.of.values())
    shown: dict[tuple[str, str], list[str]] = {}
    for name, of in roles.of.items():
        shown.setdefault(of if of[0] != "task" else (name, ""), []).append(name)
    for names in shown.values():
        name, (kind, reason) = names[0], roles.of[names[0]]
        reason += f" (and of {len(names) - 1} more columns, the last {names[-1]!r})" if len(names) > 1 else ""
        missing = by_name[name].share_missing
        more = f"; {missing:.0%} missing" if missing >= 0.005 and kind == "task" else ""
        lines += _wrapped(f"{_short(name, width):{width}}  {kind:{kind_width}}", reason + more)
    lines += ["", "found"]
    duplicates = f"; {used - proteins.num_records:,} rows repeat one" if used > proteins.num_records else ""
    without = f"; {table.num_rows - used:,} rows have none" if used < table.num_rows else ""
    rows = [("proteins", f"{proteins.num_records:,} distinct, {span}{duplicates}{without}")]
    rows += [("note", text) for text in (*proteins.said, *place.notes)]
    if split.is_variants:
        rows.append(("relatives", "variants of one protein: all of them are relatives"))
    elif split.relatives is not None:
        shares = ", ".join(f"{share:.0%} at {identity:.0%}" for identity, share in split.relatives.shares.items())
        took = f"by {split.relatives.by}, {split.relatives.seconds:.1f} s"
        rows.append(("relatives", f"share of the proteins that have one, by identity: {shares} ({took})"))
    for guess, task in zip(found.guesses, found.tasks, strict=True):
        rows.append(("task", f"{task.settings.name}: {_labels(guess, task.labels)}"))
    lines += [line for name, text in rows for line in _wrapped(f"{name:10}", text)]
    lines += ["", "proposed"]
    model = request.init or request.preset or f"{SMALLEST}, random weights, a baseline only: give --init MODEL"
    learns = "frozen encoder, heads learn" if chosen.kind == "frozen" else "LoRA adapters and heads learn"
    folds = f", {split.settings['folds']} runs" if split.settings.get("folds") else ""
    rows = [
        ("model", str(model)),
        ("learns", learns),
        ("split", split.reason),
        *(("", f"not {text}") for text in split.rejected),
        ("step", f"{chosen.bins_per_step} bins of {chosen.bin_tokens:,} slots, crop {chosen.crop_tokens}"),
        ("length", f"{chosen.passes} passes of about {chosen.steps_per_pass} steps, a validation every "
                   f"{chosen.evaluate_every}, ended after {chosen.patience} that are no better"),
        ("time", f"about {duration(max(1.0, chosen.seconds))} for a run{folds}, estimated for {machine.name}"),
        ("memory", f"about {chosen.memory_bytes / 1e9:.1f} GB for a process"),
    ]  # fmt: skip
    if chosen.crop_tokens > LONGEST:
        rows.append(("note", f"joined chains are longer than the {LONGEST} tokens that ESM-2 was trained on"))
    return lines + [line for name, text in rows for line in _wrapped(f"{name:10}", text)]


def _labels(guess: Guess, labels: Any) -> str:
    kind = guess.settings["type"] + (" of residues" if guess.settings.get("level") == "residue" else "")
    words = f"{kind}, {len(labels.values):,} labels"
    if labels.replicates is not None:
        words += f", {int((labels.replicates > 1).sum()):,} of them made of several measurements"
    if labels.spread is not None and np.isfinite(labels.spread).any():
        differ = int((np.nan_to_num(labels.spread) > 0).sum())
        words += f", {differ:,} of which differ"
    if labels.censoring is not None:
        words += f", {int((labels.censoring != 0).sum()):,} bounds"
    return words


def _short(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 3] + "..."


def _wrapped(head: str, text: str) -> list[str]:
    indent = " " * (len(head) + 4)
    shown = textwrap.wrap(text, _WIDTH - len(indent), break_on_hyphens=False) or [""]
    return [f"  {head}  {shown[0]}", *(indent + line for line in shown[1:])]
