"""The corpus of a run: token store, split and plan, opened the same way on every rank.

In: the recipe's data settings. Out: `Corpus`. Kept: the store on disk, which rank 0 builds while the others wait.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.plan import Plan
from data.settings import DataSettings
from data.source import resolve
from data.split import Split, split_by_cluster
from data.store import Store, open_or_build
from data.synthetic import Families
from pretrain.engine.launch import Engine


@dataclass(frozen=True, slots=True)
class Corpus:
    """What a run trains on and is scored on."""

    store: Store
    split: Split
    plan: Plan
    families: Families | None
    """How the embedded corpus was drawn; None for any other."""

    def description(self) -> dict[str, Any]:
        """What run.json says of it."""
        return {
            "fingerprint": self.store.fingerprint,
            "split": self.split.fingerprint,
            "records": self.store.num_records,
            "residues": int(self.store.facts["residues"]),
            "training_records": len(self.split.training),
            "validation_records": len(self.split.validation),
            "unknown_letters": self.store.unknown_letters,
        }


def open_corpus(settings: DataSettings, seed: int, engine: Engine) -> Corpus:
    """Build or find the store, split it, and plan it; collective.

    Raises:
        ValueError: on rank 0, from the files; `PeerError` on the others.
    """

    def prepared() -> tuple[str, Families | None]:
        source = resolve(settings)
        store = open_or_build(source.paths, Path(settings.store_dir), settings.unknown_letters, source.clusters)
        split_by_cluster(store, settings.validation_fraction)  # fails here if it must, while the others listen
        return str(store.folder), source.families

    folder, families = engine.on_main(prepared)
    store = Store(Path(folder))
    split = split_by_cluster(store, settings.validation_fraction)
    plan = Plan(split.training, store.num_residues(split.training), settings, seed)
    return Corpus(store, split, plan, families)
