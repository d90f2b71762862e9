"""Which chains the regression is fitted on, and which it is scored on: no relative of the first is among the second.

In: chains. Out: `ChainSplit`. Nothing is kept: files that MMseqs2 writes meanwhile are removed.
"""

import hashlib
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.homology.relatives import nearest, related
from data.settings import IngestSettings
from data.sources.fasta import FastaSource
from data.store.build import open_or_build
from data.store.token_store import TokenStore
from pretrain.contacts.chains import Chain
from pretrain.contacts.regression import LONG_RANGE

IDENTITY = 0.3
"""From this identity on, two chains are relatives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainSplit:
    """Chains, divided."""

    fitted: list[Chain]
    scored: list[Chain]
    groups: list[int]
    """(scored,) a number that relatives share."""
    left_out: int
    """Chains that are neither: relatives of one that is fitted on, or such that no search finds."""


def filter_chains(chains: Iterable[Chain], most_residues: int) -> tuple[list[Chain], dict[str, int]]:
    """Chains that can be scored, each sequence once; and how many are left out, by the reason.

    Args:
        chains: any.
        most_residues: longest chain that the model is given.
    """
    kept: dict[str, Chain] = {}
    left_out = dict.fromkeys(
        ("too short for a pair at long range", f"longer than {most_residues} residues", "copies of another"), 0
    )
    short, long, copies = left_out
    for chain in chains:
        if chain.is_resolved.sum() <= LONG_RANGE:
            left_out[short] += 1
        elif len(chain.residues) > most_residues:
            left_out[long] += 1
        elif chain.residues in kept:
            left_out[copies] += 1
        else:
            kept[chain.residues] = chain
    return list(kept.values()), {reason: count for reason, count in left_out.items() if count}


def split_chains(chains: Sequence[Chain], fit_on: int) -> ChainSplit:
    """Divide distinct chains: those to fit on by a hash of their residues, so that names and order do not matter.

    Args:
        chains: two or more.
        fit_on: how many to fit on; half of all, if there are too few.

    Raises:
        ValueError: there are too few; or all others are relatives of those.
    """
    if len(chains) < 2:
        raise ValueError(
            f"{len(chains)} chain can be used, and at least two are needed: one to fit on, and one to score; give more"
        )
    ordered = sorted(chains, key=lambda chain: hashlib.sha256(chain.residues.encode()).digest())
    count = min(fit_on, len(ordered) // 2)
    with tempfile.TemporaryDirectory(prefix="zymogen-contacts-") as folder:
        store = _store(Path(folder), ordered)
        _, group = np.unique(related(store, IDENTITY).hashes, return_inverse=True)
        rest: NDArray[np.int64] = np.arange(count, len(ordered))
        found = nearest(store, rest, store, np.arange(count))
        is_close = (found.identity >= IDENTITY) | ~found.is_searchable
        is_relative = is_close | np.isin(group[rest], group[:count])
    scored = rest[~is_relative]
    if not len(scored):
        raise ValueError(
            f"all of the {len(rest)} chains to score are relatives, at {IDENTITY:.0%} identity, of the {count} to fit "
            "on; give structures of other families"
        )
    return ChainSplit(
        fitted=ordered[:count],
        scored=[ordered[place] for place in scored.tolist()],
        groups=group[scored].tolist(),
        left_out=int(is_relative.sum()),
    )


def _store(folder: Path, chains: Sequence[Chain]) -> TokenStore:
    path = folder / "chains.fasta"
    path.write_text("".join(f">{number}\n{chain.residues}\n" for number, chain in enumerate(chains)))
    limits = IngestSettings(content="any")
    return open_or_build([FastaSource(str(path), "count", "any")], folder, "count", limits, progress=lambda *_: None)
