"""Draw the report of a run: one HTML page that needs no network.

    python -m pretrain.report runs/own

In: a run directory, finished or not. Out: report.html in it, and a line with its path. With `--watch` the page is drawn
again every few seconds, and an open page reloads itself, until the run ends.
"""

import argparse
import sys
import time
from pathlib import Path

from pretrain.report.history import read_history
from pretrain.report.page import write_report
from pretrain.report.pictures import write_pictures
from zymogen.command_line.command import make_main
from zymogen.command_line.parser import CommandParser
from zymogen.console.progress import ProgressBar

_EVERY_S = 15


def _draw(options: argparse.Namespace) -> None:
    if options.pictures:
        print(*write_pictures(options.run, options.pictures), sep="\n")
        return
    if options.watch:
        _watch(options.run, options.watch)
    with ProgressBar("drawing the report", after_s=2.0):
        path = write_report(options.run)
    print(path)


def _watch(run: Path, every_s: int) -> None:
    """Draw until the run has written how it ended."""
    print(f"drawing {write_report(run, every_s)} every {every_s} s until the run ends; Ctrl-C ends this", flush=True)
    while not read_history(run).has_ended:
        time.sleep(every_s)
        write_report(run, every_s)


def _options(parser: CommandParser) -> None:
    parser.add_argument("run", type=Path, help="run directory")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--watch",
        type=_seconds,
        nargs="?",
        const=_EVERY_S,
        metavar="SECONDS",
        help=f"draw it again every SECONDS ({_EVERY_S} if not given) while the run continues",
    )
    instead.add_argument(
        "--pictures",
        type=Path,
        metavar="FOLDER",
        help="write loss.svg and protein.svg there instead, for a README",
    )


def _seconds(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 86_400:
        raise argparse.ArgumentTypeError(f"got {text!r}; it takes whole seconds from 1 to 86400")
    return int(text)


main = make_main("pretrain.report", str(__doc__), _options, _draw, is_alone=True)


if __name__ == "__main__":
    sys.exit(main())
