"""Synthetic protein families: a corpus to learn from at once, with a floor under the loss that is exact.

In: `Families`, the settings. Out: `families.fasta.gz` and `clusters.tsv`; and, for masked documents, the loss of the
best possible predictor. Kept: nothing. The draws of this module make a file; they are no part of a run's state.

One hidden Markov model (`SEGMENTS`) is shared by all families. A family is an ancestor drawn from it; a member is the
ancestor with each site, independently with probability mu, drawn again from the model's overall composition b.

Why the floor is exact: take one member of a family that was not trained on. Given the path of hidden states, the
ancestor's residues are independent, and sites are substituted independently, so each residue of the member has the
distribution (1 - mu) e(state) + mu b, independently of the others. The member is thus itself a sequence from a hidden
Markov model, with the same path and these emissions. Its length is drawn apart from the states and its path starts in
the stationary distribution, so length, <cls>, <eos> and the offset of a crop say nothing about a residue, and a crop is
again a sequence from that model. Training families share nothing with it but the model's parameters, which `floor`
knows. Hence no predictor that sees one document at a time has a lower expected loss on held-out families. On a finite
sample one may pass the floor by luck, and members of one family are lucky together: take error bars over families.
"""

import gzip
import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data import alphabet
from zymogen import keyed_random
from zymogen.files.durable import new_dir

_LENGTH, _ANCESTOR, _SUBSTITUTED, _SUBSTITUTE = range(
    101, 105
)  # what a key is for; none of them is in zymogen.keyed_random


class Segment(NamedTuple):
    """A stretch of structure: its sites, in order, as the hidden states of the model."""

    sites: tuple[str, ...]
    """One string per site; a residue's emission probability is its share of the letters."""
    mean_residues: float | None
    """A number: the sites repeat as a cycle, entered anywhere, left with probability 1/number after each residue.
    None: the sites are passed once, from the first to the last."""
    followers: dict[str, float]
    """Probability of each segment that may follow."""


SEGMENTS: dict[str, Segment] = {
    # Heptad a to g of an amphipathic helix (3.5 residues a turn): a and d face the core, charges pair up outside.
    "helix": Segment(
        ("LLLLLIMAAF", "EEEEKKQDAR", "KKKRRREEQA", "LLLLIIMAAA", "AAAEEKLQRM", "EEEEEQDKKR", "KKKKRRREQQ"),
        24.0,
        {"turn": 0.5, "loop": 0.5},
    ),
    # Side chains of a strand point to the core and to the solvent in turn.
    "strand": Segment(("VVVVVIIIYF", "TTTTVSSRQY"), 14.0, {"turn": 0.6, "loop": 0.4}),
    "turn": Segment(
        ("PPPPPDSE", "DDDDNNGS", "GGGGGGGN", "SSTTNKHD"),
        None,
        {"helix": 0.4, "strand": 0.4, "loop": 0.1, "knuckle": 0.1},
    ),
    "loop": Segment(("GGGPPSSSNNDH", "PPPGGDDDSNSQ"), 10.0, {"helix": 0.45, "strand": 0.45, "knuckle": 0.1}),
    # Knuckles that bind zinc, C-x-x-C, one after the other.
    "knuckle": Segment(
        ("CCCCCCCC", "YYYFFWHM", "KGGGNRHS", "CCCCCCHH", "HWWFYYWM"),
        12.0,
        {"helix": 0.4, "strand": 0.4, "loop": 0.2},
    ),
}
"""The hidden Markov model that all families share, 20 states. The neighbours of a residue show its segment, which is
most of what can be learned; their phase in the segment shows the rest."""


class HiddenMarkovModel(NamedTuple):
    """`SEGMENTS` as probabilities; residues in the order of `alphabet.STANDARD_RESIDUES`."""

    transitions: NDArray[np.float64]
    """(states, states) probability of each transition, from the row's state to the column's."""
    emissions: NDArray[np.float64]
    """(states, 20) probability of each residue of an ancestor."""
    stationary: NDArray[np.float64]
    """(states,) stationary distribution, which is also that of the first residue's state."""
    composition: NDArray[np.float64]
    """(20,) share of each residue among ancestors; as substitutions draw from it, also among members."""


