"""The unit that engines shard a model by: a layer, whose parameters are whole on a rank while it computes.

In and kept: a module of a model. Out: which of its weights autocast rounds.
"""

from torch import Tensor, nn


class ShardingUnit(nn.Module):
    """The base class of a model's layers; a model without any is one unit."""

    def autocast_weights(self) -> list[Tensor]:
        """Return the weights that autocast rounds before each use: those of its linear maps."""
        return [module.weight for module in self.modules() if isinstance(module, nn.Linear)]


def sharding_units(model: nn.Module) -> list[ShardingUnit]:
    """Return the units of a model, in the order of its modules."""
    return [module for module in model.modules() if isinstance(module, ShardingUnit)]


def autocast_weights(model: nn.Module) -> list[Tensor]:
    """Return the weights of all units of a model that autocast rounds before each use."""
    return [weight for unit in sharding_units(model) for weight in unit.autocast_weights()]
