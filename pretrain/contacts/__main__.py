"""How well a model's attention says which residues touch; and the regression that says so, put into its export.

    python -m pretrain.contacts runs/own/export structures/
    python -m pretrain.contacts runs/own/export structures/ --write

In: a run, an export, a folder of transformers' or a Hub name, with an ESM-2 or ESM C; structures as mmCIF or PDB, plain
or gzipped. Out: a table of precisions at long range, with `-o` everything as JSON; with `--write` the export predicts
contacts. Exit status 0; 78 for a mistake in the input, others as in docs/runs.md.
"""

import argparse
import sys
from pathlib import Path

from zymogen.command_line.command import add_output_option, importing_torch, make_main, require_free, write_output
from zymogen.command_line.parser import CommandParser, positive
from zymogen.console.progress import ProgressBar

LONGEST = 1022
"""Longest chain, in residues, that is given to a model: that of the published ESM-2. Memory rises with its square."""


def _score(options: argparse.Namespace) -> None:
    import torch

    from pretrain.contacts.chains import chains_of, files_of
    from pretrain.contacts.score import format_scores, score_contacts
    from pretrain.contacts.split import filter_chains
    from pretrain.export.contact_head import require_writable, write
    from pretrain.model.weights.names import ContactHead
    from pretrain.trained_model import masked_language_model, open_trained_model
    from zymogen.settings.json_file import as_json

    if options.write:
        require_writable(Path(options.model))
    require_free(options.output, overwrites=options.overwrite)
    files = [file for path in options.structures for file in files_of(path)]
    with ProgressBar(f"reading {len(files):,} structures", after_s=2.0):
        chains, left_out = filter_chains((chain for file in files for chain in chains_of(file)), options.longest)
    source = open_trained_model(options.model)
    for reason, count in left_out.items():
        print(f"{count} chains are {reason}, and are left out", flush=True)
    scored = score_contacts(
        masked_language_model(source, "cuda" if torch.cuda.is_available() else "cpu"),
        source.name,
        chains,
        options.fit_on,
    )
    print("\n".join(format_scores(scored)), flush=True)
    if options.output:
        write_output(options.output, as_json(scored, weights=source.content_hash()))
    if options.write:
        head = ContactHead(scored.weight, scored.bias)
        print(f"{write(Path(options.model), head, f'{len(scored.fitted_on)} chains')}: the contact head")


def _options(parser: CommandParser) -> None:
    with importing_torch():
        from pretrain.contacts.regression import CHAINS

    parser.add_argument("model", help="run, export, folder of transformers' or Hub name")
    parser.add_argument("structures", type=Path, nargs="+", help="folder of structures, or files")
    parser.add_argument(
        "--fit-on", type=positive, default=CHAINS, metavar="N", help="chains to fit on; %(default)s, as was published"
    )
    parser.add_argument(
        "--longest", type=positive, default=LONGEST, metavar="RESIDUES", help="leave out longer chains; %(default)s"
    )
    parser.add_argument("--write", action="store_true", help="put the regression into the contact head of the export")
    add_output_option(parser)


main = make_main("pretrain.contacts", str(__doc__), _options, _score, is_alone=True)


if __name__ == "__main__":
    sys.exit(main())
