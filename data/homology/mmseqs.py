"""Homology by MMseqs2: clusters at a sequence identity, and the training sequences similar to a held-out set.

In: stores. Out: `Clusters`; a table for data.exclude; whether the program is installed, its version, one run of it.
Kept: the clusters and how they were made, in a folder ``clusters-mmseqs-IDENTITY-VERSION`` at the place that
`data.store.derived` gives; files that MMseqs2 writes meanwhile are removed.

MMseqs2: Steinegger and Soeding 2017, doi:10.1038/nbt.3988. Clusters are connected components of the pairs that it finds
similar: greedy clusters would cut a chain of relatives. Up to `EXHAUSTIVE` sequences are searched all against all in
one step, as MMseqs2's cascades miss some pairs. docs/decisions.md has the figures. Peptides are compared by position
besides (`data.homology.peptides`), where they are few enough.
"""

import heapq
import re
import shutil
import subprocess
import tempfile
from collections.abc import Container, Iterator
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data.alphabet import FASTA_LETTERS
from data.homology import name_table, peptides
from data.homology.clusters import ClusterMembers, Clusters, open_clusters, write_clustering
from data.homology.name_table import names
from data.store.derived import cache_dir, find
from data.store.token_store import UINT64
from zymogen.console.progress import ProgressBar
from zymogen.files.durable import new_dir, replacing_file, workspace, write_error
from zymogen.processes import parent
from zymogen.processes.resources import resources
from zymogen.settings.section import require

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


COVERAGE = 0.8
"""Share of both sequences that an alignment must cover to put them in one cluster, as in UniRef."""
EXHAUSTIVE = 20_000
"""The most distinct sequences that are searched all against all in one step; more are clustered in cascades."""

_BLOCK = 1 << 16
_ELSEWHERE = "write the table elsewhere"
_MOST_BYTES_A_LINE = 1 << 20
_FRACTION = re.compile(r"[01]\.\d{3}")
_FRACTION_OF_ONE = "it must lie in (0, 1], for example 0.3"
_SENSITIVE = ("-s", "7.5", "--max-seqs", "1000")


_Match = tuple[int, int, float, float]
"""A training record, the held-out record that it is most similar to, the share of the aligned positions that are equal,
and the share of a sequence that the alignment covers, the larger one of the two."""


def cluster_by_identity(store: "TokenStore", min_identity: float) -> Clusters:
    """Clusters of sequences with at least `min_identity`; found once and reused.

    Each distinct sequence is clustered once. The hash of a cluster is the digest of the sequence that represents it.

    Raises:
        ValueError: MMseqs2 cannot run here (`why_not_installed`) or failed; `min_identity` is outside (0, 1].
    """
    require(0.0 < min_identity <= 1.0, "data.split_identity", min_identity, _FRACTION_OF_ONE)
    name = f"clusters-mmseqs-{min_identity!r}-"
    for found in find(store, name):
        clusters = Clusters(store, found)
        if clusters.facts:  # of any version of MMseqs2: another version could give other clusters, and no run resume
            return clusters
    distinct, (num_peptides, comparisons) = open_clusters(store, None).members, peptides.count(store)
    has_longer = num_peptides < store.num_records
    installed = version("data.split_identity") if has_longer else "position"
    folder = cache_dir(store, f"{name}{installed}")
    tool = f"MMseqs2 {installed}" if has_longer else peptides.NAME
    are_few = comparisons <= peptides.MOST_COMPARISONS
    if num_peptides and has_longer:
        tool += f"; {peptides.NAME}" if are_few else f"; {num_peptides:,} peptides are too many to be compared"
    criteria = ("--min-seq-id", str(min_identity), "-c", str(COVERAGE), "--cov-mode", "0")
    options = (*criteria, *_options(len(distinct.clusters)))
    by = "with MMseqs2" if has_longer else "by position"
    text = f"clustering {len(distinct.clusters):,} distinct sequences {by}, at identity {min_identity}"
    with (
        new_dir(folder) as building,
        tempfile.TemporaryDirectory(prefix=".mmseqs-", dir=building) as work,
        ProgressBar(text, after_s=0.0),
    ):
        of_distinct = np.asarray(distinct.clusters)
        if has_longer:
            write_fasta(store, Path(work) / "in.fasta", enumerate(_firsts(distinct)))
            run(Path(work), "easy-cluster", "in.fasta", "out", "tmp", *options)
            of_distinct = _representatives(Path(work), distinct.clusters)
        if num_peptides and are_few:
            pairs = peptides.links(store, np.fromiter(_firsts(distinct), np.int64), min_identity)
            ends = of_distinct[np.searchsorted(distinct.clusters, store.digests[pairs])]
            of_distinct = peptides.cluster_peptides(of_distinct, ends)
        facts = {
            "description": f"{tool}: identity {min_identity}, coverage {COVERAGE}",
            "tool": tool,
            "command": " ".join(["mmseqs easy-cluster", *options]),
            "min_identity": min_identity,
            "distinct_sequences": len(of_distinct),
        }
        of_records = (
            of_distinct[np.searchsorted(distinct.clusters, digests)]
            for _, digests in open_clusters(store, None).blocks()
        )
        write_clustering(building, of_records, facts)
    return Clusters(store, folder)


