"""The model at a directory or Hub name: read through transformers, and refused if it is neither an ESM-2 nor an ESM C.

In: a directory or Hub name. Out: its configuration, shape and model. Nothing is kept. No code from there is run:
weights come from safetensors alone, and a model's own modules are never imported.
"""

import json
import re
import shlex
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import torch
from huggingface_hub import _CACHED_NO_EXIST, constants, try_to_load_from_cache
from huggingface_hub.errors import StrictDataclassError
from huggingface_hub.utils import logging as hub_logging
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, EsmcConfig, EsmcForMaskedLM, EsmConfig, EsmForMaskedLM
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from transformers.utils import logging
from transformers.utils.hub import cached_file

from data.alphabet import CLS, EOS, MASK, PAD, TOKENS
from pretrain.model.attention.layout import BASE, frequencies
from pretrain.model.presets import MODERN_VOCABULARY, VOCABULARY, EsmShape, RotaryPrecision
from zymogen.files.suggestions import did_you_mean

FREQUENCIES = "esm.rotary_embeddings.inv_freq"
"""Where transformers 5 keeps the rotary frequencies of an ESM-2, a buffer. An ESM C computes them."""

CHAIN_BREAK = "|"
"""ESM C's name for the token that ESM-2 calls <null_1>. No letter of a protein becomes this token in either of them, so
the weights do not depend on its name."""

_CONVERT = (
    "from transformers import AutoModelForMaskedLM as M; "
    "M.from_pretrained({source}, trust_remote_code=False).save_pretrained({folder})"
)
"""A program that reads a pickle and writes model.safetensors."""

INDEX = "model.safetensors.index.json"
"""The file that names the file of each weight, of a model in several files."""
_SAFETENSORS = ("model.safetensors", INDEX)
"""Where transformers looks for weights on the Hub."""
_SHARD = re.compile(r"[\w.-]+\.safetensors")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/(?!.*\.(?:safetensors|bin|pt|ckpt|toml|json|fasta|csv|parquet)$)[\w.-]+")
"""``organisation/name``. Anything else is a path, as are file names."""

_LOCK = threading.RLock()
"""Held while settings of transformers are others than the process has."""

ESM2: dict[str, Any] = {
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
"""Required values in the configuration of an ESM-2; with any other value it computes another function than ours."""

ESMC: dict[str, Any] = {
    "vocab_size": MODERN_VOCABULARY,
    "bos_token_id": CLS,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "mask_token_id": MASK,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rope_theta": BASE,
    "rope_type": "default",
    "tie_word_embeddings": False,
}
"""Required values in the configuration of an ESM C."""


def config_of(source: str | Path) -> EsmConfig | EsmcConfig:
    """Configuration at `source`, known to be an ESM-2's or an ESM C's over our vocabulary.

    Raises:
        ValueError: there is none, or it computes another function than ours.
    """
    require_place(source)
    try:
        with quiet_transformers():  # else two lines for each attempt to connect
            config: EsmConfig | EsmcConfig = AutoConfig.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, StrictDataclassError) as error:
        from httpx2 import HTTPError

        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, HTTPError):
            cause = cause.__cause__ or cause.__context__
        said = f"transformers says: {' '.join(str(error).split())}"  # it has several lines
        if cause is not None:
            said = f"The Hub at {constants.ENDPOINT} cannot be reached: {' '.join(str(cause).split())}"
        near = "" if Path(source).exists() else did_you_mean(Path(source), files=False)
        raise ValueError(
            f"{source}: no transformers model can be read there{near}; give a directory with config.json and weights, "
            f"or the name of a model on a hub that this machine can reach. {said}"
        ) from error
    title, dropout, tokenizer = "ESM-2", "attention_probs_dropout_prob", "vocab.txt"
    if isinstance(config, EsmcConfig):
        title, dropout, tokenizer = "ESM C", "attention_dropout", "tokenizer.json"
        _check(source, title, config, ESMC, "biohub/ESMC-300M")
    elif isinstance(config, EsmConfig):
        _check(source, title, config, ESM2, "facebook/esm2_t6_8M_UR50D")
    else:
        raise ValueError(
            f"{source}: neither an ESM-2 nor an ESM C: config.json says model_type = {config.model_type!r} (must be "
            "'esm' or 'esmc'); give a model of one of the two, or train from scratch with one of the presets"
        )
    _check_tokens(source, tokenizer, title)
    shards_of(source)
    if _cached(source, "adapter_config.json"):  # transformers would apply it, on the base model that it names
        raise ValueError(f"{source}: it holds an adapter beside its weights; merge it with peft's merge_and_unload")
    if getattr(config, dropout):
        warnings.warn(
            f"{source}: {dropout} = {getattr(config, dropout)} is not kept: attention here has no dropout, as in the "
            f"published {title}. Outputs in evaluation are the same.",
            stacklevel=3,
        )
    return config


