"""An objective as a class: what bins hold, what is learned from them, and how it is scored.

In: the corpora of a run, a model. Out: contents, a model and its losses, scores. Kept: nothing in checkpoints.

`Objective` is the base class of ours and of the user's (docs/extending.md). `pretrain.job` trains any of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.batches.collate import ResidueReader
from data.batches.contents import Contents, MaskedContents
from data.batches.masking import mask_policy
from data.batches.packed import iterate_bins
from data.corpus.corpora import Corpora
from data.settings import DataSettings
from pretrain.evaluate.frozen_set import SEED, FrozenSet
from pretrain.evaluate.predictions import predict
from pretrain.evaluate.scores import (
    CORRUPTIONS,
    HeldOutUnit,
    MaskedLanguageScores,
    MeanLosses,
    Prediction,
    ProteinPredictions,
)
from pretrain.evaluate.validation import evaluate, unigram_losses, with_floor
from pretrain.model.encoder import Encoder
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.memory import BACKWARD_AND_FORWARD, encoder_flops, training_flops
from pretrain.model.presets import EsmShape
from pretrain.recipe import OBJECTIVES, ObjectiveSettings
from zymogen.settings import extension, json_file
from zymogen.settings.options import NoOptions, checked_options
from zymogen.settings.section import Section
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.job import LossTerm, ValidationScores
from zymogen.trainer.run.directory import RunDirectory


class EncoderWithHead(nn.Module):
    """The model of an objective of the user's: parameters `encoder.*` and `head.*`."""

    def __init__(self, shape: EsmShape, objective: "Objective") -> None:
        super().__init__()
        self.shape, self._objective = shape, objective
        self.encoder = Encoder(shape)
        self.head = objective.head(shape)

    def forward(self, batch: Any) -> Tensor:
        """The sums of the losses, ``(loss terms,)`` float32."""
        vectors = self.encoder(batch, torch.cat([targets.slots for targets in batch.targets]))
        return self._objective.loss_sums(self.head, vectors, batch)


class Objective(ABC):
    """What pretraining optimizes.

    Args:
        settings: the recipe's section `objective`.
        options: `objective.options`, as `Options`.
    """

    Options: ClassVar[type[Section]] = NoOptions
    """A dataclass of settings of its own, with `section = "objective.options"`."""
    loss_terms: ClassVar[Sequence[LossTerm]]
    """What is learned, in the order of the targets of a bin."""
    publishes_with: ClassVar[Sequence[str]] = ()
    """Modules that `publish` imports and nothing imports before."""

    def __init__(self, settings: ObjectiveSettings, options: Section) -> None:
        self.settings, self.options = settings, options

    @abstractmethod
    def contents(self, residues: ResidueReader, data: DataSettings, seed: int) -> Contents:
        """Return what fills bins, with targets for each loss term; data workers get a copy of it.

        Args:
            residues: gives the tokens of a bin.
            data: the recipe's section, with the sizes of a bin.
            seed: keys all draws: that of the run, or a fixed one where proteins are scored.
        """

    def head(self, shape: EsmShape) -> nn.Module:
        """Return what reads the encoder's vectors. Matrices begin as the encoder's do, LayerNorm weights as 1."""
        raise NotImplementedError(f"{type(self).__name__} must have the method head")

    def loss_sums(self, head: nn.Module, vectors: Tensor, batch: Any) -> Tensor:
        """Return the sum of the losses of each term, ``(loss terms,)`` float32, with a gradient without targets too.

        Args:
            head: what `head` returned.
            vectors: ``(targets, dim)`` of the targets of all terms, one term after the other.
            batch: a `data.batches.batch.Batch`, with its `targets` by term.
        """
        raise NotImplementedError(f"{type(self).__name__} must have the method loss_sums")

    def model(self, shape: EsmShape) -> nn.Module:
        """Return the model: an `encoder`, a `head`, and a forward pass from a `Batch` to the sums of the losses."""
        return EncoderWithHead(shape, self)

    def scored_contents(self, scored: FrozenSet, data: DataSettings) -> Contents:
        """Return what fills bins where a frozen set is scored."""
        return self.contents(scored.reader, data, SEED)

    def baseline(self, corpora: Corpora) -> Any:
        """Return what scores are compared with: here the loss of a simple predictor by term; None for nothing."""
        return None

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, corpora: Corpora, scored: FrozenSet, engine: Engine, baseline: Any
    ) -> ValidationScores:
        """Return the mean losses of the prepared model over a frozen set; collective. Its mode stays as it was.

        Args:
            model: as the engine prepared it.
            corpora: that the set is of.
            scored: the frozen set.
            engine: to whose ranks the bins are dealt.
            baseline: what `baseline` returned when the attempt began.
        """
        data, was_training = corpora.settings, model.training
        sums = np.zeros((2, len(self.loss_terms)))
        model.train(False)
        for _, batch, is_own in iterate_bins(scored.bins(data), self.scored_contents(scored, data), engine):
            with engine.autocast():
                losses = model(batch.to(engine.device))
            if is_own:
                sums += [losses.double().tolist(), batch.counts.tolist()]
        model.train(was_training)
        total, counts = np.sum(engine.gather(sums), axis=0)
        of_terms = zip(self.loss_terms, (total / np.maximum(counts, 1)).tolist(), counts.tolist(), strict=True)
        return MeanLosses({term.name: (loss, count, term.weight) for term, loss, count in of_terms}, baseline or {})

    def flops(self, shape: EsmShape, tokens: float, squared_lengths: float, targets: float) -> float:
        """Return the FLOPs of a step; here those of the encoder."""
        return BACKWARD_AND_FORWARD * encoder_flops(shape, tokens, squared_lengths, targets)

    def publish(self, run: RunDirectory) -> None:  # noqa: B027
        """Write what others use of the finished run, on rank 0 alone; here nothing."""


