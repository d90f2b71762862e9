"""The most memory that a process has had, and two works on a store that are measured so.

In: a work and a folder that holds large.fasta. Out: its largest resident size. Kept: the store, in that folder.

Each work is a process of its own, which imports what the work needs and nothing else.
"""

import subprocess
import sys
from itertools import islice
from pathlib import Path

from zymogen.trainer.telemetry.resident import peak_resident_bytes


def peak_resident_mib() -> float:
    """Largest resident size of this process so far, mapped files included, in MiB."""
    return peak_resident_bytes() / 2**20


def peak_mib(work: str, folder: Path) -> float:
    """`peak_resident_mib` of a process of its own that does `work`, a function of this module, in `folder`."""
    command = [sys.executable, "-m", "benchmarks.resident_memory", work, str(folder)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def build_large(folder: Path) -> None:
    """Build the store of large.fasta."""
    from data.settings import IngestSettings
    from data.sources.fasta import FastaSource
    from data.store.build import open_or_build

    ingest = IngestSettings()
    open_or_build([FastaSource(str(folder / "large.fasta"), "refuse")], folder / "stores", "refuse", ingest)


def iterate_large(folder: Path) -> None:
    """Fill every bin of the first windows of that store, as a worker does: plan and residues, no batches."""
    from data.corpus.prepare import open_corpora, prepare_corpora
    from data.order.plan import Cursor
    from data.settings import DataSettings

    settings = DataSettings(sources=(str(folder / "large.fasta"),), store_dir=str(folder / "stores"))
    corpora = open_corpora(settings, prepare_corpora(settings))
    contents = corpora.masked(0)
    for packed, _ in islice(corpora.plan(0).bins(Cursor()), 8000):
        contents.fill(packed)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
    print(peak_resident_mib())
