"""Scoring of finished models: the same frozen set for a run of ours and for a model that others published.

In: a `TrainedModel`'s model, an `EvaluationSet`. Out: sums of each protein, and `EvaluationRow`s of all of them and of
buckets. Nothing is kept.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from data.batches.packed import BinSize
from data.order.settings import BIN_TOKENS
from data.settings import DataSettings
from pretrain.evaluate.results import ALL, EvaluationRow
from pretrain.evaluate.scored_set import EvaluationSet
from pretrain.evaluate.validation import Row, evaluation_of, loss_sums, merged, unigram_losses
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.settings import ComputeSettings
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.settings import InferenceSettings
from zymogen.trainer.run.settings import RunSettings

Compute = Literal["float32", "bfloat16"]
LAUNCH = InferenceSettings(
    run=RunSettings(directory="."), data=DataSettings(sources=("-",), bins_per_step=1 << 20), compute=ComputeSettings()
)
"""What a launch of a command that scores reads; any number of processes has enough bins."""


def scored_by(
    model: MaskedLanguageModel,
    origin: str,
    opened: EvaluationSet,
    engine: Engine,
    unigram: NDArray[np.float64] | None = None,
    *,
    compute: Compute = "float32",
    bin_tokens: int = BIN_TOKENS,
) -> dict[str, list[Row]]:
    """The sums of each protein that has targets, by rising number, under both corruptions, on every rank; collective.

    Args:
        model: whole, on the engine's device.
        origin: of the model, for errors.
        opened: what is scored.
        engine: to whose ranks the bins are dealt.
        unigram: (33,) losses to compare with; None for those of the opened corpora.
        compute: what matrix products are computed in.
        bin_tokens: slots of a forward pass; the result does not depend on them.

    Raises:
        ValueError: no residue is a target, or a loss is not finite.
    """
    scored = opened.scored
    unigram = unigram_losses(opened.corpora) if unigram is None else unigram

    def autocast() -> AbstractContextManager[None]:
        return torch.autocast(engine.device.type, dtype=torch.bfloat16) if compute == "bfloat16" else nullcontext()

    sums = loss_sums(model, scored, BinSize.holding(scored.lengths, bin_tokens), engine, unigram, autocast)
    found = {}
    for name, parts in sums.items():
        rows = merged(parts)
        if not rows:
            raise ValueError(
                f"no residue of the {len(scored.samples):,} proteins of {', '.join(opened.asked.data)} is among the "
                "15 % that are scored; give more proteins"
            )
        if wrong := sum(not np.isfinite(row[1]) for row in rows):
            raise ValueError(
                f"{origin} gives a loss that is no finite number for {wrong:,} of {len(rows):,} proteins; its weights "
                "are damaged, or its training diverged"
            )
        found[name] = rows
    return found


def figures_of(
    sums: Mapping[str, list[Row]],
    opened: EvaluationSet,
    groups: NDArray[np.integer],
    by: Mapping[str, tuple[Sequence[str], Sequence[str]]],
) -> tuple[EvaluationRow, ...]:
    """A figure for all proteins under each corruption, then those of each bucket that has any; rank 0 alone.

    Args:
        sums: from `scored_by`.
        opened: what was scored.
        groups: (documents,) from `EvaluationSet.groups`.
        by: what proteins are divided by -> names of the buckets in order, and the (documents,) bucket of each protein.
    """
    fingerprint = opened.scored.fingerprint()
    found = []
    for name, of_one in sums.items():
        places = np.searchsorted(opened.scored.samples, [row[0] for row in of_one])
        divided = [(ALL, ALL, np.ones(len(places), np.bool_))]
        for kind, (buckets, of_documents) in by.items():
            mine = np.array(of_documents)[places]
            divided += [(kind, bucket, mine == bucket) for bucket in buckets]
        for kind, bucket, kept in divided:
            rows = [row for row, keep in zip(of_one, kept.tolist(), strict=True) if keep]
            if not rows:
                continue
            of_groups = groups[places[kept]]
            found.append(
                EvaluationRow(
                    **asdict(evaluation_of(rows, of_groups)),
                    set=fingerprint,
                    corruption=name,
                    by=kind,
                    bucket=bucket,
                    groups=len(np.unique(of_groups)),
                    nats=float(sum(row[1] for row in rows)),
                )
            )
    return tuple(found)