class MaskedLanguage(Objective):
    """Masked language modelling: residues that were hidden are filled in (Devlin et al. 2019, arXiv:1810.04805)."""

    loss_terms = (LossTerm("masked_language", 1.0, has_perplexity=True),)
    publishes_with = ("pretrain.export.export",)
    predictions: Sequence[Prediction] = ()
    """The predictions of the weights that were evaluated last."""

    def contents(self, residues: ResidueReader, data: DataSettings, seed: int) -> Contents:
        """Return masked bins."""
        return MaskedContents(residues, data, mask_policy(data.mask), seed)

    def model(self, shape: EsmShape) -> nn.Module:
        """Return the model that transformers has, too."""
        return MaskedLanguageModel(shape)

    def scored_contents(self, scored: FrozenSet, data: DataSettings) -> Contents:
        """Return bins with every target hidden, whatever trains."""
        return scored.contents(CORRUPTIONS["mask_all"], data)

    def baseline(self, corpora: Corpora) -> NDArray[np.float64]:
        """Return the losses of residue frequencies, by token id."""
        return unigram_losses(corpora)

    def evaluate(
        self, model: nn.Module, corpora: Corpora, scored: FrozenSet, engine: Engine, baseline: Any
    ) -> MaskedLanguageScores:
        """Return the perplexities under both corruptions, and keep the predictions."""
        data, families = corpora.settings, corpora.families
        scores = evaluate(model, corpora, scored, data, engine, baseline)
        self.predictions = predict(model, corpora, data, engine, baseline)
        if families and mask_policy(data.mask).is_independent:
            scores = engine.on_main(lambda: with_floor(scores, families, scored, data))
        return MaskedLanguageScores(scores, held_out_unit(corpora))

    def flops(self, shape: EsmShape, tokens: float, squared_lengths: float, targets: float) -> float:
        """Return those of encoder and head."""
        return training_flops(shape, tokens, squared_lengths, targets, pruned=True)

    def publish(self, run: RunDirectory) -> None:
        """Write the export that transformers loads, and the predictions that the report shows."""
        from pretrain.export.export import last_export  # transformers takes seconds to import; rank 0 alone needs it

        last_export(run)  # from the checkpoint, which is whole even if the model's parameters are spread
        run.write_predictions(json_file.as_json(ProteinPredictions(proteins=tuple(self.predictions))))


_OWN: dict[str, type[Objective]] = {"masked_language": MaskedLanguage}
assert set(_OWN) == set(OBJECTIVES)


def objective_of(settings: ObjectiveSettings) -> Objective:
    """Return the objective of a recipe, its options checked.

    Raises:
        ValueError: the class cannot be imported or is no `Objective`, or an option is not allowed.
    """
    kind = extension.load("objective.name", settings.name, Objective, _OWN)  # type: ignore[type-abstract]
    return kind(settings, checked_options("objective", kind, settings))


def held_out_unit(corpora: Corpora) -> HeldOutUnit:
    """Return what was held out together."""
    if not corpora.holds_out:
        return HeldOutUnit.NOTHING
    return HeldOutUnit.CLUSTERS if corpora.by_cluster else HeldOutUnit.SEQUENCES
