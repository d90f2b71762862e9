"""The model on flat batches: packing, attention, dropout, loss, initial weights."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from data.alphabet import CLS, EOS, MASK, PAD
from data.batches.batch import IGNORED, Batch
from pretrain.model import encoder as encoder_module
from pretrain.model.attention.layout import frequencies
from pretrain.model.encoder import EXPECTED_MASK_RATIO, token_dropout_scale
from pretrain.model.initialization import WEIGHT_STD, initialise
from pretrain.model.layer import KeyedDropout, Site
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS, EsmShape
from support.inputs.flat_batches import (
    Document,
    T,
    document,
    gradients,
    mixed_bins,
    pack,
    perturb,
    relative,
    worst_gradient,
)
from zymogen.trainer.optimizer.kinds import parameter_groups
from zymogen.trainer.optimizer.settings import OptimizerSettings

SMALL = EsmShape(layers=3, dim=64, heads=4)


def small_model(shape: EsmShape = SMALL) -> MaskedLanguageModel:
    model = MaskedLanguageModel(shape)
    perturb(model)
    return model


@pytest.mark.parametrize("token_dropout", [True, False])
def test_packed_equals_each_sequence_alone(token_dropout: bool) -> None:
    model = small_model(replace(SMALL, token_dropout=token_dropout))
    bins = mixed_bins()
    packed = pack(bins)
    packed_logits = model.logits(packed)
    model(packed).sum().backward()
    packed_gradients = gradients(model)
    model.zero_grad()
    spans = iter(packed.spans)
    for one in (one for one_bin in bins for one in one_bin):
        alone = pack([[one]], num_slots=len(one[0]))
        start, end = next(spans)
        assert relative(packed_logits[start:end], model.logits(alone)) < 1e-6
        model(alone).sum().backward()
    assert worst_gradient(packed_gradients, gradients(model)) < 2e-6


def test_token_dropout_per_bin_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control of the test above: the mistake that it guards against is 1,000 times its tolerance."""
    model, batch = small_model(), pack(mixed_bins())

    def per_bin(batch: Batch) -> Tensor:
        is_mask = (batch.tokens == MASK).view(batch.num_bins, -1)
        real = (batch.tokens != PAD).view(batch.num_bins, -1)
        scale = (1 - EXPECTED_MASK_RATIO) / (1 - is_mask.sum(1) / real.sum(1))
        return torch.where(is_mask, 0.0, scale[:, None]).flatten()

    right = model.logits(batch)
    monkeypatch.setattr(encoder_module, "token_dropout_scale", per_bin)
    real = batch.tokens != PAD
    assert relative(model.logits(batch)[real], right[real]) > 1e-2


def test_token_dropout_scale_by_hand() -> None:
    unmasked, half = (
        ([CLS, 5, 6, EOS], [IGNORED] * 4),
        ([CLS, MASK, MASK, EOS], [IGNORED, 5, 6, IGNORED]),
    )
    all_masks = ([MASK, MASK], [5, 6])
    scale = token_dropout_scale(pack([[unmasked, half, all_masks]], num_slots=12))
    torch.testing.assert_close(scale, torch.tensor([0.88] * 4 + [1.76, 0, 0, 1.76] + [0, 0] + [0.88] * 2))


def test_a_document_may_stand_anywhere() -> None:
    model, bins = small_model(), mixed_bins()
    before, moved = pack(bins), pack([bins[1][::-1], bins[0][::-1]])
    start, end = before.spans[1]  # seven tokens, second in the first bin
    new_start, new_end = moved.spans[5]
    assert end - start == new_end - new_start == 7
    assert new_start > T > start
    assert relative(model.logits(moved)[new_start:new_end], model.logits(before)[start:end]) < 1e-6


def test_attention_is_bidirectional_and_ends_at_the_document() -> None:
    model, bins = small_model(), mixed_bins()
    before = pack(bins)
    ids, labels = bins[0][0]
    bins[0][0] = ([*ids[:-2], 4 if ids[-2] != 4 else 5, ids[-1]], labels)
    changed = (model.logits(pack(bins)) - model.logits(before)).abs().amax(1) > 1e-5
    assert changed[:200].all()  # the last residue reaches back to <cls>
    assert not changed[200:].any()


