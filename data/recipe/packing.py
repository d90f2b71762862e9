"""The part of a recipe that planning, packing and loading read."""

from typing import Protocol

from data.recipe.settings import PackingSettings
from zymogen.settings.section import require

BIN_TOKENS = 4096
"""Slots of a bin where nothing else is asked for."""
ON_GPU = 16_384
"""The same on a GPU, which needs more at a time to be busy."""


def bin_tokens_on(device: str) -> int:
    """Slots of a bin where nothing else is asked for, on a type of device such as "cpu" or "cuda"."""
    return BIN_TOKENS if device == "cpu" else ON_GPU


class BinSettings(Protocol):
    """Sizes of a bin: all that packing and laying out read.

    The units are those of `DataSettings`.
    """

    @property
    def bin_tokens(self) -> int: ...  # noqa: D102
    @property
    def documents_per_bin(self) -> int: ...  # noqa: D102


def forward_bins(settings: PackingSettings) -> int:
    """Bins of one forward pass, as a number.

    Raises:
        ValueError: it is "auto", where nothing has replaced that by a number.
    """
    number = settings.bins_per_forward
    said = "this program does not choose the number; give it, such as data.bins_per_forward=1"
    require(isinstance(number, int), "data.bins_per_forward", number, said)
    return int(number)
