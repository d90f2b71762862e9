"""Attention maps of a protein, as contacts are read from them.

In: a model of transformers that computes attention eagerly, and residues. Out: a symmetric map for each head, corrected
for what a row and a column have in common. Nothing is kept.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.alphabet import CLS, EOS, LETTER_IDS
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.weights.io import to_transformers


def eager(model: MaskedLanguageModel) -> Any:
    """The same model as transformers' class, with attention that returns its maps; float32, in evaluation mode."""
    theirs: Any = to_transformers(model)
    theirs.set_attn_implementation("eager")
    return theirs.to(next(model.parameters()).device)


@torch.no_grad()
def maps_of(theirs: Any, residues: str) -> Tensor:
    """Attention between the residues of one protein: ``(layers * heads, L, L)`` float32 on the host.

    Layer by layer, as `predict_contacts` of transformers reads them: begin and end token are cut off, a map and its
    transpose are added, and `corrected`.

    Args:
        theirs: a masked language model of transformers, whose attention is "eager".
        residues: L letters.
    """
    letters = np.frombuffer(residues.encode(), np.uint8)
    ids = np.concatenate([[CLS], LETTER_IDS[letters], [EOS]]).astype(np.int64)
    tokens = torch.from_numpy(ids)[None].to(theirs.device)
    attentions = theirs(input_ids=tokens, output_attentions=True).attentions
    maps = torch.cat([layer[0, :, 1:-1, 1:-1].float() for layer in attentions]).cpu()
    return corrected(maps + maps.transpose(1, 2))


def corrected(maps: Tensor) -> Tensor:
    """Average product correction: each element less the product of its row's and its column's sum over that of all.

    Dunn et al., 2008, doi:10.1093/bioinformatics/btm604.

    Args:
        maps: ``(n, L, L)``, positive.
    """
    rows, columns = maps.sum(2, keepdim=True), maps.sum(1, keepdim=True)
    return maps - rows * columns / rows.sum(1, keepdim=True)


def columns_at(maps: Tensor, pairs: tuple[NDArray[np.int64], NDArray[np.int64]]) -> NDArray[np.float32]:
    """``(pairs, n)``: the value of every map at each pair."""
    first, second = (torch.from_numpy(each) for each in pairs)
    return np.ascontiguousarray(maps[:, first, second].numpy().T)
