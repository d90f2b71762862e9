"""FLOPs by formula, by torch's counter and by hand; the peak they are a share of; the benchmark that prints both."""

import json
import math

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import model as benchmark
from benchmarks.proteins import batches, draw, packed, padded, representative, work
from benchmarks.training import Case, activation_bytes, compare, ours, theirs
from data.alphabet import CLS, EOS, MASK, PAD
from data.batches.batch import IGNORED
from pretrain.model.initialization import initialise
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.memory import encoder_flops, forward_flops, training_flops
from pretrain.model.presets import PRESETS
from support.inputs.flat_batches import labels_of
from zymogen.trainer.telemetry.peak import known_peak, measured_peak, peak

CPU = torch.device("cpu")
BARS = benchmark.Bars(1.0, 1.0, 1.0)


# FLOPs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["esm2_60k", "modern_60k", "esm2_800k"])
def test_needed_flops_are_those_of_the_model(preset: str) -> None:
    # One document that fills its bin: the dense reference computes no more than is asked for, but for queries of the
    # last layer that nobody reads, and what they gather.
    (document,) = documents = draw(np.array([96]))
    (batch,) = packed(documents, 96)
    assert batch.tokens.numel() == len(document) == 96
    model = MaskedLanguageModel(PRESETS[preset], "dense")
    initialise(model, 0)
    # The counter knows no fused attention of a CPU; this one is two matrix products, and four backwards.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(batch).sum().backward()
    needed, dim = training_flops(model.shape, *work(documents), pruned=True), model.shape.dim
    unread = 96 - len(batch.targets[0].slots)
    assert unread > 0
    assert counter.get_total_flops() == needed + 3 * unread * (2 * dim * dim + 4 * dim * 96)


def test_flops_by_hand() -> None:
    shape = PRESETS["esm2_60k"]  # 2 layers, 48 channels, 192 within the feed-forward, 33 tokens
    tokens, targets, lengths = 7 + 5, 3, (7, 5)
    layer = 2 * tokens * 48 * (3 * 48 + 48 + 192 + 192)
    attention = sum(2 * (n * n * 48) + 2 * (n * n * 48) for n in lengths)
    head = 2 * targets * 48 * (48 + 33)
    whole = 2 * (layer + attention) + head
    assert forward_flops(shape, tokens, 49 + 25, targets) == whole
    skipped = 2 * (tokens - targets) * 48 * (48 + 48 + 192 + 192) + attention * (tokens - targets) / tokens
    assert forward_flops(shape, tokens, 49 + 25, targets, pruned=True) == whole - skipped
    assert training_flops(shape, tokens, 49 + 25, targets) == 3 * whole
    assert encoder_flops(shape, tokens, 49 + 25, targets) == whole - skipped - head
    assert encoder_flops(shape, tokens, 49 + 25, tokens + 1) == whole - head


@pytest.mark.parametrize(
    ("preset", "mega_flops", "needed"),
    [("8m", 54, 0.878), ("35m", 229, 0.939), ("150m", 985, 0.976), ("650m", 4115, 0.978), ("3b", 17_474, 0.980)],
)
def test_training_flops_of_esm2_by_token(preset: str, mega_flops: int, needed: float) -> None:
    # Crop 1,024: mean length 275, attention as at 435. The head at 15% of the tokens.
    shape = PRESETS[f"esm2_{preset}"]
    by_token = training_flops(shape, 1, 435, 0.15)
    assert by_token / 1e6 == pytest.approx(mega_flops, rel=0.01)
    assert training_flops(shape, 1, 435, 0.15, pruned=True) / by_token == pytest.approx(needed, abs=6e-4)


# The peak -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tera_flops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA L4", 121),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA B200", 2250),
    ],
)
def test_known_peaks(name: str, tera_flops: float) -> None:
    assert known_peak(name, torch.bfloat16) == known_peak(name, torch.float16) == tera_flops * 1e12
    assert known_peak(name, torch.float32) is None


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A10G",
        "NVIDIA A1000",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "Tesla T4",
        "",
    ],
)
def test_a_device_that_the_table_does_not_hold_is_not_guessed(name: str) -> None:
    assert known_peak(name, torch.bfloat16) is None


