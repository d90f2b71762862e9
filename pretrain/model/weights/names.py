"""Names and layout of the weights here and in transformers' `EsmForMaskedLM` and `EsmcForMaskedLM`, both ways.

In: a state dict. Out: a state dict of the other side, and a `ContactHead` where an ESM-2 has one. Nothing is kept.

The layouts differ in one thing: linear maps of one input are fused here, with their rows stacked in the order below. A
contact head is a logistic regression on attention maps (Rao et al., 2021, doi:10.1101/2020.12.15.422761). It is fitted
after pretraining and takes no part in training: it is an entry of checkpoints, and goes with the weights from where a
run starts to what it exports.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor

from pretrain.model.presets import Architecture, EsmShape

Names = Mapping[str, tuple[str, ...]]
"""Our names to transformers' names; several of theirs where our matrix is fused."""


def _with_both(modules: Names) -> dict[str, tuple[str, ...]]:
    """Names of the weight and of the bias of each of `modules`."""
    return {
        f"{ours}.{kind}": tuple(f"{name}.{kind}" for name in theirs)
        for ours, theirs in modules.items()
        for kind in ("weight", "bias")
    }


OUTER: dict[Architecture, Names] = {
    "esm2": {
        "encoder.embedding.weight": ("esm.embeddings.word_embeddings.weight",),
        **_with_both({"encoder.final_norm": ("esm.encoder.emb_layer_norm_after",)}),
        **_with_both({"head.dense": ("lm_head.dense",), "head.norm": ("lm_head.layer_norm",)}),
        "head.bias": ("lm_head.bias",),  # and `lm_head.decoder.weight`, tied, is the embedding here
    },
    "modern": {
        "encoder.embedding.weight": ("esmc.embed_tokens.weight",),
        "encoder.final_norm.weight": ("esmc.norm.weight",),
        **_with_both({"head.dense": ("lm_head.dense",), "head.norm": ("lm_head.layer_norm",)}),
        **_with_both({"head.decoder": ("lm_head.decoder",)}),
    },
}
"""Names outside of the layers."""

INNER: dict[Architecture, Names] = {
    "esm2": _with_both(
        {
            "attention_norm": ("attention.LayerNorm",),
            "attention.qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
            "attention.out": ("attention.output.dense",),
            "feed_forward_norm": ("LayerNorm",),
            "feed_forward.up": ("intermediate.dense",),
            "feed_forward.down": ("output.dense",),
        }
    ),
    "modern": {
        **_with_both({"attention_norm": ("input_layernorm",), "feed_forward_norm": ("post_attention_layernorm",)}),
        "attention.qkv.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
        "attention.query_norm.weight": ("self_attn.q_norm.weight",),
        "attention.key_norm.weight": ("self_attn.k_norm.weight",),
        "attention.out.weight": ("self_attn.o_proj.weight",),
        "feed_forward.gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        "feed_forward.down.weight": ("mlp.down_proj.weight",),
    },
}
"""Names inside a layer."""

LAYER: dict[Architecture, str] = {"esm2": "esm.encoder.layer", "modern": "esmc.layers"}


def to_transformers_state(state: Mapping[str, Tensor], shape: EsmShape) -> dict[str, Tensor]:
    """State dict of transformers' class from ours, float32 on the host; tensors that are so already are not copied.

    For an `EsmForMaskedLM` its contact head and rotary frequencies are left out.
    """
    renamed = {
        name: part.detach().to("cpu", torch.float32)
        for ours, theirs in _names(shape)
        for name, part in zip(theirs, state[ours].chunk(len(theirs)), strict=True)
    }
    if not shape.is_modern:
        renamed["lm_head.decoder.weight"] = renamed["esm.embeddings.word_embeddings.weight"]
    return renamed


def from_transformers_one_by_one(state: Mapping[str, Tensor], shape: EsmShape) -> dict[str, Callable[[], Tensor]]:
    """Our state dict from one of transformers' class; a fused matrix is concatenated when its entry is called."""
    return {ours: partial(_fused, [state[name] for name in theirs]) for ours, theirs in _names(shape)}


def _fused(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _names(shape: EsmShape) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from OUTER[shape.architecture].items()
    for layer in range(shape.layers):
        for ours, theirs in INNER[shape.architecture].items():
            prefix = f"{LAYER[shape.architecture]}.{layer}"
            yield f"encoder.layers.{layer}.{ours}", tuple(f"{prefix}.{name}" for name in theirs)


CONTACT_HEAD = "contact_head"
"""Entry of a checkpoint whose run started from an ESM-2 with a contact head, which it does not train."""
CONTACT_WEIGHT = "esm.contact_head.regression.weight"
"""``(1, layers * heads)`` in transformers' class: a factor for each attention map, layer by layer."""


CONTACT_BIAS = "esm.contact_head.regression.bias"
"""``(1,)`` there."""


@dataclass(frozen=True, slots=True)
class ContactHead:
    """A contact head: values of float32, which Python's floats hold without loss."""

    weight: tuple[float, ...]
    """Factor of each attention map, layer by layer: ``layers * heads`` of them."""
    bias: float
    """Log-odds of a contact where every map is 0."""

    @classmethod
    def of_state(cls, state: Mapping[str, Tensor]) -> Self | None:
        """The head in a state dict of transformers' class; None where there is none, or zeros, which nobody fitted."""
        if CONTACT_WEIGHT not in state or not (state[CONTACT_WEIGHT].any() or state[CONTACT_BIAS].any()):
            return None
        weight, bias = (state[name].float().flatten().tolist() for name in (CONTACT_WEIGHT, CONTACT_BIAS))
        return cls(tuple(weight), *bias)

    def state(self) -> dict[str, Tensor]:
        """Its tensors by transformers' names, float32 on the host."""
        return {CONTACT_WEIGHT: torch.tensor([self.weight]), CONTACT_BIAS: torch.tensor([self.bias])}


def zero_contact_head(maps: int) -> dict[str, Tensor]:
    """The tensors of a head that nobody fitted: every contact is 0.5, while random ones would look like predictions."""
    return {CONTACT_WEIGHT: torch.zeros(1, maps), CONTACT_BIAS: torch.zeros(1)}
