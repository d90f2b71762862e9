"""Ranking metrics of all outputs of an objective at once, by a few sorts, however many outputs there are.

In: rows, each of one output. Out: a value for each output, NaN where it has none. Kept: nothing. Pairs and doubled
ranks are counted in whole numbers, so that an output has the same value, to the last bit, alone and among others. A
validation takes these alone; `finetune.metrics.scoring` takes them too.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finetune.metrics.weighted import Floats, mean_of_defined, ratio

Ints = NDArray[np.int64]


class _Blocks(NamedTuple):
    """Rows by output and rising value, in blocks of equal values of one output."""

    of_row: Ints
    """(n,) block of each row."""
    output: Ints
    """(blocks,) its output."""
    sizes: Ints
    """(blocks,) its rows."""

    def before(self, counts: NDArray[np.number]) -> Floats:
        """(blocks,) the sum of `counts` over the blocks of the same output that lie below."""
        below = np.cumsum(counts, dtype=np.float64) - counts
        first = np.searchsorted(self.output, self.output)
        return np.asarray(below - below[first])


def _blocks(outputs: Ints, values: Floats) -> _Blocks:
    order = np.lexsort((values, outputs))
    of, ordered = outputs[order], values[order]
    is_new = np.concatenate([[True], (of[1:] != of[:-1]) | (ordered[1:] != ordered[:-1])])[: len(order)]
    of_row = np.empty(len(order), np.int64)
    of_row[order] = np.cumsum(is_new) - 1
    return _Blocks(of_row, of[is_new], np.bincount(of_row, minlength=int(is_new.sum())))


def auroc(outputs: Ints, positive: NDArray[np.bool_], scores: Floats, count: int) -> Floats:
    """(count,) area under the ROC curve of each output; equal scores count half; NaN where a class is missing."""
    blocks = _blocks(outputs, scores)
    hits = np.bincount(blocks.of_row, positive, len(blocks.sizes))
    misses = blocks.sizes - hits
    doubled = np.bincount(blocks.output, hits * (2 * blocks.before(misses) + misses), count)
    of_positive, rows = np.bincount(outputs, positive, count), np.bincount(outputs, minlength=count)
    pairs = 2 * of_positive * (rows - of_positive)
    return ratio(np.asarray(doubled, np.float64), np.asarray(pairs, np.float64))


def macro_auroc(outputs: Ints, index: Ints, probabilities: Floats, count: int) -> Floats:
    """(count,) mean over the classes that an output has of the AUROC of each against all others; NaN with one class.

    Args:
        outputs: (n,) output of each row.
        index: (n,) its class.
        probabilities: (n, C) what was predicted.
        count: of outputs.
    """
    classes = probabilities.shape[1]
    each = outputs[:, None] * classes + np.arange(classes)
    positive = index[:, None] == np.arange(classes)
    found = auroc(each.ravel(), positive.ravel(), probabilities.ravel(), count * classes).reshape(count, classes)
    return mean_of_defined(found.T)


def spearman(outputs: Ints, truth: Floats, prediction: Floats, count: int) -> Floats:
    """(count,) Spearman's correlation of each output; 0 where only predictions are equal, NaN where the truth is."""
    rows = np.bincount(outputs, minlength=count)
    centred = []
    for values in (truth, prediction):
        blocks = _blocks(outputs, values)
        middle = 2 * blocks.before(blocks.sizes.astype(np.float64)) + blocks.sizes - rows[blocks.output]
        centred.append(middle[blocks.of_row])  # twice the rank, less its mean
    products = [(0, 1), (0, 0), (1, 1)]
    both, of_truth, of_prediction = (np.bincount(outputs, centred[a] * centred[b], count) for a, b in products)
    scale = np.sqrt(of_truth) * np.sqrt(of_prediction)
    value = np.divide(both, scale, out=np.zeros(count), where=scale > 0)
    return np.where(of_truth > 0, value, np.nan)


def expected_class(probabilities: Floats) -> Floats:
    """(n,) the expected class of (n, C) probabilities; rounding keeps equal probabilities equal."""
    return np.asarray(np.round(probabilities @ np.arange(probabilities.shape[1]), 9))


def kendall(truth: Floats, expected: Floats) -> float:
    """Kendall's tau-b of the expected class; 0 where all are equal, NaN where the truth is."""
    from scipy import stats

    if not (truth != truth[:1]).any():
        return np.nan
    return float(stats.kendalltau(truth, expected).statistic) if (expected != expected[0]).any() else 0.0
