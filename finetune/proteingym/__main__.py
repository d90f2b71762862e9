"""Score ProteinGym's assays with pretrained models, and say how well the scores rank them.

    python -m finetune.proteingym DMS_substitutions.csv DMS_ProteinGym_substitutions --model runs/mine

In: ProteinGym's reference file, the folder of its assays, models. Out: a column for each model and scheme in the table
of each assay, and their figures as ProteinGym averages them, with `-o` those of each assay as a table. Exit status 0;
78 for a mistake in the input, others as in docs/runs.md.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from data.order.settings import bin_tokens_on
from finetune.proteingym.figures import TITLES, Figures, means
from finetune.proteingym.folder import AssayFolder, score
from finetune.proteingym.reference import Assay, chosen, read_reference
from finetune.score.plan import SCHEMES, WINDOW_TOKENS, Scheme, column
from zymogen.command_line.command import importing_torch, make_main, require_free
from zymogen.command_line.parser import CommandParser, positive
from zymogen.console.progress import ProgressBar
from zymogen.files.durable import write_csv


def _run(options: argparse.Namespace) -> None:
    require_free(options.output, overwrites=options.overwrite)
    assays = chosen(read_reference(options.reference), options.assays)
    folder = AssayFolder(options.folder)
    held = folder.held(assays)
    if len(held) < len(assays):
        absent = next(assay for assay in assays if assay not in held)
        print(f"{len(assays) - len(held)} of {len(assays)} assays are not in {folder.path}, such as {absent.file}")
    schemes: list[Scheme] = list(dict.fromkeys(options.scheme))
    made_of: dict[str, str] = {}
    for model in options.model:
        made_of |= _scored(model, folder, held, schemes, options)
    figures = {name: {assay: folder.figures(assay, name) for assay in held} for name in made_of}
    if options.output is not None:
        _write(options.output, figures, made_of)
    for name, found in figures.items():
        print("\n".join(said(name, found)), flush=True)


def _scored(
    model: str, folder: AssayFolder, assays: Sequence[Assay], schemes: Sequence[Scheme], options: argparse.Namespace
) -> dict[str, str]:
    """Add the columns of a model; their names, and the content hash of its weights."""
    with importing_torch():
        import torch

        from finetune.score.scorer import VariantScorer
        from pretrain.trained_model import masked_language_model, open_trained_model
    with ProgressBar(f"opening {model}", after_s=2.0):
        source = open_trained_model(model)
    window = None if options.window == "whole" else WINDOW_TOKENS
    weights = source.content_hash()
    made_of = {"weights": weights, "window": window}
    left = [assay for assay in assays if folder.to_do(assay, source.name, made_of, schemes)]
    if len(left) < len(assays):
        print(f"{source.name}: {len(assays) - len(left)} of {len(assays)} assays are scored already", flush=True)
    if left:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        bin_tokens = options.bin_tokens or bin_tokens_on(device)
        scorer = VariantScorer(masked_language_model(source, device), source.name, bin_tokens, window)
        for line in score(folder, left, scorer, made_of, schemes):
            print(line, flush=True)
    return {column(source.name, scheme): weights for scheme in schemes}


def said(name: str, figures: dict[Assay, Figures]) -> list[str]:
    """The means of a column as lines."""
    of = {each: means((assay, found[each]) for assay, found in figures.items()) for each in TITLES}
    selections = sorted({selection for each in of.values() for selection in each.of_selection})
    variants = sum(int(each["variants"]) for each in figures.values())
    lines = [
        f"{name}: {len(figures):,} assays, {variants:,} variants with a score",
        "",
        f"    {'':<18}" + "".join(f"{TITLES[each]:>13}" for each in TITLES),
        f"    {'ProteinGym mean':<18}" + "".join(_cell(of[each].aggregate) for each in TITLES),
        *(
            f"    {selection:<18}" + "".join(_cell(of[each].of_selection.get(selection)) for each in TITLES)
            for selection in selections
        ),
        f"    {'mean over assays':<18}" + "".join(_cell(of[each].of_assays) for each in TITLES),
    ]
    undefined = {each: len(figures) - of[each].assays for each in TITLES}
    if any(undefined.values()):
        listed = ", ".join(f"{TITLES[each]} on {count}" for each, count in undefined.items() if count)
        lines.append(f"    not defined, and in no mean: {listed}")
    return [*lines, ""]


def _cell(value: float | None) -> str:
    return f"{'-':>13}" if value is None or value != value else f"{value:>13.4f}"


def _write(out: Path, figures: dict[str, dict[Assay, Figures]], weights: Mapping[str, str]) -> None:
    lines: list[Sequence[object]] = [
        ("DMS_id", "UniProt_ID", "selection_type", "column", "variants", *TITLES, "weights")
    ]
    for name, of in figures.items():
        for assay, found in of.items():
            values = ["" if found[each] != found[each] else repr(found[each]) for each in TITLES]
            of_assay = assay.name, assay.protein, assay.selection
            lines.append([*of_assay, name, found["variants"], *values, weights[name]])
    write_csv(out, lines, "give another name with -o")


def _options(parser: CommandParser) -> None:
    add = parser.add_argument
    add("reference", help="ProteinGym's reference file, such as DMS_substitutions.csv")
    add("folder", type=Path, help="folder of its assays, to which columns are added")
    add("--model", nargs="+", required=True, help="runs, exports, folders of transformers' or Hub names")
    add("--scheme", nargs="+", choices=SCHEMES, default=[SCHEMES[1]], help=f"{SCHEMES[1]} without it")
    add("--assays", nargs="+", metavar="DMS_id", help="these alone")
    add("--window", choices=["optimal", "whole"], default="optimal", help="what is read of more than 1,022 residues")
    add("--bin-tokens", type=positive, help="slots of a forward pass; 4,096 on a CPU, 16,384 on a GPU")
    add("-o", "--output", type=Path, metavar="FILE", help="write the figures of each assay as CSV")
    add("--overwrite", action="store_true", help="replace that file where it exists")


main = make_main("finetune.proteingym", str(__doc__), _options, _run, is_alone=True)


if __name__ == "__main__":
    sys.exit(main())
