"""Score variants of proteins with a pretrained model, without any label.

    python -m finetune.score facebook/esm2_t6_8M_UR50D variants.csv --target-seq MKTAYIAK... -o scored.csv
    python -m finetune.score runs/mine variants.csv --wild-type targets.fasta --scheme masked-marginal-joint -o out.csv

In: a model; a table of variants; what they are variants of. Out: the table with a column for each scheme and one of
notes, and exit status 0; 78 for a mistake in the input, others as in docs/runs.md. The output appears whole or not at
all.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.order.settings import bin_tokens_on
from finetune.score.plan import SCHEMES, WINDOW_TOKENS, Scheme, column
from finetune.score.variant_table import (
    MUTATIONS,
    SEQUENCE,
    TARGET,
    TARGETS,
    VariantTable,
    read_target,
    read_variants,
    require_scored,
)
from finetune.score.write_table import free_name, require_place, write_with_columns
from finetune.tables.read import read_table
from finetune.tables.table import Table
from finetune.tables.wild_types import WildTypes, named_wild_types, own_wild_types, read_wild_types
from zymogen.command_line.command import importing_torch, make_main
from zymogen.command_line.parser import CommandParser, positive
from zymogen.console.progress import ProgressBar
from zymogen.console.safe_text import log

if TYPE_CHECKING:
    from finetune.score.scorer import VariantScorer

_REMEDY = "get the right to write there, or give another name with -o"


def _score(options: argparse.Namespace) -> None:
    require_place(options.output, "scores", overwrites=options.overwrite)
    schemes: list[Scheme] = list(dict.fromkeys(options.scheme))
    table = read_table(options.table)
    found = _targets(options, table)
    targets = found.letters
    rows = read_variants(
        table,
        found,
        mutation=options.mutation or _present(table, MUTATIONS, options.sequence is None),
        sequence=options.sequence or next(iter(_present(table, [SEQUENCE], options.mutation is None)), None),
        offset=options.numbering_offset,
        leaves_out=options.rows_without_protein is not None,
    )
    if options.rows_without_protein is None:
        ways = ", or leave the scores of such rows empty with --leave-out"
        require_scored(table, rows, schemes, ways)
    with importing_torch():
        import torch

        from finetune.score.scorer import VariantScorer
    with ProgressBar("opening the model", after_s=2.0):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        window = None if options.window == "whole" else WINDOW_TOKENS
        scorer = VariantScorer.open(options.model, device, options.bin_tokens or bin_tokens_on(device), window)
    names = [column(scorer.name, scheme) for scheme in schemes]
    if taken := [name for name in names if name in table.columns]:
        raise ValueError(f"{table.name}: has a column {taken[0]!r} already; give the table without it")
    long = sum(len(targets[name]) + 2 > WINDOW_TOKENS for name in set(rows.target_of) - {""})
    if long:
        how = "whole" if window is None else "in the optimal window around what is scored"
        log(f"{long} target(s) of more than {WINDOW_TOKENS - 2:,} residues are read {how}")
    notes = {row: [note] for row, note in rows.notes.items()}
    scores = [_scores(scorer, scheme, targets, rows, notes) for scheme in schemes]
    told = ["; ".join(notes.get(row, ())) for row in range(table.num_rows)]
    columns = {**dict(zip(names, scores, strict=True)), free_name("note", table.columns, "_scored"): told}
    write_with_columns(table, columns, options.output, _REMEDY)
    print(f"{options.output}: {table.num_rows:,} rows, {len(notes):,} of them with a note", flush=True)


def _scores(
    scorer: "VariantScorer", scheme: Scheme, targets: Mapping[str, str], rows: VariantTable, notes: dict[int, list[str]]
) -> list[str]:
    """(rows,) cells of a scheme; adds to `notes`."""
    cells = [""] * len(rows.variants)
    documents = tokens = 0
    for name, letters in targets.items():
        pairs = enumerate(zip(rows.target_of, rows.variants, strict=True))
        own = {row: variant for row, (target, variant) in pairs if target == name and variant is not None}
        scored = scorer(letters, list(own.values()), scheme)
        documents, tokens = documents + scored.num_documents, tokens + scored.num_tokens
        for number, row in enumerate(own):
            if number in scored.notes:
                notes.setdefault(row, []).append(f"{scheme}: {scored.notes[number]}")
            else:
                cells[row] = repr(float(scored.values[number]))
    print(f"{scheme}: {documents:,} forward passes of a sequence, {tokens:,} tokens", flush=True)
    return cells


def _targets(options: argparse.Namespace, table: Table) -> WildTypes:
    """What each row is a variant of."""
    is_given = options.target_seq or options.wild_type
    usual = [
        name
        for name in _present(table, TARGETS, not is_given)
        if any(len(cell or "") > 3 for cell in table.column(name))
    ]
    if own := options.target_sequences or next(iter(usual), None):
        return own_wild_types(table, own)
    if not is_given:
        raise ValueError(
            f"{table.name}: has no column of wild types, such as {TARGETS[0]!r}: name one with --target-sequences, or "
            "give --target-seq LETTERS or --wild-type FASTA"
        )
    if not options.wild_type:
        letters = {"the target": read_target(options.target_seq, "--target-seq")}
        return named_wild_types(table, options.protein, letters, "--target-seq")
    letters = read_wild_types(options.wild_type)
    usual = _present(table, [TARGET], len(letters) > 1)
    return named_wild_types(table, options.protein or next(iter(usual), None), letters, options.wild_type)


def _present(table: Table, names: Sequence[str], is_wanted: bool) -> list[str]:
    """The column that has the first of some names that a table has, as it is written there."""
    by_name = {column.strip().lower(): column for column in reversed(table.columns)}
    return [by_name[name] for name in names if is_wanted and name in by_name][:1]


def _options(parser: CommandParser) -> None:
    parser.add_argument("model", help="run, export, folder of transformers' or Hub name")
    parser.add_argument("table", help="table of variants: CSV, TSV, Excel, Parquet, ...")
    of = parser.add_mutually_exclusive_group()
    of.add_argument("--target-seq", metavar="LETTERS", help="sequence of the wild type of every row")
    add: Any = parser.add_argument
    of.add_argument("--wild-type", metavar="FASTA", help="wild types; a column of the table names that of each row")
    of.add_argument(
        "--target-sequences",
        metavar="NAME",
        help=f"column that holds the wild type of each row; {TARGETS[0]!r} and the like without it",
    )
    add("--target-column", dest="protein", metavar="NAME", help=f"which one; {TARGET!r} where there is such a column")
    add(
        "--mutations",
        dest="mutation",
        nargs="+",
        metavar="NAME",
        help=f"column such as A1P:D2N, or wild-type residue, number and residue; {', '.join(MUTATIONS)} without it",
    )
    add("--sequences", dest="sequence", metavar="NAME", help=f"column of sequences; {SEQUENCE!r} where there is one")
    parser.add_argument("--scheme", nargs="+", choices=SCHEMES, default=[SCHEMES[1]], help=f"{SCHEMES[1]} without it")
    parser.add_argument(
        "--offset",
        dest="numbering_offset",
        type=int,
        default=0,
        help="added to numbers of mutations to count the wild type's residues from 1",
    )
    parser.add_argument(
        "--window", choices=["optimal", "whole"], default="optimal", help="what is read of more than 1,022 residues"
    )
    add(
        "--leave-out",
        dest="rows_without_protein",
        action="store_const",
        const="leave_out",
        help="rows without a score stay, with a note",
    )
    parser.add_argument("--bin-tokens", type=positive, help="slots of a forward pass; 4,096 on a CPU, 16,384 on a GPU")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write, .csv or .tsv")
    parser.add_argument("--overwrite", action="store_true", help="replace the output file where it exists")


main = make_main("finetune.score", str(__doc__), _options, _score, is_alone=True)


if __name__ == "__main__":
    sys.exit(main())
