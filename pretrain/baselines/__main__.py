"""What a model of this recipe must beat: simple predictors, fitted on its corpus in a minute or two.

    python -m pretrain.baselines recipes/own_sequences.toml 'data.sources=["proteins.fasta.gz"]'

In: a recipe, and settings that change it. Out: a table of scores on the proteins that the recipe holds out, with `-o`
everything as JSON. Kept: token stores, as a run of the recipe keeps them. Exit status 0; 78 for a mistake in the input,
others as in docs/runs.md. docs/evaluation.md says what each predictor is.
"""

import argparse
import json
import sys
from pathlib import Path

from pretrain.recipe import Recipe
from zymogen.command_line.command import add_output_option, importing_torch, make_main, require_free, write_output
from zymogen.command_line.parser import CommandParser
from zymogen.console.progress import ProgressBar
from zymogen.settings.toml_file import read

FORMAT = "zymogen.baselines/1"


def _measure(options: argparse.Namespace) -> None:
    require_free(options.output, overwrites=options.overwrite)
    recipe = read(Recipe, options.recipe, options.settings)
    with importing_torch():
        from data.corpus.prepare import open_corpora, prepare_corpora
        from pretrain.baselines.fit import measure
        from pretrain.evaluate.validation import validation_set
    corpora = open_corpora(recipe.data, prepare_corpora(recipe.data))
    with ProgressBar("fitting", after_s=2.0):
        scored = validation_set(corpora, recipe.data, recipe.run.validation_sequences)
        found = measure(corpora, recipe.data, scored, corpora.clusters_of(scored.samples), recipe.run.seed)
    scores = found[0].scores
    which = "held-out" if corpora.holds_out else "training"
    print(f"{scores.sequences:,} {which} proteins, {scores.targets:,} hidden residues; gains in nats a residue")
    print(f"    {'predictor':<38}  {'perplexity':>10}  {'gain':>7}  {'95 % interval':<18}  seconds")
    for each in found:
        of = each.scores
        print(
            f"    {each.name:<38}  {of.perplexity:>10.2f}  {of.gain:>7.4f}  "
            f"{f'{of.gain_low:.4f} to {of.gain_high:.4f}':<18}  {each.seconds:>7.1f}"
        )
    rows = [{"name": each.name, "seconds": each.seconds, "mask_all": each.scores.numbers()} for each in found]
    write_output(options.output, json.dumps({"format": FORMAT, "rows": rows}, indent=1) + "\n")


def _options(parser: CommandParser) -> None:
    parser.add_argument("recipe", type=Path, help="a recipe (TOML)")
    parser.add_argument(
        "settings", nargs="*", metavar="SETTING", help="as in python -m pretrain: schedule.peak_lr=1e-3"
    )
    add_output_option(parser)


main = make_main("pretrain.baselines", str(__doc__), _options, _measure, is_alone=True)


if __name__ == "__main__":
    sys.exit(main())
