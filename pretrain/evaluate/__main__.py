"""Score a finished model on proteins that it did not see: perplexity, by length and by identity to the training corpus.

    python -m pretrain.evaluate runs/own
    python -m pretrain.evaluate facebook/esm2_t6_8M_UR50D --data mine.fasta --training runs/own -o evaluation.json
    accelerate launch --config_file accelerate_configs/ddp.yaml -m pretrain.evaluate runs/own --data mine.fasta

In: a run, a checkpoint, an export, a folder of transformers' or a Hub name, with an ESM-2 or ESM C; a run whose
held-out proteins are scored, or proteins of any source. Out: a table, with `-o` a file of JSON, which appears whole or
not at all. Exit status 0; 78 for a mistake in the input, others as in docs/runs.md. docs/evaluation.md says what is
scored.
"""

import argparse
import sys
from typing import TYPE_CHECKING

from data.order.settings import bin_tokens_on
from pretrain.evaluate.options import add_evaluation_set_options
from pretrain.evaluate.results import IDENTITY, LENGTH, EvaluationResult, buckets
from zymogen.command_line.command import add_output_option, importing_torch, make_main, require_free, write_output
from zymogen.command_line.parser import CommandParser, positive
from zymogen.console.progress import ProgressBar
from zymogen.settings import json_file

if TYPE_CHECKING:
    from zymogen.trainer.engine.engine import Engine

_LENGTHS = (100, 200, 400, 800)
_OF_LENGTHS = (
    "below 100 residues",
    "100 to 199 residues",
    "200 to 399 residues",
    "400 to 799 residues",
    "800 residues and more",
)
_SHARES = ("below 30 %", "30 to 50 %", "50 to 70 %", "70 to 90 %", "90 % and more")
_IDENTITIES = (0.0, 1e-9, 0.3, 0.5, 0.7, 0.9)
_OF_IDENTITIES = ("not searchable", "no relative found", *_SHARES)


def _evaluate(options: argparse.Namespace) -> None:
    require_free(options.output, overwrites=options.overwrite)
    with importing_torch():
        from pretrain.evaluate.score_models import LAUNCH
        from zymogen.trainer.engine.launch import launch
    with launch(LAUNCH) as engine:
        figures = _figures(options, engine)
        if engine.is_main:
            print("\n".join(figures.lines()), flush=True)
            write_output(options.output, json_file.as_json(figures))


def _figures(options: argparse.Namespace, engine: "Engine") -> EvaluationResult:
    """Everything that is found; collective."""
    from pretrain.evaluate.score_models import figures_of, scored_by
    from pretrain.evaluate.scored_set import EvaluationSetOptions, corpora_of, open_evaluation_set, run_of_name
    from pretrain.evaluate.validation import unigram_losses
    from pretrain.model.weights.source import require_place
    from pretrain.trained_model import masked_language_model, open_trained_model

    data = run_of_name(options.data, options.model)
    if not data:
        require_place(options.model)
        raise ValueError(
            f"--data is missing: {options.model} is no run and lies in none, whose held-out proteins could be scored; "
            "name a run or proteins with --data"
        )
    asked = EvaluationSetOptions(
        data=data,
        max_sequences=options.sequences,
        crop_tokens=options.crop_tokens,
        store_dir=options.store_dir,
        unknown_letters=options.unknown_letters,
    )
    with ProgressBar("opening the model", after_s=2.0, speaks=engine.is_main):
        source = open_trained_model(options.model)
        model = masked_language_model(source, engine.device)
        name, origin, weights = source.name, source.origin, source.content_hash()
        del source  # and its copy of the weights, where the model is on another device
    opened = open_evaluation_set(asked, engine)
    training = None if options.training == ["none"] else run_of_name(options.training, options.model)
    against = opened.corpora
    if training and training != data:
        against, _, _ = corpora_of(
            EvaluationSetOptions(data=training, store_dir=options.store_dir, unknown_letters="count"), engine
        )
    bin_tokens = options.bin_tokens or bin_tokens_on(engine.device.type)
    with ProgressBar(f"scoring {len(opened.scored.samples):,} proteins", after_s=2.0, speaks=engine.is_main):
        unigram, compute = unigram_losses(against), options.compute
        sums = scored_by(model, origin, opened, engine, unigram, compute=compute, bin_tokens=bin_tokens)

    def found() -> EvaluationResult:
        by: dict[str, tuple[tuple[str, ...], list[str]]] = {}
        by[LENGTH] = _OF_LENGTHS, buckets(_LENGTHS, _OF_LENGTHS, opened.scored.num_residues.tolist())
        searched_by, missing = None, "identity to the training corpus was not measured: "
        not_measured = [] if training else [f"{missing}give it with --training"]
        if training and training == data and opened.held_out is None:
            not_measured = [f"{missing}the scored proteins are the training corpus"]
        elif training:
            try:
                identities, searched_by = opened.identities(against)
                by[IDENTITY] = _OF_IDENTITIES, buckets(_IDENTITIES, _OF_IDENTITIES, identities.tolist())
            except ValueError as error:
                not_measured = [f"{missing}{error}"]
        groups, drawn = opened.groups()
        return EvaluationResult(
            model=name,
            origin=origin,
            weights=weights,
            data=data,
            held_out=opened.held_out,
            set=opened.scored.fingerprint(),
            sequences=len(opened.scored.samples),
            residues=int(opened.scored.residues_scored),
            crop_tokens=opened.crop_tokens,
            groups=drawn,
            unigram_of="the training side" if training or opened.held_out else "the scored proteins",
            training=training or None,
            searched_by=searched_by,
            not_measured=tuple(not_measured),
            rows=figures_of(sums, opened, groups, by),
        )

    with ProgressBar("relatives and intervals", after_s=2.0, speaks=engine.is_main):
        return engine.on_main(found)


def _options(parser: CommandParser) -> None:
    add = parser.add_argument
    add("model", help="run, checkpoint, export, folder of transformers' or Hub name")
    add_evaluation_set_options(parser)
    add("--training", nargs="+", metavar="WHAT", help="a run or sources that the model trained on; or 'none'")
    add("--bin-tokens", type=positive, metavar="N", help="slots of a forward pass; 4,096 on a CPU, 16,384 on a GPU")
    add("--unknown-letters", choices=["refuse", "count"], help="letters outside the alphabet: an error, or <unk>")
    add_output_option(parser)


main = make_main("pretrain.evaluate", str(__doc__), _options, _evaluate)


if __name__ == "__main__":
    sys.exit(main())
