"""Pooling, thresholds, the pair head and units, on numbers that can be computed by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from data.alphabet import CLS, EOS, MASK
from finetune.heads import head as heads
from finetune.heads.activation import activate
from finetune.heads.head import LEAST_GAP, OrderedThresholds, PairHead, TaskHead
from finetune.heads.input_scale import InputScale
from finetune.heads.pooling import Pooling, first_slots
from finetune.heads.settings import HeadSettings
from pretrain.model.presets import PRESETS
from support.assays.labelled_batches import PAIR, task, wide
from support.inputs.flat_batches import pack

SHAPE = PRESETS["esm2_60k"]
DOCUMENTS = [[([CLS, 5, 6, MASK, 8, EOS], [-100] * 6), ([CLS, 9, EOS], [-100] * 3)], [([7, 7], [-100] * 2)]]
BATCH = pack(DOCUMENTS, num_slots=12)


# Pooling ------------------------------------------------------------------------------------------


def test_the_mean_is_of_residues() -> None:
    """No begin, end or pad token, and no linker; the slot of a mask and a document without ends count."""
    vectors = torch.stack([torch.arange(24.0), torch.ones(24)], 1)
    linkers = torch.tensor([[0, 0], [0, 0], [0, 0]])
    found = Pooling(2, False)(vectors, BATCH, first_slots(BATCH), linkers)
    assert found.tolist() == [[2.5, 1], [7, 1], [12.5, 1]]
    linkers[0] = torch.tensor([2, 4])
    found = Pooling(2, False)(vectors, BATCH, first_slots(BATCH), linkers)
    assert found.tolist() == [[2.5, 1], [7, 1], [12.5, 1]]  # of 1 and 4 it is the same
    linkers[0] = torch.tensor([2, 3])
    found = Pooling(2, False)(vectors, BATCH, first_slots(BATCH), linkers)
    assert found[0, 0] == pytest.approx((1 + 3 + 4) / 3)


def test_attention_weighs_residues_by_the_softmax_of_a_score() -> None:
    """Scores of 1,000 do not overflow."""
    vectors = torch.randn(24, 8, generator=torch.Generator().manual_seed(0)).double() * 300
    pooling = Pooling(8, True).double()
    assert pooling.score is not None
    found = pooling(vectors, BATCH, first_slots(BATCH), torch.zeros(3, 2, dtype=torch.int64))
    for row, slots in enumerate(([1, 2, 3, 4], [7], [12, 13])):
        own = vectors[slots]
        expected = torch.softmax(own @ pooling.score.weight[0], 0) @ own
        torch.testing.assert_close(found[row], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("attention", [False, True])
def test_what_is_centred_before_it_is_summed_keeps_small_differences(attention: bool) -> None:
    """Deviations of a thousandth of the mean, over 500 residues: a float32 sum of them as they are rounds 500 times."""
    tokens = [CLS, *[5] * 500, EOS]
    batch = pack([[(tokens, [-100] * 502)]], num_slots=502)
    exact = 2 + 1e-3 * torch.randn(502, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scale = InputScale(np.full(8, 2.0, np.float32), np.full(8, 1e-3, np.float32))
    pooling, none = Pooling(8, attention), torch.zeros(1, 2, dtype=torch.int64)
    wanted = pooling.double()(exact := exact.float().double(), batch, first_slots(batch), none) - 2
    vectors, pooling = exact.float(), pooling.float()
    centred = pooling(vectors, batch, first_slots(batch), none, scale=scale).double() - wanted
    control = pooling(vectors, batch, first_slots(batch), none).double() - 2 - wanted
    # 500 roundings of numbers of at most 4e-3, in one direction at worst, and the weights' own.
    assert centred.abs().max() < 4e-3 * 500 * 2**-24
    assert control.abs().max() > 20 * centred.abs().max()


# Heads --------------------------------------------------------------------------------------------


def test_a_target_gets_the_number_of_its_own_row_and_task() -> None:
    head = TaskHead(task("a", "regression", outputs=3), HeadSettings(), SHAPE)
    wide(head)
    vectors = torch.randn(4, 48)
    rows, outputs = torch.tensor([3, 0, 0]), torch.tensor([1, 2, 0])
    whole = head.map(vectors)
    assert head(vectors, rows, outputs).tolist() == [whole[3, 1], whole[0, 2], whole[0, 0]]
    many = TaskHead(task("a", "multiclass", outputs=2, classes=3), HeadSettings(), SHAPE)
    wide(many)
    found = many(vectors, rows, torch.tensor([1, 0, 1]))
    whole = many.map(vectors)
    torch.testing.assert_close(found, torch.stack([whole[3, 3:], whole[0, :3], whole[0, 3:]]))


@pytest.mark.parametrize("kind", ["regression", "multiclass", "ordinal"])
def test_numbers_are_float32_under_autocast(kind: str) -> None:
    classes = 0 if kind == "regression" else 3
    for form in ("mlp", "transformers"):
        head = TaskHead(task("a", kind, classes=classes), HeadSettings(form=form), SHAPE)  # type: ignore[arg-type]
        with torch.autocast("cpu", torch.bfloat16):
            found = head(torch.randn(5, 48), torch.arange(5), torch.zeros(5, dtype=torch.int64))
        assert found.dtype == torch.float32
        # Numbers that bfloat16 cannot hold: the last map's result is not rounded.
        assert not torch.equal(found, found.bfloat16().float())


def test_thresholds_are_ordered_whatever_is_learned() -> None:
    thresholds = OrderedThresholds(2, 5)
    with torch.no_grad():
        thresholds.gaps.copy_(torch.tensor([3.0, -200.0, 0.0, 1.0, -5.0, 20.0]))
    logits = thresholds(torch.tensor([0.0, 10.0]), torch.tensor([0, 1]))
    assert logits.shape == (2, 4)
    assert (logits.diff(dim=1) <= -0.99 * LEAST_GAP).all()
    np.testing.assert_allclose(logits.detach().mean(1), [0, 10], atol=1e-6)
    gaps = F.softplus(torch.tensor([3.0, -200.0, 0.0])) + LEAST_GAP
    np.testing.assert_allclose(-logits[0].detach().diff(), gaps, rtol=1e-5, atol=3e-7)


# Pairs --------------------------------------------------------------------------------------------


def test_a_pair_is_an_mlp_of_both_vectors_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    head, vectors = PairHead(SHAPE, 16, 2).double(), torch.randn(10, 48).double()
    wide(head)
    first, second = torch.triu_indices(10, 10, 1)
    both = torch.cat([head.norm(vectors)[first], head.norm(vectors)[second]], 1)
    maps = torch.cat([head.first.weight, head.second.weight], 1)
    expected = F.gelu(both @ maps.t() + head.first.bias) @ head.out.weight.t() + head.out.bias
    gradients = torch.autograd.grad(expected.square().sum(), list(head.parameters()))
    for chunk in (1 << 24, 7 * 16 * 4):
        monkeypatch.setattr(heads, "CHUNK_BYTES", chunk)
        found = head(vectors, first, second)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        for own, other in zip(
            torch.autograd.grad(found.square().sum(), list(head.parameters())), gradients, strict=True
        ):
            torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-10)


def test_transformers_has_no_head_for_pairs() -> None:
    with pytest.raises(ValueError, match=r"heads\.form is 'transformers', .* the level 'pair' of task 'contact'"):
        TaskHead(PAIR, HeadSettings(form="transformers"), SHAPE)


# Settings and predictions -------------------------------------------------------------------------------


def test_the_form_decides_the_pooling() -> None:
    assert (HeadSettings().pooled_by, HeadSettings(form="transformers").pooled_by) == ("mean", "begin")
    assert HeadSettings(form="transformers", pooling="auto").pooled_by == "begin"
    assert HeadSettings(pooling="attention").pooled_by == "attention"
    with pytest.raises(ValueError, match=r"heads\.pooling is 'mean'; heads\.form is 'transformers'.*to 'begin'"):
        HeadSettings(form="transformers", pooling="mean")
    with pytest.raises(ValueError, match=r"heads\.hidden is 9; heads\.form = 'transformers' does not read it"):
        HeadSettings(form="transformers", hidden=9)
    with pytest.raises(ValueError, match=r"heads\.hidden is 0; it must be at least 1"):
        HeadSettings(hidden=0)


def test_predictions_are_in_the_task_s_scale() -> None:
    first = torch.tensor([0, 1])
    objective = task("a", "regression", outputs=2)
    objective.std[1] = 10
    assert activate(objective, torch.tensor([1.5, -1.0]), first).tolist() == [4, -9]
    found = activate(task("a", "binary", classes=2), torch.tensor([0.0, 2.0]), first)
    np.testing.assert_allclose(found, [0.5, 1 / (1 + np.exp(-2))], rtol=1e-12)
    rows = torch.tensor([[0.0, 0.0, 1.0], [-2.0, 0.0, 0.0]])
    found = activate(task("a", "multiclass", classes=3), rows, first)
    np.testing.assert_allclose(found, torch.softmax(rows.double(), 1), rtol=1e-12)
    above = torch.tensor([[2.0, 0.0], [0.0, -1.0]])
    found = activate(task("a", "ordinal", classes=3), above, first)
    s = 1 / (1 + np.exp(-above.double().numpy()))
    np.testing.assert_allclose(found, np.stack([1 - s[:, 0], s[:, 0] - s[:, 1], s[:, 1]], 1), rtol=1e-12)
    np.testing.assert_allclose(found.sum(1), 1)
    assert found.dtype == np.float64