def test_what_is_not_known_is_measured() -> None:
    found = peak(CPU, torch.float32, 64)
    assert 1e8 < found < 1e14
    assert math.isfinite(measured_peak(CPU, torch.bfloat16, 64))


# The benchmark ------------------------------------------------------------------------------------


def test_both_sides_get_the_same_proteins() -> None:
    documents = draw(np.array([30, 7, 19, 64]), seed=3)
    by_length = sorted(documents, key=len, reverse=True)
    theirs_, (bin_,) = padded(by_length), packed(documents, 200)
    real = theirs_["attention_mask"].bool()
    used = int(real.sum())
    assert torch.equal(bin_.tokens[:used], theirs_["input_ids"][real])
    assert torch.equal(labels_of(bin_)[:used], theirs_["labels"][real])
    assert (theirs_["input_ids"][~real] == PAD).all()
    assert (theirs_["labels"][~real] == IGNORED).all()
    assert [len(d) for d in by_length] == [end - start for start, end in bin_.spans]
    assert all((d.inputs[0], d.inputs[-1]) == (CLS, EOS) for d in documents)
    assert any((d.inputs == MASK).any() for d in documents)
    assert work(documents) == (120, 900 + 49 + 361 + 4096, int(bin_.counts))


@pytest.mark.parametrize("grouped", [False, True])
def test_a_round_is_representative(grouped: bool) -> None:
    everything = batches(16, 1024, 0, grouped=grouped)
    chosen = representative(everything, 2)
    bins = packed([document for batch in chosen for document in batch], 4096)
    for cost in (
        lambda b: sum(map(len, b)),
        lambda b: sum(len(d) ** 2 for d in b),
        lambda b: max(map(len, b)),
        lambda b: max(map(len, b)) ** 2,
    ):
        assert np.mean(list(map(cost, chosen))) == pytest.approx(np.mean(list(map(cost, everything))), rel=0.1)
    assert sum(len(d) for batch in chosen for d in batch) > 0.97 * sum(b.tokens.numel() for b in bins)


@pytest.mark.slow
def test_compare_gives_ratios() -> None:
    case = Case(preset="60k", precision="fp32", crop=64, batch_sequences=3)
    speeds = compare(case, CPU, rounds=2)
    assert speeds.losses[0] == pytest.approx(speeds.losses[1], rel=1e-5)
    assert len(speeds.random) == len(speeds.grouped) == 2
    rows = benchmark.rows_of(case, BARS, speeds)
    assert len(rows) == 4
    assert all(row.ratio is not None and row.ratio > 0 for row in rows)


def test_bytes_kept_for_backward() -> None:
    linear = torch.nn.Linear(8, 4)
    x = torch.randn(3, 8)
    # The input, once, and what exp keeps: its result. The weight is a parameter.
    assert activation_bytes(lambda: (linear(x) + linear(x)).exp(), linear) == 4 * (3 * 8 + 3 * 4)
    model = torch.nn.Sequential(linear, torch.nn.Identity())
    assert activation_bytes(lambda: model(x)[:1].sin(), model) == 4 * (3 * 8 + 3 * 4)  # a view keeps the whole


def test_the_sides_are_what_they_say() -> None:
    case = Case(preset="60k", precision="fp32", crop=64, batch_sequences=3)
    assert theirs(case, CPU).model.config._attn_implementation == "sdpa"
    for side in (ours(case, CPU), theirs(case, CPU)):
        assert side.model.training
        assert side.optimizer.defaults["fused"]


@pytest.mark.slow
def test_the_benchmark_runs(capsys: pytest.CaptureFixture) -> None:
    threads = torch.get_num_threads()
    try:
        benchmark.main(["--quick", "--only", "8m-fp32", "memory"])
    finally:
        torch.set_num_threads(threads)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["benchmark"] == "model"
    assert len(result["rows"]) == 16
    assert all(row["ratio"] is None and row["holds"] is None for row in result["rows"])
