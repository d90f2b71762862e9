"""Predict with a fine-tuned model: every row of a table gets the values of every task.

    python -m finetune.predict runs/mine/bundle variants.csv -o predicted.csv
    accelerate launch --config_file accelerate_configs/ddp.yaml -m finetune.predict runs/mine in.fasta -o out.csv

In: a bundle, or a run with one or several of them; a table of proteins. Out: the table with further columns, exit
status 0; 78 for a mistake in the input, others as in docs/runs.md. The output appears whole or not at all.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.alphabet import LETTER_IDS, REFUSED, UNK
from finetune.bundle.locate import bundles_at
from finetune.bundle.manifest import SPLIT, WILD_TYPES, ReadingSettings
from finetune.score.write_table import free_name, require_place
from finetune.tables.settings import TooLong
from pretrain.model.settings import ComputeSettings
from zymogen.command_line.command import importing_torch, make_main
from zymogen.command_line.parser import CommandParser
from zymogen.console.progress import ProgressBar
from zymogen.console.safe_text import log
from zymogen.files.durable import write_csv
from zymogen.trainer.engine.settings import InferenceSettings
from zymogen.trainer.run.settings import RunSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from finetune.bundle.columns import TaskColumns
    from finetune.bundle.folder import Bundle
    from finetune.predict.checked_rows import CheckedRows
    from finetune.predict.predictor import Predictor
    from finetune.predict.relatives import TrainingProteins
    from finetune.results.results import Ensemble, Results
    from finetune.tables.proteins import TableProteins
    from finetune.tables.table import Table
    from zymogen.trainer.engine.engine import Engine

_ROWS = 4096
"""Rows that are read, predicted and written together; no others are in memory."""
_UNUSUAL = frozenset("XBZUO")
_NOTE, _IDENTITY = "note", "nearest_train_identity"


def _predict(options: argparse.Namespace) -> None:
    out: Path = options.output
    require_place(out, "predictions", overwrites=options.overwrite)
    folders = bundles_at(options.bundle)
    with importing_torch():
        from finetune.bundle.folder import open_folder
        from finetune.predict.checked_rows import checked_rows
        from finetune.predict.predictor import open_predictor
        from finetune.predict.relatives import TrainingProteins
        from finetune.tables.read import table_parts
        from zymogen.trainer.engine.launch import launch
    opened = [open_folder(folder) for folder in folders]
    reading = opened[0].manifest.reading
    with launch(
        InferenceSettings(run=RunSettings(directory=str(out.parent)), data=reading, compute=ComputeSettings())
    ) as engine:
        with ProgressBar("opening the model", after_s=2.0, speaks=engine.is_main):
            predictors = [open_predictor(bundle, options.base, engine.device) for bundle in opened]
        for one in opened[1:]:
            if (one.manifest.reading, _targets(one.manifest)) != (reading, _targets(opened[0].manifest)):
                raise ValueError(
                    f"{one.folder} predicts other tasks, or reads tables otherwise, than {opened[0].folder}"
                )
        with ProgressBar(f"checking {options.table}", after_s=2.0, speaks=engine.is_main):
            parts = table_parts(options.table, _ROWS)
            settings = _reading(options, reading, folders[0] / WILD_TYPES, parts.columns)
            rows = checked_rows(parts, settings, reading.crop_tokens)
        with tempfile.TemporaryDirectory(prefix="zymogen-predict-") as work:
            trained = None
            if options.nearest:
                splits = [folder / SPLIT for folder in folders]
                trained = TrainingProteins.of(_training(options.nearest, opened[0]), splits, Path(work))
            _write(options, engine, predictors, rows, trained)


def _targets(manifest: Any) -> list[Any]:
    return [(task.settings.name, task.settings.type, task.outputs, task.classes, task.unit) for task in manifest.tasks]


def _reading(
    options: argparse.Namespace, reading: ReadingSettings, wild_types: Path, columns: Sequence[str]
) -> ReadingSettings:
    """Where the proteins of a table with these columns are."""
    of_mutations = (f for f in fields(reading) if "mutation" in (f.name, *(f.metadata.get("only") or ())))
    plain: dict[str, Any] = {f.name: f.default for f in of_mutations}
    if reading.too_long == "window":  # whole sequences do not say which of their residues are mutated
        plain["too_long"] = "refuse"
    changed: dict[str, Any] = {"id": None}
    mutation = tuple(options.mutation or ()) or (reading.mutation if {*reading.mutation} <= {*columns} else ())
    own = tuple(options.sequence or ()) or (reading.sequence if reading.mutation else ())
    if mutation and (options.mutation or not options.sequence) and not options.wild_type and {*own} & {*columns}:
        changed |= {"mutation": mutation, "sequence": own, "wild_type": None, "protein": None}
    elif options.sequence:
        changed |= plain | {"sequence": tuple(options.sequence)}
    elif mutation:
        changed |= {"sequence": (), "mutation": mutation}
        changed["wild_type"] = options.wild_type or (str(wild_types) if wild_types.is_file() else None)
    elif reading.mutation:
        changed |= plain
    elif len(reading.sequence) == 1 and reading.sequence[0] not in columns:
        changed["sequence"] = ()
    if options.too_long:
        changed["too_long"] = options.too_long
    if options.rows_without_protein:
        changed["rows_without_protein"] = "leave_out"
    return replace(reading, **changed)


def _training(name: str, bundle: "Bundle") -> "TableProteins":
    """The proteins of a table of the training, with the ids that they had there."""
    from finetune.tables.proteins import proteins_of
    from finetune.tables.read import read_table

    table, reading = read_table(name), bundle.manifest.reading
    unasked = argparse.Namespace(
        sequence=None, mutation=None, wild_type=None, too_long=None, rows_without_protein="leave_out"
    )
    settings = _reading(unasked, reading, bundle.folder / WILD_TYPES, table.columns)
    settings = replace(settings, id=reading.id if reading.id in table.columns else None)
    return proteins_of(table, settings, None if reading.too_long == "refuse" else reading.crop_tokens)


def _write(
    options: argparse.Namespace,
    engine: "Engine",
    predictors: Sequence["Predictor"],
    rows: "CheckedRows",
    trained: "TrainingProteins | None",
) -> None:
    """Predict the parts of a table one after another, and write each before the next one is read; collective."""
    from finetune.bundle.columns import task_columns
    from finetune.results.calibration import TOO_SHORT

    objectives, members = predictors[0].model.objectives, len(predictors)
    own, said = rows.columns, [*rows.said, *(trained.said if trained else ())]
    manifests = [predictor.bundle.manifest for predictor in predictors]
    # A calibration is of one model alone, or of the mean of all models of a run.
    results: Results | Ensemble | None = manifests[0].evaluation
    if members > 1:
        results = manifests[0].ensemble
        is_whole = results is not None and len(results.members) == members
        results = results if is_whole and all(each.ensemble == results for each in manifests) else None
    known = results.calibrations if results else ()
    calibrated = {(each.objective, each.task): each.calibration for each in known}
    tasks = task_columns(objectives, calibrated, members, own)
    if not calibrated:
        said.append("there is no calibration of this model or of these models together: no intervals are written")
    reasons = [each.calibration.why_not for each in known if each.calibration.why_not]
    said += [f"no intervals or calibration of {reasons.count(each)} tasks: {each}" for each in dict.fromkeys(reasons)]
    if chose := [each.task for each in known if each.calibration.chose and each.calibration.half_width is not None]:
        said.append(f"intervals of {len(chose)} tasks, the first {chose[0]!r}: {TOO_SHORT}")
    pairs = [objective.settings.name for objective in objectives if objective.settings.level == "pair"]
    if pairs:
        said.append(f"tasks about pairs of residues are not written: {', '.join(pairs)}")
    if not tasks:
        why = (
            f"pairs of residues have no cells in a table ({', '.join(pairs)})" if pairs else "none had a training label"
        )
        raise ValueError(f"{predictors[0].bundle.folder} has no task that is predicted row by row: {why}")
    identity = [] if trained is None else [free_name(_IDENTITY, own, "_predicted")]
    of_tasks = (name for _, task in tasks for name in task.names)
    header = [*own, *of_tasks, *identity, free_name(_NOTE, own, "_predicted")]
    each = ((table, proteins, _predicted(engine, predictors, proteins)) for table, proteins in rows.parts)

    def lines() -> Iterator[Sequence[str]]:
        yield header
        for table, proteins, found in each:
            identities = trained.identities(proteins) if trained else None
            yield from _lines(predictors, tasks, table, proteins, found, identities)

    with ProgressBar(f"predicting {rows.num_rows:,} rows", after_s=2.0, speaks=engine.is_main):
        if engine.is_main:
            write_csv(options.output, lines(), "get the right to write there, or give another name with -o")
        else:
            for _ in each:
                pass
    if engine.is_main:
        for line in said:
            log(f"{options.table}: {line}")
        print(f"{options.output}: {rows.num_rows:,} rows, {len(tasks):,} tasks, {members} model(s)", flush=True)


def _predicted(engine: "Engine", predictors: Sequence["Predictor"], proteins: "TableProteins") -> list[dict[int, Any]]:
    """For each model, predictions of all records, on every rank; collective."""
    import numpy as np

    records = np.arange(proteins.num_records)
    mine = [predictor(proteins, records, engine.data_rank, engine.data_world_size) for predictor in predictors]
    ranks = engine.gather(mine)
    return [{k: v for rank in ranks for k, v in rank[number].items()} for number in range(len(predictors))]


def _lines(
    predictors: Sequence["Predictor"],
    tasks: Sequence[tuple[int, "TaskColumns"]],
    table: "Table",
    proteins: "TableProteins",
    found: Sequence[dict[int, Any]],
    identities: "NDArray[np.float64] | None",
) -> Iterator[list[str]]:
    """The lines of the rows of a part."""
    import numpy as np

    from finetune.bundle.columns import cell, list_cell

    reach = predictors[0].bundle.manifest.training_residues
    own = [column.to_pylist() for column in table.cells.columns]
    for row in range(table.num_rows):
        record = int(proteins.record_of_row[row])
        cells = [column[row] or "" for column in own]
        for number, task in tasks:
            if record < 0:
                cells += [""] * len(task.names)
                continue
            is_residue = task.objective.settings.level == "residue"
            arrays = [member[record][number] for member in found]
            try:
                values = task.values(arrays if is_residue else [each[None] for each in arrays])
            except FloatingPointError:
                folder = predictors[0].bundle.folder
                raise ValueError(
                    f"{table.row(row)}: {folder} predicts something that is not a number for {task.name!r}; its "
                    "weights are damaged, or training diverged: look at its validation"
                ) from None
            if is_residue:
                places = proteins.places(row, np.arange(proteins.whole_residues[row]))
                begin, end = proteins.linkers[record]
                places[(begin <= places) & (places < end)] = -1
                cells += [list_cell(each, places) for each in values]
            else:
                cells += [cell(each[0]) for each in values]
        if identities is not None:
            is_known = record >= 0 and identities[record] == identities[record]
            cells.append(cell(float(identities[record])) if is_known else "")
        yield [*cells, "; ".join(_notes(proteins, row, record, reach))]


def _notes(proteins: "TableProteins", row: int, record: int, reach: tuple[int, int]) -> Iterator[str]:
    """What a reader of the row's predictions should know."""
    if record < 0:
        yield "no protein"
        return
    letters, whole = proteins.sequences[record], int(proteins.whole_residues[row])
    if whole > len(letters):
        yield f"cut from {whole} to {len(letters)} residues ({proteins.too_long})"
    unknown = [letter for letter in letters if LETTER_IDS[ord(letter)] in (REFUSED, UNK)]
    if unknown:
        yield f"{len(unknown)} unknown letters are read as <unk>: {' '.join(sorted({*unknown}))}"
    if unusual := sorted(_UNUSUAL.intersection(letters)):
        yield f"unusual letters: {' '.join(unusual)}"
    if not reach[0] <= len(letters) <= reach[1]:
        yield f"{len(letters)} residues, outside the {reach[0]} to {reach[1]} of training"


