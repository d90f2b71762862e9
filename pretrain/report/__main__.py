"""Draw the report of a run: one HTML page that needs no network.

    python -m pretrain.report runs/own

In: a run directory, finished or not. Out: report.html in it, and a line with its path. With `--watch` the page is drawn
again every few seconds, and an open page reloads itself, until the run ends.
"""

import argparse
import sys
import time
from pathlib import Path

from pretrain.report.page import write_report
from zymogen.command_line.command import make_main
from zymogen.command_line.parser import CommandParser, positive
from zymogen.console.progress import ProgressBar
from zymogen.trainer.run.reader import RunReader

_EVERY_S = 15


def _draw(options: argparse.Namespace) -> None:
    if options.watch:
        path = write_report(options.run, options.watch)
        print(f"drawing {path} every {options.watch} s until the run ends; Ctrl-C ends this", flush=True)
        while not RunReader(options.run).has_ended:
            time.sleep(options.watch)
            write_report(options.run, options.watch)
    with ProgressBar("drawing the report", after_s=2.0):
        path = write_report(options.run)
    print(path)


def _options(parser: CommandParser) -> None:
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument(
        "--watch",
        type=positive,
        nargs="?",
        const=_EVERY_S,
        metavar="SECONDS",
        help=f"draw it again every SECONDS ({_EVERY_S} if not given) while the run continues",
    )


main = make_main("pretrain.report", str(__doc__), _options, _draw, is_alone=True)


if __name__ == "__main__":
    sys.exit(main())