def test_loss_is_the_sum_over_targets_and_logits_of_chosen_slots() -> None:
    model, batch = small_model(), pack(mixed_bins())
    log_probabilities = model.logits(batch).log_softmax(-1)
    by_hand = -log_probabilities[batch.targets[0].slots, batch.targets[0].labels]
    losses, loss = model.target_losses(batch), model(batch)
    torch.testing.assert_close(losses, by_hand)
    assert (loss.shape, loss.dtype, losses.dtype) == ((1,), torch.float32, torch.float32)
    torch.testing.assert_close(loss[0], by_hand.sum())
    torch.testing.assert_close(model.logits(batch, torch.tensor([3, 400])), model.logits(batch)[[3, 400]])


@pytest.mark.parametrize("bins", [[[document(30, 0.0, 1)], [document(20, 0.0, 2)]], [[], []]])
def test_a_batch_without_targets_gives_zero_and_every_parameter_a_zero_gradient(
    bins: list[list[Document]],
) -> None:
    model = small_model()
    loss = model(pack(bins, num_slots=40))
    loss.sum().backward()
    assert loss.tolist() == [0.0]
    for name, gradient in gradients(model).items():
        assert not gradient.any(), name


def test_logits_and_losses_stay_float32_under_autocast() -> None:
    model, batch = small_model(), pack(mixed_bins())
    exact = model.target_losses(batch)
    with torch.autocast("cpu", torch.bfloat16):
        logits, losses = model.logits(batch, batch.targets[0].slots), model.target_losses(batch)
    assert logits.dtype == losses.dtype == torch.float32
    assert 0 < relative(losses, exact) < 0.03


def test_dropout_does_not_depend_on_the_bins_of_a_forward() -> None:
    model, bins = small_model(replace(SMALL, dropout=0.3)), mixed_bins()
    together = pack(bins)
    state = torch.get_rng_state()
    logits = model.logits(together)
    assert torch.equal(torch.get_rng_state(), state)  # nothing drawn from the global generator
    assert torch.equal(model.logits(together), logits)
    for i, one_bin in enumerate(bins):
        alone = replace(pack([one_bin]), draw_keys=together.draw_keys[i : i + 1])
        assert relative(model.logits(alone), logits[i * T : (i + 1) * T]) < 1e-6
    other_keys = replace(together, draw_keys=tuple(key + 1 for key in together.draw_keys))
    assert relative(model.logits(other_keys), logits) > 1e-2


def test_dropout_keeps_the_expectation_and_differs_by_layer_and_site() -> None:
    batch = replace(pack([[]], num_slots=64), draw_keys=(2**63 - 1,))
    update, dropout = torch.full((64, 32), 3.0), KeyedDropout(0.25, batch)
    dropped = torch.stack([dropout(update, layer, site) for layer in range(50) for site in Site])
    assert dropped.unique().tolist() == [0.0, 4.0]
    # 204,800 draws: the mean of update / (1 - p) * kept has a standard error of 0.004.
    assert float(dropped.mean()) == pytest.approx(3.0, abs=0.016)
    assert len({d.numpy().tobytes() for d in dropped}) == 100
    slots = torch.tensor([3, 60])
    assert torch.equal(dropout(update[:2], 7, Site.ATTENTION, slots), dropout(update, 7, Site.ATTENTION)[slots])


def test_dropout_is_off_in_evaluation() -> None:
    plain, dropping = small_model(), small_model(replace(SMALL, dropout=0.3)).eval()
    batch = pack(mixed_bins())
    assert torch.equal(dropping.logits(batch), plain.logits(batch))


def test_initial_weights_depend_on_seed_and_name_alone() -> None:
    model, deeper = MaskedLanguageModel(SMALL), MaskedLanguageModel(replace(SMALL, layers=5))
    for each, global_seed in ((model, 1), (deeper, 2)):
        torch.manual_seed(global_seed)
        initialise(each, seed=17)
    weights = model.state_dict()
    for name, weight in weights.items():
        assert torch.equal(weight, deeper.state_dict()[name]), name
        expected = 1.0 if name.endswith("norm.weight") else 0.0
        if weight.ndim == 1:
            assert (weight == expected).all(), name
        else:
            assert float(weight.std()) == pytest.approx(WEIGHT_STD, rel=0.05), name
    # Pinned, so that a change of the keys does not pass unseen.
    pinned = torch.tensor([0.005136, -0.024895, 0.035623])
    torch.testing.assert_close(weights["encoder.embedding.weight"][0, :3], pinned, rtol=0, atol=1e-6)
    first, second = (weights[f"encoder.layers.{i}.attention.qkv.weight"] for i in (0, 1))
    assert not torch.isclose(first, second).any(1).all()
    initialise(model, seed=18)
    assert not torch.equal(model.encoder.embedding.weight, deeper.encoder.embedding.weight)


