"""What is kept of a protein that is longer than the model reads: an end of it, or a window around its mutations.

In: lengths, mutated residues. Out: `KeptWindow`. Kept: nothing. It is a function of the protein alone, so that training
and prediction cut it in the same way, whatever else is in their tables.
"""

from collections.abc import Sequence
from typing import NamedTuple

from data.order.plan import SPECIAL_TOKENS
from finetune.tables.settings import TableSettings, TooLong
from finetune.tables.table import Table
from zymogen.settings.origin import format_option
from zymogen.settings.section import listed

_MOST_ROWS = 3
"""How many rows an error names."""


class KeptWindow(NamedTuple):
    """The residues that are kept: `head` of them from `begin` on, and the last `tail` of the protein."""

    begin: int
    head: int
    tail: int
    whole: int

    def __contains__(self, residue: object) -> bool:
        """Whether a residue, from 0, is kept."""
        assert isinstance(residue, int)
        return self.begin <= residue < self.begin + self.head or residue >= self.whole - self.tail


def kept_residues(whole: int, most: int, policy: TooLong, mutated: Sequence[int]) -> KeptWindow:
    """What is kept of a protein.

    Windows begin at multiples of half their length, so that variants with mutations near each other share one and stay
    comparable; each mutated residue then has at least a quarter of the window on either side, or the protein ends
    before. Mutations that are too far apart for that have a window of their own, with the same room on either side. A
    protein without mutations keeps its start.

    Args:
        whole: its residues.
        most: how many are kept at most.
        policy: which ones.
        mutated: residues, from 0, in which it differs from its wild type, rising; those of "window" that do not fit
            into `most` are not all kept.
    """
    kept = min(whole, most)
    if whole <= most or policy == "start":
        return KeptWindow(0, kept, 0, whole)
    if policy == "window":
        middle = (mutated[0] + mutated[-1] + 1 - most) / 2 if mutated else 0.0
        step = max(1, most // 2)
        begin = min(max(step * round(middle / step), 0), whole - most)
        if mutated and not begin <= mutated[0] <= mutated[-1] < begin + most:
            begin = min(max(round(middle), 0), whole - most)
        return KeptWindow(begin, kept, 0, whole)
    head = 0 if policy == "end" else (kept + 1) // 2
    return KeptWindow(0, head, kept - head, whole)


def check_lengths(
    table: Table,
    joined: Sequence[str],
    settings: TableSettings,
    most: int,
    said: list[str],
    mutated: Sequence[tuple[int, ...]] | None,
    unusable: dict[int, str],
) -> None:
    """Refuse proteins that are too long, or say what is kept; rows whose mutations would be cut become `unusable`."""
    too_long = [index for index, letters in enumerate(joined) if len(letters) > most and index not in unusable]
    if not too_long:
        return
    longest = max(too_long, key=lambda index: len(joined[index]))
    found = (
        f"{table.name}: {len(too_long)} of {len(joined)} rows have a protein of more than {most} residues "
        f"(data.crop_tokens less begin and end), in {table.row_word} "
        f"{listed([table.shown(index) for index in too_long], _MOST_ROWS)}; the longest, in {table.row_word} "
        f"{table.shown(longest)}, has {len(joined[longest])}"
    )
    if settings.too_long == "refuse":
        raise ValueError(
            f"{found}. Raise data.crop_tokens to {len(joined[longest]) + SPECIAL_TOKENS}, or set data.too_long to "
            "what is kept of them: 'start', 'end' or 'ends'; 'window' around mutated residues"
        )
    if len(settings.sequence) > 1:
        raise ValueError(f"{found}. Joined chains are not cut; raise data.crop_tokens, or leave these rows out")
    for index in too_long if mutated else ():
        assert mutated is not None
        whole, places = len(joined[index]), mutated[index]
        kept = kept_residues(whole, most, settings.too_long, places)
        if cut := [place for place in places if place not in kept]:
            span = places[-1] - places[0] + 1
            way = format_option("data.too_long", "window", "; keep it with ")
            more = format_option("data.crop_tokens", span + SPECIAL_TOKENS, "; keep them with ")
            unusable[index] = (
                f"residue {cut[0] + 1}, which is mutated, would be cut away{way}"
                if span <= most
                else f"its mutations span {span} residues, of which {most} are read{more}"
            )
    kept_words = {
        "start": f"the first {most} are kept",
        "end": f"the last {most} are kept",
        "ends": f"the first and last, half each, {most} are kept",
        "window": f"{most} around the mutated ones are kept",
    }
    said.append(
        f"rows whose protein has more than {most} residues, of which {kept_words[settings.too_long]}: {len(too_long)}; "
        f"the longest has {len(joined[longest])}"
    )
