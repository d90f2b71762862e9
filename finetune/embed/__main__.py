"""Embed proteins: a vector of each sequence, or of each residue, as Parquet.

    python -m finetune.embed facebook/esm2_t6_8M_UR50D proteome.fasta embedded.parquet
    accelerate launch --config_file accelerate_configs/ddp.yaml -m finetune.embed runs/mine in.fasta.gz out.parquet

In: a model, a file of proteins. Out: a Parquet file with a row for each record, in the order of the file; exit status
0; 78 for a mistake in the input, others as in docs/runs.md. Kept: beside it, until it is whole, `.NAME.embedding` with
the finished parts; after an interruption the same command continues from them.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.order.settings import bin_tokens_on
from finetune.bundle.manifest import ReadingSettings
from pretrain.model.settings import ComputeSettings
from zymogen.command_line.command import importing_torch, make_main, require_writable
from zymogen.command_line.parser import CommandParser, positive
from zymogen.console.progress import ProgressBar
from zymogen.trainer.engine.settings import InferenceSettings
from zymogen.trainer.run.settings import RunSettings

if TYPE_CHECKING:
    from zymogen.trainer.engine.engine import Engine


def _embed(options: argparse.Namespace) -> None:
    out: Path = options.output
    if out.suffix.lower() != ".parquet":
        raise ValueError(f"{out}: embeddings are written as Parquet; give the file the suffix .parquet")
    if not out.parent.is_dir():
        raise ValueError(f"{out.parent} is no folder; make it, or give another name")
    if os.path.lexists(out) and not out.is_file():
        raise ValueError(f"{out} is no file; give another name")
    require_writable(out.parent)
    with importing_torch():
        from finetune.bundle.encoder import encoder_at
        from finetune.embed.job import EmbeddingJob
        from finetune.embed.plan import chosen_layers, require_window
        from pretrain.model.weights.io import MAX_TOKENS
        from zymogen.trainer.engine.launch import launch
    with launch(
        InferenceSettings(run=RunSettings(directory=str(out.parent)), data=ReadingSettings(), compute=ComputeSettings())
    ) as engine:
        with ProgressBar("opening the model", after_s=2.0, speaks=engine.is_main):
            source = encoder_at(options.model, options.base)
        bin_tokens = options.bin_tokens or bin_tokens_on(engine.device.type)
        max_tokens = options.max_tokens or MAX_TOKENS[source.shape.architecture]
        require_window(max_tokens)
        job = EmbeddingJob(
            source=source,
            proteins=options.proteins,
            out=out,
            pooling=options.pooling,
            layers=chosen_layers(options.layers, source.shape, source.origin),
            dtype=options.dtype,
            compute=compute_type(options.compute, engine),
            too_long=options.too_long,
            max_tokens=max_tokens,
            bin_tokens=bin_tokens,
            unknown_letters=options.unknown_letters,
            max_bad_fraction=options.max_bad_fraction,
            overwrites=options.overwrite,
        )
        line = job.run(engine)
        if engine.is_main:
            print(line, flush=True)


def compute_type(asked: str, engine: "Engine") -> str:
    """What the encoder computes in, for `auto`: bfloat16 on a GPU, unless the launch asks for another precision."""
    if asked != "auto":
        return asked
    return "bfloat16" if engine.device.type == "cuda" and engine.precision == "bf16" else "float32"


def _options(parser: CommandParser) -> None:
    add: Any = parser.add_argument
    add("model", help="a run, an export, a bundle, a folder of transformers' or a Hub name")
    add("proteins", help="FASTA (.gz, .zst), UniProt, Parquet, CSV, ..., as data.sources of a recipe takes them")
    add("output", type=Path, help="file to write, .parquet")
    add("--pooling", choices=["mean", "begin", "residue"], default="mean", help="mean of residues, or which token")
    add("--layers", type=int, nargs="+", metavar="N", help="0: the embedding, N: after layer N; the last one without")
    add("--dtype", choices=["float32", "float16"], default="float32", help="of the numbers in the file")
    help_of_compute = "of the encoder; auto: that of the launch (bfloat16) on a GPU, float32 on a CPU"
    add("--compute", choices=["auto", "float32", "bfloat16"], default="auto", help=help_of_compute)
    add("--too-long", choices=["refuse", "windows"], default="refuse", help="what becomes of sequences above the limit")
    add("--max-tokens", type=positive, help="longest document, begin and end counted; 1,026 for ESM-2, 2,048 ESM C")
    add("--bin-tokens", type=positive, help="slots of one forward pass; 4,096 on a CPU, 16,384 on a GPU")
    add("--unknown-letters", choices=["refuse", "count"], default="refuse", help="an error, or read as <unk>")
    add("--max-bad-fraction", type=float, default=0.0, help="share of records left out as no proteins, such as 0.01")
    add("--base", help="folder or Hub name of the weights that a bundle was trained on")
    add("--overwrite", action="store_true", help="replace the output file where it exists")


main = make_main("finetune.embed", "A vector of each protein, or of each residue.", _options, _embed)


if __name__ == "__main__":
    sys.exit(main())
