"""Types whose labels are classes: yes or no, one of several, and one of several in an order.

In: logits, indices of classes. Out: losses in nats, probabilities, metrics. Kept: the thresholds of ordered classes.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from finetune.metrics import weighted
from finetune.metrics.calibration import expected_calibration_error
from finetune.metrics.enrichment import enrichment_metrics
from finetune.metrics.predictions import OutputRows
from finetune.metrics.weighted import Floats, Metric
from finetune.task_types.task_type import TaskType
from finetune.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor, nn


class Binary(TaskType):
    """A logit of yes for each label; ranked by AUROC."""

    is_number = False
    is_binary = True
    transformers_problem = "multi_label_classification"
    logits_are = "The sigmoid of each logit is the probability of its label."

    def loss(self, numbers: "Tensor", labels: "Tensor", censoring: "Tensor") -> "Tensor":
        """Return the cross-entropy of logits ``(n,)`` of yes."""
        from torch.nn.functional import binary_cross_entropy_with_logits

        return binary_cross_entropy_with_logits(numbers, labels.to(numbers.dtype), reduction="none")

    def activate(self, numbers: "Tensor") -> "Tensor":
        """Return the probability of yes."""
        return numbers.sigmoid()

    def metric(self, truth: Floats, ranks: Floats, censoring: NDArray[np.int8]) -> Metric:
        """Return the area under the ROC curve."""
        return Metric("auroc", 0.5, weighted.auroc(truth == 1, ranks))

    def other_metrics(self, rows: OutputRows, notes: list[str]) -> dict[str, float]:
        """Return metrics of early recognition, and those of the class that is called."""
        from sklearn.metrics import f1_score, matthews_corrcoef

        positive, called = rows.truth == 1, rows.prediction >= 0.5
        return {
            **enrichment_metrics(positive, rows.ranks),
            "mcc": float(matthews_corrcoef(positive, called)),
            "f1": float(f1_score(positive, called, zero_division=0.0)),
            "calibration_error": expected_calibration_error(rows.truth, rows.prediction),
        }


class Multilabel(Binary):
    """The same for each of several columns, which count as their mean."""

    averages_columns = True


class Multiclass(TaskType):
    """A logit of each class; ranked by the mean AUROC of each class against all others."""

    is_number = False
    predicts_each_class = True
    transformers_problem = "single_label_classification"
    logits_are = "The softmax of the logits is the probability of each class."

    def shape(self, num_classes: int) -> tuple[int, ...]:
        """Return one number for each class."""
        return (num_classes,)

    def loss(self, numbers: "Tensor", labels: "Tensor", censoring: "Tensor") -> "Tensor":
        """Return the cross-entropy over all classes of logits ``(n, C)``.

        A class without training labels stays in the softmax, and learns that it is never right. Were it taken out, a
        label of that class outside of the training part would have an infinite loss, and a program that takes the
        largest of the exported logits would choose the class by chance.
        """
        from torch.nn.functional import cross_entropy

        return cross_entropy(numbers, labels.long(), reduction="none")

    def activate(self, numbers: "Tensor") -> "Tensor":
        """Return the probability of each class."""
        return numbers.softmax(1)

    def metric(self, truth: Floats, ranks: Floats, censoring: NDArray[np.int8]) -> Metric:
        """Return the mean AUROC of the classes that are there."""
        present = np.unique(truth).astype(np.int64)
        return Metric("macro_auroc", 0.5, weighted.macro_auroc(truth, ranks, present), len(present))

    def other_metrics(self, rows: OutputRows, notes: list[str]) -> dict[str, float]:
        """Return metrics of the class that is called."""
        from sklearn.metrics import f1_score, matthews_corrcoef

        index, called = rows.truth.astype(np.int64), rows.task.called(rows.output, rows.prediction)
        sure = rows.prediction[np.arange(len(index)), called]
        return {
            "mcc": float(matthews_corrcoef(index, called)),
            "macro_f1": float(f1_score(index, called, labels=np.unique(index), average="macro", zero_division=0.0)),
            "accuracy": float((index == called).mean()),
            "majority": float(np.bincount(index).max() / len(index)),
            "calibration_error": expected_calibration_error(index == called, sure),
        }


class Ordinal(Multiclass):
    """One score and thresholds between classes; ranked by Kendall's tau of the expected class."""

    is_ordered = True
    transformers_problem = ""

    def shape(self, num_classes: int) -> tuple[int, ...]:
        """Return one score."""
        return ()

    def output_module(self, num_outputs: int, num_classes: int) -> "nn.Module":
        """Return the thresholds."""
        from finetune.heads.head import OrderedThresholds

        return OrderedThresholds(num_outputs, num_classes)

    def loss(self, numbers: "Tensor", labels: "Tensor", censoring: "Tensor") -> "Tensor":
        """Return the negative log-likelihood of each class, of cumulative logits ``(n, C - 1)``."""
        from finetune.losses.loss import cumulative

        return cumulative(numbers, labels)

    def activate(self, numbers: "Tensor") -> "Tensor":
        """Return differences of the probabilities of lying above each threshold."""
        from torch.nn.functional import pad

        above = pad(pad(numbers, (1, 0), value=np.inf), (0, 1), value=-np.inf).sigmoid()
        return above[:, :-1] - above[:, 1:]

    def metric(self, truth: Floats, ranks: Floats, censoring: NDArray[np.int8]) -> Metric:
        """Return Kendall's tau."""
        return Metric("kendall", 0.0, weighted.kendall(truth, ranks), len(np.unique(truth)))

    def other_metrics(self, rows: OutputRows, notes: list[str]) -> dict[str, float]:
        """Return those of classes, and the quadratic kappa."""
        from sklearn.metrics import cohen_kappa_score

        index, called = rows.truth.astype(np.int64), rows.task.called(rows.output, rows.prediction)
        kappa = cohen_kappa_score(index, called, weights="quadratic", labels=np.arange(len(rows.task.classes)))
        return {**super().other_metrics(rows, notes), "quadratic_kappa": float(kappa)}

    def ranking(self, prediction: Floats) -> Floats:
        """Return the expected class; rounding keeps equal probabilities equal."""
        return np.asarray(np.round(prediction @ np.arange(prediction.shape[1]), 9))

    def relative(self, task: Task, outputs: NDArray[np.int64], prediction: Floats) -> Floats:
        """Return the expected class beyond that of the training labels."""
        expected = task.shares(outputs) @ np.arange(len(task.classes))
        return np.asarray(np.round(self.ranking(prediction) - expected, 9))
