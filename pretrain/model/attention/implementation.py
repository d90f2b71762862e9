"""Which FlashAttention `varlen` calls: the second, torch's own, or the third or fourth where torch can activate it.

In: what the user asked for, a device, a dtype, channels of a head. Out: the one that is active in this process from
then on. Kept: torch's registry, which puts it under every FlashAttention of the process.

The third and fourth are packages of their own, and torch calls their binding a prototype. So none is taken before one
batch of documents of all lengths agrees with the second, forward and backward, with all queries and with half of them.

What agreement is: each computes in float32 and rounds weights, gradients of scores and results to the dtype. In the
norm of a whole tensor that puts either at 0.4 to 0.5 eps from float32, and two that are right within 0.25 eps of each
other, as measured with both emulated (`tests/pretrain/model/test_pretrain_attention_implementation.py`); allowed is
eps, 2^-7 in bfloat16. One that sees a single residue of each neighbour, or misses one of its own document, is off by 12
eps.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Literal, NamedTuple, cast

import torch
import torch.nn.attention as registry
from torch import Tensor

from pretrain.model.attention.choice import Request, find_varlen
from pretrain.model.attention.layout import Layout
from pretrain.model.attention.sdpa import varlen
from zymogen.unsupported import UnsupportedFeature, gist

Implementation = Literal["FA2", "FA3", "FA4"]


class _Package(NamedTuple):
    """Where a FlashAttention comes from and what it runs on."""

    module: str
    """What torch imports."""
    majors: tuple[int, ...]
    """Compute capabilities that torch lets it run on."""
    install: str


_PACKAGES: Mapping[Implementation, _Package] = {
    "FA3": _Package(
        "flash_attn_interface", (9,), "build the folder hopper of https://github.com/Dao-AILab/flash-attention"
    ),
    "FA4": _Package("flash_attn.cute.interface", (9, 10), "pip install flash-attn-4"),
}
"""In order of preference: the third is made for Hopper (9), the fourth for Blackwell (10)."""

Findings = dict[Implementation, UnsupportedFeature | None]
"""What keeps each of the implementations that come into question from being taken; None if nothing does."""


def check_backend(request: Request, device: torch.device, dtype: torch.dtype, head_dim: int) -> Findings:
    """Each implementation before torch's own that comes into question on this machine, tried; torch's own is left on.

    Args:
        request: `auto` and `varlen` try what the GPU can run, `varlen_fa3` and `varlen_fa4` that one, others nothing.
        device: CUDA.
        dtype: bfloat16 or float16.
        head_dim: channels of a head.
    """
    if request in ("varlen_fa3", "varlen_fa4"):
        wanted = [cast(Implementation, request.removeprefix("varlen_").upper())]
    elif request in ("auto", "varlen") and torch.cuda.is_available() and torch.version.hip is None:
        major, _ = torch.cuda.get_device_capability(device)
        wanted = [name for name, package in _PACKAGES.items() if major in package.majors]
    else:
        wanted = []
    find_varlen()
    return {name: _obstacle(name, device, dtype, head_dim) for name in wanted}


def use_backend(request: Request, findings: Sequence[Findings]) -> tuple[Implementation, tuple[str, ...]]:
    """Activate the first that nothing keeps from being taken on any rank, else torch's own.

    Args:
        request: as for `check_backend`.
        findings: of every rank, so that all decide alike.

    Returns:
        The one that is active, and a line where a better one was passed over.

    Raises:
        ValueError: one was asked for by name and cannot be had.
    """
    names = [name for name in _PACKAGES if any(name in found for found in findings)]
    unknown = UnsupportedFeature("another rank has another kind of GPU", "give all ranks GPUs of one kind")
    passed_over: dict[Implementation, UnsupportedFeature] = {}
    for name in names:
        obstacle = next((o for found in findings if (o := found.get(name, unknown))), None)
        if obstacle is None:
            _active(name)
            return name, ()
        passed_over[name] = obstacle
    if passed_over and request in ("varlen_fa3", "varlen_fa4"):
        raise ValueError(f"compute.attention is {request!r}, but {passed_over[names[0]]}; or take 'varlen_fa2'")
    if not passed_over:
        return "FA2", ()
    said = ", and ".join(o.reason for o in passed_over.values())
    remedy = " or ".join(dict.fromkeys(o.remedy for o in passed_over.values()))
    return "FA2", (f"attention: varlen by FA2, because {said}; {remedy}, or compute.attention=varlen_fa2 tries none",)


def _obstacle(
    name: Implementation, device: torch.device, dtype: torch.dtype, head_dim: int
) -> UnsupportedFeature | None:
    """What keeps `name` from being taken in this process."""
    package = _PACKAGES[name]
    if name not in getattr(registry, "list_flash_attention_impls", list)():
        return UnsupportedFeature(f"torch {torch.__version__} cannot activate {name}", "torch 2.13 can: make setup")
    if not _is_there(package.module):
        return UnsupportedFeature(f"{name} is not installed (no module {package.module})", package.install)
    otherwise = "take compute.attention=varlen_fa2"
    try:
        own = samples(varlen, device, dtype, head_dim)
        _active(name)
        theirs = samples(varlen, device, dtype, head_dim)
    except Exception as error:  # of a package of somebody else's, in a prototype's binding: anything
        return UnsupportedFeature(f"{name} failed on the first batch ({gist(error)})", otherwise)
    finally:
        registry.restore_flash_attention_impl(_raise_warn=False)
    worst = disagreement(theirs, own)
    if not worst <= torch.finfo(dtype).eps:  # so that NaN does not pass
        allowed = f"{torch.finfo(dtype).eps:.1e} of their norm"
        return UnsupportedFeature(
            f"{name} and FA2 differ by {worst:.1e} on the first batch, allowed is {allowed}", otherwise
        )
    return None


def _is_there(module: str) -> bool:
    """Whether it can be imported, as far as can be told without."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a parent is not there, or was put into `sys.modules` without a spec
        return False


