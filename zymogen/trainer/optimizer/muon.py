"""Muon for the matrices of the layers and AdamW for everything else, in one optimizer.

In: parameter groups with gradients; those that carry `blocks` go to Muon. Out: the parameters, moved in place. Kept, by
parameter: `momentum_buffer` (Muon), or `exp_avg`, `exp_avg_sq` and `step` (AdamW).

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) moves a matrix by its orthogonalised Nesterov
momentum. With gradient G, momentum M, weights W of shape (A, B), momentum factor μ, learning rate η and decay λ:

    M <- μ M + (1 - μ) G
    O  = newton_schulz((1 - μ) G + μ M)
    W <- (1 - η λ) W - η · 0.2 √max(A, B) · O

The factor 0.2 √max(A, B) gives the update the root mean square that AdamW's has in practice, so that AdamW's learning
rate and decay hold for it (Liu et al. 2025, arXiv:2502.16982, section 2.2).

`torch.optim.Muon` cannot be used: it iterates in bfloat16 only, orthogonalises a fused matrix as if it were one map,
ignores `found_inf`, and takes only matrices, so that the rest would need a second optimizer, which neither Accelerate's
engines nor the checkpoint expect.

A shard of a matrix is another matrix, so where matrices are cut over ranks (FSDP2, HSDP: DTensors) the momentum stays
cut, and its combination with the gradient is gathered: one all-gather for each stack of matrices. With several ranks,
under DDP too, each of them orthogonalises a share of the blocks (`collectives`), and keeps its part of all results.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.adamw import adamw

from zymogen.onednn import PRODUCTS, by_onednn, onednn_multiplies
from zymogen.trainer.collectives import compute_shared

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""The odd quintic polynomial's, chosen by Jordan et al. for the slope at 0; singular values end in about 0.7..1.2."""
ITERATIONS = 5
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Dtypes that the iteration may compute in, by their names in a recipe."""
RMS = 0.2
"""Root mean square of an update, over the learning rate."""
Stack = tuple[dict[str, Any], list[nn.Parameter]]
"""A group, and some of its matrices that can be one batch."""
LARGEST_ROUND = 2**25
"""Most elements of the matrices that are moved together, unless one alone has more. This bounds temporary memory: about
ten tensors of this size exist at a time, 1.3 GB in float32."""


class Muon(torch.optim.Optimizer):
    """Muon on the groups that carry `blocks`, fused AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) on the others.

    Before a step, `found_inf` and `grad_scale` may be set on it as torch's GradScaler sets them on a fused optimizer:
    tensors of no dimension on the parameters' device, or None. Where `found_inf` is 1, the step leaves parameters and
    state bit for bit as they are, whatever the gradients hold; gradients are divided by `grad_scale`. Neither is ever
    read by the host.

    Args:
        groups: as `kinds.MuonKind` makes them. Each has `params` and `weight_decay`; `blocks` says how many
            maps, stacked by rows, each matrix of the group holds. Every block is orthogonalised by itself, and (A, B)
            is the shape of the block.
        momentum: Muon's μ, in [0, 1).
        newton_schulz: "float32" or "bfloat16", the dtype of the iteration. In float32 it is as exact as the run's
            float32 matrix products are: on a GPU TF32's 10 bits of mantissa, which is 3 more than bfloat16 has, unless
            `compute.tf32` is false.
        betas: AdamW's.
        eps: AdamW's.

    Raises:
        ValueError: a parameter given to Muon is no matrix, or its rows cannot be shared by its blocks.
    """

    # What tells GradScaler, and our own step, that `found_inf` is honoured here and need not be read on the host.
    _step_supports_amp_scaling = True
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        momentum: float,
        newton_schulz: str,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        super().__init__(
            groups,
            {
                "lr": 0.0,
                "weight_decay": 0.0,
                "blocks": None,
                "momentum": momentum,
                "newton_schulz": newton_schulz,
                "betas": betas,
                "eps": eps,
                "fused": True,  # read by torch's load_state_dict: AdamW's steps stay on the device
            },
        )
        for group in self.param_groups:
            for matrix in group["params"] if group["blocks"] is not None else ():
                if matrix.ndim != 2 or matrix.shape[0] % group["blocks"]:
                    raise ValueError(
                        f"a parameter of shape {tuple(matrix.shape)} is in a group of {group['blocks']} blocks; Muon "
                        "moves matrices whose number of rows is a multiple of it; leave `blocks` out for AdamW"
                    )

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient; `closure` exists for callers that pass None."""
        stacks: list[Stack] = []
        for group in self.param_groups:
            moving = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["blocks"] is None:
                self._adamw(group, moving)
            else:
                stacks += [(group, matrices) for matrices in _alike(moving)]
        for together in _rounds(stacks):
            self._muon(together)

    def _muon(self, stacks: Sequence[Stack]) -> None:
        """Move all matrices of a round."""
        combined = [self._combined(*stack) for stack in stacks]
        by_block = [
            (whole := _whole(nesterov)).reshape(len(whole) * group["blocks"], -1, whole.shape[2])
            for (group, _), (_, nesterov) in zip(stacks, combined, strict=True)
        ]
        dtype = DTYPES[stacks[0][0]["newton_schulz"]]  # one for all groups
        updates = compute_shared(by_block, lambda maps: newton_schulz(maps, dtype), newton_schulz_cost, dtype)
        for (group, matrices), (momentum, nesterov), update in zip(stacks, combined, updates, strict=True):
            own = _cut_as(nesterov, update.reshape(nesterov.shape))
            _replace([self.state[matrix]["momentum_buffer"] for matrix in matrices], momentum, self.found_inf)
            _replace(matrices, self._moved(group, matrices, own), self.found_inf)

    def _moved(self, group: dict[str, Any], matrices: Sequence[nn.Parameter], factors: Tensor) -> Tensor:
        """The new weights of n matrices of one shape, given their orthogonal factors: ``(n, rows, columns)`` each."""
        rate, (rows, columns) = group["lr"], factors.shape[1:]
        rms = RMS * math.sqrt(max(rows // group["blocks"], columns))
        return torch.stack(list(matrices)).mul_(1 - rate * group["weight_decay"]).add_(factors, alpha=-rate * rms)

    def _combined(self, group: dict[str, Any], matrices: Sequence[nn.Parameter]) -> tuple[Tensor, Tensor]:
        """The new momentum of n matrices of one shape, and what is orthogonalised: ``(n, rows, columns)`` each."""
        buffers = []
        for matrix in matrices:
            cell = self.state[matrix]
            if not cell:
                cell["momentum_buffer"] = torch.zeros_like(matrix)
            buffers.append(cell["momentum_buffer"])
        gradient = torch.stack([_gradient(matrix) for matrix in matrices])
        if self.grad_scale is not None:
            gradient /= self.grad_scale
        momentum = torch.stack(buffers).lerp_(gradient, 1 - group["momentum"])
        return momentum, gradient.lerp_(momentum, group["momentum"])

    def _adamw(self, group: dict[str, Any], parameters: list[nn.Parameter]) -> None:
        cells = []
        for parameter in parameters:
            cell = self.state[parameter]
            if not cell:
                cell["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                cell["exp_avg"] = torch.zeros_like(parameter)
                cell["exp_avg_sq"] = torch.zeros_like(parameter)
            cells.append(cell)
        adamw(
            list(parameters),
            [_gradient(parameter) for parameter in parameters],
            [cell["exp_avg"] for cell in cells],
            [cell["exp_avg_sq"] for cell in cells],
            [],
            [cell["step"] for cell in cells],
            fused=True,
            grad_scale=self.grad_scale,
            found_inf=self.found_inf,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def newton_schulz(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """The orthogonal factor of each matrix, roughly: U S' Vᵀ of U S Vᵀ, with S' in about 0.7..1.2.

    Five steps of X <- a X + (b X Xᵀ + c (X Xᵀ)²) X from X / ‖X‖, on whichever of X and Xᵀ is wide. Singular values
    below some 2e-3 of ‖X‖ end lower, and zeros stay zeros.

    Args:
        matrices: ``(n, A, B)``, computed in one batch.
        dtype: of the computation and of what is returned.

    Returns:
        ``(n, A, B)``.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if tall else matrices).to(dtype)
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=1e-7)
    if onednn_multiplies(x) and x.shape[1] * x[0].numel() >= PRODUCTS:
        x = torch.stack([_iterated_by_onednn(matrix) for matrix in x])
    else:
        for _ in range(ITERATIONS):
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _iterated_by_onednn(x: Tensor) -> Tensor:
    """The same of one matrix ``(A, B)`` of float32: oneDNN multiplies a matrix by the transpose of another."""
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = by_onednn(x, x)
        x = by_onednn(by_onednn(gram, gram).mul_(c).add_(gram, alpha=b), x.t()).add_(x, alpha=a)
    return x


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be cut over ranks, on each of them."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _cut_as(pattern: Tensor, whole: Tensor) -> Tensor:
    """This rank's part of a tensor that every rank has whole, cut as `pattern` is. Nothing is sent."""
    if not isinstance(pattern, DTensor):
        return whole
    return distribute_tensor(whole, pattern.device_mesh, pattern.placements, src_data_rank=None)


def _alike(matrices: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Matrices of one shape, dtype and device, and not too many elements together."""
    alike: dict[tuple[Any, ...], list[nn.Parameter]] = {}
    for matrix in matrices:
        alike.setdefault((matrix.shape, matrix.dtype, matrix.device), []).append(matrix)
    for same in alike.values():
        at_a_time = max(1, LARGEST_ROUND // same[0].numel())
        yield from (same[start : start + at_a_time] for start in range(0, len(same), at_a_time))


def _rounds(stacks: Iterable[Stack]) -> Iterator[list[Stack]]:
    """Stacks that are moved together, in their order."""
    together: list[Stack] = []
    for stack in stacks:
        if together and sum(_elements(each) for each in together) + _elements(stack) > LARGEST_ROUND:
            yield together
            together = []
        together.append(stack)
    if together:
        yield together


def _elements(stack: Stack) -> int:
    return sum(matrix.numel() for matrix in stack[1])


def _replace(old: Sequence[Tensor], new: Tensor, found_inf: Tensor | None) -> None:
    """Copy `new` into `old`, unless `found_inf` is 1. Not by a factor of 0, because `new` may hold NaN then."""
    for target, value in zip(old, new.unbind(), strict=True):
        target.copy_(value if found_inf is None else torch.where(found_inf == 1, target, value))


def newton_schulz_cost(rows: int, columns: int) -> int:
    """Multiplications of one step of the iteration on a map: ``X Xᵀ``, its square, and its product with X."""
    short, long = min(rows, columns), max(rows, columns)
    return 2 * short * short * long + short**3
