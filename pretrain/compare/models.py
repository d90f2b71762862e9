"""Two models by their names, scored on one frozen set, one after the other.

In: runs, checkpoints, exports, folders of transformers' or Hub names. Out: a `ModelComparison`. Kept: token stores.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from data.order.settings import bin_tokens_on
from pretrain.compare.comparison import ModelComparison, ModelDifference
from pretrain.evaluate.score_models import LAUNCH, Compute, scored_by
from pretrain.evaluate.scored_set import EvaluationSet, EvaluationSetOptions, open_evaluation_set, run_of_name
from pretrain.evaluate.scores import TITLES
from pretrain.evaluate.validation import Row, intervals
from pretrain.trained_model import TrainedModel, masked_language_model, open_trained_model
from zymogen.console.progress import ProgressBar
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.launch import launch

_JUDGED_BY = "mask_all"
"""The corruption under which nothing can be copied."""


def compare_models(a: str, b: str, asked: EvaluationSetOptions, compute: Compute = "float32") -> ModelComparison:
    """Compare two models in this process. One of them is in memory at a time.

    Args:
        a: the current model.
        b: the candidate.
        asked: what is scored; without data the held-out proteins of the run that `b`, or else `a`, is or lies in.
        compute: what the models compute in.

    Raises:
        ValueError: a model cannot be read, or nothing says what to score.
    """
    data = run_of_name(asked.data, b) or run_of_name(None, a)
    if not data:
        raise ValueError(f"neither {a} nor {b} lies in a run, whose held-out proteins could be scored; name proteins")
    with launch(LAUNCH) as engine:
        sources = [open_trained_model(each) for each in (a, b)]
        opened = open_evaluation_set(replace(asked, data=data), engine)
        first, second = (_sums(source, opened, engine, compute) for source in sources)
        scored = opened.scored
        groups, drawn = opened.groups()
        return ModelComparison(
            models=(sources[0].origin, sources[1].origin),
            on=f"{len(scored.samples):,} proteins of {', '.join(data)}, drawn by {drawn}, frozen set",
            set=scored.fingerprint(),
            unit="nats a residue",
            differences=differences(first, second, dict(zip(scored.samples.tolist(), groups.tolist(), strict=True))),
            decide=(TITLES[_JUDGED_BY],),
        )


def _sums(source: TrainedModel, opened: EvaluationSet, engine: Engine, compute: Compute) -> dict[str, list[Row]]:
    with ProgressBar(f"scoring {source.origin}", after_s=2.0, speaks=engine.is_main):
        model = masked_language_model(source, engine.device)
        bin_tokens = bin_tokens_on(engine.device.type)
        return scored_by(model, source.origin, opened, engine, compute=compute, bin_tokens=bin_tokens)


def differences(
    first: Mapping[str, list[Row]], second: Mapping[str, list[Row]], groups: Mapping[int, int]
) -> tuple[ModelDifference, ...]:
    """The differences of two models that were scored on one set.

    Args:
        first: corruption -> what the first model loses on each protein.
        second: the same of the second one.
        groups: number of a protein -> a number that proteins drawn together share.
    """
    found = []
    for name, of_first in first.items():
        pairs = list(zip(of_first, second[name], strict=True))
        assert all(a[0] == b[0] for a, b in pairs), "both models are scored on one set"
        losses = np.array([[b[1], a[1], a[3]] for a, b in pairs])
        _, drawn = np.unique([groups[sample] for sample, *_ in of_first], return_inverse=True)
        _, _, low, high = intervals(losses, drawn)
        loss_of_second, loss_of_first, targets = losses.sum(0).tolist()
        with np.errstate(over="ignore"):
            perplexities = float(np.exp(loss_of_first / targets)), float(np.exp(loss_of_second / targets))
        found.append(
            ModelDifference(
                name=TITLES[name],
                metric="perplexity",
                values=perplexities,
                gain=(loss_of_first - loss_of_second) / targets,
                low=low,
                high=high,
                labels=int(targets),
                groups=int(drawn.max()) + 1,
            )
        )
    return tuple(found)
