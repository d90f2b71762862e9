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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.bundle.locate import bundles_at
from finetune.bundle.manifest import SPLIT, BundleManifest
from finetune.score.write_table import require_place
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
    from finetune.predict.predictor import Predictor
    from finetune.predict.relatives import TrainingProteins
    from finetune.predict.rows import RowPredictions
    from finetune.tables.proteins import TableProteins
    from zymogen.trainer.engine.engine import Engine


def _predict(options: argparse.Namespace) -> None:
    out: Path = options.output
    require_place(out, "predictions", overwrites=options.overwrite)
    reading = BundleManifest.read(bundles_at(options.bundle)[0]).reading
    with importing_torch():
        from finetune.predict.checked_rows import checked_rows
        from finetune.predict.rows import ROWS, RowColumns, RowPredictions, open_predictors
        from finetune.tables.read import table_parts
        from zymogen.trainer.engine.launch import launch
    with launch(
        InferenceSettings(run=RunSettings(directory=str(out.parent)), data=reading, compute=ComputeSettings())
    ) as engine:
        with ProgressBar("opening the model", after_s=2.0, speaks=engine.is_main):
            predictors = open_predictors(options.bundle, options.base, engine.device)
        with ProgressBar(f"checking {options.table}", after_s=2.0, speaks=engine.is_main):
            parts = table_parts(options.table, ROWS)
            own = {name: getattr(options, name) for name in ("sequence", "mutation", "wild_type", "too_long")}
            columns = RowColumns(**own, skip_invalid=options.rows_without_protein is not None)
            settings = columns.settings(reading, predictors[0].bundle.folder, parts.columns)
            rows = checked_rows(parts, settings, reading.crop_tokens)
        with tempfile.TemporaryDirectory(prefix="zymogen-predict-") as work:
            trained = _training(options.nearest, predictors, Path(work)) if options.nearest else None
            found = RowPredictions(predictors, rows, trained)
            with ProgressBar(f"predicting {rows.num_rows:,} rows", after_s=2.0, speaks=engine.is_main):
                _write(out, engine, predictors, rows.columns, found)
    if engine.is_main:
        for line in found.messages:
            log(f"{options.table}: {line}")
        print(f"{out}: {rows.num_rows:,} rows, {found.num_tasks:,} tasks, {len(predictors)} model(s)", flush=True)


def _training(name: str, predictors: Sequence["Predictor"], work: Path) -> "TrainingProteins":
    """The proteins of a table of the training, with the ids that they had there."""
    from dataclasses import replace

    from finetune.predict.relatives import TrainingProteins
    from finetune.predict.rows import RowColumns
    from finetune.tables.proteins import proteins_of
    from finetune.tables.read import read_table

    table, bundle = read_table(name), predictors[0].bundle
    reading = bundle.manifest.reading
    settings = RowColumns(skip_invalid=True).settings(reading, bundle.folder, table.columns)
    settings = replace(settings, id=reading.id if reading.id in table.columns else None)
    proteins = proteins_of(table, settings, None if reading.too_long == "refuse" else reading.crop_tokens)
    return TrainingProteins.of(proteins, [each.bundle.folder / SPLIT for each in predictors], work)


def _write(
    out: Path, engine: "Engine", predictors: Sequence["Predictor"], own: Sequence[str], found: "RowPredictions"
) -> None:
    """Predict the parts of a table one after another, and write each before the next one is read; collective."""
    import numpy as np

    from finetune.bundle.columns import cell

    def predict(proteins: "TableProteins") -> list[dict[int, Any]]:
        records = np.arange(proteins.num_records)
        mine = [predictor(proteins, records, engine.data_rank, engine.data_world_size) for predictor in predictors]
        ranks = engine.gather(mine)
        return [{k: v for rank in ranks for k, v in rank[number].items()} for number in range(len(predictors))]

    def lines() -> Iterator[Sequence[str]]:
        yield [*own, *found.names]
        for table, rows in found.parts(predict):
            columns = [column.to_pylist() for column in table.cells.columns]
            for row, values in enumerate(rows):
                yield [*(column[row] or "" for column in columns), *map(cell, values)]

    if engine.is_main:
        write_csv(out, lines(), "get the right to write there, or give another name with -o")
    else:
        for _ in found.parts(predict):
            pass


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
    parser.add_argument("--nearest", metavar="TABLE", help="table that it trained on: adds nearest_train_identity")
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