@lru_cache(maxsize=1)
def hidden_markov_model() -> HiddenMarkovModel:
    """The model of `SEGMENTS`, as arrays not to be written to."""
    first: dict[str, int] = {}
    for name in SEGMENTS:
        first[name] = sum(len(SEGMENTS[earlier].sites) for earlier in first)
    num_states = sum(len(segment.sites) for segment in SEGMENTS.values())
    transitions = np.zeros((num_states, num_states))
    emissions = np.zeros((num_states, 20))
    for name, segment in SEGMENTS.items():
        num_sites = len(segment.sites)
        for site, letters in enumerate(segment.sites):
            state = first[name] + site
            for letter in letters:
                emissions[state, alphabet.STANDARD_RESIDUES.index(letter)] += 1 / len(letters)
            leave = 1 / segment.mean_residues if segment.mean_residues else float(site == num_sites - 1)
            transitions[state, first[name] + (site + 1) % num_sites] += 1 - leave
            for follower, probability in segment.followers.items():
                entries = len(SEGMENTS[follower].sites) if SEGMENTS[follower].mean_residues else 1
                transitions[state, first[follower] : first[follower] + entries] += leave * probability / entries
    balance = transitions.T - np.eye(num_states)
    balance[-1] = 1.0  # one balance equation follows from the others; the sum of 1 takes its place
    stationary = np.linalg.solve(balance, np.eye(num_states)[-1])
    model = HiddenMarkovModel(transitions, emissions, stationary, stationary @ emissions)
    for array in model:
        array.setflags(write=False)
    return model


@dataclass(frozen=True, kw_only=True, slots=True)
class Families:
    """Settings of a synthetic corpus; the defaults give about 1.1 million residues."""

    seed: int = 0
    """Another seed gives other families; the hidden Markov model is the same."""
    num_families: int = 250
    """Number of families, at most 100,000."""
    members_per_family: int = 24
    """Number of members of each family, at most 1,000."""
    mean_residues: float = 180.0
    """Mean of the log-normal distribution of lengths, before clipping; all members have their family's length."""
    length_log_std: float = 0.4
    """Standard deviation of the logarithm of the length."""
    min_residues: int = 40
    """Shorter lengths are clipped to this."""
    max_residues: int = 500
    """Longer lengths are clipped to this."""
    substitution_prob: float = 0.15
    """mu: probability that a member's residue is drawn again (and may come out the same)."""


