"""Is B worse than A? Both models are scored on the same residues; the exit status is 1 where B is worse.

    python -m pretrain.compare runs/own/checkpoints/step-000000100 runs/own
    python -m pretrain.compare lab/esm2-small runs/next --data held_out.fasta

In: two models (run, checkpoint, export, folder of transformers' or Hub name); proteins, without which those that the
run of B held out are scored. Out: a table; with `-o` a file of JSON. Exit status 0 where B is better or cannot be told
from A, 1 where it is worse beyond the paired interval, 78 for a mistake in the input, others as in docs/runs.md.
"""

import argparse
import sys
from pathlib import Path

from pretrain.compare.comparison import ModelComparison, make_compare_main
from pretrain.evaluate.options import add_evaluation_set_options
from zymogen.command_line.command import importing_torch
from zymogen.command_line.parser import CommandParser


def _compare(options: argparse.Namespace) -> ModelComparison:
    for name in (options.a, options.b):
        if any((Path(name) / place).is_file() for place in ("bundle.json", "bundle/bundle.json")):
            raise ValueError(f"{name} is a fine-tuned model: python -m finetune.compare takes two of these")
    with importing_torch():
        from pretrain.compare.models import compare_models
        from pretrain.evaluate.scored_set import EvaluationSetOptions
    asked = EvaluationSetOptions(
        data=tuple(options.data or ()),
        max_sequences=options.sequences,
        crop_tokens=options.crop_tokens,
        store_dir=options.store_dir,
    )
    return compare_models(options.a, options.b, asked, options.compute)


def _options(parser: CommandParser) -> None:
    parser.add_argument(
        "a", metavar="A", help="current model: run, checkpoint, export, folder of transformers' or Hub name"
    )
    parser.add_argument("b", metavar="B", help="candidate model, named in the same ways")
    add_evaluation_set_options(parser)


main = make_compare_main("pretrain.compare", str(__doc__), _options, _compare)


if __name__ == "__main__":
    sys.exit(main())
