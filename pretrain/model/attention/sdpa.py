"""Attention by torch: FlashAttention over packed documents on a GPU, and `scaled_dot_product_attention` on any device.

In: turned queries and keys, values, where documents are. Out: what each slot gathered. Nothing is kept. `dense` is
the reference.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from pretrain.model.attention import choice
from pretrain.model.attention.layout import Layout


def varlen(query: Tensor, key: Tensor, value: Tensor, layout: Layout) -> Tensor:
    """The same as `attend`, after the rotation. Stretches of pads are documents too, and gather from one another."""
    assert choice.VARLEN is not None  # `choose` has looked for it
    boundaries, longest = layout.boundaries, layout.longest
    # By keyword alone, and no other: that much is the same in every torch that has it.
    gathered: Tensor = choice.VARLEN(
        query=query,
        key=key,
        value=value,
        cu_seq_q=layout.query_boundaries,
        cu_seq_k=boundaries,
        max_q=longest,
        max_k=longest,
        scale=query.shape[-1] ** -0.5,
    )
    return gathered


def per_document(query: Tensor, key: Tensor, value: Tensor, layout: Layout) -> Tensor:
    """The same as `attend`, after the rotation: a call for each document; pads are not computed and get zeros."""
    pieces = list(_pieces(layout.spans.tolist(), key.shape[0]))
    first, last = layout.first_query, layout.first_query + query.shape[0]
    of_keys = [end - start for start, end, _ in pieces]
    of_queries = [max(0, min(end, last) - max(start, first)) for start, end, _ in pieces]
    # One split, not one slice per document: the gradient of a slice is a zero-filled tensor of all S slots.
    split = (torch.split(x, lengths) for x, lengths in ((query, of_queries), (key, of_keys), (value, of_keys)))
    # Pads become what they were times 0, not fresh zeros, so that a batch without a document still has a graph.
    gathered = [
        _document(q, k, v) if is_document else (q + k[: len(q)] + v[: len(q)]) * 0
        for (_, _, is_document), q, k, v in zip(pieces, *split, strict=True)
        if len(q)
    ]
    return torch.cat(gathered)


def _pieces(spans: list[list[int]], num_slots: int) -> Iterator[tuple[int, int, bool]]:
    """First and end slot of each stretch from 0 to `num_slots`, and whether it is a document (else it is pads)."""
    reached = 0
    for start, end in spans:
        if start > reached:
            yield reached, start, False
        yield start, end, True
        reached = end
    if reached < num_slots:
        yield reached, num_slots, False


def _document(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))  # (1, H, n, K)
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


def dense(query: Tensor, key: Tensor, value: Tensor, layout: Layout) -> Tensor:
    """The same as `attend`, after the rotation: one masked call over whole bins. Pads gather from one another."""
    of_keys = of_queries = layout.documents
    if layout.exchange == "all_gather":  # a share need not be whole bins: all of them as one
        of_keys = of_keys.view(1, -1)
        of_queries = of_keys[:, layout.first_query : layout.first_query + query.shape[0]]
    same_document = of_queries[:, None, :, None] == of_keys[:, None, None, :]  # (num_bins, 1, T, T)
    q = query.view(*of_queries.shape, *query.shape[1:]).transpose(1, 2)
    k, v = (x.view(*of_keys.shape, *x.shape[1:]).transpose(1, 2) for x in (key, value))
    gathered = F.scaled_dot_product_attention(q, k, v, attn_mask=same_document)  # (num_bins, H, T, K)
    return gathered.transpose(1, 2).flatten(0, 1)
