"""The proteins of the track: those that train and develop, and a frozen set for a last judgement.

In: FASTA files. Out: `Proteins`, files in the track's folder. Kept: these files, and MMseqs2's clusters.

The frozen set is a list of content digests in this folder: whole clusters at 30 % identity, drawn by hash until they
held 500 proteins, so that no cluster has a protein on both sides. It is read once for each line of a final table, and
nothing is chosen by it. What is chosen is chosen on the development side: a tenth of the other clusters, which a run
of the track holds out by itself.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.alphabet import TOKENS
from data.corpus.prepare import open_corpora, prepare_corpora
from data.settings import DataSettings
from data.store.token_store import TokenStore
from zymogen import keyed_random
from zymogen.files.durable import replacing_file

FROZEN = Path(__file__).with_name("frozen.txt")
FROZEN_SHA256 = "ffb9c67bbd83b393c01aebaf5e99ed99bbceb177017d86d97ee1ac10892edfa4"
"""Hash of that file's text."""
IDENTITY = 0.3
"""Least identity of proteins that are on one side together."""
_MOST = 500
_SEED = 0


@dataclass(frozen=True, slots=True)
class Proteins:
    """Files of the track."""

    rest: Path
    """FASTA of what trains and develops; the headers are r0, r1, ... by place in the store of all proteins."""
    frozen: Path
    """FASTA of the frozen set, with headers of the same kind; of other proteins there is none."""
    clusters: Path
    """TSV of (cluster, header) for both."""


def proteins(sources: tuple[str, ...], folder: Path, *, others: bool = False) -> Proteins:
    """Read `sources` and write the files, unless they are there.

    Args:
        sources: as data.sources of a recipe takes them.
        folder: of the track.
        others: whether they are other proteins, on which nothing was chosen and of which nothing is frozen.

    Raises:
        ValueError: the proteins are not those that the frozen set was drawn from, and were said to be.
    """
    found = Proteins(folder / "rest.fasta", folder / "frozen.fasta", folder / "clusters.tsv")
    if found.clusters.exists():  # it is written last
        return found
    settings = DataSettings(sources=sources, store_dir=str(folder / "stores"), split_identity=IDENTITY)
    (part,) = open_corpora(settings, prepare_corpora(settings)).parts
    store, clusters = part.store, part.split.clusters.of_records
    assert isinstance(store, TokenStore)
    digests = np.zeros(0, np.uint64) if others else frozen_digests()
    is_frozen = np.isin(store.digests, digests)
    if (missing := len(digests) - len(np.unique(store.digests[is_frozen]))) or _divides(is_frozen, clusters):
        raise ValueError(
            f"{', '.join(sources)}: {missing} proteins of the frozen set are missing, or a cluster at {IDENTITY:.0%} "
            f"identity has proteins on both sides; {FROZEN.name} was drawn from other proteins: give those, or say "
            "--others, which has no frozen set"
        )
    texts = [f">r{record}\n{_letters(store, record)}\n" for record in range(store.num_records)]
    names = [f"c{cluster:016x}\tr{record}\n" for record, cluster in enumerate(clusters.tolist())]
    of_rest = [text for text, frozen in zip(texts, is_frozen, strict=True) if not frozen]
    of_frozen = [text for text, frozen in zip(texts, is_frozen, strict=True) if frozen]
    for path, lines in ((found.rest, of_rest), (found.frozen, of_frozen), (found.clusters, names)):
        if path == found.frozen and others:
            continue
        with replacing_file(path, "give another folder") as new:
            new.write_text("".join(lines), encoding="ascii")
    return found


def clusters_of(files: Proteins) -> dict[str, str]:
    """Header -> name of its cluster."""
    lines = (line.split("\t") for line in files.clusters.read_text(encoding="ascii").splitlines())
    return {header: cluster for cluster, header in lines}


def frozen_digests() -> NDArray[np.uint64]:
    """(proteins,) content digests of the frozen set, rising.

    Raises:
        ValueError: the list was changed.
    """
    text = FROZEN.read_text(encoding="ascii")
    if (found := sha256(text.encode()).hexdigest()) != FROZEN_SHA256:
        raise ValueError(f"{FROZEN} has the hash {found}, and {FROZEN_SHA256} is right; restore the file")
    return np.array([int(line, 16) for line in text.split()], np.uint64)


def drawn(digests: NDArray[np.uint64], clusters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The frozen set of some proteins: how the list was made.

    Args:
        digests: (proteins,) content digests.
        clusters: (proteins,) hash of the cluster of each.

    Returns:
        The distinct digests, rising.
    """
    each, sizes = np.unique(clusters, return_counts=True)
    order = np.argsort(keyed_random.hashes(_SEED, each.view(np.int64)), kind="stable")
    count = int(np.searchsorted(np.cumsum(sizes[order]), _MOST)) + 1
    return np.unique(digests[np.isin(clusters, each[order[:count]])])


def _divides(is_frozen: NDArray[np.bool_], clusters: NDArray[np.uint64]) -> bool:
    return bool(np.isin(clusters[~is_frozen], clusters[is_frozen]).any())


def _letters(store: TokenStore, record: int) -> str:
    texts = [TOKENS[token] for token in store.residues(record).tolist()]
    return "".join(text if len(text) == 1 else "X" for text in texts)
