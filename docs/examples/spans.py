"""Spans of residues as the targets (Joshi et al. 2020, arXiv:1907.10529), as a mask policy.

In a recipe beside this file:

[data.mask]
name = "spans:SpanMask"
options.longest = 8
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from data.alphabet import IS_TARGET, MASK
from data.batches.masking import Corrupted, MaskPolicy
from data.order.plan import Bin
from zymogen import keyed_random
from zymogen.settings.section import IDENTITY, Section, setting

SPANS = 100
"""The purpose of these draws: a number above those of `keyed_random`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options(Section):
    """Settings that only spans have."""

    section: ClassVar = "data.mask.options"
    longest: int = setting(IDENTITY, "residues of the longest span", 8, "residues", at_least=1)


class SpanMask(MaskPolicy):
    """Spans of 1 to `longest` residues are hidden, about `select_prob` of all; they may touch and overlap."""

    Options = Options

    def corrupt(self, tokens: NDArray[np.uint8], bin_: Bin, seed: int) -> Corrupted:
        """Hide the spans of each protein; a span that begins before a crop reaches into it."""
        longest, first = self.options.longest, 0
        begin_prob = -math.log(1 - self.settings.select_prob) / ((longest + 1) / 2)
        hidden = np.zeros(len(tokens), np.bool_)
        for sample, epoch, start, length in zip(*(each.tolist() for each in bin_), strict=True):
            places = np.arange(start - longest + 1, start + length)
            drawn = keyed_random.hashes(keyed_random.key(seed, SPANS, epoch, sample), places)
            ends = places + 1 + keyed_random.integers(keyed_random.mixed(drawn), longest)
            begins = keyed_random.below(drawn, begin_prob)
            for begin, end in zip(places[begins].tolist(), ends[begins].tolist(), strict=True):
                hidden[first + max(begin - start, 0) : first + min(max(end - start, 0), length)] = True
            first += length
        hidden &= IS_TARGET[tokens]
        return np.where(hidden, np.uint8(MASK), tokens), np.flatnonzero(hidden).astype(np.int32)
