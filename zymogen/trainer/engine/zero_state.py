"""State by name under ZeRO, where one flat float32 tensor per parameter group holds this rank's part of every tensor.

In: DeepSpeed's engine. Out: this rank's part of each tensor. Kept: nothing of its own.

The only module that knows DeepSpeed's internals: `fp32_partitioned_groups_flat`, `single_partition_of_fp32_groups` and
others have no public form. DeepSpeed's version is bounded in setup.cfg, and the resume matrix of the tests guards them.
"""

import math
from itertools import pairwise
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zymogen.trainer.engine.named_state import NamedState, materialize_moments, require_held
from zymogen.trainer.engine.spans import Span, StoredPiece, even_spans, stores


class ZeroState(NamedState):
    """State of ZeRO-1, 2 and 3.

    Args:
        engine: the `DeepSpeedEngine` that `Accelerator.prepare` returned.

    Raises:
        ValueError: a trainable parameter is held by no optimizer, or there is state that named fp32 tensors cannot
            carry.
    """

    moved = "partition"

    def __init__(self, engine: nn.Module) -> None:
        super().__init__(engine)
        self._zero = cast(Any, engine).optimizer
        self._inner: torch.optim.Optimizer = self._zero.optimizer
        self._steps: dict[int, int] = {}
        self._is_cut = hasattr(self._zero, "fp32_partitioned_groups_flat")  # stage 3: the parameters too
        if self._is_cut:
            self._flats, groups = self._zero.fp32_partitioned_groups_flat, self._zero.fp16_groups
        else:
            self._flats, groups = self._zero.single_partition_of_fp32_groups, self._zero.bit16_groups
        self._flat_of = {id(p): index for index, group in enumerate(groups) for p in group}
        require_held(self._parameters, self._flat_of.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a parameter and of each of its moments."""
        parameter = self._parameters[name]
        return tuple(getattr(parameter, "ds_shape", parameter.shape))

    def pieces(self) -> list[StoredPiece]:
        """What this rank stores: its partitions without their padding."""
        found = []
        for name in self.names:
            for key in ("param", *self.moments(name)):
                part, spans, group = self._part(name, key)
                start, stop = span = spans[dist.get_rank(group)]
                if stores(span, math.prod(self.shape(name)), group):
                    found.append(StoredPiece(name, key, start, stop, part.detach()[: stop - start]))
        return found

    def begin_load(self) -> None:
        """Allocate the moments of partitions that have none yet: zeros, at step 0."""
        # Between steps, stage 3 keeps the optimizer's groups empty and puts a partition in when it is its turn.
        if self._is_cut:
            of_group: list[list[Tensor]] = [[] for _ in self._inner.param_groups]
            for index, flat in enumerate(self._flats):
                of_group[self._zero.sub_group_to_group_id[index]].append(flat)
        else:
            of_group = [[flat] for flat in self._flats]
        before = [group["params"] for group in self._inner.param_groups]
        try:
            for group, flats in zip(self._inner.param_groups, of_group, strict=True):
                group["params"] = flats
            materialize_moments(self._inner, [flat for flat in self._flats if not self._inner.state.get(flat)])
        finally:
            for group, parameters in zip(self._inner.param_groups, before, strict=True):
                group["params"] = parameters
        self._steps.clear()

    def local_part(self, name: str, key: str) -> tuple[Span, Tensor]:
        """This rank's partition, padded; all of a tensor that is whole on every rank."""
        # Every rank holds all of what is not trained under stages 1 and 2.
        if not self._is_cut and id(self._parameters[name]) not in self._flat_of:
            return (0, math.prod(self.shape(name))), self._parameters[name].detach()
        part, spans, group = self._part(name, key)
        return spans[dist.get_rank(group)], part.detach()

    def set_step(self, name: str, step: int) -> None:
        """Set the step of the partition that this parameter is part of.

        Raises:
            ValueError: another parameter of the partition has another step.
        """
        known = self._steps.setdefault(self._flat_of[id(self._parameters[name])], step)
        if known != step and "step" in self._cell(name):
            raise ValueError(
                f"{name!r} was moved {step} times and others of its partition {known} times; ZeRO keeps one count for "
                "all: continue this run with accelerate_configs/fsdp2.yaml or ddp.yaml"
            )
        super().set_step(name, step)

    @torch.no_grad()
    def end_load(self) -> None:
        """Copy the masters into the weights that the forward pass reads; collective."""
        if not self._is_cut:
            self._zero.update_lp_params()
            return
        self._zero.checkpoint_event_prologue()  # releases the small parameters, which are always whole
        for index in range(len(self._flats)):
            self._zero._reassign_or_swap_out_partitioned_parameters(index)
        self._zero.checkpoint_event_epilogue()  # and gathers them again, now with the new values

    def _part(self, name: str, key: str) -> tuple[Tensor, list[Span], dist.ProcessGroup]:
        """What this rank holds of a tensor, a view of the flat one, padded in stage 3; and who holds which span."""
        parameter: Any = self._parameters[name]
        size = math.prod(self.shape(name))
        moment = None if key == "param" else key
        if self._is_cut:
            part = parameter.ds_tensor  # of one that is not trained
            if id(parameter) in self._flat_of:
                part, _ = self._zero._get_fp32_opt_state_partition(parameter, False, moment)
            group, unit = parameter.ds_process_group, parameter.ds_tensor.numel()
            return part, even_spans(size, dist.get_world_size(group), unit), group
        index = self._flat_of[id(parameter)]
        group, unit = self._zero.real_dp_process_group[index], self._zero.partition_size[index]
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        # The group's parameters one after the other, cut into partitions of `unit` elements.
        place = [id(p) for p in self._zero.round_robin_bit16_groups[index]].index(id(parameter))
        first = self._zero.round_robin_bit16_offsets[index][place]
        spans = list(pairwise(min(max(r * unit - first, 0), size) for r in range(ranks + 1)))
        start, stop = spans[rank]
        flat = self._moved(name) if moment is None else self._cell(name)[moment]
        return flat[first + start - rank * unit :][: stop - start] if start < stop else flat[:0], spans, group

    def _moved(self, name: str) -> Tensor:
        return cast(Tensor, self._flats[self._flat_of[id(self._parameters[name])]])

    def _cell(self, name: str) -> dict[str, Any]:
        return cast(dict[str, Any], self._inner.state.get(self._moved(name), {}))
