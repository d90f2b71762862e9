"""Cache of the end of a run, so that an interrupted one repeats only the missing steps.

In: arrays by the name of a step. Out: the same, from the disk where they are there. Kept: ``ending-HASH/STEP.npz`` in
the run directory, each file whole or absent, until the results are complete. HASH is that of everything on which the
results depend, so nothing of other models, labels or settings is taken; what is left of those is removed.
"""

import re
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finetune.baselines.baseline import TaskBaseline
from finetune.metrics.predictions import LabelPredictions, LabelRows
from zymogen.files.durable import replacing_file

Arrays = Mapping[str, NDArray[Any]]
_FOLDER = re.compile(r"ending-[0-9a-f]{16}")
_OPTIONAL = ("censoring", "positions")


class ResultCache:
    """The steps that were taken for one set of inputs.

    Args:
        root: the run directory.
        inputs: hash of everything on which the results depend, in hexadecimal.
        again: whether steps that are there are taken again.
    """

    def __init__(self, root: Path, inputs: str, *, again: bool = False) -> None:
        self.folder = root / f"ending-{inputs[:16]}"
        for other in root.iterdir():
            if _FOLDER.fullmatch(other.name) and other.is_dir() and (again or other != self.folder):
                shutil.rmtree(other)
        self.folder.mkdir(exist_ok=True)

    def arrays(self, step: str, make: Callable[[], Arrays]) -> Arrays:
        """The arrays of a step, from the disk if they are there and whole, otherwise made and kept.

        Raises:
            ValueError: they cannot be written.
        """
        path = self.folder / f"{re.sub('[^A-Za-z0-9-]', '-', step)}.npz"
        with suppress(OSError, ValueError, EOFError, zipfile.BadZipFile), np.load(path) as found:
            return {name: found[name] for name in found.files}
        made: dict[str, Any] = dict(make())
        with replacing_file(path, "get the right to write there") as new, new.open("wb") as file:
            np.savez(file, **made)
        return made

    def predictions(
        self, step: str, make: Callable[[], tuple[int, Sequence[Sequence[LabelPredictions]]]]
    ) -> tuple[int, list[list[LabelPredictions]]]:
        """A number and lists of predictions, such as the step of a model and what it predicts of each part."""

        def packed() -> Arrays:
            number, lists = make()
            found: dict[str, NDArray[Any]] = {"number": np.array(number), "sizes": np.array([*map(len, lists)])}
            for at, each in enumerate(lists):
                for place, one in enumerate(each):
                    found.update(_packed(one, f"{at}-{place}-"))
            return found

        found = self.arrays(step, packed)
        lists = [
            [_unpacked(found, f"{at}-{place}-") for place in range(size)]
            for at, size in enumerate(found["sizes"].tolist())
        ]
        return int(found["number"]), lists

    def baseline(self, of: str, name: str, make: Callable[[], TaskBaseline]) -> TaskBaseline:
        """A baseline, by what it is of, such as a fold, and its name."""

        def packed() -> Arrays:
            one = make()
            said = {"name": np.array(one.name), "description": np.array(one.description)}
            return {**said, "seconds": np.array(one.seconds), **_packed(one.predictions, "")}

        found = self.arrays(f"{name}-{of}", packed)
        name, description = (str(found[each]) for each in ("name", "description"))
        return TaskBaseline(name, description, _unpacked(found, ""), float(found["seconds"]))

    def remove(self) -> None:
        """Remove all of it, as the results are complete."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _packed(one: LabelPredictions, begin: str) -> dict[str, NDArray[Any]]:
    fields = {name: getattr(one.rows, name) for name in ("records", "outputs", "truth", *_OPTIONAL)}
    found = {f"{begin}{name}": array for name, array in fields.items() if array is not None}
    return {**found, f"{begin}prediction": one.prediction}


def _unpacked(found: Arrays, begin: str) -> LabelPredictions:
    rows = LabelRows(
        *(found[f"{begin}{name}"] for name in ("records", "outputs", "truth")),
        *(found.get(f"{begin}{name}") for name in _OPTIONAL),
    )
    return LabelPredictions(rows, found[f"{begin}prediction"])
