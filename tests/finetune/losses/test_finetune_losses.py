"""Losses of each type of task, against references written here or scipy's, and the ways in which they go wrong."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import norm
from torch import Tensor

from data.batches.batch import Targets
from finetune.labels.columns import LabelColumns
from finetune.losses.loss import SCALE, TaskLoss, balanced, cumulative, focal, squared
from finetune.tasks.task import Task
from support.assays.labelled_batches import EVERY_TYPE, PAIR, targets, task


def loss(objective: Task, numbers: Tensor, of: Targets) -> Tensor:
    return TaskLoss(objective)(numbers, of.labels, LabelColumns(*of.columns))


# Numbers ------------------------------------------------------------------------------------------


def test_squared_error_is_in_units_of_the_standard_deviation() -> None:
    """Labels 5 and -100 of mean 1 and standard deviation 2 are 2 and -50.5; a sentinel is a label like others."""
    found = loss(task("a", "regression"), torch.tensor([1.0, -50.0]), targets([0, 9], [5.0, -100.0]))
    assert found.item() == pytest.approx(1.0 + 0.25, rel=1e-6)


def test_each_output_has_its_own_scale() -> None:
    objective = task("a", "regression", outputs=2)
    objective.std[1] = 4.0
    found = loss(objective, torch.tensor([0.0, 0.0]), targets([0, 0], [5.0, 5.0], [0, 1]))
    assert found.item() == pytest.approx(4.0 + 1.0)


def test_a_bound_is_a_one_sided_gaussian_likelihood() -> None:
    predicted = np.linspace(-4, 4, 33)
    for side in (-1, 1):
        found = squared(torch.from_numpy(predicted), torch.full((33,), 0.7), torch.full((33,), side, dtype=torch.int8))
        # The true value is below 0.7 with probability Phi((0.7 - predicted) / SCALE), above with that of its negative.
        expected = -2 * SCALE**2 * norm.logcdf(side * (predicted - np.float32(0.7)) / SCALE)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_a_bound_that_is_kept_costs_nothing_and_one_that_is_broken_its_square() -> None:
    predicted = torch.tensor([-30.0, 30.0])
    below = torch.tensor([-1, -1], dtype=torch.int8)
    kept, broken = squared(predicted, torch.zeros(2), below).tolist()
    assert kept == 0
    assert broken == pytest.approx(900, rel=0.005)


def test_the_gradient_of_a_bound_is_right_far_out() -> None:
    """It is twice the distance; float32 loses it, to the sum of two numbers of 1e8 that cancel out."""
    predicted = torch.tensor([1e4], requires_grad=True)
    squared(predicted, torch.zeros(1), torch.tensor([-1], dtype=torch.int8)).sum().backward()
    assert predicted.grad is not None
    assert predicted.grad.item() == pytest.approx(2e4, rel=1e-6)
    control = torch.tensor([1e4], requires_grad=True)
    (-2 * 0.5**2 * torch.special.log_ndtr(-control / 0.5)).sum().backward()
    assert control.grad is not None
    assert not 1.9e4 < control.grad.item() < 2.1e4


def test_exact_labels_beside_bounds_have_a_finite_gradient() -> None:
    predicted = torch.tensor([1e4, -1e4, 0.0], requires_grad=True)
    squared(predicted, torch.zeros(3), torch.tensor([0, 1, -1], dtype=torch.int8)).sum().backward()
    assert predicted.grad is not None
    np.testing.assert_allclose(predicted.grad[:2], [2e4, -2e4], rtol=1e-6)
    assert predicted.grad[2] == pytest.approx(2 * 0.5 * math.sqrt(2 / math.pi))  # 2 scale phi(0) / Phi(0)


# Classes ------------------------------------------------------------------------------------------


def test_a_class_without_training_labels_learns_that_it_is_never_right() -> None:
    objective = task("a", "multiclass", classes=3)
    objective.class_counts[0, 2] = 0
    logits = torch.zeros(1, 3, requires_grad=True)
    found = loss(objective, logits, targets([0], [1.0]))
    found.backward()
    assert found.item() == pytest.approx(math.log(3))
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad, [[1 / 3, -2 / 3, 1 / 3]], rtol=1e-6)


def test_rare_classes_weigh_as_much_as_frequent_ones() -> None:
    """The ratio is torch's `pos_weight`; a label weighs 1 on average."""
    counts = np.array([[90, 10, 0], [5, 5, 5], [7, 0, 0], [0, 0, 0]])
    weights = balanced(counts)
    np.testing.assert_allclose(weights, [[100 / 180, 100 / 20, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]])
    objective = task("a", "binary", classes=2, imbalance="pos_weight")
    objective.class_counts[0] = [90, 10]
    logits, of = torch.tensor([0.4, -0.3]), targets([0, 9], [0.0, 1.0])
    expected = F.binary_cross_entropy_with_logits(logits, of.labels, pos_weight=torch.tensor(9.0), reduction="sum")
    assert loss(objective, logits, of).item() == pytest.approx(expected.item() * 100 / 180, rel=1e-6)


