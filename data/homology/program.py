"""MMseqs2 as a program: whether it is installed, its version, its input, and one run of it.

In: records of stores. Out: FASTA files, the tables that MMseqs2 writes. Kept: nothing.

MMseqs2: Steinegger and Soeding 2017, doi:10.1038/nbt.3988.
"""

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from data.alphabet import FASTA_LETTERS
from zymogen.processes import parent
from zymogen.processes.resources import resources

if TYPE_CHECKING:
    from data.store.token_store import TokenStore

INSTALL = "apt install mmseqs2, or conda install -c conda-forge -c bioconda mmseqs2"
LEAST_MB = 1200
"""Memory that it must have: with less than 1.1 GB version 14 refuses to search one sequence for itself."""


def is_installed() -> bool:
    """Whether there is a program 'mmseqs'."""
    return shutil.which("mmseqs") is not None


def why_not_installed() -> str:
    """Why MMseqs2 cannot run here; empty where it can."""
    return _memory_obstacle() if is_installed() else "MMseqs2 is not installed"


@cache  # one answer for one process, which says it in several places
def _memory_obstacle() -> str:
    here = resources()
    if here.available_bytes >> 20 >= LEAST_MB:
        return ""
    limits = f" (limits of this container or job: {here.limits})" if here.limits else ""
    return f"MMseqs2 needs {LEAST_MB / 1000} GB of memory, and {here.available_bytes / 1e9:.1f} GB are free{limits}"


def version(asked_by: str) -> str:
    """Version of the MMseqs2 that is installed.

    Raises:
        ValueError: it is not installed, or has too little memory.
    """
    if reason := why_not_installed():
        remedy = "raise the limit, or end other programs" if is_installed() else INSTALL
        raise ValueError(f"{asked_by} needs MMseqs2, and {reason}: {remedy}")
    said = subprocess.run(["mmseqs", "version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
    return said.stdout.decode().strip().replace("/", "-")


def write_fasta(store: "TokenStore", path: Path, records: Iterator[tuple[int, int]]) -> int:
    """Append sequences to a FASTA file from pairs (number for its header, record); return how many."""
    count = 0
    with path.open("ab", buffering=1 << 20) as file:
        for number, record in records:
            file.write(b">%d\n%s\n" % (number, FASTA_LETTERS[store.residues(record)].tobytes()))
            count += 1
    return count


def run(work: Path, *arguments: str) -> None:
    """Run MMseqs2 in a folder, on all cores and at most half of the memory that is free, or `LEAST_MB`.

    Raises:
        ValueError: it failed; the message has the end of its output.
    """
    here = resources()
    memory = max(here.available_bytes // 2 >> 20, LEAST_MB)
    # Left to guess, it takes a few sequences of A, C, G and T for nucleotides, whose index alone needs some 8 GB.
    kind = ("--dbtype", "1")
    limits = (*kind, "--threads", str(here.cores), "--split-memory-limit", f"{memory}M", "-v", "1")
    done = parent.run(["mmseqs", *arguments, *limits], work)
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip()[-1500:] or "it printed nothing; did memory run out?"
        raise ValueError(f"mmseqs {arguments[0]} ended with status {done.returncode}: {said}")
