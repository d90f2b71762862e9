"""Weights from and to transformers' `EsmForMaskedLM`.

In: a directory or Hub name, or a model of ours. Out: a model of ours, or a directory that `AutoModelForMaskedLM`,
`AutoTokenizer` and `pipeline("fill-mask")` load without remote code. Nothing is kept.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import EsmConfig, EsmForMaskedLM, EsmTokenizer

from data.alphabet import CLS, EOS, MASK, PAD, TOKENS
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import VOCABULARY, EsmShape, RotaryPrecision
from pretrain.model.rotary import BASE, frequencies
from pretrain.model.transformers_names import from_transformers_state, to_transformers_state
from pretrain.model.transformers_source import (
    FREQUENCIES,
    config_of,
    pretrained,
    rotary_precision,
)

MAX_TOKENS = 1026
"""ESM-2's longest input, <cls> and <eos> counted. Rotary positions set no limit; this is what tokenizers truncate to
where a user asks for truncation."""


def load(source: str | Path) -> MaskedLanguageModel:
    """The ESM-2 at `source`, a directory or Hub name, as a model of ours with float32 weights on the host.

    Raises:
        ValueError: `source` does not exist, is not an ESM-2, or lacks weights of a masked language model.
    """
    config = config_of(source)
    theirs = pretrained(source)
    shape = _shape(config, rotary_precision(theirs.get_buffer(FREQUENCIES), source))
    with torch.device("meta"):  # no time for first weights that the next lines replace
        ours = MaskedLanguageModel(shape)
    ours.to_empty(device="cpu")
    ours.load_state_dict(from_transformers_state(theirs.state_dict(), shape.layers))
    return ours


def to_transformers(model: MaskedLanguageModel) -> EsmForMaskedLM:
    """A copy of `model` as transformers' own class, float32 on the host, in evaluation mode."""
    shape = model.shape
    config = EsmConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.dim,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.feed_forward_dim,
        hidden_dropout_prob=shape.dropout,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=MAX_TOKENS,
        layer_norm_eps=shape.layer_norm_eps,
        position_embedding_type="rotary",
        rope_theta=BASE,
        emb_layer_norm_before=False,
        token_dropout=shape.token_dropout,
        pad_token_id=PAD,
        mask_token_id=MASK,
        bos_token_id=CLS,
        eos_token_id=EOS,
    )
    theirs = EsmForMaskedLM(config)
    state = to_transformers_state(model.state_dict(), shape.layers)
    on_host = frequencies(shape.head_dim, shape.rotary_precision, torch.device("cpu"))
    state[FREQUENCIES] = on_host.clone()
    # Contacts are a regression on attention maps, fitted on structures after pretraining. We have not fitted one, and
    # zeros say so (every contact at 0.5) where random weights would look like predictions.
    for name in ("weight", "bias"):
        key = f"esm.contact_head.regression.{name}"
        state[key] = torch.zeros_like(theirs.state_dict()[key])
    theirs.load_state_dict(state)
    theirs.train(False)
    return theirs


def save(model: MaskedLanguageModel, folder: str | Path, max_tokens: int = MAX_TOKENS) -> None:
    """Write `config.json`, `model.safetensors` and tokenizer files to `folder`.

    Args:
        model: whole weights; a sharded model is gathered by its engine first.
        folder: made where it does not exist; files of the same names are overwritten.
        max_tokens: what the tokenizer truncates to where asked, <cls> and <eos> counted.
    """
    theirs = to_transformers(model)
    state = theirs.state_dict()
    # One copy of the frequencies per layer, as in published files: every version of transformers reads these, while
    # 5.23 would itself write one tensor under a name with a literal `*`, which version 4 does not know.
    stored = state.pop(FREQUENCIES)
    for layer in range(model.shape.layers):
        name = f"esm.encoder.layer.{layer}.attention.self.rotary_embeddings.inv_freq"
        state[name] = stored.clone()
    theirs.save_pretrained(folder, state_dict=state, save_original_format=False)
    with tempfile.TemporaryDirectory() as scratch:
        vocabulary = Path(scratch, "vocab.txt")
        vocabulary.write_text("\n".join(TOKENS), encoding="utf-8")
        tokenizer: Any = EsmTokenizer
        tokenizer(str(vocabulary), model_max_length=max_tokens).save_pretrained(folder)


def _shape(config: EsmConfig, rotary_precision: RotaryPrecision) -> EsmShape:
    return EsmShape(
        layers=config.num_hidden_layers,
        dim=config.hidden_size,
        heads=config.num_attention_heads,
        token_dropout=bool(config.token_dropout),
        dropout=float(config.hidden_dropout_prob or 0.0),
        layer_norm_eps=float(config.layer_norm_eps or 0.0),
        rotary_precision=rotary_precision,
    )