def decontaminate(
    store: "TokenStore", against: "TokenStore", min_identity: float, min_coverage: float, output: Path
) -> int:
    """List the training records that are similar to a held-out one, for data.exclude.

    Two records are similar if they are equal, or if MMseqs2 aligns them (E-value at most 0.001) with at least
    `min_identity` over at least `min_coverage` of one of the two sequences. One of the two is enough, as a fragment of
    a held-out protein leaks as much as a protein that contains it.

    Args:
        store: the training sequences.
        against: the held-out sequences.
        min_identity: least share of equal positions, in (0, 1].
        min_coverage: least share of a sequence that is aligned, in (0, 1].
        output: TSV to write, one line per record: its name, the held-out record's name, identity, coverage.

    Returns:
        Number of records that are listed.

    Raises:
        ValueError: MMseqs2 cannot run here (`why_not_installed`) or failed; a fraction is outside (0, 1]; the
            output cannot be written, or is a file that this function did not write.
    """
    for name, value in (("min_identity", min_identity), ("min_coverage", min_coverage)):
        require(0.0 < value <= 1.0, name, value, _FRACTION_OF_ONE)
    if not output.parent.is_dir():
        raise ValueError(f"{output.parent} is no folder; create it, or write elsewhere")
    _require_replaceable(output)
    version("python -m data decontaminate")
    equal = list(_equal(store, against))
    with workspace(output, _ELSEWHERE) as work, write_error(output, _ELSEWHERE):
        known = frozenset(record for record, *_ in equal)
        similar = _search(store, known, against, work, min_identity, min_coverage)
        matches = heapq.merge(equal, similar, key=itemgetter(0))
        count = 0
        with replacing_file(output, _ELSEWHERE) as table, table.open("w", encoding="utf-8") as file:
            for record, similar_to, identity, coverage in matches:
                count += 1
                named = _name(store, record), _name(against, similar_to)
                file.write("\t".join([*named, f"{identity:.3f}", f"{coverage:.3f}"]) + "\n")
    return count


def _require_replaceable(output: Path) -> None:
    """Refuse an existing file that is not a table of `decontaminate`."""
    if not output.exists():
        return
    try:
        with output.open("rb") as file:
            first = file.readline(_MOST_BYTES_A_LINE).decode("utf-8", "replace")
    except OSError as error:
        raise ValueError(f"{output}: {error.strerror}; write elsewhere") from None
    fields = first.rstrip("\n").split("\t")
    if first and not (len(fields) == 4 and all(_FRACTION.fullmatch(field) for field in fields[2:])):
        raise ValueError(f"{output} is there, and no table that decontaminate wrote; write elsewhere, or remove it")


