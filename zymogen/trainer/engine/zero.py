"""ZeRO (DeepSpeed): moments, gradients and, from stage 3, parameters are cut over ranks.

In and out: as in `engine`. Kept: DeepSpeed's flat partitions.

DeepSpeed does by itself what other engines leave to the step: it clips, refuses gradients that are not finite, and
updates. Its settings are written from the recipe here, and nowhere else.
"""

import importlib
import inspect
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from accelerate.utils import DeepSpeedPlugin, DistributedType
from torch import Tensor, nn

from data.batches.batch import Batch
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.named_state import NamedState
from zymogen.trainer.engine.sharding_unit import autocast_weights
from zymogen.trainer.engine.zero_state import ZeroState
from zymogen.unsupported import UnsupportedFeature

# torch 2.13 renamed collectives that DeepSpeed 0.19 calls, and would warn at each of hundreds of calls.
warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)

_BUCKET = 2**23
"""Elements that are reduced or gathered at a time, 32 MiB. DeepSpeed's own 5e8 would be a buffer of 2 GB."""


class ZeroEngine(Engine):
    """ZeRO-1, 2 and 3."""

    distributed_types = frozenset({DistributedType.DEEPSPEED})

    @staticmethod
    def plugins(clip_norm: float) -> dict[str, Any]:
        """Accelerate's settings: stage and offload as the launcher's YAML has them, everything else the program's."""
        plugin = DeepSpeedPlugin(gradient_clipping=clip_norm, gradient_accumulation_steps=1, zero3_init_flag=False)
        plugin.deepspeed_config |= {
            "train_micro_batch_size_per_gpu": 1,  # a batch of ours is what DeepSpeed calls a sample
            # torch's AdamW moves offloaded parameters too; DeepSpeed's own would be compiled first.
            "zero_force_ds_cpu_optimizer": False,
            "zero_allow_untested_optimizer": True,
        }
        if plugin.zero_stage < 3:  # which refuses it: see `_summed_shards`
            plugin.deepspeed_config["gradient_allreduce_op"] = "sum"
        plugin.deepspeed_config["zero_optimization"] |= {
            "reduce_bucket_size": _BUCKET,
            "allgather_bucket_size": _BUCKET,
            "overlap_comm": torch.cuda.is_available(),
            "contiguous_gradients": True,
            # Gradients go to their owners alone; by default each rank gets all of them, twice the bytes.
            "use_multi_rank_bucket_allreduce": False,
            "stage3_prefetch_bucket_size": _BUCKET,
            # Parameters not used again within so many elements are released; by default models below 1e9 stay whole.
            "stage3_max_reuse_distance": _BUCKET,
        }
        return {"deepspeed_plugin": plugin}

    @property
    def name(self) -> str:
        """The engine's name, as recorded in checkpoints."""
        return f"zero{self._stage}"

    @property
    def in_lockstep(self) -> bool:
        """From stage 2 on, ranks exchange something with every micro-batch."""
        return self._stage > 1

    @property
    def compile_obstacle(self) -> UnsupportedFeature | None:
        """ZeRO-3 alone: torch.compile traces DeepSpeed's bookkeeping in hooks for minutes a module, in pieces."""
        if self._stage != 3:
            return None
        return UnsupportedFeature(
            "ZeRO-3 gathers parameters in hooks inside of what is compiled",
            "accelerate_configs/fsdp2.yaml shards as much and is compiled",
        )

    @property
    def _stage(self) -> int:
        return int(self._zero_settings["stage"])

    @property
    def _zero_settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.accelerator.deepspeed_plugin.deepspeed_config["zero_optimization"]
        return settings

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        """DeepSpeed's engine around the model, and its optimizer around ours."""
        if self.precision != "no":
            # Inside of DeepSpeed's engine, which turns off an autocast around it.
            model.forward = cast(torch.autocast, super().autocast())(model.forward)
        # Norms and biases stay whole in stage 3, too: they are not worth a message each.
        vectors = [p.numel() for p in model.parameters() if p.ndim < 2]
        self._zero_settings["stage3_param_persistence_threshold"] = max(vectors, default=0)
        if self._stage == 3:
            stage3: Any = importlib.import_module("deepspeed.runtime.zero.stage3")
            stage3.reduce_scatter_coalesced = _summed_shards
        prepared, prepared_optimizer = super().prepare(model, optimizer)
        group: Any = prepared.data_parallel_group  # DeepSpeed's clone of the world, with torch's own timeout
        group.set_timeout(self.timeout)
        return prepared, prepared_optimizer

    def release(self) -> None:
        """Release what `prepare` returned; in stage 3 also what DeepSpeed's globals hold, and with it the model."""
        if self._stage == 3:
            offload: Any = importlib.import_module("deepspeed.runtime.zero.parameter_offload")
            offload.FWD_MODULE_STACK.clear()  # the model stays at its bottom
            release = offload.PartitionedParameterCoordinator._PartitionedParameterCoordinator__params_to_release
            inspect.getclosurevars(release).nonlocals["func"].cache_clear()  # by modules, under a decorator
        super().release()

    def _allocate(self, model: nn.Module) -> None:
        """In stage 3 a parameter is cut before the next one is allocated; DeepSpeed then finds all of them cut.

        In bf16 it gathers the weights of layers in bfloat16, as autocast would round them; the rest, and sums of
        gradients, stay float32.
        """
        if self._stage < 3:
            super()._allocate(model)
            return
        import deepspeed
        from deepspeed.runtime.torch_autocast import PARAM_COMM_DTYPE_ATTR_NAME

        settings = {key: value for key, value in self._zero_settings.items() if value != "auto"}
        config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": settings}
        for module in model.modules():
            own = nn.ParameterDict({name: p for name, p in module.named_parameters(recurse=False) if p.is_meta})
            if own:
                for name, parameter in own.to_empty(device=self.device).items():
                    module.register_parameter(name, parameter)
                deepspeed.zero.Init(own, config_dict_or_path=config)
        if self.precision == "bf16":
            for weight in autocast_weights(model):
                setattr(weight, PARAM_COMM_DTYPE_ATTR_NAME, torch.bfloat16)

    def named_state(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> NamedState:
        """State by name of what `prepare` returned; make it again after every `prepare`."""
        del optimizer  # DeepSpeed's engine holds it
        return ZeroState(model)

    def warm_up(self, model: nn.Module, batch: Batch) -> None:
        """Do nothing: every step reduces the same buckets, the first one too."""

    def autocast(self) -> AbstractContextManager[None]:
        """Change nothing: `prepare` put autocast into the model."""
        return nullcontext()

    def accumulating(self, model: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Stage 1 exchanges gradients with the last micro-batch, later stages with each, and keep a part of them."""
        cast(Any, model).set_gradient_accumulation_boundary(last)
        return nullcontext()

    def backward(self, model: nn.Module, loss: Tensor) -> None:
        """Backward of this rank's share of the loss; `plugins` and `prepare` made DeepSpeed sum them."""
        cast(Any, model).backward(loss, scale_wrt_gas=False)

    def update(self, model: nn.Module, optimizer: Any, clip_norm: float) -> tuple[Tensor, Tensor]:
        """Let DeepSpeed clip (to what `plugins` was given), check and update.

        Only in float16 does it look for infinities in gradients; here it goes by their norm, which is then not finite.
        """
        deepspeed = cast(Any, model)
        deepspeed.step()
        norm, skipped = deepspeed.get_global_grad_norm(), float(deepspeed.optimizer.overflow)
        return torch.as_tensor(norm, dtype=torch.float32, device=self.device), torch.tensor(skipped, device=self.device)


def _summed_shards(tensors: list[Tensor], group: dist.ProcessGroup) -> list[Tensor]:
    """What stage 3 calls to exchange gradients: each rank's shard of the sum over ranks.

    DeepSpeed's own divides by the number of ranks. To undo that, the loss would be multiplied by it, and where it is no
    power of two each gradient would be rounded twice: three ranks then ended 8.7 times as far from one process as
    regrouped sums do.
    """
    ranks, rank = dist.get_world_size(group), dist.get_rank(group)
    shards = [-(-tensor.numel() // ranks) for tensor in tensors]
    padded = [
        nn.functional.pad(tensor.flatten(), (0, ranks * shard - tensor.numel())).view(ranks, shard)
        for tensor, shard in zip(tensors, shards, strict=True)
    ]
    of_ranks = torch.cat(padded, dim=1)  # a row for each rank
    own = torch.empty_like(of_ranks[0])
    dist.reduce_scatter_tensor(own, of_ranks.flatten(), group=group)
    return [
        part[: max(0, min(shard, tensor.numel() - rank * shard))]
        for part, tensor, shard in zip(torch.split(own, shards), tensors, shards, strict=True)
    ]