def test_weights_are_those_of_the_target_s_own_task() -> None:
    objective = task("a", "multilabel", outputs=2, classes=2, imbalance="pos_weight")
    objective.class_counts[:] = [[1, 1], [1, 3]]
    found = loss(objective, torch.zeros(2), targets([0, 0], [0.0, 0.0], [0, 1]))
    assert found.item() == pytest.approx(math.log(2) * (1 + 2), rel=1e-6)


def test_focal_loss_shrinks_what_is_learned_already() -> None:
    nats = -torch.log(torch.tensor([0.9, 0.5]))
    np.testing.assert_allclose(focal(nats), [0.01 * -math.log(0.9), 0.25 * math.log(2)], rtol=1e-5)
    sure = torch.tensor([100.0], requires_grad=True)
    found = loss(task("a", "binary", classes=2, imbalance="focal"), sure, targets([0], [1.0]))
    found.backward()
    assert found == 0
    assert sure.grad is not None
    assert sure.grad.item() == 0  # and not NaN


def test_ordered_classes_against_a_reference() -> None:
    logits = torch.tensor(
        [[2.0, 0.5, -1.0], [0.1, 0.0, -0.2], [5.0, 4.0, 3.0], [-1.0, -2.0, -9.0]], dtype=torch.float64
    )
    for label in range(4):
        expected = []
        for row in logits.tolist():
            above = [1.0, *(1 / (1 + math.exp(-one)) for one in row), 0.0]
            expected.append(-math.log(above[label] - above[label + 1]))
        found = cumulative(logits, torch.full((4,), float(label)))
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("score", [-1e4, -100.0, 100.0, 1e4])
def test_ordered_classes_far_out_are_finite(score: float) -> None:
    logits = (torch.tensor([[1.0, 0.0, -1e-3]]) + score).requires_grad_()
    for label in range(4):
        found = cumulative(logits, torch.tensor([float(label)]))
        (grad,) = torch.autograd.grad(found.sum(), logits)
        assert torch.isfinite(found).all()
        assert torch.isfinite(grad).all()
        is_right = label == (3 if score > 0 else 0)
        assert grad.sum().item() == pytest.approx(0 if is_right else np.sign(score), abs=1e-5)


# All of them --------------------------------------------------------------------------------------


def numbers_for(objective: Task, count: int) -> Tensor:
    width = {"multiclass": len(objective.classes), "ordinal": len(objective.classes) - 1}.get(objective.settings.type)
    numbers = torch.linspace(1, -1, count * (width or 1))
    return numbers.view(count, width) if width else numbers


@pytest.mark.parametrize("objective", [*EVERY_TYPE, PAIR], ids=lambda o: o.settings.name)
def test_sums_of_parts_add_up_to_the_whole(objective: Task) -> None:
    """However unevenly they are cut. Means of parts would not: (1, 1, 1, 9) in parts of 3 and 1 has mean 3, not 5."""
    labels = [1.0, 0.0, 1.0, 1.0]
    numbers, of = numbers_for(objective, 4), targets(range(4), labels)
    part, rest = loss(objective, numbers[:3], of.between(0, 3)), loss(objective, numbers[3:], of.between(3, 4))
    assert (part + rest).item() == pytest.approx(loss(objective, numbers, of).item(), rel=1e-6)
    assert loss(objective, numbers, of).dtype == torch.float32


@pytest.mark.parametrize("objective", [*EVERY_TYPE, PAIR], ids=lambda o: o.settings.name)
def test_without_a_target_the_sum_is_0_and_tied(objective: Task) -> None:
    numbers = numbers_for(objective, 4)[:0].requires_grad_()
    found = loss(objective, numbers, targets([], []))
    assert found == 0
    found.backward()
    assert numbers.grad is not None