def _options(parser: CommandParser) -> None:
    parser.add_argument("bundle", type=Path, help="bundle/ of a run, or the run: with several models, their mean")
    parser.add_argument("table", help="FASTA, CSV, TSV, .xlsx, Parquet, as for training")
    parser.add_argument("-o", "--output", type=Path, required=True, help="table to write, .csv or .tsv")
    parser.add_argument("--overwrite", action="store_true", help="replace the output file where it exists")
    parser.add_argument("--base", help="folder or Hub name of the weights that the bundle was trained on")
    parser.add_argument("--sequence", nargs="+", metavar="COLUMN", help="column of sequences, or two of two chains")
    parser.add_argument(
        "--mutation", nargs="+", metavar="COLUMN", help="column of mutations such as A123T; with --sequence, of its own"
    )
    parser.add_argument("--wild-type", metavar="FASTA", help="proteins that mutations change; else those of training")
    parser.add_argument("--nearest", metavar="TABLE", help=f"table that it trained on: adds {_IDENTITY}")
    words = TooLong.__args__  # type: ignore[attr-defined]
    parser.add_argument("--too-long", choices=words, help="what becomes of a protein longer than the model was told")
    parser.add_argument(
        "--leave-out",
        dest="rows_without_protein",
        action="store_const",
        const="leave_out",
        help="a row without a protein stays without predictions, and is no error",
    )


main = make_main("finetune.predict", "Predict every task of a bundle for every row.", _options, _predict)


if __name__ == "__main__":
    sys.exit(main())
