"""Constants of a module that are arrays on the host, and tensors where it computes.

In: arrays. Out: tensors. Kept: a copy of each on each device. They are no buffers: a model is built on the meta device,
where these would lose their values.
"""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


class DeviceConstants:
    """Arrays as tensors, each copied to a device once.

    Args:
        arrays: what is given of a device, in this order.
    """

    def __init__(self, *arrays: NDArray[Any]) -> None:
        self._arrays, self._copies = arrays, dict[torch.device, list[Tensor]]()

    def __call__(self, device: torch.device) -> list[Tensor]:
        """The arrays on `device`."""
        if device not in self._copies:
            self._copies[device] = [torch.from_numpy(array).to(device) for array in self._arrays]
        return self._copies[device]
