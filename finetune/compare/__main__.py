"""Is fine-tuned model B worse than A? Both are compared on the labels that both were tested on, task by task.

    python -m finetune.compare runs/first runs/second
    python -m finetune.compare runs/first/bundle runs/second/bundle --task affinity

In: two runs that have come to their end, or their bundles, with one split. Out: a table; with `-o` a file of JSON. Exit
status 0 where no task is worse, 1 where one is worse beyond its paired interval, 78 for a mistake in the input, others
as in docs/runs.md.
"""

import argparse
import sys
from pathlib import Path

from pretrain.compare.comparison import ModelComparison, make_compare_main
from zymogen.command_line.parser import CommandParser
from zymogen.console.progress import ProgressBar


def _compare(options: argparse.Namespace) -> ModelComparison:
    from finetune.compare.paired import compare
    from finetune.compare.predicted import read

    with ProgressBar(f"comparing {options.b} with {options.a}", after_s=2.0):
        return compare(read(options.a), read(options.b), options.task)


def _options(parser: CommandParser) -> None:
    add = parser.add_argument
    add("a", metavar="A", type=Path, help="current model: run that has come to its end, or its bundle")
    add("b", metavar="B", type=Path, help="candidate model, named in the same ways")
    add("--task", nargs="+", default=(), metavar="NAME", help="tasks that decide the exit status; all without it")


main = make_compare_main("finetune.compare", str(__doc__), _options, _compare)


if __name__ == "__main__":
    sys.exit(main())
