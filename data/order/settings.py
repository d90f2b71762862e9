"""The part of a recipe that planning, packing and loading read."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from zymogen.settings.section import IDENTITY, OPERATIONAL, Section, require, setting

ForwardBins = int | Literal["auto"]
"""Bins of one forward pass; "auto" is replaced by a number before anything is built (`forward_bins`)."""

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


@dataclass(frozen=True, kw_only=True)
class PackingSettings(Section):
    """Sizes of crops, bins and steps, and who fills bins: what planning, packing and loading read.

    It has no slots, as its classes inherit from another section, too.
    """

    section: ClassVar = "data"
    crop_tokens: int = setting(IDENTITY, "longest document; a longer protein gives a random crop", 1024, "tokens")
    bin_tokens: int = setting(
        IDENTITY, "slots of one bin, the unit that sequences are packed into", 16384, "tokens", at_least=1
    )
    bins_per_step: int = setting(IDENTITY, "bins of one optimizer step, over all ranks", 128, "bins", at_least=1)
    window_sequences: int = setting(IDENTITY, "sequences that are packed together", 131072, "sequences", at_least=1)
    bins_per_forward: ForwardBins = setting(
        OPERATIONAL,
        "bins that one rank takes through one forward pass; 'auto': as many as the memory allows that is free on its "
        "GPU when the run begins, and on a CPU 1",
        1,
        "bins",
        at_least=1,
    )
    workers: int = setting(
        OPERATIONAL,
        "processes of each rank that fill bins; 0: the training process does",
        0,
        "processes",
        at_least=0,
        at_most=64,
    )

    @property
    def curriculum(self) -> tuple[tuple[int, int], ...]:
        """Stages of shorter crops: [tokens at which a stage ends, crop_tokens]."""
        return ()

    @property
    def skip_bins(self) -> tuple[int, ...]:
        """Bins that are not trained, as numbers from 0 over all steps."""
        return ()

    @property
    def documents_per_bin(self) -> int:
        """Most documents that one bin may hold, one for 8 slots; it gives `Batch.cu_seqlens` a fixed length."""
        return max(1, self.bin_tokens // 8)


def forward_bins(settings: PackingSettings) -> int:
    """Bins of one forward pass, as a number.

    Raises:
        ValueError: it is "auto", where nothing has replaced that by a number.
    """
    number = settings.bins_per_forward
    said = "this program does not choose the number; give it, such as data.bins_per_forward=1"
    require(isinstance(number, int), "data.bins_per_forward", number, said)
    return int(number)