def require_place(source: str | Path) -> None:
    """Refuse a path that does not exist, without asking the Hub for a model of that name.

    Raises:
        ValueError: it is no name on the Hub, or a local folder has the name of the organisation.
    """
    organisation, is_name = str(source).split("/", 1)[0], _HUB_NAME.fullmatch(str(source)) is not None
    if Path(source).exists() or (is_name and not Path(organisation).is_dir()):
        return
    near = did_you_mean(Path(source), files=False)
    hidden = f". The folder {organisation!r} here hides the Hub's names that begin with it" if is_name else ""
    raise ValueError(
        f"{source}: no transformers model can be read there, because there is no such folder{near}; give a directory "
        "with config.json and weights, or the name of a model on the Hub, organisation/name"
        f"{'' if near else hidden}"
    )


def shape_of(config: EsmConfig | EsmcConfig, precision: RotaryPrecision = "float32") -> EsmShape:
    """The shape that `config` describes; it does not say the precision of rotary frequencies."""
    sizes = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads)
    if isinstance(config, EsmcConfig):
        return EsmShape(*sizes, architecture="modern", token_dropout=False)
    return EsmShape(
        *sizes,
        token_dropout=bool(config.token_dropout),
        dropout=float(config.hidden_dropout_prob or 0.0),
        layer_norm_eps=float(config.layer_norm_eps or 0.0),
        rotary_precision=precision,
    )


def pretrained(source: str | Path, config: EsmConfig | EsmcConfig) -> EsmForMaskedLM | EsmcForMaskedLM:
    """The model at `source`, float32, with every weight read from there; an ESM-2's contact head is 0 if it is absent.

    Raises:
        ValueError: weights are damaged, missing, or pickled, or of other sizes than `config` says.
    """
    unset_hf_deepspeed_config()  # in a process that prepares for ZeRO-3, transformers would cut what it loads
    kind: Any = EsmcForMaskedLM if isinstance(config, EsmcConfig) else EsmForMaskedLM
    loaded: Any
    try:
        with quiet_transformers():
            loaded = kind.from_pretrained(
                source,
                dtype=torch.float32,
                output_loading_info=True,
                use_safetensors=True,
                trust_remote_code=False,
                ignore_mismatched_sizes=True,  # they are refused below, by name
            )
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            _pickle_alone(source)
            or f"{source}: its weights cannot be read; must be whole safetensors files, so copy or download them "
            f"again. The error was: {error}"
        ) from error
    model: EsmForMaskedLM | EsmcForMaskedLM = loaded[0]
    info: dict[str, Any] = loaded[1]
    _require_sizes(source, config, info)
    missing = sorted(key for key in info["missing_keys"] if "contact_head" not in key and "inv_freq" not in key)
    if missing:
        raise ValueError(
            f"{source}: {len(missing)} weights of a masked language model are missing (the first: {missing[0]}); give "
            f"a checkpoint saved from {kind.__name__}"
        )
    if any("contact_head" in key for key in info["missing_keys"]):
        with torch.no_grad():  # random ones would look like predictions
            for name, parameter in model.named_parameters():
                if "contact_head" in name:
                    parameter.zero_()
    return model


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without what transformers and the Hub's library print, bars and tables: errors here say what is wrong.

    Their settings are the process's, and are as before afterwards.
    """
    with _LOCK:
        levels, draws = (logging.get_verbosity(), hub_logging.get_verbosity()), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        hub_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(levels[0])
            hub_logging.set_verbosity(levels[1])
            if draws:
                logging.enable_progress_bar()


def _require_sizes(source: str | Path, config: EsmConfig | EsmcConfig, info: dict[str, Any]) -> None:
    """Refuse weights of another width, depth or number of heads than the configuration's."""
    found = ""
    if others := sorted(info["mismatched_keys"]):
        name, stored, expected = others[0]
        found = f"{len(others)} of the weights have other shapes, such as {name}: {list(stored)}, not {list(expected)}"
    layers = config.num_hidden_layers
    numbers = [int(of[1]) for key in info["unexpected_keys"] if (of := re.search(r"\.layers?\.(\d+)\.", key))]
    if (most := max(numbers, default=0) + 1) > layers:
        found = f"num_hidden_layers = {layers}, and there are weights of {most} layers"
    if found:
        raise ValueError(
            f"{source}: config.json and weights disagree: {found}; give the config.json that these weights were saved "
            "with"
        )


