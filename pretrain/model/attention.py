"""Attention over a flat batch: every slot sees its own document, in both directions, and nothing else.

In: queries, keys and values of all slots. Out: what each slot gathered. Nothing is kept.

Shapes: S slots of the batch, H heads, K channels of a head; a batch is `num_bins` bins of T slots.
"""

from collections.abc import Callable, Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from data.alphabet import PAD
from data.batch import Batch

Backend = Literal["per_document", "dense"]


def attend(query: Tensor, key: Tensor, value: Tensor, batch: Batch, backend: Backend) -> Tensor:
    """Softmax attention inside each document; pad slots get zeros.

    Args:
        query: ``(S, H, K)``, already scaled by ``K ** -0.5``: ESM scales before the rotation, so scores are not
            scaled again here.
        key: ``(S, H, K)``.
        value: ``(S, H, K)``.
        batch: says where documents are.
        backend: `per_document` computes nothing for pads; `dense` is the reference, quadratic in T.

    Returns:
        ``(S, H, K)`` in the dtype of `value`.
    """
    return BACKENDS[backend](query, key, value, batch)


def _per_document(query: Tensor, key: Tensor, value: Tensor, batch: Batch) -> Tensor:
    pieces = list(_pieces(batch.spans, query.shape[0]))
    lengths = [length for length, _ in pieces]
    # One split, not one slice per document: the gradient of a slice is a zero-filled tensor of all S slots.
    split = (torch.split(x, lengths) for x in (query, key, value))
    # Pads become their values times 0, not fresh zeros, so that a batch without a document still has a graph.
    return torch.cat(
        [_document(q, k, v) if is_document else v * 0 for (_, is_document), q, k, v in zip(pieces, *split, strict=True)]
    )


def _pieces(spans: tuple[tuple[int, int], ...], num_slots: int) -> Iterator[tuple[int, bool]]:
    """Length of each stretch of slots from 0 to `num_slots`, and whether it is a document (else it is pads)."""
    reached = 0
    for start, end in spans:
        if start > reached:
            yield start - reached, False
        yield end - start, True
        reached = end
    if reached < num_slots:
        yield num_slots - reached, False


def _document(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))  # (1, H, n, K)
    return F.scaled_dot_product_attention(q, k, v, scale=1.0)[0].transpose(0, 1)


def _dense(query: Tensor, key: Tensor, value: Tensor, batch: Batch) -> Tensor:
    documents = batch.documents.view(batch.num_bins, -1)
    same_document = documents[:, None, :, None] == documents[:, None, None, :]  # (num_bins, 1, T, T)
    q, k, v = (x.view(*documents.shape, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
    gathered = F.scaled_dot_product_attention(q, k, v, attn_mask=same_document, scale=1.0)  # (num_bins, H, T, K)
    # Pads attended to each other: a row with nothing to see would have been NaN, in its gradient too.
    is_pad = (batch.tokens == PAD)[:, None, None]
    return gathered.transpose(1, 2).flatten(0, 1).masked_fill(is_pad, 0)


BACKENDS: dict[Backend, Callable[[Tensor, Tensor, Tensor, Batch], Tensor]] = {
    "per_document": _per_document,
    "dense": _dense,
}
