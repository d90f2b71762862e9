"""What an encoder was pretrained on: the token stores of the runs that it comes from.

In: `model.init` of a recipe. Out: stores, and notes on what could not be looked at. Kept: nothing.
"""

from pathlib import Path

from data.store.token_store import TokenStore
from pretrain.run.directory import RunDirectory, run_at

_NOT_CHECKED = "overlap with pretraining was not checked"


def pretraining_stores(init: str | None) -> tuple[list[TokenStore], list[str]]:
    """The token stores of the run that an encoder comes from, and of those that this run comes from, as far as known.

    Args:
        init: the directory of a pretraining run, its export, one of its checkpoints, any other folder of weights, or a
            Hub name; None for random weights.

    Returns:
        Stores; and a note for everything that cannot be looked at, so that without a note all was.
    """
    stores: list[TokenStore] = []
    notes: list[str] = []
    seen: set[str] = set()
    while init is not None and init not in seen:
        seen.add(init)
        run = run_at(init) or Path(init)
        name = run.name if run.exists() else init  # as a card says no folder of a machine
        try:
            record = RunDirectory(run).read()
        except ValueError:
            notes.append(f"{_NOT_CHECKED}: {name} lies in no run's directory with a run.json that can be read")
            break
        for part in record.corpus.get("mixture") or [record.corpus]:
            try:
                store = TokenStore(Path(part.get("store", "")))
                _ = store.facts
                stores.append(store)
            except ValueError:
                notes.append(f"{_NOT_CHECKED}: run.json of {name} names no token store that can be read")
        init = record.recipe.get("model", {}).get("init")
    return stores, notes
