"""Look at a table of assays, and write a recipe that trains on it.

    python -m finetune.look assays.csv
    python -m finetune.look variants.csv --wild-type wt.fasta --init facebook/esm2_t6_8M_UR50D

In: a table, options. Out: words, a recipe with a reason for every value; exit status 0, 78 for a mistake in the input.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from finetune.look.draft import LookOptions, draft_recipe, name_of
from finetune.look.recipe_text import require_own, write
from pretrain.model.presets import PRESETS
from zymogen.command_line.command import make_main
from zymogen.command_line.parser import CommandParser
from zymogen.settings.section import require_known


def _look(options: argparse.Namespace) -> None:
    if options.preset is not None:
        require_known("--preset", options.preset, list(PRESETS))
    path = options.output or Path("recipes") / f"{'_'.join(map(name_of, options.table))}.toml"
    require_own(path)
    request = LookOptions(
        tuple(options.table),
        path,
        options.wild_type,
        options.init,
        options.preset,
        tuple(options.task),
        tuple(options.sequence),
        measures=not options.no_timing,
    )
    if options.init:
        print(*_remark(Path(options.init)), sep="", end="", flush=True)
    found = draft_recipe(request, lambda lines: print(*lines, sep="\n", flush=True) if lines else None)
    write(path, found.recipe)
    print("", f"written: {path}", f"to train: python -m finetune {path}", sep="\n", flush=True)


def _remark(init: Path) -> Iterator[str]:
    """What the report of a pretraining run says against its encoder, as lines; `init` is the run or its export."""
    from pretrain.report.page_text import verdict_on
    from zymogen.trainer.run.reader import RunReader

    for root in (init, init.absolute().parent):
        found = verdict_on(RunReader(root)) if (root / "run.json").is_file() else None
        if found and found.is_little:
            yield f"note: {init} learned little or nothing beyond residue frequencies: its vectors may be no better "
            yield "than those of random weights. A published model may be: --init facebook/esm2_t6_8M_UR50D\n"


def _options(parser: CommandParser) -> None:
    parser.add_argument(
        "table", nargs="+", help="CSV, TSV, .xlsx, Parquet, FASTA, 'x.zip/member.csv'; several are one table"
    )
    parser.add_argument("--wild-type", help="FASTA file of the protein that mutations such as 'A123T' change")
    parser.add_argument("--sequence", action="append", default=[], help="column of sequences; twice for two chains")
    parser.add_argument("--task", action="append", default=[], help="column to learn, again for each; then no other")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--init", help="pretrained model: a run, a folder, or a Hub name")
    model.add_argument("--preset", help="size of a model with random weights, a baseline only")
    parser.add_argument("--no-timing", action="store_true", help="time no rows, and report neither time nor memory")
    parser.add_argument("-o", "--output", type=Path, help="the recipe; recipes/NAME.toml without")


main = make_main("finetune.look", "Look at a table of assays, and write a recipe.", _options, _look)


if __name__ == "__main__":
    sys.exit(main())
