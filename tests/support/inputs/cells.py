"""The product of engines, worlds and models: all cells that can be run, and few that hold every pair of values."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import NamedTuple


class Cell(NamedTuple):
    """One way to spread a run, and what it trains."""

    engine: str
    processes: int
    sharing: str = "none"
    """How processes share a batch: none, ulysses or all_gather."""
    preset: str = "esm2_60k"
    optimizer: str = "adamw"
    checkpointing: str = "none"

    @property
    def name(self) -> str:
        return "-".join([self.engine, str(self.processes), *self._others().values()])

    @property
    def model(self) -> tuple[str, ...]:
        """Overrides that one process has too."""
        settings = {"preset": "model.preset", "optimizer": "optimizer.name"}
        return tuple(f"{settings[field]}={value}" for field, value in self._others().items() if field in settings)

    @property
    def overrides(self) -> tuple[str, ...]:
        shared = () if self.sharing == "none" else ("parallel.context=2", f"parallel.exchange={self.sharing}")
        checkpointed = () if self.checkpointing == "none" else (f"compute.checkpointing={self.checkpointing}",)
        return *self.model, *shared, *checkpointed

    def _others(self) -> dict[str, str]:
        """What is not the recipe's own, by field."""
        plain = Cell._field_defaults
        return {field: value for field, value in self._asdict().items() if plain.get(field, value) != value}


FACTORS: dict[str, Sequence] = {
    "engine": ("ddp", "fsdp2", "hsdp", "zero1", "zero2", "zero3"),
    "processes": (2, 3, 4),
    "sharing": ("none", "ulysses", "all_gather"),
    "preset": ("esm2_60k", "modern_60k"),
    "optimizer": ("adamw", "muon"),
    "checkpointing": ("none", "selective", "layer"),
}


def possible(cell: Cell) -> bool:
    """Whether the program takes it: what it refuses has tests of its own."""
    return (
        (cell.engine != "hsdp" or cell.processes == 4)
        and (cell.sharing == "none" or cell.processes % 2 == 0)
        and (cell.optimizer == "adamw" or not cell.engine.startswith("zero"))
    )


def full_product() -> list[Cell]:
    return [cell for cell in map(Cell._make, product(*FACTORS.values())) if possible(cell)]


def pairs(cell: Cell) -> set[tuple]:
    """Every two of its values, with the factors that they are of."""
    return set(combinations(enumerate(cell), 2))


def covering(cells: Sequence[Cell], chosen: Iterable[Cell]) -> list[Cell]:
    """`chosen`, and then greedily those that hold most of the pairs that are still missing."""
    array = list(chosen)
    missing = set().union(*map(pairs, cells)).difference(*map(pairs, array))
    while missing:
        array.append(max(cells, key=lambda cell: len(pairs(cell) & missing)))
        missing -= pairs(array[-1])
    return array
