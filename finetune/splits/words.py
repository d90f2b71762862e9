"""In which words a split may be described: one function of its settings, how it was made, and its audit.

In: settings, `Division`, `Audit`. Out: a sentence or two. Kept: nothing. Everything that prints, writes or publishes a
split uses it, so that a split with relatives on both sides is nowhere called a homology split.
"""

from finetune.splits.audit import Audit
from finetune.splits.divide import Division
from finetune.splits.settings import SplitSettings

LEAKY = 0.05
"""Largest share of tested sequences with a relative in training at which a homology split keeps its name."""
_KINDS = {
    "column": "a split that the table gives",
    "time": "a split by time",
    "scaffold": "a split by scaffold",
    "group": "a split by groups",
    "position": "a split by mutated position",
    "distance": "a split by number of mutations",
    "random": "a random split, the optimistic one: relatives of tested sequences train",
    "file": "a split that a file gives",
}


def is_homology_split(settings: SplitSettings, division: Division, audit: Audit | None) -> bool:
    """Whether a split may be called a homology split.

    It was made by clusters that MMseqs2 found, and an audit by MMseqs2 at its identity found no equal sequence and
    relatives of at most `LEAKY` of the tested sequences.
    """
    if settings.by != "homology" or division.is_approximate or audit is None or audit.is_approximate:
        return False
    found = audit.of_training
    share = found.share(settings.identity)
    return share is not None and share <= LEAKY and not found.equal


def in_words(settings: SplitSettings, division: Division, audit: Audit | None) -> str:
    """What kind of split it is, how it was made, and what its audit found."""
    folds = f", in {division.parts.num_folds} folds" if division.parts.num_folds else ""
    if is_homology_split(settings, division, audit):
        kind = f"a homology split at {settings.identity:.0%} identity{folds}"
    elif settings.by == "homology":
        kind = f"a split by clusters of relatives{folds}, not a homology split: {_why_not(settings, division, audit)}"
    else:
        name, _, more = _KINDS[settings.by].partition(", ")
        kind = name + folds + (f", {more}" if more else "")
    return f"{kind} ({division.method}); {_found(settings, audit)}"


def _why_not(settings: SplitSettings, division: Division, audit: Audit | None) -> str:
    if division.is_approximate:
        return "without MMseqs2 distant relatives are not found"
    if audit is None:
        return "it was not audited"
    if audit.is_approximate:
        return "its audit was approximate"
    if audit.distances is not None:
        return "its sequences are variants of one protein"
    return f"it leaks at {settings.identity:.0%} identity"


def _found(settings: SplitSettings, audit: Audit | None) -> str:
    """The audit's finding about training."""
    if audit is None:
        return "what its two sides have in common was not looked for"
    found, others = audit.of_training, "training" if audit.of("train") else "the other folds"
    queries = f"{found.queries:,} tested sequences"
    if audit.distances is not None:
        near = sum(audit.distances[:2])
        return (
            f"variants of one protein: of {queries}, {near:,} ({near / max(found.queries, 1):.1%}) have at most one "
            f"mutation to the nearest of {others}"
        )
    identity = settings.identity if settings.identity in found.identities else min(found.identities, default=None)
    share = None if identity is None else found.share(identity)
    if identity is None or share is None:
        return f"of {queries}, {found.equal:,} are also in {others}; relatives were not looked for"
    roughly = "at least, by an approximate search, " if audit.is_approximate else ""
    return (
        f"of {queries}, {found.equal:,} are also in {others}, and {roughly}{share:.1%} have a relative there of at "
        f"least {identity:.0%} identity"
    )
