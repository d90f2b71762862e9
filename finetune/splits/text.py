"""In which words a split may be described: one function of its settings, how it was made, and its audit.

In: settings, `Split`, `SplitAudit`. Out: a sentence or two. Kept: nothing. Everything that prints, writes or publishes
a split uses it, so that a split with relatives on both sides is nowhere called a homology split.
"""

from finetune.splits.audit import PRETRAINING, Overlap, SplitAudit
from finetune.splits.settings import SplitSettings
from finetune.splits.split import Split

LEAKY = 0.05
"""Largest share of tested sequences with a relative in training at which a homology split keeps its name."""
COVERED = 0.95
"""Least share of tested sequences that the search can find at which a homology split keeps its name."""
LEAST_OF_TASK = 20
"""Tested sequences from which on a task alone can take its name from a homology split."""
_KINDS = {
    "column": "a split that the table gives",
    "time": "a split by time",
    "scaffold": "a split by scaffold",
    "group": "a split by groups",
    "position": "a split by mutated position",
    "distance": "a split by number of mutations",
    "random": "a random split, the optimistic one: relatives of tested sequences may train",
    "file": "a split that a file gives",
}


def format_split(settings: SplitSettings, division: Split, audit: SplitAudit | None) -> str:
    """What kind of split it is, how it was made, and what its audit found.

    It is called a homology split if it was made by clusters that MMseqs2 found, or by position of peptides; and an
    audit by these at its identity could search at least `COVERED` of the tested sequences, found no equal one, and
    relatives of at most `LEAKY` of them, of each task's too.
    """
    folds = f", in {division.parts.num_folds} folds" if division.parts.num_folds else ""
    if settings.by != "homology":
        name, _, more = _KINDS[settings.by].partition(", ")
        kind = name + folds + (f", {more}" if more else "")
    elif why_not := _why_not(settings, division, audit):
        kind = f"a split by clusters of relatives{folds}, not a homology split: {why_not}"
    else:
        kind = f"a homology split at {settings.identity:.0%} identity{folds}"
    known = [each for each in audit.comparisons if each.against.startswith(PRETRAINING)] if audit else []
    pretrained = "".join(f"; {each.equal:,} of {each.queries:,} are in the pretraining corpus" for each in known)
    return f"{kind} ({division.method}); {_found(settings, audit)}{pretrained}"


def _why_not(settings: SplitSettings, division: Split, audit: SplitAudit | None) -> str:
    if division.is_approximate:
        return "without MMseqs2 distant relatives are not found"
    if audit is None:
        return "it was not audited"
    if audit.is_approximate:
        return "its audit was approximate"
    if audit.distances is not None:
        return "its sequences are variants of one protein"
    found = audit.of_training
    if found.searchable < COVERED * found.queries:
        return f"of {found.queries - found.searchable:,} tested sequences no search can find relatives"
    worst = _worst(audit, settings.identity)
    share = worst.share(settings.identity)
    if share is None:
        return f"relatives at {settings.identity:.0%} identity were not counted"
    of_task = "" if worst is found else f" in {worst.against}"
    return "" if share <= LEAKY and not found.equal else f"it leaks at {settings.identity:.0%} identity{of_task}"


def _worst(audit: SplitAudit, identity: float) -> Overlap:
    """The tested side as a whole, or the task with the largest share of relatives where that is larger."""
    of_tasks = [task for task in audit.tasks if task.searchable >= LEAST_OF_TASK]
    return max([audit.of_training, *of_tasks], key=lambda each: each.share(identity) or 0.0)


def _found(settings: SplitSettings, audit: SplitAudit | None) -> str:
    """The audit's finding about training."""
    if audit is None:
        return "what its two sides have in common was not looked for"
    found = audit.of_training
    others = "training" if found.against == "train" else found.against
    queries = f"{found.queries:,} tested sequences"
    if audit.distances is not None:
        near = sum(audit.distances[:2])
        return (
            f"variants of one protein: of {queries}, {near:,} ({near / max(found.queries, 1):.1%}) have at most one "
            f"mutation to the nearest of {others}"
        )
    identity = settings.identity if settings.identity in found.identities else min(found.identities, default=None)
    share = None if identity is None else found.share(identity)
    if identity is not None and share is None:
        return f"of {queries}, the search can find none, so that nothing is known of their relatives in {others}"
    if identity is None or share is None:
        return f"of {queries}, {found.equal:,} are also in {others}; relatives were not looked for"
    roughly = "at least, by an approximate search, " if audit.is_approximate else ""
    whose, lacking = "", found.queries - found.searchable
    if lacking:
        whose = f"of the {found.searchable:,} that the search can find "
        lost = f"; {lacking:,} do not find themselves, so that nothing is known of their relatives"
    said = (
        f"of {queries}, {found.equal:,} are also in {others}, and {whose}{roughly}{share:.1%} have a relative there of "
        f"at least {identity:.0%} identity" + (lost if lacking else "")
    )
    worst = _worst(audit, identity)
    if worst is not found:
        said += f"; of the {worst.searchable:,} of {worst.against}, {worst.share(identity):.1%}"
    if (of := audit.conditions) is not None:
        said += (
            f"; of {of.labels:,} tested pairs of a protein and a condition, {of.condition:,} have a condition that "
            f"trains too, {of.protein:,} a protein with a relative there, {of.both:,} both"
        )
    return said
