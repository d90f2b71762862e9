"""Weights that are numbers: what is NaN or infinite, or does not fit into a type, is refused by the tensor's name.

In: tensors by name. Out: an error, or nothing. Kept: nothing.
"""

from collections.abc import Mapping

import torch
from torch import Tensor


def require_finite(state: Mapping[str, Tensor], where: object, remedy: str) -> None:
    """Refuse tensors that hold NaN or infinity.

    Args:
        state: tensors by name, of any type.
        where: what holds them, for the error.
        remedy: what the error tells the user to do.

    Raises:
        ValueError: names the first such tensor, and says how many of its values are at fault.
    """
    wrong = [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]
    if not wrong:
        return
    first = state[wrong[0]]
    count = first.numel() - int(torch.isfinite(first).sum())
    others = f", and {len(wrong) - 1} other tensors have such values" if len(wrong) > 1 else ""
    raise ValueError(
        f"{where}: {wrong[0]} has {count:,} of {first.numel():,} values that are NaN or infinite{others}; {remedy}"
    )


def require_fits(state: Mapping[str, Tensor], dtype: torch.dtype, where: object) -> None:
    """Refuse finite tensors of float32 that become infinite when they are rounded to `dtype`.

    Args:
        state: tensors by name.
        dtype: the type.
        where: what holds them, for the error.

    Raises:
        ValueError: names the first such tensor, with its largest value and the type's.
    """
    for name, tensor in state.items():
        largest = tensor.abs().max() if tensor.numel() else torch.zeros(())
        if not torch.isfinite(largest.to(dtype)):
            raise ValueError(
                f"{where}: {name} reaches {float(largest):g}, and {str(dtype).removeprefix('torch.')} ends at "
                f"{torch.finfo(dtype).max:g}; store the weights as bfloat16 or float32"
            )
