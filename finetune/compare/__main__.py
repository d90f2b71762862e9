"""Is fine-tuned model B worse than A? Both are compared on the labels that both were tested on, task by task.

    python -m finetune.compare runs/first runs/second
    python -m finetune.compare runs/first/bundle runs/second/bundle --task affinity

In: two runs that have come to their end, or their bundles, with one split. Out: a table; with `-o` a file of JSON. Exit
status 0 where no task is worse, 1 where one is worse beyond its paired interval, 78 for a mistake in the input,
70 for whatever else prevented it.
"""

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

from data.durable import replaced
from pretrain.engine.command import Parser, judged, require_free

FORMAT = "zymogen.task_comparison/1"


def main(arguments: list[str] | None = None) -> int:
    """Compare what the command line names; the exit status."""
    return judged(lambda: _compare(_parser().parse_args(arguments)))


def _compare(options: argparse.Namespace) -> bool:
    from finetune.compare.paired import HEADING, compare
    from finetune.compare.predicted import read

    out: Path | None = options.output
    require_free(out, overwrites=options.overwrite)
    first, second = read(options.a), read(options.b)
    found, said = compare(first, second)
    decide = set(options.task or [each.task for each in found])
    if unknown := sorted(decide - {each.task for each in found}):
        names = ", ".join(each.task for each in found)
        raise ValueError(f"--task {unknown[0]!r} is none of those that both define: {names}")
    worse = [each.task for each in found if each.is_worse and each.task in decide]
    print(f"A: {first.root}\nB: {second.root}\non {first.results.part}, split {first.results.split_fingerprint}\n")
    print("\n".join([HEADING, *(each.line() for each in found), *said, ""]))
    print(f"B is worse on {', '.join(worse)}" if worse else "B is worse on no task beyond its interval", flush=True)
    if out is not None:
        rows = [{name: _known(value) for name, value in asdict(each).items()} for each in found]
        content = {
            "format": FORMAT,
            "runs": [str(first.root), str(second.root)],
            "part": first.results.part,
            "split": first.results.split_fingerprint,
            "tasks": rows,
            "decide": sorted(decide),
            "worse": worse,
        }
        with replaced(out, "give another name with -o") as new:
            new.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return bool(worse)


def _known(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parser() -> Parser:
    parser = Parser(prog="python -m finetune.compare", description=str(__doc__).split("\n")[0])
    add = parser.add_argument
    add("a", metavar="A", type=Path, help="run that has come to its end, or its bundle: what is there")
    add("b", metavar="B", type=Path, help="the same: what may take its place")
    add("--task", nargs="+", metavar="NAME", help="tasks that decide the exit status; all of them without it")
    add("-o", "--output", type=Path, metavar="FILE", help="write everything as JSON")
    add("--overwrite", action="store_true", help="replace the file where it exists")
    return parser


if __name__ == "__main__":
    sys.exit(main())
