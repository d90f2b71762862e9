"""Look into a run directory, which stays as it is.

    python -m pretrain.inspect attempts runs/own
    python -m pretrain.inspect attempts runs/own --last

In: a run directory; a process may be training in it. Out: a table of its starts; with `--last` what the last one ended
by, and the exit status of its class, because launchers end with 1 whatever it was. Exit status 69 where it still
trains, 78 where the next start would be refused, or for a mistake on the command line.
"""

import argparse
import sys
from pathlib import Path

from pretrain.engine.command import Parser, answered
from pretrain.run.classes import CLASSES


def main(arguments: list[str] | None = None) -> int:
    """Answer what the command line asks; the exit status."""
    answers: list[int] = []
    status = answered(lambda: answers.append(_attempts(_parser().parse_args(arguments))), is_alone=True)
    return status or answers[0]


def _attempts(options: argparse.Namespace) -> int:
    from pretrain.inspect.attempts import last, table
    from pretrain.run.directory import RunDirectory

    run = RunDirectory(options.run)
    lines, status = last(run) if options.last else (table(run), 0)
    print("\n".join(lines))
    return status


def _parser() -> Parser:
    parser = Parser(prog="python -m pretrain.inspect", description=str(__doc__).split("\n")[0])
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    attempts = commands.add_parser(
        "attempts",
        help="how the starts of a run ended",
        description="How the starts of a run ended.",
        epilog="exit statuses of --last:\n"
        + "".join(f"  {each.status:3}  {each.name:12} {each.signal}\n" for each in CLASSES)
        + "   69  no class yet   it still trains\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    attempts.add_argument("run", type=Path, metavar="RUN", help="run directory")
    attempts.add_argument(
        "--last", action="store_true", help="the last start alone, with the exit status of the class of its end"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
