"""How a model is computed on this machine: attention backend, activation checkpointing, compilation.

In: a model, what the recipe asks for, device and dtype. Out: the model, set up in place, and what to say of it. Nothing
is kept, and no choice made here changes what the weights compute beyond rounding.
"""

import os
from importlib.util import find_spec
from shutil import which

import torch
import torch._dynamo

from pretrain.model.attention.choice import Backend, choose
from pretrain.model.encoder import Encoder
from pretrain.model.linear import EMULATES_BFLOAT16
from pretrain.recipe import ComputeSettings


def configure(
    encoder: Encoder,
    settings: ComputeSettings,
    device: torch.device,
    dtype: torch.dtype,
    compile_obstacle: str | None = None,
) -> list[str]:
    """Set `encoder` up; names of parameters stay as they are.

    Args:
        encoder: before an engine wraps it.
        settings: what the recipe asks for.
        device: where it will compute.
        dtype: of matrix products: autocast's, or that of the parameters.
        compile_obstacle: what keeps the engine's layers from being compiled, if anything does.

    Returns:
        Lines for the start of a run; the first names what was chosen.

    Raises:
        ValueError: what was asked for by name cannot be had here.
    """
    backend, lines = choose(settings.attention, device.type, dtype, encoder.shape.head_dim)
    encoder.attention = settings.attention
    encoder.checkpointing = settings.checkpointing
    wanted = settings.compile == "on" or (settings.compile == "auto" and device.type == "cuda")
    obstacle = compile_obstacle or _obstacle(device, encoder.shape.dropout, backend) if wanted else None
    if obstacle and settings.compile == "on":
        raise ValueError(
            f"compute.compile is 'on', but {obstacle}; set it to 'off' or 'auto', or remove what is in its way"
        )
    if obstacle:
        lines = (*lines, f"compile: off, because {obstacle}")
    compiles = wanted and not obstacle
    if compiles:
        compile_layers(encoder)
    chosen = (
        f"compute: {device.type} {str(dtype)[6:]}, attention {backend}, {'compiled' if compiles else 'not compiled'}"
    )
    if settings.checkpointing != "none":
        chosen += f", checkpointing {settings.checkpointing}"
    return [chosen, *lines, *_slow(device, dtype)]


def compile_layers(encoder: Encoder, backend: str = "inductor") -> None:
    """Compile each layer by itself: they share their code, so all but the last are compiled once.

    In place, so that parameters keep their names. They are compiled anew for what a second batch has otherwise: the
    slots that are read behind the last layer, the number of documents, the bound of their lengths; and once more where
    no gradient is taken.
    """
    # All layers share one count of these, and beyond the usual 8 torch would compute them uncompiled from then on.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_GRAPHS)
    # It would cut what is compiled at DDP's buckets; layers are smaller than those already.
    torch._dynamo.config.optimize_ddp = False
    for layer in encoder.layers:
        layer.compile(backend=backend)


_MOST_GRAPHS = 64


def _obstacle(device: torch.device, dropout: float, backend: Backend) -> str | None:
    """What keeps layers from being compiled; None if nothing does."""
    if dropout:
        return f"model.dropout is {dropout}, and keyed dropout draws outside of what is compiled"
    if backend == "per_document":
        return "attention is per_document, whose loop over lengths is another program for each batch"
    if device.type == "cuda" and find_spec("triton") is None:
        return "triton is not installed"
    if not any(map(which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        return "there is no C compiler (CC, cc, gcc or clang)"
    return None


def _slow(device: torch.device, dtype: torch.dtype) -> list[str]:
    """What is known to be slower here than the user will expect."""
    if device.type != "cpu" or dtype != torch.bfloat16 or not EMULATES_BFLOAT16:
        return []
    return ["note: this CPU has no bfloat16 instructions, so mixed_precision 'bf16' saves memory here and no time"]
