"""The two corruptions under which held-out proteins are scored, and their names for readers.

In: nothing. Out: settings by name. Kept: nothing; torch is not imported, so that a report can name them without it.

Both select the same targets. *Mask-all* hides every target; *80/10/10* is the corruption of training. The second looks
better than it is: one target in ten shows its true residue, which a model can copy. Judge by mask-all.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from data.batches.settings import MaskSettings

_SELECT_PROB = 0.15
CORRUPTIONS = {
    "mask_all": MaskSettings(select_prob=_SELECT_PROB, mask_prob=1.0, random_prob=0.0),
    "80_10_10": MaskSettings(select_prob=_SELECT_PROB, mask_prob=0.8, random_prob=0.1),
}
TITLES = {"mask_all": "mask-all", "80_10_10": "80/10/10"}


def corruption_of(mask: Mapping[str, Any]) -> str | None:
    """The name of the corruption that training used too, by the mask of its recipe; None if it is neither."""
    for name, scored in CORRUPTIONS.items():
        if mask == asdict(scored):
            return name
    return None