def _uniforms(key: int, count: int) -> NDArray[np.float64]:
    """Random numbers strictly between 0 and 1, float64 of shape (count,)."""
    return ((keyed_random.hashes(key, np.arange(count)) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _cumulative(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    totals = np.cumsum(probabilities, axis=-1)
    return totals / totals[..., -1:]  # ends in 1 exactly, so that a uniform number never exceeds the last choice


def ancestor(families: Families, family: int) -> NDArray[np.uint8]:
    """Ancestor of `family` as token ids of shape (residues,), without <cls> and <eos>."""
    model = hidden_markov_model()
    normal = NormalDist().inv_cdf(float(_uniforms(keyed_random.key(families.seed, _LENGTH, family), 1)[0]))
    spread = families.length_log_std
    length = round(families.mean_residues * math.exp(spread * normal - spread * spread / 2))
    length = min(max(length, families.min_residues), families.max_residues)
    path_draws, residue_draws = _uniforms(keyed_random.key(families.seed, _ANCESTOR, family), 2 * length).reshape(
        2, length
    )
    choices = _cumulative(model.stationary)
    rows = _cumulative(model.transitions)
    path = np.empty(length, np.int64)
    for site in range(length):
        path[site] = np.searchsorted(choices, path_draws[site], side="right")
        choices = rows[path[site]]
    residues = (_cumulative(model.emissions)[path] <= residue_draws[:, None]).sum(1)
    ids: NDArray[np.uint8] = alphabet.STANDARD_IDS[residues]
    return ids


def substitute(families: Families, family: int, member: int, ancestor_ids: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Member number `member` of `family`: the ancestor (residues,) with some sites drawn again, same shape."""
    length = len(ancestor_ids)
    substituted = (
        _uniforms(keyed_random.key(families.seed, _SUBSTITUTED, family, member), length) < families.substitution_prob
    )
    draws = _uniforms(keyed_random.key(families.seed, _SUBSTITUTE, family, member), length)
    residues = np.searchsorted(_cumulative(hidden_markov_model().composition), draws, side="right")
    return np.where(substituted, alphabet.STANDARD_IDS[residues], ancestor_ids)


def member_id(family: int, member: int) -> str:
    """First word of the member's FASTA header."""
    return f"UniRef90_SYN{family:05d}{member:03d}"


def _records(families: Families) -> Iterator[bytes]:
    """FASTA records: the first members of all families, then all second ones, so that a prefix has every family."""
    ancestors = [ancestor(families, family) for family in range(families.num_families)]
    for member in range(families.members_per_family):
        for family, ancestor_ids in enumerate(ancestors):
            name = member_id(family, member)
            header = (
                f">{name} Synthetic family {family} member {member} n=1 Tax=synthetic construct TaxID=32630 "
                f"RepID={name.removeprefix('UniRef90_')}_ZYMOG"
            )
            letters = alphabet.decode(substitute(families, family, member, ancestor_ids))
            lines = [letters[start : start + 60] for start in range(0, len(letters), 60)]
            yield "\n".join([header, *lines, ""]).encode()


def write_corpus(folder: Path, families: Families) -> tuple[Path, Path]:
    """Write the corpus, unless `folder` already holds the one of these settings; the folder appears whole.

    Returns:
        Paths of `families.fasta.gz` and of `clusters.tsv` (cluster, tab, member: MMseqs2's layout). Their content is a
        function of the settings; the compressed bytes also depend on zlib's version.

    Raises:
        ValueError: the folder holds anything else.
    """
    fasta, clusters, settings = "families.fasta.gz", "clusters.tsv", "settings.json"
    model_digest = hashlib.sha256(repr(SEGMENTS).encode()).hexdigest()
    described = json.dumps({**asdict(families), "model": model_digest}, indent=1) + "\n"
    if not folder.is_dir() or not any(folder.iterdir()):
        with new_dir(folder) as building:
            with (building / fasta).open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
                packed.writelines(_records(families))
            (building / clusters).write_text(
                "".join(
                    f"UniRef50_SYN{family:05d}\t{member_id(family, member)}\n"
                    for family in range(families.num_families)
                    for member in range(families.members_per_family)
                )
            )
            (building / settings).write_text(described)
    try:
        is_ours = (folder / settings).read_text() == described and (folder / clusters).is_file()
    except (OSError, UnicodeDecodeError):
        is_ours = False
    if not (is_ours and (folder / fasta).is_file()):
        raise ValueError(
            f"{folder} holds other files than the embedded corpus of these settings; choose another data.store_dir, "
            "or remove the folder"
        )
    return folder / fasta, folder / clusters


Document = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Token ids after corruption, and labels (the true id at targets, else -100), both of shape (tokens,)."""

_MASKED, _PADDED = 20, 21  # symbols 0..19 are the standard residues


def posteriors(
    documents: Sequence[Document], families: Families, *, select_prob: float, mask_prob: float, random_prob: float
) -> list[NDArray[np.float64]]:
    """Distribution of each target's true residue, given the whole corrupted document.

    Corruption: a site is selected with probability r = `select_prob`; once selected it becomes <mask> with probability
    m = `mask_prob`, or with q = `random_prob` a uniform draw from the 20 residues, or it stays. Mask-all is m = 1,
    q = 0; 80/10/10 is m = 0.8, q = 0.1. Write C(y | x) for what a selected residue x shows as: m at <mask>,
    q / 20 + (1 - m - q) [y = x] at residues. The document does not show which *other* sites were selected, so they
    contribute r C(y | x) + (1 - r) [y = x]. The scored site is known to be selected, as only selected sites are scored:
    it contributes C. Selection is independent of everything else, hence, with e' the emissions of a member,

        P(x_i = x | shown) is proportional to  sum_s before_i(s) after_i(s) e'(s, x) C(y_i | x)

    where before_i(s) is the forward message into site i and after_i(s) the backward one, neither of which holds y_i.

    Args:
        documents: documents with or without <cls> and <eos> (crops).
        families: settings of the corpus; `substitution_prob` is used.
        select_prob: r.
        mask_prob: m.
        random_prob: q.

    Returns:
        One array (targets, 20) per document, residues in the order of `alphabet.STANDARD_RESIDUES`.

    Raises:
        ValueError: the rates are no probabilities, or a document shows what this corruption of this corpus cannot.
    """
    rates = f"select_prob {select_prob}, mask_prob {mask_prob}, random_prob {random_prob}"
    if not (0 < select_prob <= 1 and min(mask_prob, random_prob) >= 0 and mask_prob + random_prob <= 1):
        raise ValueError(f"{rates}: select_prob must be above 0 and up to 1, the others add up to at most 1")
    model, mu = hidden_markov_model(), families.substitution_prob
    emissions = (1 - mu) * model.emissions + mu * model.composition
    kept = max(0.0, 1 - mask_prob - random_prob)
    selected = np.column_stack([kept * np.eye(20) + random_prob / 20, np.full(20, mask_prob)])
    channel = select_prob * selected + (1 - select_prob) * np.eye(20, 21)
    evidence = np.vstack([(emissions @ channel).T, np.ones(len(emissions))])  # (symbols, states); padding says nothing

    symbol_of = np.full(len(alphabet.TOKENS), -1)
    symbol_of[alphabet.STANDARD_IDS] = np.arange(20)
    symbol_of[alphabet.MASK] = _MASKED
    symbols, targets = [], []
    for number, (tokens, labels) in enumerate(documents):
        inner = slice(int(tokens[0] == alphabet.CLS), len(tokens) - int(tokens[-1] == alphabet.EOS))
        symbols.append(symbol_of[tokens[inner]])
        targets.append(np.flatnonzero(labels[inner] >= 0))
        if (symbols[-1] < 0).any() or not np.isin(labels[labels >= 0], alphabet.STANDARD_IDS).all():
            raise ValueError(f"document {number} has tokens or labels beside the 20 standard residues and <mask>")

    result: list[NDArray[np.float64]] = [np.empty((0, 20))] * len(documents)
    by_length = sorted(range(len(documents)), key=lambda number: len(symbols[number]))
    for start in range(0, len(by_length), 256):
        numbers = by_length[start : start + 256]
        padded = np.full((len(numbers), len(symbols[numbers[-1]])), _PADDED)
        for row, number in enumerate(numbers):
            padded[row, : len(symbols[number])] = symbols[number]
        states = _states_given_others(evidence[padded], model)
        for row, number in enumerate(numbers):
            sites = targets[number]
            weights = (states[row, sites] @ emissions) * selected[:, padded[row, sites]].T
            totals = weights.sum(1, keepdims=True)
            if not (totals > 0).all():
                raise ValueError(f"document {number} was not corrupted with {rates}: it shows what these cannot")
            result[number] = weights / totals
    return result


def _states_given_others(evidence: NDArray[np.float64], model: HiddenMarkovModel) -> NDArray[np.float64]:
    """Distribution of each site's state given the evidence at all other sites; both (documents, sites, states)."""
    states = np.empty_like(evidence)
    message = np.broadcast_to(model.stationary, evidence[:, 0].shape)
    for site in range(evidence.shape[1]):
        states[:, site] = message
        message = message * evidence[:, site]
        message = message / message.sum(1, keepdims=True) @ model.transitions
    message = np.ones(evidence[:, 0].shape)
    for site in reversed(range(evidence.shape[1])):
        states[:, site] *= message
        message = (message * evidence[:, site]) @ model.transitions.T
        message /= message.sum(1, keepdims=True)
    states /= states.sum(2, keepdims=True)
    return states


def floor(
    documents: Sequence[Document], families: Families, *, select_prob: float, mask_prob: float, random_prob: float
) -> list[NDArray[np.float64]]:
    """Loss of the best possible predictor at each target, in nats: one float64 array (targets,) per document.

    Arguments and errors are those of `posteriors`. The mean over targets is the floor under a model's mean loss.
    """
    rates = {"select_prob": select_prob, "mask_prob": mask_prob, "random_prob": random_prob}
    losses = []
    for (_, labels), posterior in zip(documents, posteriors(documents, families, **rates), strict=True):
        is_truth = labels[labels >= 0][:, None] == alphabet.STANDARD_IDS
        losses.append(-np.log(posterior[is_truth]))
    return losses
