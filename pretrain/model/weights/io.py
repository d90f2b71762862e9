"""Weights from and to transformers' own classes: `EsmForMaskedLM` for ESM-2, `EsmcForMaskedLM` for ESM C.

In: a directory or Hub name, or a model of ours. Out: shape and weights of ours, or a directory that
`AutoModelForMaskedLM`, `AutoTokenizer` and `pipeline("fill-mask")` load without remote code. Nothing is kept.
"""

import tempfile
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import (
    EsmcConfig,
    EsmcForMaskedLM,
    EsmConfig,
    EsmcTokenizer,
    EsmForMaskedLM,
    EsmTokenizer,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights

from data.alphabet import CLS, EOS, TOKENS
from pretrain.model.attention.layout import frequencies
from pretrain.model.initialization import FirstWeight
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import Architecture, EsmShape
from pretrain.model.weights.finite import require_finite
from pretrain.model.weights.names import (
    ContactHead,
    from_transformers_one_by_one,
    to_transformers_state,
    zero_contact_head,
)
from pretrain.model.weights.source import ESM2, ESMC, FREQUENCIES, config_of, pretrained, rotary_precision, shape_of

MAX_TOKENS: dict[Architecture, int] = {"esm2": 1026, "modern": 2048}
"""Longest input of the published models, <cls> and <eos> counted. Rotary positions set no limit; this is what
tokenizers truncate to where a user asks for truncation."""

ESMC_EPS = 1e-5
"""The eps of every LayerNorm in transformers' ESM C, whose configuration has no entry for it."""

StoredType = Literal["float32", "float16", "bfloat16"]
"""What weights can be stored as; the frequencies of rotary positions are float32 in every file."""

LARGEST_FILE = "5GB"
"""Weights above this size are stored in several files, each of this size at most."""


def published(source: str | Path) -> tuple[EsmShape, dict[str, FirstWeight], ContactHead | None]:
    """The ESM-2 or ESM C at `source`: its shape, what makes each weight by our names, and a contact head if it has one.

    The whole model stays on the host, once, for as long as any of the weights' entries does.

    Args:
        source: a directory or Hub name.

    Raises:
        ValueError: `source` does not exist, is neither of the two, or lacks weights of a masked language model, or
            weights of it are NaN or infinite.
    """
    config = config_of(source)
    theirs = pretrained(source, config)
    state = theirs.state_dict()
    require_finite(state, source, "give other weights, such as an earlier checkpoint of the run that made these")
    if isinstance(config, EsmConfig):
        shape = shape_of(config, rotary_precision(theirs.get_buffer(FREQUENCIES), source))
    else:
        shape = shape_of(config)
    return shape, from_transformers_one_by_one(state, shape), ContactHead.of_state(state)


def to_transformers(
    model: MaskedLanguageModel, contact_head: ContactHead | None = None
) -> EsmForMaskedLM | EsmcForMaskedLM:
    """A copy of `model` as transformers' own class, float32 on the host, in evaluation mode.

    An ESM C's configuration has no entry for dropout in the residual stream, so that of `model.shape` is lost.

    Args:
        model: whole weights.
        contact_head: what an ESM-2 predicts contacts with; None: every contact is 0.5.

    Raises:
        ValueError: transformers' class cannot compute the function of `model`.
    """
    kind, state = _described(model, contact_head)
    with no_init_weights():
        theirs: EsmForMaskedLM | EsmcForMaskedLM = kind(_config(model.shape))
    theirs.tie_weights()  # part of the initialisation that was skipped
    theirs.load_state_dict(state)
    theirs.train(False)
    return theirs


def save(
    model: MaskedLanguageModel,
    folder: str | Path,
    max_tokens: int | None = None,
    *,
    contact_head: ContactHead | None = None,
    dtype: StoredType = "float32",
    largest_file: str = LARGEST_FILE,
) -> None:
    """Write `config.json`, `model.safetensors` and tokenizer files to `folder`.

    Args:
        model: whole weights; a sharded model is gathered by its engine first.
        folder: made where it does not exist; files of the same names are overwritten.
        max_tokens: what the tokenizer truncates to where asked, <cls> and <eos> counted; `MAX_TOKENS` where None.
        contact_head: as for `to_transformers`.
        dtype: what the weights are rounded to.
        largest_file: weights above this size are stored in several files and `model.safetensors.index.json`; a number
            with KB, MB or GB, powers of ten.

    Raises:
        ValueError: as for `to_transformers`.
    """
    kind, state = _described(model, contact_head)
    # Rounded frequencies would change every logit.
    state = {name: each if name == FREQUENCIES else each.to(getattr(torch, dtype)) for name, each in state.items()}
    with no_init_weights(), torch.device("meta"):
        theirs = kind(_config(model.shape))
    theirs.load_state_dict(state, assign=True)  # no second copy of the weights
    save_pretrained(theirs, folder, state, largest_file)
    save_tokenizer(model.shape, folder, max_tokens)


def save_pretrained(theirs: PreTrainedModel, folder: str | Path, state: dict[str, Tensor], largest_file: str) -> None:
    """Write `config.json` and `state` as the weights of `theirs`, which no engine has wrapped.

    Accelerate would import DeepSpeed to see whether that has, which takes half a second.
    """
    if FREQUENCIES in state:
        # One copy of the frequencies per layer, as in published files: every version of transformers reads these,
        # while 5.23 would itself write one tensor under a name with a literal `*`, which version 4 does not know.
        stored = state.pop(FREQUENCIES)
        for layer in range(theirs.config.num_hidden_layers):
            state[f"esm.encoder.layer.{layer}.attention.self.rotary_embeddings.inv_freq"] = stored.clone()
    with patch("accelerate.utils.other.is_deepspeed_available", return_value=False):
        theirs.save_pretrained(folder, state_dict=state, save_original_format=False, max_shard_size=largest_file)


def save_tokenizer(shape: EsmShape, folder: str | Path, max_tokens: int | None = None) -> None:
    """Write the tokenizer files of `save`."""
    most: Any = {"model_max_length": MAX_TOKENS[shape.architecture] if max_tokens is None else max_tokens}
    if shape.is_modern:
        # Its vocabulary is built in. It is ours except for id 31, its chain break `|`, which is <null_1> here: no
        # letter becomes it, so its embedding was not trained.
        EsmcTokenizer(**most).save_pretrained(folder)
        return
    with tempfile.TemporaryDirectory() as scratch:
        vocabulary = Path(scratch, "vocab.txt")
        vocabulary.write_text("\n".join(TOKENS), encoding="utf-8")
        EsmTokenizer(str(vocabulary), **most).save_pretrained(folder)


def _described(model: MaskedLanguageModel, contact_head: ContactHead | None) -> tuple[Any, dict[str, Tensor]]:
    """Transformers' class for a model, and its state: views of the model's weights where they are float32 on the host.

    Callers make such a model without random weights, because to draw them takes four times as long as all the rest.
    `from_pretrained` draws none either, but under DeepSpeed and FSDP it shares the work among ranks, and an export is
    made by one rank alone.
    """
    shape = model.shape
    state = to_transformers_state(model.state_dict(), shape)
    if shape.is_modern:
        return EsmcForMaskedLM, state
    state[FREQUENCIES] = frequencies(shape.head_dim, shape.rotary_precision, torch.device("cpu")).clone()
    return EsmForMaskedLM, state | (
        contact_head.state() if contact_head else zero_contact_head(shape.layers * shape.heads)
    )


def _config(shape: EsmShape) -> EsmConfig | EsmcConfig:
    sizes = {
        "hidden_size": shape.dim,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.feed_forward_dim,
        "max_position_embeddings": MAX_TOKENS[shape.architecture],
        "bos_token_id": CLS,
        "eos_token_id": EOS,
    }
    if not shape.is_modern:
        return EsmConfig(
            **ESM2 | sizes,
            hidden_dropout_prob=shape.dropout,
            attention_probs_dropout_prob=0.0,
            layer_norm_eps=shape.layer_norm_eps,
            token_dropout=shape.token_dropout,
        )
    if shape.layer_norm_eps != ESMC_EPS:
        raise ValueError(
            f"layer_norm_eps = {shape.layer_norm_eps}: must be {ESMC_EPS} in the modern architecture, because "
            "transformers' ESM C has no other; keep it at its default"
        )
    fixed = dict(ESMC)
    rope = {name: fixed.pop(name) for name in ("rope_theta", "rope_type")}
    return EsmcConfig(**fixed | sizes, attention_dropout=0.0, rope_parameters=rope)
