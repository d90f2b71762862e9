"""Fine-tuning that keeps what its last validation predicts, and what each process then knows of the scores."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from finetune import job
from finetune import scoring as evaluate
from support.jobs import fine_tuning_job
from zymogen.trainer.engine.engine import Engine

PREDICTIONS = "predictions-{objective}.npz"
"""Arrays with a row for each label of an objective, as rank 0 has them."""
SCORES = "scores-{rank}.json"


def main(arguments: list[str]) -> int:
    """Train as the recipe says; the exit status."""
    predict, scored, folder = evaluate.predict_together, evaluate.evaluate, Path(arguments[0]).parent

    def predictions(*given: Any) -> Any:
        engine: Engine = given[-1]
        found = predict(*given)
        for number, each in enumerate(found[0] if engine.is_main else ()):
            arrays = {name: value for name, value in asdict(each.rows).items() if value is not None}
            np.savez(folder / PREDICTIONS.format(objective=number), prediction=each.prediction, **arrays)
        return found

    def scores(*given: Any) -> Any:
        engine: Engine = given[-1]
        found = scored(*given)
        (folder / SCORES.format(rank=engine.rank)).write_text(json.dumps(found.numbers()))
        return found

    with mock.patch.object(evaluate, "predict_together", predictions), mock.patch.object(job, "evaluate", scores):
        return fine_tuning_job.main(arguments)
