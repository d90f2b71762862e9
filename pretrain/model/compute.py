"""How an encoder is computed on this machine: attention backend, checkpointing, compilation, shares of batches.

In: a model, what the recipe asks for, device and dtype. Out: the model, set up in place, and the lines that a run
prints about it. Kept: torch's setting for float32 products on a GPU. No choice made here changes what the weights
compute beyond rounding.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from pretrain.model.attention.choice import choose
from pretrain.model.compilation import compile_layers, first_step, why_not_compiled
from pretrain.model.context import ContextShard, choose_exchange
from pretrain.model.encoder import Encoder
from pretrain.model.settings import ComputeSettings
from zymogen.onednn import EMULATES_BFLOAT16
from zymogen.trainer.engine.settings import ExchangeRequest
from zymogen.unsupported import UnsupportedFeature

if TYPE_CHECKING:
    from zymogen.trainer.engine.engine import Engine  # which imports Accelerate: a bare GPU machine lacks it
    from zymogen.trainer.engine.ranks import ContextGroup

_GAIN = ("cuda",)
"""Devices on which compiling gains more than it costs."""


def set_up_encoder(
    encoder: Encoder, engine: "Engine", settings: ComputeSettings, exchange: ExchangeRequest, num_slots: int
) -> list[str]:
    """Set up `encoder` as an engine computes it; collective. Names of parameters stay as they are.

    Args:
        encoder: before `Engine.prepare`.
        engine: the one that will prepare it.
        settings: what the recipe asks for.
        exchange: what ranks that share every batch exchange.
        num_slots: slots of one batch, over all ranks that share it.

    Returns:
        Lines for the start of a run.

    Raises:
        ValueError: what was asked for by name cannot be had here.
    """
    lines = configure(
        encoder,
        settings,
        engine.device,
        engine.compute_dtype,
        engine.compile_obstacle,
        launched=engine.launched,
        gather=engine.gather,
        num_slots=num_slots // engine.context.size,
    )
    return lines + _share_context(encoder, engine.context, exchange)


def configure(
    encoder: Encoder,
    settings: ComputeSettings,
    device: torch.device,
    dtype: torch.dtype,
    compile_obstacle: UnsupportedFeature | None = None,
    *,
    launched: str = "",
    gather: Callable[[Any], list[Any]] = lambda value: [value],
    num_slots: int = 1024,
) -> list[str]:
    """Set up `encoder` in place; names of parameters stay as they are.

    Args:
        encoder: the encoder, before an engine wraps it.
        settings: what the recipe asks for.
        device: where it will compute.
        dtype: dtype of matrix products: autocast's, or that of the parameters.
        compile_obstacle: what prevents this engine's layers from being compiled, if anything does.
        launched: engine and world, for the first line.
        gather: returns every rank's value, on every rank. What can fail on one rank alone is tried before the ranks
            compute together; if it fails on one, none of them uses it.
        num_slots: slots of a batch, or of this rank's share of it.

    Returns:
        Lines for the start of a run. The first names what was chosen; each other line names something faster that was
        not taken, and what to type to get it.

    Raises:
        ValueError: something was asked for by name and does not work here.
    """
    backend, lines = choose(settings.attention, device.type, dtype, encoder.shape.head_dim)
    encoder.attention = settings.attention
    encoder.checkpointing = settings.checkpointing
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if settings.tf32 else "highest")
    compiles, more = _compile(encoder, settings, device, dtype, backend, compile_obstacle, gather, num_slots)
    chosen = (
        launched,
        _device(device),
        _precision(settings, device, dtype),
        f"attention {backend}",
        "compiled" if compiles else "not compiled",
        f"checkpointing {settings.checkpointing}" if settings.checkpointing != "none" else "",
    )
    return [f"compute: {', '.join(filter(None, chosen))}", *lines, *more, *_slow(device, dtype)]


def _compile(
    encoder: Encoder,
    settings: ComputeSettings,
    device: torch.device,
    dtype: torch.dtype,
    backend: Any,
    compile_obstacle: UnsupportedFeature | None,
    gather: Callable[[Any], list[Any]],
    num_slots: int,
) -> tuple[bool, list[str]]:
    """Compile the layers if that is wanted and works on every rank. Returns whether they are, and a line if not."""
    wanted = settings.compile == "on" or (settings.compile == "auto" and device.type in _GAIN)
    found = None
    if wanted:
        found = compile_obstacle or why_not_compiled(device, encoder.shape.dropout, backend)
        if dtype == torch.float16 and settings.compile == "auto":
            found = found or UnsupportedFeature(
                "no layer has been compiled in float16 yet",
                "launch with --mixed_precision bf16, or set compute.compile=on to be the first",
            )
        found = found or first_step(encoder, device, dtype, num_slots)
    found = next(filter(None, gather(found)), None)
    if found and settings.compile == "on":
        raise ValueError(f"compute.compile is 'on', but {found.reason}; set it to 'off' or 'auto', or: {found.remedy}")
    if wanted and not found:
        compile_layers(encoder)
    return wanted and not found, [f"compile: off, because {found}"] if found else []


def _share_context(encoder: Encoder, group: "ContextGroup", request: ExchangeRequest) -> list[str]:
    """Let `encoder` compute its rank's share of every batch."""
    if group.size == 1:
        return []
    exchange, lines = choose_exchange(request, encoder.shape.heads, group.size)
    assert group.group is not None
    encoder.context = ContextShard(group.rank, group.size, exchange, group.group)
    return [f"context: {group.size} ranks share every batch, by {exchange}", *lines]


def _device(device: torch.device) -> str:
    if device.type == "cuda" and torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return device.type


def _precision(settings: ComputeSettings, device: torch.device, dtype: torch.dtype) -> str:
    name = str(dtype)[6:]
    if device.type == "cpu" and dtype == torch.bfloat16 and EMULATES_BFLOAT16:
        return f"{name} (emulated)"
    if device.type == "cuda" and dtype == torch.float32 and torch.cuda.is_available():
        has_tf32 = torch.cuda.get_device_capability(device) >= (8, 0)
        return f"{name} (products in TF32)" if settings.tf32 and has_tf32 else name
    return name


def _slow(device: torch.device, dtype: torch.dtype) -> list[str]:
    """What is known to be slower here than the user will expect."""
    if device.type != "cpu" or dtype != torch.bfloat16 or not EMULATES_BFLOAT16:
        return []
    return [
        "note: this CPU has no bfloat16 instructions, so mixed_precision bf16 saves memory here and no time; "
        "accelerate launch --mixed_precision no computes in float32"
    ]
