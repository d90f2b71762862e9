"""The checkpoint that a start continues from, compared with the start.

In: the checkpoint; a recipe of whatever job. Out: an error, or a table of what differs; the recipe's identity and
schedule as two hashes, which stand in every checkpoint. Kept: nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from zymogen.console.progress import in_columns
from zymogen.settings.section import SettingClass, settings_of
from zymogen.trainer.checkpoint.load import VerifiedCheckpoint
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.run.versions import versions


def fingerprints_of(recipe: Any) -> dict[str, str]:
    """SHA-256 of all settings of class identity, and of all of class schedule, with their names."""

    def of(setting_class: SettingClass) -> str:
        chosen = {name: value for name, its_class, value in settings_of(recipe) if its_class is setting_class}
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()

    return {"identity": of(SettingClass.IDENTITY), "schedule": of(SettingClass.SCHEDULE)}


def require_same_run(checkpoint: VerifiedCheckpoint, fingerprints: Mapping[str, str]) -> None:
    """run.json has been compared already; this catches a checkpoint that was copied in from elsewhere."""
    for name in ("identity", "corpus", "split"):
        found = checkpoint.manifest.fingerprints[name]
        if found != fingerprints[name]:
            raise ValueError(
                f"{checkpoint.path} was written by another run: its {name} is {found}, this run's is "
                f"{fingerprints[name]}; remove it, or choose another run.directory"
            )


def describe_changes(checkpoint: VerifiedCheckpoint | None, engine: Engine) -> list[str]:
    """What differs between the start that wrote a checkpoint and this one, as a table; nothing if nothing does.

    All of it may differ. The table says where to look if the run does not end as it did before.
    """
    if checkpoint is None:
        return []
    before, step = checkpoint.manifest.topology, checkpoint.trainer.step
    rows = [
        ("processes", before.world_size, engine.world_size),
        ("engine", before.engine, engine.name),
        ("precision", before.precision, engine.precision),
    ]
    present = versions()
    rows += [(name, then, present.get(name, "none")) for name, then in sorted(checkpoint.manifest.versions.items())]
    cells = [(name, str(then), str(now)) for name, then, now in rows if then != now]
    if not cells:
        return []
    cells.insert(0, (f"since step {step}", "in the checkpoint", "in this run"))
    lines = in_columns(cells)
    if before.world_size != engine.world_size or before.engine != engine.name:
        lines.append(
            "order of samples and tokens of a step: as before; gradients: added in another order, which changes last "
            f"bits; speeds before step {step} are no measure for those after it"
        )
    if before.precision != engine.precision:
        lines.append(
            f"precision: {engine.precision} from here on; up to step {step} it was {before.precision}: to keep that, "
            f"launch with --mixed_precision {before.precision}"
        )
    return lines