def _pickle_alone(source: str | Path) -> str | None:
    """The error if `source` has its weights only as a pickle, which can run code when it is read; else None."""
    if Path(source).exists():
        # Other names, such as adapter_model.safetensors, do not hold the model's weights.
        pickled = sorted(Path(source).glob("pytorch_model*.bin*"))
        if not pickled or any(Path(source).glob("model*.safetensors")):
            return None
        folder = str(source)
        found = f"its weights are in {pickled[0].name}, a pickle"
        convert = "Only if you trust where it came from, convert it with:"
    else:
        # transformers has just asked the Hub for these files, and its cache knows which do not exist there.
        if any(try_to_load_from_cache(str(source), name) is not _CACHED_NO_EXIST for name in _SAFETENSORS):
            return None
        folder = str(source).rpartition("/")[2]
        found = "it has no weights in safetensors; what it may have is a pickle"
        convert = (
            f"Only if you trust who published it, convert it on a machine that reaches the Hub, and set model.init to "
            f"the folder {folder} that this writes:"
        )
    line = shlex.quote(_CONVERT.format(source=json.dumps(str(source)), folder=json.dumps(folder)))
    return (
        f"{source}: {found}, which can run its author's code when it is read, so it is not read here; weights must be "
        f"in safetensors. {convert}\n  python -c {line}"
    )


def rotary_precision(stored: Tensor, source: str | Path) -> RotaryPrecision:
    """The precision whose frequencies `stored` ``(K / 2,)`` holds.

    Raises:
        ValueError: they are those of no precision.
    """
    precisions: tuple[RotaryPrecision, ...] = get_args(RotaryPrecision)
    for precision in precisions:
        if torch.allclose(stored, frequencies(2 * stored.numel(), precision, stored.device), rtol=1e-6, atol=0):
            return precision
    raise ValueError(
        f"{source}: rotary frequencies are {stored.tolist()}; must be those of base {BASE:g} in one of "
        f"{', '.join(precisions)}; the checkpoint is of another architecture, or damaged"
    )


def _sizes(source: str | Path, config: EsmConfig | EsmcConfig) -> dict[str, int]:
    """Sizes that follow from width, heads and depth here, and are values of their own in the configuration."""
    try:
        shape = shape_of(config)
    except ValueError as error:
        raise ValueError(f"{source}: config.json describes no model of ours: {error}") from error
    sizes = {"intermediate_size": shape.feed_forward_dim}
    return sizes | {"head_dim": shape.head_dim, "num_key_value_heads": shape.heads} if shape.is_modern else sizes


def _check(
    source: str | Path, title: str, config: EsmConfig | EsmcConfig, required: dict[str, Any], example: str
) -> None:
    required = required | _sizes(source, config)
    said = config.to_dict()
    if isinstance(config, EsmcConfig):
        said.update(config.rope_parameters or {})
    # Old configurations have None where newer ones have False.
    got = {name: said.get(name) or False for name in required}
    differing = [
        f"{name} = {got[name]!r} (must be {required[name]!r})" for name in required if got[name] != required[name]
    ]
    if differing:
        raise ValueError(
            f"{source}: not an {title}: config.json says {', '.join(differing)}; give an {title} such as {example}, "
            "or train from scratch with one of the presets"
        )


def shards_of(source: str | Path) -> dict[str, str]:
    """Weight -> name of its file, of a model in several files; empty for any other.

    Raises:
        ValueError: the index is damaged, or names a file outside of its folder.
    """
    path = _cached(source, INDEX)
    try:
        files: dict[str, str] = json.loads(Path(path).read_text(encoding="utf-8"))["weight_map"] if path else {}
        outside = sorted({str(name) for name in files.values() if not _SHARD.fullmatch(name)})
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{source}: {INDEX} cannot be read ({error!r}); copy or download the model again") from error
    if outside:
        raise ValueError(
            f"{source}: {INDEX} names the file {outside[0]!r}; allowed are names of .safetensors files in its own "
            "folder; do not use this model, or get it from somebody you trust"
        )
    return files


def _cached(source: str | Path, name: str) -> str | None:
    """Path of a file of a model; None if the model has none of that name."""
    found: str | None = cached_file(
        source,
        name,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return found


def _check_tokens(source: str | Path, name: str, title: str) -> None:
    """Refuse a tokenizer file whose order is not ours. Without such a file, its class has our order built in."""
    path = _cached(source, name)
    if path is None:
        return
    text = Path(path).read_text(encoding="utf-8")
    tokens = text.split()
    if name == "tokenizer.json":
        try:
            by_id = {number: token for token, number in json.loads(text)["model"]["vocab"].items()}
            tokens = [by_id.get(number, "nothing") for number in range(VOCABULARY)]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{source}: {name} cannot be read ({error!r}); must hold model.vocab, ids by token, as transformers "
                "writes it; copy or download it again"
            ) from error
    if tuple("<null_1>" if token == CHAIN_BREAK else token for token in tokens) != TOKENS:
        raise ValueError(
            f"{source}: {name} lists {' '.join(tokens)}; must be {title}'s {' '.join(TOKENS)}, in this order, "
            "because the rows of the embedding follow it; reorder both or give another checkpoint"
        )
