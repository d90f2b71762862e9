"""Names and layout of the weights here and in transformers' `EsmForMaskedLM`, both ways.

In: a state dict. Out: a state dict of the other side. Nothing is kept.

The layouts differ in one thing: query, key and value are one fused matrix here, in this order.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

OUTER = {
    "encoder.embedding.weight": "esm.embeddings.word_embeddings.weight",
    "encoder.final_norm.weight": "esm.encoder.emb_layer_norm_after.weight",
    "encoder.final_norm.bias": "esm.encoder.emb_layer_norm_after.bias",
    "head.dense.weight": "lm_head.dense.weight",
    "head.dense.bias": "lm_head.dense.bias",
    "head.norm.weight": "lm_head.layer_norm.weight",
    "head.norm.bias": "lm_head.layer_norm.bias",
    "head.bias": "lm_head.bias",
}
"""Ours to theirs, outside of the layers. Their `lm_head.decoder.weight` is tied and has no entry of its own."""

INNER = {
    "attention_norm": "attention.LayerNorm",
    "attention.out": "attention.output.dense",
    "feed_forward_norm": "LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
}
"""Ours to theirs, modules of a layer; each has a weight and a bias."""

FUSED = "attention.qkv"
SPLIT = ("attention.self.query", "attention.self.key", "attention.self.value")


def to_transformers_state(state: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """State dict of `EsmForMaskedLM` without its contact head and frequencies, from ours; float32 on the host."""
    renamed = {theirs: state[ours] for ours, theirs in _names(layers).items()}
    for layer in range(layers):
        for kind in ("weight", "bias"):
            parts = state[f"encoder.layers.{layer}.{FUSED}.{kind}"].chunk(3)
            for name, part in zip(SPLIT, parts, strict=True):
                renamed[f"esm.encoder.layer.{layer}.{name}.{kind}"] = part
    renamed["lm_head.decoder.weight"] = renamed["esm.embeddings.word_embeddings.weight"]
    return {name: tensor.detach().to("cpu", torch.float32) for name, tensor in renamed.items()}


def from_transformers_state(state: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Our state dict from one of `EsmForMaskedLM`, or gradients under the same names."""
    renamed = {ours: state[theirs] for ours, theirs in _names(layers).items()}
    for layer in range(layers):
        for kind in ("weight", "bias"):
            parts = [state[f"esm.encoder.layer.{layer}.{name}.{kind}"] for name in SPLIT]
            renamed[f"encoder.layers.{layer}.{FUSED}.{kind}"] = torch.cat(parts)
    return renamed


def _names(layers: int) -> dict[str, str]:
    names = dict(OUTER)
    for layer in range(layers):
        for ours, theirs in INNER.items():
            for kind in ("weight", "bias"):
                names[f"encoder.layers.{layer}.{ours}.{kind}"] = f"esm.encoder.layer.{layer}.{theirs}.{kind}"
    return names
