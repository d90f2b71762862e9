"""A masked language model as a judge of variants.

In: a model, a target and its variants. Out: `VariantScores`. Kept: nothing; memory holds the plan of a chunk, and one
bin.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from data.alphabet import MASK
from data.batches.packed import BinSize, PlainContents, packed, token_ids
from data.order.plan import Bin
from data.order.settings import BIN_TOKENS
from finetune.labels.labels import ranges
from finetune.score.plan import WINDOW_TOKENS, Scheme, ScoringPlan, Variant, chunks, plan_of
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.trained_model import masked_language_model, open_trained_model
from zymogen.console.progress import ProgressBar


@dataclass(frozen=True, slots=True)
class VariantScores:
    """What was found of the variants of one target."""

    values: NDArray[np.float64]
    """(variants,) natural logarithms, higher for fitter; NaN where a note says why there is none."""
    notes: dict[int, str]
    """Variant -> why it has no score."""
    num_documents: int
    """Sequences, or windows of them, that passed through the model."""
    num_tokens: int
    """Tokens of these."""


@dataclass(frozen=True, slots=True)
class VariantScorer:
    """A model, and how it reads."""

    model: MaskedLanguageModel
    name: str
    """Name of the model, for columns and files."""
    bin_tokens: int = BIN_TOKENS
    """Slots of one forward pass."""
    window_tokens: int | None = WINDOW_TOKENS
    """Longest document; None reads sequences whole."""

    @classmethod
    def open(
        cls,
        model: str | Path,
        device: torch.device | str = "cpu",
        bin_tokens: int = BIN_TOKENS,
        window_tokens: int | None = WINDOW_TOKENS,
    ) -> "VariantScorer":
        """The model at a place that `pretrain.trained_model.open_trained_model` opens.

        Raises:
            ValueError: there is none.
        """
        source = open_trained_model(model)
        return cls(masked_language_model(source, device), source.name, bin_tokens, window_tokens)

    def __call__(self, target: str, variants: Sequence[Variant], scheme: Scheme) -> VariantScores:
        """Scores of some variants of one target, in their order.

        Raises:
            ValueError: the model gives something that is not a number.
        """
        values = np.full(len(variants), np.nan)
        notes: dict[int, str] = {}
        documents = tokens = 0
        with ProgressBar(f"{scheme} of {len(variants):,} variants", after_s=2.0):
            for chunk in chunks(variants, scheme, self.window_tokens):
                plan = plan_of(target, [variants[number] for number in chunk], scheme, self.window_tokens)
                values[chunk] = self._values(plan)
                notes |= {chunk[number]: note for number, note in plan.notes.items()}
                documents += len(plan.lengths)
                tokens += int(plan.lengths.sum())
        values[list(notes)] = np.nan
        return VariantScores(values, notes, documents, tokens)

    @torch.no_grad()
    def _values(self, plan: ScoringPlan) -> NDArray[np.float64]:
        """(variants,) sums of the terms of each."""
        if not len(plan.lengths):
            return np.zeros(plan.num_variants)
        device = next(self.model.parameters()).device
        of_read = np.argsort(plan.term_read, kind="stable")
        read = plan.term_read[of_read]
        terms = np.zeros(len(read))
        contents = PlainContents(_Documents(plan), BinSize.holding(plan.lengths, self.bin_tokens))
        for part in packed(contents, plan.lengths, starts=plan.starts):
            own = part.documents
            document, reads = ranges(plan.read_of[own], plan.read_of[own + 1])
            slots = plan.reads[reads] + (part.firsts - plan.starts[own])[document]
            logits = self.model.logits(part.batch.to(device), torch.from_numpy(slots).to(device))
            found = logits.float().log_softmax(1).cpu().numpy().astype(np.float64)
            # The terms of these reads alone, so that no more probabilities are kept than those of one bin.
            row, at = ranges(np.searchsorted(read, reads), np.searchsorted(read, reads, side="right"))
            place = of_read[at]
            terms[place] = found[row, plan.term_new[place]]
            if plan.term_old is not None:
                terms[place] -= found[row, plan.term_old[place]]
        if not np.isfinite(terms).all():
            raise ValueError(
                f"{self.name} gives probabilities that are not numbers; its weights are damaged, or training diverged: "
                "give another checkpoint"
            )
        return np.asarray(np.bincount(plan.term_variant, terms, plan.num_variants), np.float64)


class _Documents:
    """The documents of a plan, masked (a `data.batches.collate.ResidueReader`): sample i is its i-th document."""

    def __init__(self, plan: ScoringPlan) -> None:
        self.plan = plan
        self._ids = lru_cache(maxsize=1)(lambda sequence: token_ids(plan.sequences[sequence]))

    def tokens(self, bin_: Bin) -> NDArray[np.uint8]:
        """(real slots,) token ids of a bin's documents, concatenated."""
        plan, parts = self.plan, []
        for sample, start, length in zip(bin_.samples, bin_.starts, bin_.lengths, strict=True):
            part = self._ids(int(plan.sequence[sample]))[start : start + length]
            if plan.is_masked:
                part = part.copy()
                part[plan.reads[plan.read_of[sample] : plan.read_of[sample + 1]] - start] = MASK
            parts.append(part)
        return np.concatenate(parts)
