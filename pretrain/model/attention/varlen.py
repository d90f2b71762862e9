"""Attention on a GPU: torch's FlashAttention over packed documents, one kernel for the whole batch.

In: turned queries and keys, values, where documents are. Out: what each slot gathered. Nothing is kept.
"""

from torch import Tensor

from pretrain.model.attention.choice import VARLEN
from pretrain.model.attention.layout import Layout


def varlen(query: Tensor, key: Tensor, value: Tensor, layout: Layout) -> Tensor:
    """The same as `attend`, after the rotation. Stretches of pads are documents too, and gather from one another."""
    assert VARLEN is not None  # `choose` has asked
    boundaries, longest = layout.boundaries, layout.longest
    # By keyword alone, and no other: that much is the same in every torch that has it.
    gathered: Tensor = VARLEN(
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
