"""Schemes of scores, and the plan of the forward passes that they need, each pass once.

In: a target, its variants, a scheme. Out: a `ScoringPlan`: documents, the tokens that are read in them, and the sums
that are the scores. Kept: nothing. A plan needs no model, so it tells the cost of scoring beforehand. Of a long
sequence the model reads a window around the scored tokens, as ProteinGym defines it.

With x the target, x' the variant, M the residues in which they differ, and p what the model gives a residue:

- ``wt-marginal``: the sum over i in M of log p(x'_i | x) - log p(x_i | x). The model sees the whole wild type.
- ``masked-marginal-wt-fill``: the sum over i in M of log p(x'_i | x without i) - log p(x_i | x without i). One residue
  is masked at a time, and the others are those of the wild type. It is what ESM's and ProteinGym's programs call
  ``masked-marginals``.
- ``masked-marginal-joint``: the same with "x without M": all residues of M are masked at once. It is the formula of
  Meier et al. 2021 (https://doi.org/10.1101/2021.07.09.450648), and equal to the former for a single mutation.
- ``pseudo-likelihood``: the sum over all residues i of x' of log p(x'_i | x' without i), without the wild type's. It
  scores insertions and deletions too. Longer sequences sum more terms.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from data.alphabet import LETTER_IDS
from data.order.plan import SPECIAL_TOKENS

Scheme = Literal["wt-marginal", "masked-marginal-wt-fill", "masked-marginal-joint", "pseudo-likelihood"]

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
MARGINALS = SCHEMES[:3]
"""Those that compare residues at one place, so that they score substitutions alone."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A protein that differs from its target."""

    sequence: str
    mutated: tuple[int, ...] | None
    """Residues, from 0 and rising, that differ from the target's; None where the lengths differ."""


def variant_of(target: str, sequence: str) -> Variant:
    """The variant of `target` that has this sequence."""
    if len(sequence) != len(target):
        return Variant(sequence, None)
    pairs = enumerate(zip(target, sequence, strict=True))
    return Variant(sequence, tuple(at for at, (old, new) in pairs if old != new))


def column(model: str, scheme: Scheme) -> str:
    """Name of the column with the scores of a model under a scheme."""
    return f"{model}:{scheme}"


WINDOW_TOKENS = 1024
"""Tokens of a window: 1,022 residues where begin and end token are among them."""


def common_window(first: int, last: int, tokens: int, window_tokens: int = WINDOW_TOKENS) -> tuple[int, int] | None:
    """The window around the middle of the tokens from `first` to `last`, unless the sequence ends nearer.

    For one token it is ProteinGym's `get_optimal_window` over tokens, as its program for ESM calls it: the begin token
    counts, and a window that does not reach an end of the sequence has no begin or end token.

    Args:
        first: of the tokens that are scored; residue i from 0 is token i + 1.
        last: of them.
        tokens: of the sequence.
        window_tokens: of the window, even.

    Returns:
        The first token, and the one after the last; None if those that are scored do not fit into one window.
    """
    if tokens <= window_tokens:
        return 0, tokens
    if last - first >= window_tokens:
        return None
    start = min(max((first + last + 1) // 2 - window_tokens // 2, 0), tokens - window_tokens)
    return start, start + window_tokens


CHUNK_TOKENS = 1 << 24
"""Tokens of the documents of a chunk, about: what is known of them is in memory together."""


CHUNK_VARIANTS = 8192


@dataclass(frozen=True, slots=True)
class ScoringPlan:
    """What a model reads for some variants of a target."""

    sequences: tuple[str, ...]
    """Proteins of which the documents are parts."""
    sequence: NDArray[np.int64]
    """(documents,) of which sequence."""
    starts: NDArray[np.int64]
    """(documents,) first token."""
    lengths: NDArray[np.int64]
    """(documents,) tokens."""
    read_of: NDArray[np.int64]
    """(documents + 1,) where the reads of each begin."""
    reads: NDArray[np.int64]
    """(reads,) tokens of the sequences, at which probabilities are read."""
    is_masked: bool
    """Whether what is read is masked."""
    term_variant: NDArray[np.int64]
    """(terms,) the variant to whose score the term is added."""
    term_read: NDArray[np.int64]
    """(terms,) the read that gives its probabilities."""
    term_new: NDArray[np.uint8]
    """(terms,) token whose log probability is added."""
    term_old: NDArray[np.uint8] | None
    """(terms,) token whose log probability is taken off; None where nothing is."""
    num_variants: int
    notes: dict[int, str]
    """Variant -> why it has no score."""


def plan_of(
    target: str, variants: Sequence[Variant], scheme: Scheme, window_tokens: int | None = WINDOW_TOKENS
) -> ScoringPlan:
    """What the scores of some variants of one target need.

    Args:
        target: letters of the wild type.
        variants: of it; those of several assays may be given together, so that they share what they have in common.
        scheme: what a score is.
        window_tokens: longest document, even; None reads whole sequences of any length.
    """
    if scheme == "pseudo-likelihood":
        return _pseudo_likelihood(variants, window_tokens)
    notes = {
        number: f"{len(variant.sequence)} residues instead of {len(target)}, and {scheme} scores substitutions alone"
        for number, variant in enumerate(variants)
        if variant.mutated is None
    }
    is_joint = scheme == "masked-marginal-joint"
    mutated = [variant.mutated or () for variant in variants]
    # Residues that are read together: all of a variant, or each by itself.
    of_variants = [[residues] if is_joint and residues else [(at,) for at in residues] for residues in mutated]
    tokens = len(target) + SPECIAL_TOKENS
    first_read: dict[tuple[int, ...], int] = {}
    windows: list[tuple[int, int]] = []
    counts: list[int] = []
    reads: list[int] = []
    for group in sorted({group for groups in of_variants for group in groups}):
        window = common_window(group[0] + 1, group[-1] + 1, tokens, window_tokens or tokens)
        if window is None:
            continue
        # Windows move to the right with what they are around, so that equal ones follow one another.
        if scheme == "wt-marginal" and windows[-1:] == [window]:
            counts[-1] += len(group)
        else:
            windows.append(window)
            counts.append(len(group))
        first_read[group] = len(reads)
        reads.extend(group)
    terms: list[tuple[int, int, int]] = []
    for number, groups in enumerate(of_variants):
        for group in groups:
            if group in first_read:
                terms.extend((number, first_read[group] + n, at) for n, at in enumerate(group))
                continue
            notes[number] = (
                f"residues {group[0] + 1} and {group[-1] + 1} are further apart than a window of {window_tokens:,} "
                "tokens, and masked-marginal-joint masks both at once; read whole sequences (--window whole)"
            )
    bounds = np.array(windows, np.int64).reshape(-1, 2)
    variant, read, at = np.array(terms, np.int64).reshape(-1, 3).T
    new = "".join(variants[n].sequence[place] for n, _, place in terms)
    return ScoringPlan(
        sequences=(target,),
        sequence=np.zeros(len(bounds), np.int64),
        starts=bounds[:, 0],
        lengths=bounds[:, 1] - bounds[:, 0],
        read_of=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]),
        reads=np.array(reads, np.int64) + 1,
        is_masked=scheme != "wt-marginal",
        term_variant=variant,
        term_read=read,
        term_new=_ids(new),
        term_old=_ids(target)[at],
        num_variants=len(variants),
        notes=notes,
    )