def test_parameter_groups_hold_each_parameter_once() -> None:
    model = MaskedLanguageModel(SMALL)
    decay, no_decay = parameter_groups(model, OptimizerSettings(weight_decay=0.01))
    assert (decay["name"], decay["weight_decay"]) == ("decay", 0.01)
    assert (no_decay["name"], no_decay["weight_decay"]) == ("no_decay", 0.0)
    grouped = [*map(id, decay["params"]), *map(id, no_decay["params"])]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())
    assert {p.ndim for p in decay["params"]} == {2}
    assert {p.ndim for p in no_decay["params"]} == {1}
    assert any(p is model.encoder.embedding.weight for p in decay["params"])
    torch.optim.AdamW(parameter_groups(model, OptimizerSettings(weight_decay=0.01)), lr=1e-3)


def test_state_names_are_stable() -> None:
    names = set(MaskedLanguageModel(replace(SMALL, layers=1)).state_dict())
    inner = [
        "attention_norm",
        "attention.qkv",
        "attention.out",
        "feed_forward_norm",
        "feed_forward.up",
        "feed_forward.down",
    ]
    modules = [
        *(f"encoder.layers.0.{m}" for m in inner),
        "encoder.final_norm",
        "head.dense",
        "head.norm",
    ]
    assert names == {
        "encoder.embedding.weight",
        "head.bias",
        *(f"{m}.{k}" for m in modules for k in ("weight", "bias")),
    }


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: EsmShape(2, 48, 5), r"dim = 48 over heads = 5 gives 9\.6 channels"),
        (lambda: EsmShape(2, 36, 4), r"gives 9 channels a head: must be an even"),
        (lambda: EsmShape(0, 48, 4), r"shape\.layers is 0; it must be at least 1"),
        (
            lambda: EsmShape(2, 48, 4, dropout=1.0),
            r"shape\.dropout is 1\.0; it must lie in \[0, 1\)",
        ),
        (lambda: EsmShape(2, 48, 4, layer_norm_eps=0.0), r"shape\.layer_norm_eps is 0\.0; it must be above 0"),
        (
            lambda: EsmShape(2, 48, 4, rotary_precision="float8"),
            r"shape\.rotary_precision is 'float8'; .* allowed are 'float32', 'float16'",
        ),  # type: ignore[arg-type]
    ],
)
def test_a_shape_that_cannot_be_built_is_refused(build: Callable[[], EsmShape], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build()


def test_presets_are_the_published_sizes() -> None:
    sizes = {name: (s.layers, s.dim, s.heads) for name, s in PRESETS.items()}
    assert sizes == {
        "esm2_60k": (2, 48, 4),
        "esm2_800k": (4, 128, 4),
        "esm2_8m": (6, 320, 20),
        "esm2_35m": (12, 480, 20),
        "esm2_150m": (30, 640, 20),
        "esm2_650m": (33, 1280, 20),
        "esm2_3b": (36, 2560, 40),
        "esm2_15b": (48, 5120, 40),
        "modern_60k": (2, 48, 2),
        "modern_800k": (4, 128, 4),
        "modern_8m": (6, 320, 5),
        "modern_35m": (12, 480, 10),
        "modern_150m": (30, 640, 10),
        "modern_300m": (30, 960, 15),
        "modern_600m": (36, 1152, 18),
    }


def test_rotary_frequencies_survive_the_meta_device_and_inference_mode() -> None:
    frequencies.cache_clear()
    with torch.device("meta"):
        model = MaskedLanguageModel(SMALL)
    model.to_empty(device="cpu")
    perturb(model)
    batch = pack(mixed_bins())
    with torch.inference_mode():
        first = model.logits(batch)
    model(batch).sum().backward()
    assert torch.equal(first, small_model().logits(batch))
