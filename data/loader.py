"""The loader: steps of G consecutive bins, dealt to ranks.

In: a plan, a cursor, this rank's place in the world. Out: one `Step` after the other, without end. Kept: nothing; each
step carries the cursor behind it, so what was read ahead never counts as consumed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from data import draw
from data.batch import Batch
from data.collate import collate
from data.plan import Cursor, Plan
from data.store import Store


@dataclass(frozen=True, slots=True)
class Step:
    """What one rank needs for one optimizer step."""

    batches: tuple[Batch, ...]
    """This rank's bins, `bins_per_forward` at a time; the last may hold fewer."""
    bins: tuple[int, ...]
    """Place in the step, 0..G-1, of each of this rank's bins, in the order of `batches`."""
    num_tokens: int
    """Real tokens of the whole step, over all ranks."""
    cursor: Cursor
    """Where the stream goes on behind this step."""


def steps(store: Store, plan: Plan, cursor: Cursor, first_step: int, rank: int, world_size: int) -> Iterator[Step]:
    """The steps from `cursor` on, which is where step number `first_step` begins.

    Raises:
        ValueError: fewer bins in a step than ranks.
    """
    settings = plan.settings
    if settings.bins_per_step < world_size:
        raise ValueError(
            f"data.bins_per_step is {settings.bins_per_step}, but {world_size} processes train: each needs a bin; "
            "raise bins_per_step (and lower bin_tokens by the same factor to keep the tokens of a step), "
            "or start fewer processes"
        )
    stream = plan.bins(cursor)
    number = first_step
    while True:
        dealt = list(islice(stream, settings.bins_per_step))
        mine = range(rank, len(dealt), world_size)
        per_forward = settings.bins_per_forward
        yield Step(
            batches=tuple(
                collate(
                    store,
                    [dealt[i][0] for i in group],
                    settings,
                    settings.mask,
                    plan.seed,
                    [draw.key(plan.seed, draw.MODEL, number, i) for i in group],
                )
                for group in (mine[i : i + per_forward] for i in range(0, len(mine), per_forward))
            ),
            bins=tuple(mine),
            num_tokens=sum(b.num_tokens for b, _ in dealt),
            cursor=dealt[-1][1],
        )
        number += 1
