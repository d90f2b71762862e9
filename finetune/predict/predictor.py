"""Predictors: a bundle's model, whole, and what it predicts of any proteins.

In: a bundle, with the weights of its base where it needs them; proteins. Out: for each record the numbers of every
task. Kept: nothing. Predictions are computed in float32, and bins follow from the proteins alone, so that they do not
depend on how many processes there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.batches.collate import BinTargets, FilledBin, fill_bin
from data.batches.contents import Contents
from data.batches.packed import BinSize, TokenArrays, packed, token_ids
from data.order.plan import SPECIAL_TOKENS, Bin
from data.order.settings import BinSettings, bin_tokens_on
from finetune.adaptation.adapt import adapt
from finetune.bundle.base import all_parameters
from finetune.bundle.folder import Bundle
from finetune.heads.activation import activate
from finetune.metrics.weighted import Floats
from finetune.model import FineTuneModel
from finetune.tables.proteins import TableProteins
from finetune.tasks.task import Task


class _AllTargets(Contents):
    """Contents in which every output of every protein, or of each of its residues, is a target without a true label."""

    def __init__(self, proteins: TableProteins, settings: BinSettings, objectives: Sequence[Task]) -> None:
        super().__init__(TokenArrays([token_ids(letters) for letters in proteins.sequences]), settings)
        self.linkers, self.objectives = proteins.linkers, objectives

    def fill(self, bin_: Bin) -> FilledBin:
        """The documents of a bin with all places of each objective."""
        targets = (self._targets(objective, bin_) for objective in self.objectives)
        return fill_bin(bin_, self.residues.tokens(bin_), *targets)

    def _targets(self, objective: Task, bin_: Bin) -> BinTargets:
        firsts, level = np.cumsum(bin_.lengths) - bin_.lengths, objective.settings.level
        linkers = self.linkers[bin_.samples]
        places, of = firsts, np.arange(len(firsts))
        if level == "residue":
            of = np.repeat(of, bin_.lengths - SPECIAL_TOKENS)
            within = np.concatenate([np.arange(length) for length in (bin_.lengths - SPECIAL_TOKENS).tolist()])
            places = firsts[of] + 1 + within
        elif level == "pair":
            places, of = places[:0], of[:0]
        outputs = len(objective.outputs)
        slots, of = np.repeat(places, outputs), np.repeat(of, outputs)
        skips = linkers[of] + (linkers[of, 1:] > linkers[of, :1])  # the begin token is slot 0
        zeros = np.zeros(len(slots), np.int64)
        columns = (np.tile(np.arange(outputs), len(places)), zeros.astype(np.int8), zeros, *skips.T, zeros)
        return slots.astype(np.int32), zeros.astype(np.float32), *columns


@dataclass(frozen=True, slots=True)
class Predictor:
    """The model of a bundle."""

    bundle: Bundle
    model: FineTuneModel

    @torch.no_grad()
    def __call__(
        self, proteins: TableProteins, records: NDArray[np.int64], rank: int = 0, ranks: int = 1, *, raw: bool = False
    ) -> dict[int, tuple[Floats, ...]]:
        """Predictions of the records in every `ranks`-th bin, from bin `rank` on.

        Args:
            proteins: hold the records.
            records: numbers of records, each once.
            rank: of this process.
            ranks: how many processes there are.
            raw: give z-scores and logits instead, as `FineTuneModel` computes them.

        Returns:
            Record -> for each objective an array: ``(outputs,)`` numbers in the task's scale or probabilities of yes,
            or ``(outputs, classes)``; for residues ``(residues, outputs)`` or ``(residues, outputs, classes)``, linkers
            between chains included; nothing, ``(0, ...)``, for pairs.
        """
        lengths = proteins.num_residues[records] + SPECIAL_TOKENS
        device = next(self.model.parameters()).device
        # Bins of training may hold one protein each, and a forward pass of one takes as long as one of many.
        contents = _AllTargets(proteins, BinSize.holding(lengths, bin_tokens_on(device.type)), self.model.objectives)
        found: dict[int, tuple[Floats, ...]] = {}
        for part in packed(contents, lengths, samples=records, rank=rank, ranks=ranks):
            members, batch = part.documents, part.batch
            zeros = np.zeros_like(members)
            numbers = self.model(batch.to(device), each=True)
            of_objectives = []
            for objective, number, targets in zip(self.model.objectives, numbers, batch.targets, strict=True):
                values = number.double().cpu().numpy() if raw else activate(objective, number, targets.columns[0])
                whole = values.reshape(-1, len(objective.outputs), *values.shape[1:])
                counts = {"sequence": np.ones_like(members), "pair": zeros}.get(
                    objective.settings.level, part.lengths - SPECIAL_TOKENS
                )
                each = np.split(whole, np.cumsum(counts)[:-1])
                of_objectives.append([one[0] for one in each] if objective.settings.level == "sequence" else each)
            for at, record in enumerate(records[members].tolist()):
                found[record] = tuple(of[at] for of in of_objectives)
        return found


def open_predictor(bundle: Bundle, base: str | None = None, device: torch.device | str = "cpu") -> Predictor:
    """The model of a bundle, whole, in evaluation mode.

    Args:
        bundle: opened.
        base: where the weights are that it was trained on; None for where they were then. Not read where everything
            was trained.
        device: where it computes.

    Raises:
        ValueError: the base is not there or another one, or the bundle's tensors are not those of its model; a class of
            the user's cannot be imported, or has changed.
    """
    bundle.manifest.require_same_code()
    model = empty_model(bundle)
    wanted = {name: parameter.shape for name, parameter in model.named_parameters()}
    parameters = all_parameters(bundle, wanted, base)
    given: dict[str, Tensor] = {}
    for name, shape in wanted.items():
        tensor = parameters.get(name)
        if tensor is None or tensor.shape != shape:
            got = "nothing" if tensor is None else f"shape {tuple(tensor.shape)}"
            raise ValueError(f"{bundle.folder} is damaged: for {name!r} of shape {tuple(shape)} it has {got}")
        given[name] = tensor
    if unknown := sorted(bundle.tensors.keys() - wanted.keys()):
        raise ValueError(f"{bundle.folder} is damaged: it holds {unknown[0]!r}, which its model does not have")
    model.load_state_dict(given, assign=True)
    return Predictor(bundle, model.to(device).train(False))


def empty_model(bundle: Bundle) -> FineTuneModel:
    """The model of a bundle with adapters, on the meta device."""
    manifest = bundle.manifest
    with torch.device("meta"):
        inputs = {name: of_level.scale for name, of_level in manifest.inputs.items()}
        model = FineTuneModel(manifest.encoder, manifest.tasks, manifest.heads, inputs=inputs)
    adapt(model, manifest.adaptation, manifest.adapters)
    return model
