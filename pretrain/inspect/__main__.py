"""Look into a run directory, which stays as it is.

    python -m pretrain.inspect attempts runs/own
    python -m pretrain.inspect attempts runs/own --last --wait 120
    python -m pretrain.inspect verify runs/own
    python -m pretrain.inspect audit runs/own

In: a run directory; a process may be training in it. Out: with `attempts` a table of its starts; with `--last` what the
last one ended by, and the exit status of its class, because launchers end with 1 whatever it was. Exit status 69 where
it still trains, also after the seconds of `--wait`; 78 where the next start would be refused, or for a mistake on the
command line. With `verify` a table
of its checkpoints, every byte of which is compared with its hash; exit status 74 where one is damaged. With `audit` a
table of its checkpoints, and whether each was trained on what the recipe says, no sample twice or never; exit status 70
where one was not.
"""

import argparse
import sys
from pathlib import Path

from zymogen.command_line.command import run_and_report
from zymogen.command_line.parser import CommandParser, positive
from zymogen.processes.exit_classes import CLASSES


def main(arguments: list[str] | None = None) -> int:
    """Answer what the command line asks; the exit status."""
    return run_and_report(lambda: _answer(_parser().parse_args(arguments)), is_alone=True)


def _answer(options: argparse.Namespace) -> int:
    if options.command != "attempts":
        from pretrain.inspect.verify import audit_run, verify_run  # imports torch

        command = {"verify": verify_run, "audit": audit_run}[options.command]
        return command(options.run, lambda line: print(line, flush=True))
    from pretrain.inspect.attempts import last, table, wait_for_end
    from zymogen.trainer.run.directory import RunDirectory

    run = RunDirectory(options.run)
    wait_for_end(run, options.wait)
    lines, status = last(run) if options.last else (table(run), 0)
    print("\n".join(lines))
    return status


def _parser() -> CommandParser:
    parser = CommandParser(prog="python -m pretrain.inspect", description=str(__doc__).split("\n")[0])
    commands = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
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
    attempts.add_argument(
        "--wait",
        type=positive,
        default=0,
        metavar="S",
        help="wait up to S seconds for a run that still trains: rank 0 ends some seconds after a rank that was killed",
    )
    verify = commands.add_parser(
        "verify",
        help="whether the checkpoints of a run are whole, to the last byte",
        description="Whether the checkpoints of a run are whole, to the last byte. Nothing is changed.",
        epilog="exit statuses:\n"
        "    0  all are whole\n"
        "   74  one is damaged, or cannot be read\n"
        "   78  one is of another version, or there is none\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verify.add_argument("run", type=Path, metavar="RUN_OR_CHECKPOINT", help="run directory, or one checkpoint in it")
    audit = commands.add_parser(
        "audit",
        help="whether a run was trained on what its recipe says, no sample twice or never",
        description="Whether a run was trained on what its recipe says: all its samples, in their order, are computed "
        "once more, and compared with the chain in each checkpoint. Nothing is trained.",
        epilog="exit statuses:\n"
        "    0  each checkpoint was trained on what the recipe says\n"
        "   70  one was not\n"
        "   78  the corpus is not the run's, or the order is not in the recipe (data.streaming)\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    audit.add_argument("run", type=Path, metavar="RUN", help="directory of a pretraining run")
    return parser


if __name__ == "__main__":
    sys.exit(main())
