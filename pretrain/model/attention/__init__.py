"""Attention over a flat batch: every slot sees its own document, in both directions, and nothing else.

A layer calls `attend`, and `own_slots` with what it gets. Reading order: `choice` (which backend, and what each can
take), `layout` (where the documents are), then the backends: `flash_cpu` on a CPU; in `sdpa`, `varlen` on a GPU,
`per_document` for what these two cannot take, and `dense`, the reference. Where ranks share a batch, `exchange` brings
slots together around them.

Shapes: S slots of the batch, H heads, K channels of a head; a batch is `num_bins` bins of T slots. Of slots that c
ranks share, queries, keys, values and what is gathered have S / c here; angles have S.
"""

from torch import Tensor

from pretrain.model.attention.choice import Backend
from pretrain.model.attention.exchange import of_all_slots, to_heads, to_slots
from pretrain.model.attention.flash_cpu import flash_cpu
from pretrain.model.attention.layout import Layout, rotate
from pretrain.model.attention.sdpa import dense, per_document, varlen


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos: Tensor,
    sin: Tensor,
    layout: Layout,
    slots: Tensor | None = None,
) -> Tensor:
    """Softmax attention inside each document, after queries and keys are turned by the angles of their slots.

    Args:
        query: ``(S, H, K)``, as projected: neither turned nor scaled.
        key: ``(S, H, K)``, as projected.
        value: ``(S, H, K)``.
        cos: ``(S, 1, K / 2)`` float32, of `layout.rotation`.
        sin: likewise.
        layout: where documents are, and which backend to take.
        slots: ``(n,)`` int64 of this rank's share, where only what these slots gather is read; they still see all.

    Returns:
        What `own_slots` takes: ``(S, H, K)`` in the dtype of `value`; by Ulysses ``(S, H / c, K)``, all slots for this
        rank's heads; ``(n, H, K)`` where queries of `slots` alone were computed. Pad slots get something finite that
        depends on pad slots alone.
    """
    if slots is not None and _asks_for_some(layout):
        return flash_cpu(query.index_select(0, slots), key, value, cos, sin, layout, slots)
    if layout.exchange == "ulysses":
        query, key, value = to_heads(query, key, value, layout.group)
    return _attend(query, key, value, cos, sin, layout)


def own_slots(gathered: Tensor, layout: Layout, slots: Tensor | None = None) -> Tensor:
    """All heads of this rank's slots, ``(S / c, H, K)``, or of `slots`, ``(n, H, K)``, of what `attend` returned."""
    if layout.exchange == "ulysses":
        gathered = to_slots(gathered, layout.group)
    return gathered if slots is None or _asks_for_some(layout) else gathered.index_select(0, slots)


def _asks_for_some(layout: Layout) -> bool:
    """Whether attention computes the queries of some slots alone where only those are read.

    One call for each document takes any queries of it. A GPU's kernel takes consecutive ones in the order of
    documents, and an exchange between ranks brings whole shares.
    """
    return layout.backend == "flash_cpu" and layout.exchange is None


def _attend(query: Tensor, key: Tensor, value: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    if layout.backend == "flash_cpu":  # turns in the precision that it computes in, and again in its backward pass
        return flash_cpu(query, key, value, cos, sin, layout)
    if layout.exchange == "all_gather":
        own = slice(layout.first_query, layout.first_query + len(query))
        cos, sin = cos[own], sin[own]
    query, key = rotate(query, cos, sin), rotate(key, cos, sin)
    if layout.exchange == "all_gather":
        # Kept whole for the backward pass, unlike by `flash_cpu`: these backends' gradients are torch's own, and to
        # gather again there would be to attend again. Checkpointing of layers keeps those of one layer at a time.
        key, value = of_all_slots(key, value, layout.group)
    return OTHERS[layout.backend](query, key, value, layout)


OTHERS = {"varlen": varlen, "per_document": per_document, "dense": dense}

__all__ = ["Backend", "Layout", "attend", "own_slots"]
