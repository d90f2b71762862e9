"""`torch.compile` of the layers: what prevents it on this machine, and a first step that shows whether it works.

In: an encoder, or its shape. Out: compiled layers, or the `UnsupportedFeature`. Kept: torch's caches on disk, where the
run finds what the first step here has compiled.
"""

import os
import sysconfig
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import torch
import torch._dynamo
from torch import Tensor

from data.alphabet import TOKENS
from data.batches.batch import PackedSequences
from pretrain.model.attention.choice import Backend
from pretrain.model.encoder import Encoder
from pretrain.model.layer import Layer
from zymogen.processes import signals
from zymogen.unsupported import UnsupportedFeature, gist

_MOST_GRAPHS = 64


def compile_layers(encoder: Encoder, backend: str = "inductor") -> None:
    """Compile each layer by itself: they share their code, so all but the last are compiled once.

    They are changed in place, so that parameters keep their names. They are compiled again for a batch with another
    number of slots that are read after the last layer, of documents, or another bound of their lengths; and once more
    where no gradient is taken.
    """
    # All layers share one count of compilations, and after the default limit of 8 torch would run them uncompiled.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_GRAPHS)
    # It would cut compiled code at DDP's buckets, but a layer is smaller than a bucket.
    torch._dynamo.config.optimize_ddp = False
    if backend == "inductor" and find_spec("triton"):
        _start_compilers()
    for layer in encoder.layers:
        layer.compile(backend=backend)


def _start_compilers() -> None:
    """Start the processes in which triton's kernels are compiled, before torch does, deaf to a group's signals.

    After a signal the run still finishes its step. If that needs a kernel and the signal has ended these processes too,
    torch waits for them without end: the pipe that would tell it so stays open, because it holds both ends itself.
    """
    with signals.blocked():
        from torch._inductor.async_compile import AsyncCompile  # takes a second, and most runs on CPUs compile nothing

        AsyncCompile.warm_pool()


def why_not_compiled(device: torch.device, dropout: float, backend: Backend) -> UnsupportedFeature | None:
    """What is known, before any trial, to prevent layers from being compiled; None if nothing is."""
    if dropout:
        return UnsupportedFeature(
            f"model.dropout is {dropout}, and keyed dropout draws outside of what is compiled",
            "a model with model.dropout=0 is compiled",
        )
    if backend == "per_document":
        return UnsupportedFeature(
            "attention is per_document, whose loop over lengths is another program for each batch",
            "what the line on attention proposes is compiled, and so is compute.attention=dense",
        )
    if device.type == "cuda" and find_spec("triton") is None:
        return UnsupportedFeature("triton is not installed", "pip install triton")
    return _obstacle_of_tools(device)


def _obstacle_of_tools(device: torch.device) -> UnsupportedFeature | None:
    """What is missing on the host of the tools that triton (CUDA) or inductor (a CPU) compile with."""
    variable, names, package = ("CC", ("gcc", "clang"), "gcc") if device.type == "cuda" else ("CXX", ("g++",), "g++")
    named = os.environ.get(variable)
    if not any(map(which, [named] if named else names)):
        language = "C" if device.type == "cuda" else "C++"
        sought = f"{variable} is {named}" if named else " or ".join(names)
        return UnsupportedFeature(
            f"there is no {language} compiler ({sought})", f"on Debian or Ubuntu: apt-get install {package}"
        )
    if not has_headers():
        install = f"on Debian or Ubuntu: apt-get install python{sysconfig.get_python_version()}-dev"
        return UnsupportedFeature(f"Python's headers are not installed ({_HEADER})", install)
    return None


_HEADER = Path(sysconfig.get_path("include")) / "Python.h"


def has_headers() -> bool:
    """Whether Python's headers are installed, which the wrapper of a compiled kernel needs."""
    return _HEADER.is_file()


def first_step(
    encoder: Encoder, device: torch.device, dtype: torch.dtype, num_slots: int, backend: str = "inductor"
) -> UnsupportedFeature | None:
    """Compile two layers like the encoder's, run them forward and backward once, and return what went wrong, if any.

    This happens before the ranks exchange anything, so that a rank on which it fails leaves none waiting. It compiles
    what the run compiles, so that the run's own first step finds that on disk: layers of the same widths, one of them
    the last, on as many slots. Where ranks share batches, the run compiles only the exchanges.

    Args:
        encoder: the run's encoder, set up except for compilation; it is not changed.
        device: where to compute.
        dtype: dtype of matrix products.
        num_slots: slots of a batch that a rank computes.
        backend: backend of `torch.compile`.
    """
    try:
        with torch.device(device):
            small = Encoder(replace(encoder.shape, layers=2), encoder.attention)
        for layer in small.layers:
            assert isinstance(layer, Layer)
            layer.update_scale = encoder.shape.update_scale  # a constant of the graph, which follows from the depth
        small.checkpointing = encoder.checkpointing
        compile_layers(small, backend)
        batch = _batch(num_slots).to(device)
        read = torch.arange(0, num_slots, 8, device=device)
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            out: Tensor = small(batch, read)
        torch.autograd.backward(out.float().square().mean())
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception as error:  # from dynamo, inductor, triton or the compiler: the run can do without all of them
        return UnsupportedFeature(
            f"a first compiled step failed ({gist(error)})",
            "compute.compile=off skips this step, and TORCHDYNAMO_VERBOSE=1 shows more",
        )
    finally:
        torch._dynamo.reset()
    return None


def _batch(num_slots: int) -> PackedSequences:
    """One bin with two documents that fill it."""
    half = num_slots // 2
    numbers = torch.arange(num_slots)
    return PackedSequences(
        tokens=torch.full((num_slots,), TOKENS.index("L")),
        positions=torch.cat([numbers[:half], numbers[: num_slots - half]]),
        documents=(numbers >= half).long(),
        cu_seqlens=torch.tensor([0, half, num_slots, num_slots], dtype=torch.int32),
        draw_keys=(0,),
        spans=((0, half), (half, num_slots)),
    )
