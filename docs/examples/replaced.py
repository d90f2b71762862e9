"""Which residues were replaced, as an objective: ELECTRA (Clark et al. 2020, arXiv:2003.10555) without its generator.

In a recipe beside this file:

[objective]
name = "replaced:ReplacedResidues"
options.replace_prob = 0.15
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from data.alphabet import IS_TARGET
from data.batches.batch import Batch
from data.batches.collate import FilledBin, ResidueReader, fill_bin
from data.batches.contents import Contents, MaskedContents
from data.batches.masking import BertMask
from data.batches.settings import MaskSettings
from data.corpus.corpora import Corpora
from data.order.plan import Bin
from data.settings import DataSettings
from pretrain.model.presets import EsmShape
from pretrain.objective import Objective
from zymogen.settings.section import IDENTITY, Section, setting
from zymogen.trainer.job import LossTerm


@dataclass(frozen=True, kw_only=True, slots=True)
class Options(Section):
    """Settings that only this objective has."""

    section: ClassVar = "objective.options"
    replace_prob: float = setting(IDENTITY, "share of residues that are replaced", 0.15, above=0, below=1)


class ReplacedContents(MaskedContents):
    """Proteins with some residues replaced at random; each residue is a target."""

    def fill(self, bin_: Bin) -> FilledBin:
        """Draw by the keys of the built-in masks. A random residue may be the true one, and then counts as such."""
        tokens = self.residues.tokens(bin_)
        inputs, _ = self.mask.corrupt(tokens, bin_, self.seed)
        slots = np.flatnonzero(IS_TARGET[tokens]).astype(np.int32)
        return fill_bin(bin_, inputs, (slots, (inputs != tokens)[slots].astype(np.float32)))


class ReplacedResidues(Objective):
    """Binary cross-entropy of each residue: was it replaced?"""

    Options = Options
    loss_terms = (LossTerm("replaced", 1.0),)

    def contents(self, residues: ResidueReader, data: DataSettings, seed: int) -> Contents:
        """Return what fills bins."""
        mask = MaskSettings(select_prob=self.options.replace_prob, mask_prob=0.0, random_prob=1.0)
        return ReplacedContents(residues, data, BertMask(mask), seed)

    def head(self, shape: EsmShape) -> nn.Module:
        """Return a linear map to a logit."""
        return nn.Linear(shape.dim, 1)

    def loss_sums(self, head: nn.Module, vectors: Tensor, batch: Batch) -> Tensor:
        """Return the summed cross-entropy, in nats."""
        (targets,) = batch.targets
        logits = head(vectors).squeeze(1).float()
        return F.binary_cross_entropy_with_logits(logits, targets.labels, reduction="sum")[None]

    def baseline(self, corpora: Corpora) -> dict[str, float]:
        """Return the loss of one who knows the share of replaced residues alone."""
        share = self.options.replace_prob * 19 / 20
        return {"replaced": -share * math.log(share) - (1 - share) * math.log(1 - share)}
