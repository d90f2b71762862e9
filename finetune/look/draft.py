"""A look at one table: from its cells to a recipe that trains, and the words for it.

In: a `LookOptions`. Out: `RecipeDraft`: the text of the recipe and of the screen. Kept: the token store and its
clusters.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data.order.plan import SPECIAL_TOKENS
from finetune.look.column_profile import ColumnProfile, columns_of
from finetune.look.columns.evidence import FREE_TEXT, HIDDEN, OF_RESIDUES
from finetune.look.draft_data import DraftData, open_draft, read_proteins
from finetune.look.estimate import ROWS, RunEstimate, bins_of_rows, estimate, measure
from finetune.look.protein_columns import ProteinColumns, infer_protein_columns
from finetune.look.recipe_text import recipe_text
from finetune.look.roles import ColumnRoles, infer_roles, unread_labels
from finetune.look.sizes import RunSizes, choose_crop, choose_sizes
from finetune.look.split_proposal import ProposedSplit, propose_split
from finetune.look.text import format_columns, format_draft, format_proteins, format_relatives
from finetune.tables.read import read_table
from finetune.tables.table import Table as AssayTable
from finetune.tables.table import concatenate_tables
from finetune.tables.text import reading_notes
from pretrain.proposal.reasons import SettingChoice
from pretrain.proposal.recipe_text import Table
from zymogen.console.format import duration
from zymogen.console.progress import ProgressBar

SMALLEST = "esm2_60k"
_WITHOUT_MODEL = (
    "none was given: random weights of the smallest size, a baseline only; set init to a pretraining run, a folder or "
    "a Hub name of an ESM-2 or ESM C, and take the preset out (or: python -m finetune.look TABLE --init MODEL)"
)

_NEVER = {"sequence", "second chain", "id", "index", "length", "constant", "empty"}
"""Roles of columns that no option makes a task."""
_FEW_WORDS, _LEAST_OF_A_WORD = 10, 3
"""Words with which ids begin, and ids of each, from which on they may be classes."""
_BEFORE = (
    "What was found in {}, and what is proposed. Every value is a guess with its reason; change what you know better."
)


@dataclass(frozen=True, slots=True)
class LookOptions:
    """What the user gave."""

    tables: tuple[str, ...]
    """One, or several, whose rows stand below each other."""
    recipe: Path
    """Where the recipe is written."""
    wild_type: str | None = None
    init: str | None = None
    preset: str | None = None
    tasks: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    store_dir: str = "runs/stores"
    measures: bool = False
    """Whether rows are timed, where there is a model."""


@dataclass(frozen=True, slots=True)
class RecipeDraft:
    """What was found and is proposed."""

    recipe: str
    roles: dict[str, tuple[str, str]]
    """Column -> (role, reason)."""
    text: str = ""
    """What the command prints."""


def name_of(table: str) -> str:
    """A name for the recipe and the run of a table."""
    bare = re.split(r"[?]", table)[0].rstrip("/").rpartition("/")[2]
    bare = re.sub(r"\.(gz|bgz|zst|csv|tsv|txt|tab|fasta|fa|faa|parquet|xlsx|json|jsonl|zip)(?=\.|$)", "", bare)
    return re.sub(r"[^A-Za-z0-9_-]+", "_", bare).strip("_") or "assays"


def draft_recipe(request: LookOptions, say: Callable[[Sequence[str]], None] = lambda lines: None) -> RecipeDraft:
    """Look at a table.

    Args:
        request: what the user gave.
        say: shows lines of the screen as soon as they are known.

    Raises:
        ValueError: it cannot be read, has no protein, or nothing that could be learned.
    """
    with ProgressBar(f"reading {' and '.join(request.tables)}", after_s=2.0):
        table = concatenate_tables([read_table(name) for name in request.tables], None)
        columns = columns_of(table)
    shown: list[str] = []

    def show(lines: Sequence[str]) -> None:
        shown.extend(lines)
        say(lines)

    try:
        return replace(_proposal(table, columns, request, show), text="\n".join(shown))
    except ValueError as error:
        raise ValueError(f"{error}{reading_notes(table.said)}") from None


def _proposal(
    table: AssayTable, columns: Sequence[ColumnProfile], request: LookOptions, say: Callable[[Sequence[str]], None]
) -> RecipeDraft:
    for name in request.tasks:
        table.require(name, "--task")
    place = infer_protein_columns(table, columns, request.wild_type, request.sequence)
    if place.wild_type is not None:
        path = request.recipe.with_suffix(".wild_type.fasta")
        place.settings["wild_type"] = str(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f">{place.wild_type[0]}\n{place.wild_type[1]}\n")
    data = {name: value for name, value in place.settings.items() if value is not None}
    signs = {column.decimal for column in columns if column.decimal}
    if signs:
        data["decimal"] = signs.pop()
        place.reasons["decimal"] = "some columns do not show what their comma is; others of the table do"
    proteins = read_proteins(table, data, place.reasons)
    if "unknown_letters" in place.reasons:
        place.notes.append(place.reasons["unknown_letters"])
    residues, records, sites = proteins.whole_residues, proteins.record_of_row, proteins.sites
    roles = infer_roles(columns, place.roles, residues, request.tasks, records, sites, proteins.sequences)
    if not roles.tasks:
        raise ValueError(_without_task(table, columns, roles))
    crop = choose_crop(proteins.num_residues, may_cut=not isinstance(data.get("sequence"), list))
    if int(proteins.num_residues.max()) + SPECIAL_TOKENS > crop:
        data["too_long"] = "window" if "mutation" in data else "start"
        num = int((proteins.num_residues + SPECIAL_TOKENS > crop).sum())
        kept = "residues around their mutations are" if "mutation" in data else "their beginning is"
        place.reasons["too_long"] = f"{num:,} proteins are longer than crop_tokens; {kept} kept"
        proteins = read_proteins(table, data, place.reasons, crop)
    with ProgressBar("reading proteins and labels", after_s=2.0):
        found = open_draft(table, proteins, data, roles.tasks, request.store_dir)
    roles.of |= {each.columns[0]: ("task", each.reason) for each in found.inferred if len(each.columns) == 1}
    for name, why in found.left_out.items():
        if name in request.tasks:
            raise ValueError(f"{table.name}: --task {name!r}: cannot be learned: {why}")
        roles.of[name] = "not learned", why
    say([*format_columns(table, columns, roles), *format_proteins(table, found, place)])
    columns_of_task = {task.name: task.columns for task in found.inferred}
    if request.init is not None:  # before relatives are searched, which takes long
        _require_model(request.init)
    split = propose_split(found, roles, request.tasks)
    for task, why in split.left_out.items():
        roles.of |= dict.fromkeys(columns_of_task[task], ("not learned", why))
    say(format_relatives(split))
    labelled = found.is_labelled
    lengths = found.proteins.num_residues[labelled]
    chosen = choose_sizes(lengths, split.counts[0], int(labelled.sum()), crop)

    def text(takes: RunEstimate | str) -> str:
        before = _BEFORE.format(" and ".join(request.tables)), f"To train: python -m finetune {request.recipe}"
        return recipe_text(before, _parts(request, data, place, found, split, chosen, takes))

    takes = _takes(request, split, chosen, float(lengths.mean()) + SPECIAL_TOKENS, text)
    model = request.init or (f"{request.preset or SMALLEST}, random weights, a baseline only: give --init MODEL")
    say(format_draft(model, split, chosen, takes))
    return RecipeDraft(text(takes), roles.of)


def _without_task(table: AssayTable, columns: Sequence[ColumnProfile], roles: ColumnRoles) -> str:
    """The words for a table without anything to learn, with a column that hides labels where there is one."""
    unread = unread_labels(roles.of)
    hidden = [(name, kind, why) for name, (kind, why) in roles.of.items() if kind in HIDDEN or name in unread]
    shown = ", ".join(table.columns[:12]) + (", ..." if len(table.columns) > 12 else "")
    said = f"none of its columns is one: {shown}"
    if {kind for kind, _ in roles.of.values()} - _NEVER:
        said += "; --task COLUMN reads one in spite of its name or cells"
    if any(kind == "prediction" for kind, _ in roles.of.values()):
        said = f"by their names its numbers are those of programs; {said}"
    if hidden:
        name, kind, why = hidden[0]
        said = f"{name!r} holds {kind}: {why}"
        said += f"; --task {name!r} reads each text as a class" if kind not in (FREE_TEXT, OF_RESIDUES) else ""
    for column in (each for each in columns if roles.of[each.name][0] == "id"):
        begin = Counter(re.sub(r"[\W_]*\d+$", "", text) for text in column.texts)
        if 2 <= len(begin) <= _FEW_WORDS and all(begin) and min(begin.values()) >= _LEAST_OF_A_WORD:
            shown = " and ".join(map(repr, sorted(begin)))
            said = f"the texts of {column.name!r} begin with {shown}: write these into a column of their own; {said}"
    constant = [(name, why.partition(" in every")[0]) for name, (kind, why) in roles.of.items() if kind == "constant"]
    if constant:
        same = " and ".join(f"{name!r} is {text}" for name, text in constant[:3])
        said = f"{same} in every {table.row_word}, so that the other class, or another number, is missing; {said}"
    return f"{table.name}: has proteins, and needs a column of what was measured of them; {said}"


def _takes(
    request: LookOptions,
    split: ProposedSplit,
    chosen: RunSizes,
    mean_tokens: float,
    text: Callable[[RunEstimate | str], str],
) -> RunEstimate | str:
    """What the run takes, by at most 100 rows; or why it is not known."""
    if not request.measures or not (request.init or request.preset):
        return "rows are timed where --init or --preset names a model"
    overrides = [f"data.bins_per_step={bins_of_rows(mean_tokens, chosen)}"]
    if split.parts is None:
        overrides += ['split.by="random"', "split.identity=none"]
    counts = split.counts
    found = measure(text(""), overrides, min(ROWS, counts[0]))
    if isinstance(found, str):
        return found
    return estimate(found, chosen, mean_tokens, counts, split.settings.get("folds") or 1)


def _require_model(init: str) -> None:
    if (Path(init) / "run.json").is_file():
        from zymogen.trainer.run.directory import RunDirectory

        RunDirectory(Path(init)).model()
    else:
        from pretrain.model.weights.source import config_of, shape_of

        shape_of(config_of(init))


def _parts(
    request: LookOptions,
    data: dict[str, Any],
    place: ProteinColumns,
    found: DraftData,
    split: ProposedSplit,
    chosen: RunSizes,
    takes: RunEstimate | str,
) -> list[Table]:
    name = name_of(request.recipe.stem)
    run = [
        SettingChoice("directory", f"runs/{name}", "where the run is kept"),
        SettingChoice("evaluate_every", chosen.evaluate_every, "steps between two validations, about an epoch"),
        SettingChoice("patience", chosen.patience, "validations without a better score after which training ends"),
    ]
    model = SettingChoice("preset", SMALLEST, _WITHOUT_MODEL)
    if request.init is not None:
        model = SettingChoice("init", request.init, "given by you")
    elif request.preset is not None:
        model = SettingChoice("preset", request.preset, "given by you; random weights, a baseline only")
    longest = int(found.proteins.whole_residues.max())
    step = f"{chosen.steps_per_epoch} steps an epoch over {split.counts[0]:,} proteins that train"
    settings = [
        *(SettingChoice(n, v, place.reasons.get(n, "")) for n, v in data.items() if n != "table"),
        SettingChoice(
            "crop_tokens", chosen.crop_tokens, f"tokens of the longest protein, which has {longest:,} residues"
        ),
        SettingChoice("bin_tokens", chosen.bin_tokens, "slots that are computed at once"),
        SettingChoice("bins_per_step", chosen.bins_per_step, f"about {step}"),
        SettingChoice("store_dir", request.store_dir, "where proteins and labels are kept"),
    ]
    table = list(request.tables) if len(request.tables) > 1 else request.tables[0]
    parts: list[Table] = [
        ("[run]", "", run),
        ("[model]", "", [model]),
        ("[data]", "", [SettingChoice("table", table, ""), *settings]),
    ]
    for task in found.inferred:
        columns = [] if task.columns == (task.name,) else [SettingChoice("columns", list(task.columns), "")]
        each = [SettingChoice(n, v, "") for n, v in task.settings.items()]
        parts.append(("[[tasks]]", task.reason, [SettingChoice("name", task.name, ""), *columns, *each]))
    against = "".join(f"; not {text}" for text in split.rejected)
    parts.append(("[split]", split.reason + against, [SettingChoice(n, v, "") for n, v in split.settings.items()]))
    labelled = int(found.is_labelled.sum())
    why = {
        "frozen": f"{labelled:,} labelled proteins are few: heads alone learn, on features of the encoder",
        "lora": f"{labelled:,} labelled proteins: adapters of the encoder learn too",
    }[chosen.kind]
    parts.append(("[adaptation]", "", [SettingChoice("kind", chosen.kind, why)]))
    members = f" in {split.settings['folds']} runs" if split.settings.get("folds") else ""
    length = f"{chosen.steps:,} steps at most{members}"
    if not isinstance(takes, str):
        length += f", about {duration(max(1.0, takes.seconds))} and {takes.memory_bytes / 1e9:.1f} GB, {takes.how}"
    parts.append(("[schedule]", "", [SettingChoice("passes", chosen.epochs, length)]))
    return parts