def _pseudo_likelihood(variants: Sequence[Variant], window_tokens: int | None) -> ScoringPlan:
    """One document for each residue of each sequence."""
    numbers = {sequence: n for n, sequence in enumerate(dict.fromkeys(variant.sequence for variant in variants))}
    sequences = tuple(numbers)
    residues = np.array([len(letters) for letters in sequences], np.int64)
    sequence = np.repeat(np.arange(len(sequences)), residues)
    firsts = np.cumsum(residues) - residues
    reads = np.arange(len(sequence)) - firsts[sequence] + 1
    tokens = residues[sequence] + SPECIAL_TOKENS
    lengths = tokens if window_tokens is None else np.minimum(tokens, window_tokens)
    own = np.array([numbers[variant.sequence] for variant in variants], np.int64)
    counts = residues[own]
    term_variant = np.repeat(np.arange(len(variants)), counts)
    within = np.arange(len(term_variant)) - np.repeat(np.cumsum(counts) - counts, counts)
    term_read = firsts[own][term_variant] + within
    return ScoringPlan(
        sequences=sequences,
        sequence=sequence,
        starts=np.clip(reads - lengths // 2, 0, tokens - lengths),  # `common_window` of many tokens
        lengths=lengths,
        read_of=np.arange(len(sequence) + 1),
        reads=reads,
        is_masked=True,
        term_variant=term_variant,
        term_read=term_read,
        term_new=_ids("".join(sequences))[term_read],
        term_old=None,
        num_variants=len(variants),
        notes={},
    )


def chunks(
    variants: Sequence[Variant], scheme: Scheme, window_tokens: int | None = WINDOW_TOKENS
) -> Iterator[list[int]]:
    """Variants that are planned together, so that plans need bounded memory and have nothing in common.

    Args:
        variants: of one target.
        scheme: what a score is.
        window_tokens: as for `plan_of`.

    Yields:
        Numbers of variants; equal ones, and with `masked-marginal-joint` those with the same residues, together.
    """
    if scheme in ("wt-marginal", "masked-marginal-wt-fill"):
        yield list(range(len(variants)))
        return

    def key(number: int) -> tuple[tuple[int, ...], str]:
        variant = variants[number]
        is_joint = scheme == "masked-marginal-joint"
        return (variant.mutated or () if is_joint else (), "" if is_joint else variant.sequence)

    chunk: list[int] = []
    tokens = 0
    for _, equal in groupby(sorted(range(len(variants)), key=key), key):
        if tokens > CHUNK_TOKENS or len(chunk) >= CHUNK_VARIANTS:
            yield chunk
            chunk, tokens = [], 0
        chunk += equal
        length = len(variants[chunk[-1]].sequence) + SPECIAL_TOKENS
        documents = 1 if scheme == "masked-marginal-joint" else length - SPECIAL_TOKENS
        tokens += documents * min(length, window_tokens or length)
    if chunk:
        yield chunk


def _ids(letters: str) -> NDArray[np.uint8]:
    return LETTER_IDS[np.frombuffer(letters.encode("ascii"), np.uint8)]
