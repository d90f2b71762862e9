"""Time and memory that the drafted run needs, measured on some rows by a process of its own.

In: the text of the recipe, its sizes. Out: `RunEstimate`, or why nothing was measured. Kept: nothing; the process finds
the stores of the look, and writes no run.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.look.sizes import RunSizes
from zymogen.command_line.command import short_switch_interval
from zymogen.console.progress import ProgressBar

ROWS = 100
"""Training rows that are timed, at most."""
_MOST_S = 90.0
"""Time after which the process is ended: starting it and reading the model take some 5 to 20 seconds of it."""
_RUN_S, _VALIDATION_S = 4.0, 0.3
"""Time that any run takes to begin and to write its bundle, and any validation to score and to save a checkpoint, as
they took on two cores for tables of some hundred rows."""
_STANDARDISED = 2000
"""Proteins at most whose vectors a run reads before its first step, to standardise them."""


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """What a run is expected to take."""

    seconds: float
    """Time of all members up to their last step, validations included."""
    end_s: float
    """Time of the predictions after the last step."""
    memory_bytes: float
    """Memory of one process."""
    how: str
    """A clause: measured on what."""


def measure(text: str, overrides: Sequence[str], rows: int) -> dict[str, Any] | str:
    """What `python -m finetune.look.benchmark` finds; or why it found nothing.

    Args:
        text: the recipe.
        overrides: settings that are another for the time being.
        rows: training rows that it times.
    """
    with tempfile.TemporaryDirectory(prefix="zymogen-look-") as folder:
        path = Path(folder) / "recipe.toml"
        path.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "finetune.look.benchmark", str(path), *overrides]
        environment = os.environ | short_switch_interval(os.environ) | {"HF_HUB_OFFLINE": "1"}
        try:
            with ProgressBar(f"timing {rows} rows of the proposal", after_s=0.0):
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=_MOST_S, check=False
                )
        except subprocess.TimeoutExpired:
            return f"{rows} rows take more than {_MOST_S:.0f} seconds here"
    if done.returncode:
        return " ".join((done.stderr.strip().splitlines() or ["the process said nothing"])[-1].split())[:200]
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def bins_of_rows(mean_tokens: float, chosen: RunSizes) -> int:
    """Bins of a step in which rows are timed: no more than hold 100 of them."""
    return max(1, min(chosen.bins_per_step, math.ceil(ROWS * mean_tokens / chosen.bin_tokens)))


def estimate(
    found: dict[str, Any], chosen: RunSizes, mean_tokens: float, counts: tuple[int, int, int], members: int
) -> RunEstimate:
    """Time and memory of the run that is proposed.

    Args:
        found: by `measure`.
        chosen: sizes of the run.
        mean_tokens: of a labelled protein.
        counts: labelled proteins that train, validate and are tested, in one member.
        members: runs that the recipe asks for, one for each fold.
    """
    training, validation, tested = (mean_tokens * count for count in counts)
    every, encoder = training + validation + tested, found["encoder_tokens_per_s"]
    validations = math.ceil(chosen.steps / chosen.evaluate_every)
    steps = chosen.epochs * training / found["training_tokens_per_s"] + _RUN_S + _VALIDATION_S * validations
    held_out = members * (validation + tested) / encoder
    how = f"measured here on {found['rows']} rows"
    if chosen.kind == "frozen":
        return RunEstimate(every / encoder + members * steps, held_out, found["memory_bytes"], how)
    before = min(training, mean_tokens * _STANDARDISED) / encoder
    steps += before + validations * validation / encoder
    return RunEstimate(members * steps, held_out + every / encoder, found["memory_bytes"], how)
