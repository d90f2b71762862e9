"""What stands at a directory or Hub name: read through transformers, and refused where it is not an ESM-2.

In: a directory or Hub name. Out: its configuration, model and rotary frequencies. Nothing is kept.
"""

import warnings
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, EsmConfig, EsmForMaskedLM
from transformers.utils.hub import cached_file

from data.alphabet import MASK, PAD, TOKENS
from pretrain.model.presets import VOCABULARY, RotaryPrecision
from pretrain.model.rotary import BASE, frequencies

FREQUENCIES = "esm.rotary_embeddings.inv_freq"
"""Where transformers 5 keeps the rotary frequencies, a buffer."""

REQUIRED: dict[str, Any] = {
    "model_type": "esm",
    "vocab_size": VOCABULARY,
    "pad_token_id": PAD,
    "mask_token_id": MASK,
    "position_embedding_type": "rotary",
    "rope_theta": BASE,
    "emb_layer_norm_before": False,
    "is_decoder": False,
    "add_cross_attention": False,
    "is_folding_model": False,
    "tie_word_embeddings": True,
}
"""What the configuration of an ESM-2 says; one that says anything else computes another function than ours."""


def config_of(source: str | Path) -> EsmConfig:
    """Configuration at `source`, known to be an ESM-2's over our vocabulary."""
    try:
        config: EsmConfig = AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{source}: no transformers model can be read there; give a directory with config.json and weights, or "
            f"the name of a model on a hub that this machine can reach. transformers says: {error}"
        ) from error
    required = {**REQUIRED, "intermediate_size": 4 * getattr(config, "hidden_size", 0)}
    # None, an old way to say False, is taken for it.
    got = {name: getattr(config, name, None) or False for name in required}
    differing = [name for name in required if got[name] != required[name]]
    if differing:
        said = ", ".join(f"{n} = {got[n]!r} (must be {required[n]!r})" for n in differing)
        raise ValueError(
            f"{source}: not an ESM-2: config.json says {said}; give an ESM-2 such as facebook/esm2_t6_8M_UR50D, or "
            "train from scratch with one of the presets"
        )
    vocabulary_file = _file(source, "vocab.txt")
    if vocabulary_file is not None:
        tokens = tuple(Path(vocabulary_file).read_text(encoding="utf-8").split())
        if tokens != TOKENS:
            raise ValueError(
                f"{source}: vocab.txt lists {' '.join(tokens)}; must be ESM-2's {' '.join(TOKENS)}, in this order, "
                "because the rows of the embedding follow it; reorder both or give another checkpoint"
            )
    if config.attention_probs_dropout_prob:
        warnings.warn(
            f"{source}: attention_probs_dropout_prob = {config.attention_probs_dropout_prob} is not kept: attention "
            "here has no dropout, as in the published ESM-2. Outputs in evaluation are the same.",
            stacklevel=3,
        )
    return config


def _file(source: str | Path, name: str) -> str | None:
    """Path of the file called `name` at `source`, fetched where `source` is a Hub name; None where there is none."""
    found: str | None = cached_file(
        source,
        name,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return found


def pretrained(source: str | Path) -> EsmForMaskedLM:
    """The `EsmForMaskedLM` at `source`, float32, with every weight read from there but the contact head's."""
    loaded: Any
    try:
        loaded = EsmForMaskedLM.from_pretrained(source, dtype=torch.float32, output_loading_info=True)
    except (OSError, RuntimeError, SafetensorError) as error:
        raise _unreadable(source, error) from error
    model: EsmForMaskedLM = loaded[0]
    info: dict[str, Any] = loaded[1]
    missing = sorted(key for key in info["missing_keys"] if "contact_head" not in key and "inv_freq" not in key)
    if missing:
        raise ValueError(
            f"{source}: weights of a masked language model must be there, {len(missing)} are not (the first: "
            f"{missing[0]}); give a checkpoint saved from EsmForMaskedLM"
        )
    return model


def _unreadable(source: str | Path, error: Exception) -> ValueError:
    return ValueError(
        f"{source}: its weights cannot be read; must be whole files that transformers loads, so copy or download them "
        f"again. The error was: {error}"
    )


def rotary_precision(stored: Tensor | None, source: str | Path) -> RotaryPrecision:
    """The precision whose frequencies `stored` holds; float32, what transformers would compute, where it is None."""
    if stored is None:
        return "float32"
    precisions: tuple[RotaryPrecision, ...] = get_args(RotaryPrecision)
    for precision in precisions:
        if torch.allclose(stored, frequencies(2 * stored.numel(), precision, stored.device), rtol=1e-6, atol=0):
            return precision
    raise ValueError(
        f"{source}: rotary frequencies are {stored.tolist()}; must be those of base {BASE:g} in one of "
        f"{', '.join(precisions)}; the checkpoint is of another architecture, or damaged"
    )
