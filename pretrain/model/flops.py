"""Model FLOPs: the multiplications and additions that a step's mathematics asks for, however they are computed.

In: a shape, and sums over the documents of a step. Out: FLOPs. Kept: nothing.

A multiply-add counts as 2. Counted are the matrix products: projections, feed-forward, attention, head. The embedding
lookup, norms, activations, rotary positions and the loss count nothing, nor do pad slots. Training is three times the
forward pass, because each product's backward pass is two of its size; what activation checkpointing or a fused
attention kernel computes a second time is not counted. So these are the FLOPs of *model FLOPs utilization* (PaLM,
Chowdhery et al. 2022, arXiv:2204.02311, appendix B), with two differences: PaLM's 6 N a token counts every token's
head, and its attention term a full context, where here the head is counted at the targets and attention inside
documents.
"""

from pretrain.model.presets import EsmShape

BACKWARD_AND_FORWARD = 3


def training_flops(
    shape: EsmShape, tokens: float, squared_lengths: float, targets: float, *, pruned: bool = False
) -> float:
    """FLOPs of forward and backward over some documents; arguments are those of `forward_flops`."""
    return BACKWARD_AND_FORWARD * forward_flops(shape, tokens, squared_lengths, targets, pruned=pruned)


def forward_flops(
    shape: EsmShape, tokens: float, squared_lengths: float, targets: float, *, pruned: bool = False
) -> float:
    """FLOPs of one forward pass over some documents.

    Args:
        shape: shape of the model. A `modern` one has a gated feed-forward of three matrices instead of two.
        tokens: real tokens of all documents, <cls> and <eos> counted.
        squared_lengths: sum over documents of the tokens of each, squared.
        targets: slots that the head predicts.
        pruned: count only the *needed* FLOPs of `encoder_flops`, which reads target slots alone. A model that skips the
            rest is faster, and with `pruned=False` would seem to do work that it leaves out; a share of a device's peak
            is therefore computed with `pruned=True`. For ESM-2 8M that is 12% less, for 35M 6% less.

    Returns:
        FLOPs; the counts may be fractions, such as means over steps.
    """
    dim = shape.dim
    head = targets * (2 * dim * dim + 2 * dim * shape.vocabulary)
    return encoder_flops(shape, tokens, squared_lengths, targets if pruned else tokens) + head


def encoder_flops(shape: EsmShape, tokens: float, squared_lengths: float, read: float) -> float:
    """FLOPs that one forward pass of the encoder needs, where vectors of `read` slots are read.

    What no slot but itself reads is needed in the last layer at those slots alone: queries, what they gather, output
    projection and feed-forward. They are taken to be spread over the tokens evenly, as masks are.

    Args:
        shape: shape of the model.
        tokens: real tokens of all documents.
        squared_lengths: sum over documents of the tokens of each, squared.
        read: slots whose vectors are read; more than `tokens` count as all.
    """
    dim, read = shape.dim, min(read, tokens)
    keys_and_values = 2 * dim * 2 * dim
    feed_forward = (3 if shape.is_modern else 2) * 2 * dim * shape.feed_forward_dim
    of_query = 2 * dim * dim + 2 * dim * dim + feed_forward  # query, output projection
    attention = 4 * dim * squared_lengths  # scores, and the weighted sum of the values
    everywhere = shape.layers * keys_and_values * tokens + (shape.layers - 1) * (of_query * tokens + attention)
    last = of_query * read + (attention * read / tokens if tokens else 0)
    return float(everywhere + last)
