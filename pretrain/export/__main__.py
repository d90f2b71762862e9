"""Write a checkpoint of a run as a directory that transformers loads by itself.

    python -m pretrain.export runs/quickstart
    python -m pretrain.export runs/quickstart --step 12000 --dtype bfloat16 --largest-file 2GB

In: a run directory with a checkpoint; the run may be training. Out: its `export/`, and a line with the step and the
place; exit status 78 for a mistake in the input. `pretrain.export.export` does the work.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import get_args

from pretrain.export.export import export
from pretrain.model.weights.io import LARGEST_FILE, StoredType
from zymogen.command_line.command import make_main
from zymogen.command_line.parser import CommandParser
from zymogen.console.progress import ProgressBar
from zymogen.trainer.run.directory import RunDirectory


def _export(options: argparse.Namespace) -> None:
    with ProgressBar(f"exporting {options.run}", after_s=2.0):
        run, how = RunDirectory(options.run), {"dtype": options.dtype, "largest_file": options.largest_file}
        path, step = export(run, step=options.step, **how)
    print(f"step {step}: {path}")


def _options(parser: CommandParser) -> None:
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--step", type=int, metavar="N", help="step of the checkpoint; the newest whole one without it")
    types = get_args(StoredType)
    parser.add_argument("--dtype", choices=types, default=types[0], help="what weights are rounded to; %(default)s")
    parser.add_argument(
        "--largest-file",
        type=_size,
        default=LARGEST_FILE,
        metavar="SIZE",
        help="store weights above this size in several files, such as 500MB; %(default)s",
    )


def _size(text: str) -> str:
    if not re.fullmatch(r"[1-9][0-9]*(KB|MB|GB)", text):
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes a whole number with KB, MB or GB, such as 500MB")
    return text


main = make_main("pretrain.export", str(__doc__), _options, _export, is_alone=True)


if __name__ == "__main__":
    sys.exit(main())
