"""`python -m data decontaminate`: which training records are similar to held-out ones."""

import argparse

from data.corpus.stores import open_store
from data.homology import peptides
from data.homology.mmseqs import decontaminate
from data.settings import IngestSettings


def run(options: argparse.Namespace) -> int:
    """Write the table, print what it holds, and return the exit status."""
    store, against = (
        open_store(sources, "refuse", IngestSettings(), options.store_dir)
        for sources in (options.training, options.heldout)
    )
    count = decontaminate(store, against, options.min_identity, options.min_coverage, options.output)
    print(
        f"{count} of {store.num_records} training records are similar to one of {against.num_records} held-out records "
        f"(identity {options.min_identity}, coverage {options.min_coverage}): {options.output}; train without them "
        f"with data.exclude={options.output}"
    )
    (of_training, _), (of_heldout, _) = peptides.count(store), peptides.count(against)
    if of_training or of_heldout:
        print(
            f"{of_training} training and {of_heldout} held-out records have fewer than {peptides.SHORT} residues: "
            "of these, relatives that are not equal may be missed"
        )
    return 0
