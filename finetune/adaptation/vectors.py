"""Vectors of sequences: the encoder's, of the layers that are asked for, pooled or residue by residue.

In: an encoder, windows of sequences. Out: arrays. Kept: nothing; memory holds one bin of vectors, and the result.

Layer 0 is the embedding, layer i the residual stream after the i-th layer, and the last one what the final norm makes
of it: the numbering of `hidden_states` in transformers.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.batches.contents import Contents
from data.batches.packed import PackedDocuments, packed
from finetune.adaptation.features import Pooling, summed
from finetune.embed.plan import Windows
from pretrain.model.encoder import Encoder


@dataclass(frozen=True, slots=True)
class Embedder:
    """An encoder, and what is wanted of it."""

    encoder: Encoder
    layers: tuple[int, ...]
    pooling: Pooling
    autocast: bool
    """Whether it computes in bfloat16 where autocast does so; sums are float32."""

    @torch.no_grad()
    def __call__(self, contents: Contents, records: NDArray[np.int64], windows: Windows) -> NDArray[np.float32]:
        """The vectors of consecutive sequences.

        Args:
            contents: give their tokens.
            records: (n,) the sample of each sequence.
            windows: of these sequences, the first of which has the number ``windows.sequence[0]``.

        Returns:
            ``(n, layers, D)``, or ``(residues, layers, D)`` of all residues one after another; float32.
        """
        number = windows.sequence - windows.sequence[0]
        kept = windows.keep_to - windows.keep_from
        residues = np.bincount(number, kept, len(records)).astype(np.int64)
        rows = int(residues.sum()) if self.pooling == "residue" else len(records)
        # Where the vectors of each window's residues begin; the windows of a sequence follow one another.
        places = np.cumsum(kept) - kept
        found = np.zeros((rows, len(self.layers), self.encoder.shape.dim), np.float32)
        sums = np.zeros((len(kept), *found.shape[1:]), np.float32) if self.pooling == "mean" else found[:0]
        for part in packed(contents, windows.length, samples=records[number], starts=windows.start):
            own = part.documents
            skipped = windows.keep_from[own] - windows.start[own]
            vectors = self._vectors(part)
            if self.pooling == "begin":
                begins = windows.start[own] == 0
                found[number[own[begins]]] = _stacked(vectors)[begins]
                continue
            document = np.repeat(np.arange(len(own)), kept[own])
            within = np.arange(len(document)) - np.repeat(np.cumsum(kept[own]) - kept[own], kept[own])
            slots = (part.firsts + skipped)[document] + within
            if self.pooling == "mean":
                sums[own] = _stacked([summed(each, slots, document, len(own)) for each in vectors])
            else:
                at = torch.from_numpy(slots).to(vectors[0].device)
                found[places[own][document] + within] = _stacked([each[at] for each in vectors])
        if self.pooling == "mean":
            np.add.at(found, number, sums)
            found /= residues.clip(1)[:, None, None]
        return found

    def _vectors(self, part: PackedDocuments) -> list[Tensor]:
        """Vectors of each layer, ``(S, D)``; with `begin`, ``(n, D)`` of the first slots alone."""
        device = next(self.encoder.parameters()).device
        firsts = torch.from_numpy(part.firsts).to(device) if self.pooling == "begin" else None
        caught: dict[int, Tensor] = {}

        def catch(layer: int) -> Any:
            def hook(_: object, arguments: tuple[Any, ...]) -> None:
                caught[layer] = arguments[0] if firsts is None else arguments[0].index_select(0, firsts)

            return hook

        with ExitStack() as stack, torch.autocast(device.type, torch.bfloat16, enabled=self.autocast):
            for layer in self.layers:
                if layer < len(self.encoder.layers):
                    hooked = self.encoder.layers[layer].register_forward_pre_hook(catch(layer))
                    stack.callback(hooked.remove)
            last = self.encoder(part.batch.to(device), firsts)
        return [caught.get(layer, last).float() for layer in self.layers]


def _stacked(of_layers: Sequence[Tensor]) -> NDArray[np.float32]:
    """(rows, layers, D) on the host."""
    return np.asarray(torch.stack(list(of_layers), 1).cpu().numpy())