def _active(name: Implementation) -> None:
    registry.activate_flash_attention_impl(name)


LENGTHS = (1, 7, 64, 129, 300, 513)
"""Lengths of documents: below, at and above what kernels take at a time; empty ones follow, as in a layout."""
HEADS = 4


Attend = Callable[[Tensor, Tensor, Tensor, Layout], Tensor]


def samples(attend: Attend, device: torch.device, dtype: torch.dtype, head_dim: int) -> tuple[Tensor, ...]:
    """`sample` of a rank that has all queries, then of one that shares the batch by all-gather."""
    whole, half = (sample(attend, device, dtype, head_dim, half=half) for half in (False, True))
    return (*whole, *half)


def sample(
    attend: Attend, device: torch.device, dtype: torch.dtype, head_dim: int, *, half: bool = False
) -> tuple[Tensor, ...]:
    """What attention makes of one batch of random numbers, and its gradients by query, key and value: float32.

    With `half`, only the slots in the middle ask, half of all. Some documents then have keys and no query, and their
    gradients must be zeros, not whatever stood in memory.
    """
    edges = torch.tensor([0, *LENGTHS]).cumsum(0)
    slots = int(edges[-1])
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    # As the layer has them: views of one tensor. Scores then reach past 4, so that attention is far from uniform.
    given = random(slots, 3, HEADS, head_dim).mul_(1.5).requires_grad_()
    query, key, value = given.unbind(1)
    first, end = (slots // 4, 3 * slots // 4) if half else (0, slots)
    boundaries = torch.cat([edges, edges[-1:].repeat(8 - len(LENGTHS))]).to(device, torch.int32)
    layout = Layout(
        "varlen",
        torch.stack([edges[:-1], edges[1:]], 1),
        boundaries,
        1024,
        torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS))[None].to(device),
        boundaries.clamp(first, end) - first,
        first,
        None,
        "",
    )
    gathered = attend(query[first:end], key, value, layout)
    (gradient,) = torch.autograd.grad(gathered, given, random(end - first, HEADS, head_dim))
    return tuple(x.float() for x in (gathered.detach(), *gradient.unbind(1)))


def disagreement(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Norm of the difference over the norm of what is expected: the worst of several tensors."""
    # torch's maximum, because Python's passes over a NaN that does not come first.
    return float(torch.stack([(a - b).norm() / b.norm() for a, b in zip(found, expected, strict=True)]).max())
