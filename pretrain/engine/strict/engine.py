"""One process and several, each with a whole copy, whose weights are the same bits for every number of processes.

In: gradients of single bins. Out: their sum, which no order of adding changes. Kept: `ExactSums`, between the bins of a
step.

A sum of floats depends on its order, so a run that continues on another number of processes ends with other last bits.
Here the gradient of each bin is rounded to integers, by itself, and integers are added: within a rank, and over ranks
in one all-reduce. All else that a step computes, each process computes in the same way from the same numbers: on a CPU
with one thread, because sums within a matrix product depend on the number of threads. More processes use more cores.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from data.batches.batch import Batch
from pretrain.engine.engine import Engine, following
from pretrain.engine.settings import LaunchSettings
from pretrain.engine.strict.exact_sums import MOST_BINS, ExactSums

MOST_BYTES = 16 << 30
"""Bytes of the sums on each rank, which are sent in every step: those of a billion parameters."""


@dataclass(frozen=True)
class StrictEngine(Engine):
    """Whole copies, as DDP has them; no module is wrapped, and gradients are exchanged once, after the last bin."""

    sums: list[ExactSums] = field(default_factory=list, init=False, repr=False, compare=False)
    """One for the trained parameters of the prepared model; none before."""

    def __post_init__(self) -> None:
        """Compute with one thread on a CPU."""
        super().__post_init__()
        if self.device.type == "cpu":
            torch.set_num_threads(1)

    @property
    def name(self) -> str:
        """The same for every number of processes."""
        return "strict"

    @staticmethod
    def check(recipe: LaunchSettings, distributed_type: str, precision: str) -> None:
        """Refuse what cannot give the same bits.

        Raises:
            ValueError: the settings and launches that are allowed.
        """
        needs = "run.reduction = 'strict' adds up gradients bin by bin, in whole copies of the model"
        if distributed_type in ("FSDP", "DEEPSPEED"):
            raise ValueError(f"{needs}; the launch asks for {distributed_type}: use accelerate_configs/ddp.yaml")
        if precision == "fp16":
            raise ValueError(
                f"{needs}; the launch asks for fp16, whose loss scale depends on the steps before: use bf16"
            )
        bins = recipe.data.bins_per_forward
        for name, got, allowed in (
            ("parallel.context", recipe.parallel.context, 1),
            ("data.bins_per_forward", 1 if bins == "auto" else bins, 1),  # which "auto" becomes
        ):
            if got != allowed:
                raise ValueError(f"{needs}; {name}: got {got}, allowed is {allowed}")
        if recipe.data.bins_per_step > MOST_BINS:
            raise ValueError(
                f"{needs}; data.bins_per_step: got {recipe.data.bins_per_step}, allowed are at most {MOST_BINS}"
            )

    def exchanges(self, model: nn.Module) -> list[str]:
        """A line with the bytes of the sums.

        Raises:
            ValueError: they are more than `MOST_BYTES`.
        """
        size = 16 * sum(parameter.numel() for parameter in _trained(model))
        line = (
            f"each process keeps 16 bytes for each trained parameter and sends them in every step, {size / 1e6:,.1f} MB"
        )
        if size > MOST_BYTES:
            raise ValueError(
                f"run.reduction = 'strict': {line}; allowed are {MOST_BYTES / 1e6:,.1f} MB: take it out, or train a "
                "smaller model"
            )
        return [f"reduction: strict, {line}"]

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        """Model and optimizer on the device, and room for the sums."""
        with following(optimizer, model):
            self._allocate(model)
        # As for evaluation: Accelerate would wrap it in DDP.
        model = self.accelerator.prepare_model(model, evaluation_mode=True)
        self.sums[:] = [ExactSums([parameter.shape for parameter in _trained(model)], self.device)]
        return model, self.accelerator.prepare_optimizer(optimizer)

    def forget(self) -> None:
        """Release the sums, too."""
        self.sums.clear()
        super().forget()

    def settle(self, model: nn.Module, batch: Batch) -> None:
        """Do nothing: there are no buckets."""

    def accumulating(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Nothing is exchanged before the last bin's gradients are added."""
        del model, last
        return nullcontext()

    def backward(self, model: nn.Module, loss: Tensor) -> None:
        """Backward of one bin; its gradients are added to the sums and released."""
        super().backward(model, loss)
        for index, parameter in enumerate(_trained(model)):
            if parameter.grad is not None:
                self.sums[0].add(index, parameter.grad)
                parameter.grad = None

    def update(self, model: nn.Module, optimizer: Any, clip_norm: float) -> tuple[Tensor, Tensor]:
        """Exchange the sums, then step with them."""
        sums = self.sums[0]
        if self.world_size > 1:
            dist.all_reduce(sums.integers)
        for parameter, gradient in zip(_trained(model), sums.read(), strict=True):
            parameter.grad = gradient
        sums.clear()
        return super().update(model, optimizer, clip_norm)


def _trained(model: nn.Module) -> Sequence[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