def _options(num_sequences: int) -> tuple[str, ...]:
    """Options of easy-cluster for this many sequences."""
    # Never easy-linclust, not even for many sequences: it cut families of 65 to 80 % identity.
    in_one_step = ("--single-step-clustering", "1") if num_sequences <= EXHAUSTIVE else ()
    return *in_one_step, "--cluster-mode", "1", *_SENSITIVE


def _firsts(members: ClusterMembers) -> Iterator[int]:
    """The first record of each cluster."""
    for start in range(0, len(members.clusters), _BLOCK):
        offsets = members.offsets[start : min(start + _BLOCK, len(members.clusters))]
        yield from members.records[offsets.astype(np.int64)].tolist()


def _representatives(work: Path, digests: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """(distinct,) hash of each distinct sequence's cluster, on disk, from MMseqs2's table of rows of `digests`."""
    of_distinct = np.memmap(work / "of_distinct.bin", UINT64, "w+", shape=(len(digests),))
    source, parameters = name_table.rows(work / "out_cluster.tsv", {"representative": "UBIGINT", "member": "UBIGINT"})
    listed = 0
    with name_table.session(work) as connection:
        for representatives, members in name_table.batches(connection, f"FROM {source}", parameters):
            of_distinct[members] = digests[representatives]
            listed += len(members)
    if listed != len(digests):
        raise ValueError(
            f"MMseqs2 put {listed} of {len(digests)} sequences in clusters; is the disk of {work.parent} full?"
        )
    return of_distinct


def _equal(store: "TokenStore", against: "TokenStore") -> Iterator[_Match]:
    """Records whose sequence equals a held-out one, rising."""
    heldout = open_clusters(against, None).members
    for start, digests in open_clusters(store, None).blocks():
        rows = np.minimum(np.searchsorted(heldout.clusters, digests), len(heldout.clusters) - 1)
        for at in np.flatnonzero(heldout.clusters[rows] == digests).tolist():
            yield start + at, int(heldout.records[int(heldout.offsets[rows[at]])]), 1.0, 1.0


def _search(
    store: "TokenStore",
    known: Container[int],
    against: "TokenStore",
    work: Path,
    min_identity: float,
    min_coverage: float,
) -> Iterator[_Match]:
    """The best match of each record that MMseqs2 aligns well enough, by rising record; those of `known` left out."""
    others = ((record, record) for record in range(store.num_records) if record not in known)
    if not write_fasta(store, work / "training.fasta", others):
        return
    write_fasta(against, work / "heldout.fasta", ((record, record) for record in range(against.num_records)))
    # Training sequences are the queries: MMseqs2 keeps a limited number of matches a query, and one is enough here.
    text = f"searching for relatives of {against.num_records:,} sequences with MMseqs2, at identity {min_identity}"
    with ProgressBar(text, after_s=0.0):
        run(
            work,
            *("easy-search", "training.fasta", "heldout.fasta", "out.tsv", "tmp", *_SENSITIVE),
            *("--min-seq-id", str(min_identity), "--format-output", "query,target,fident,qcov,tcov"),
        )
    columns = {"record": "BIGINT", "heldout": "BIGINT", "identity": "DOUBLE", "qcov": "DOUBLE", "tcov": "DOUBLE"}
    source, parameters = name_table.rows(work / "out.tsv", columns)
    query = (
        "SELECT DISTINCT ON (record) record, heldout, identity, greatest(qcov, tcov) AS coverage "
        f"FROM {source} WHERE coverage >= ? ORDER BY record, identity DESC, coverage DESC, heldout"
    )
    with name_table.session(work) as connection:
        for columns_of in name_table.batches(connection, query, [*parameters, min_coverage]):
            yield from zip(*(column.tolist() for column in columns_of), strict=True)


def _name(store: "TokenStore", record: int) -> str:
    return name_table.shown(names(store.headers(record, record + 1)[0])[0])
