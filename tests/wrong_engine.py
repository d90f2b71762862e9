"""The program with a deliberate fault, for tests that must be able to see it: `python wrong_engine.py FAULT ARGS`.

`local_counts` divides by each rank's own target count, as a loss averaged per rank does. `unsettled` leaves out the
pass that gives DDP's buckets their final layout before the first step.
"""

import sys

import torch

from pretrain.__main__ import main
from pretrain.engine.launch import Engine


def local_counts() -> None:
    summed = Engine.sum_over_ranks

    def faulty(self: Engine, values: torch.Tensor) -> torch.Tensor:
        is_ledger = values.dtype == torch.int64
        total = summed(self, values)
        return torch.cat([values[:1] * self.world_size, total[1:]]) if is_ledger else total

    Engine.sum_over_ranks = faulty


def unsettled() -> None:
    Engine.settle = lambda self, model, batch: None


if __name__ == "__main__":
    {"local_counts": local_counts, "unsettled": unsettled}[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
