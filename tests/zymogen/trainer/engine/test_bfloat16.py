"""Engines in bf16: as near to one process as that is to itself, weights gathered in bfloat16, and no copies of them.

The yardstick of test_engines.py, for runs that compute in bfloat16: how far one process ends from itself when
the bins of a step are grouped otherwise. Gradients of a micro-batch are rounded to bfloat16, so it is larger.
"""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.communication.__main__ import measured
from benchmarks.communication.expected import Case, Work, expected
from support.kept_runs import BF16, STEP_1, Trained, config, distances, yardstick
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]

TWO = ("parallel.context=2",)
MODERN = ("model.preset=modern_60k", "optimizer.name=muon")


@pytest.mark.parametrize(
    ("engine", "processes", "overrides"),
    [
        *((engine, 2, ()) for engine in ("ddp", "fsdp2", "zero3")),
        ("hsdp", 4, ()),
        *(pytest.param(engine, 2, (), marks=pytest.mark.prove) for engine in ("zero1", "zero2")),
        *(pytest.param(engine, 2, TWO, marks=pytest.mark.prove) for engine in ("ddp", "fsdp2", "zero3")),
        pytest.param("fsdp2", 3, MODERN, marks=pytest.mark.prove),
    ],
)
def test_engines_agree_in_bf16_as_far_as_bf16_does_with_itself(
    trained: Trained, engine: str, processes: int, overrides: tuple[str, ...]
) -> None:
    model = MODERN if overrides == MODERN else ()
    of_weights, of_losses = yardstick(trained, model, flags=BF16)
    assert of_weights > 1e-5  # a thousand times what float32 has: these runs did compute in bfloat16
    other = trained(engine, processes, overrides, flags=BF16)
    weights, losses = distances(trained("single", 1, model, flags=BF16), other)
    print(
        f"{engine}, {processes}: weights {weights / of_weights:.2f}, losses {losses / of_losses:.2f} times regrouping"
    )
    assert weights <= 3 * of_weights
    assert losses <= 3 * of_losses


@pytest.mark.parametrize(
    ("fault", "engine", "overrides"),
    [
        ("local_counts", "fsdp2", ()),
        pytest.param("local_counts", "zero3", (), marks=pytest.mark.prove),
        pytest.param("causal", "fsdp2", ("compute.attention=per_document", *TWO), marks=pytest.mark.prove),
    ],
)
def test_controls_are_seen_in_bf16(trained: Trained, fault: str, engine: str, overrides: tuple[str, ...]) -> None:
    one, wrong = trained("single", 1, flags=BF16), trained(engine, 2, overrides, flags=BF16, fault=fault)
    (weights, losses), (of_weights, of_losses) = distances(one, wrong), yardstick(trained, flags=BF16)
    assert weights > 6 * of_weights  # Adam moves no weight further than the rate allows, however wrong its gradient is
    assert losses > 100 * of_losses


@pytest.mark.parametrize(
    ("engine", "processes", "gathers"),
    [
        ("fsdp2", 2, 1 + 2 * 2),  # as in float32: the rest of the model; two layers, forward and backward
        pytest.param("hsdp", 4, 1 + 2 * 2, marks=pytest.mark.prove),
        ("zero3", 2, 14),  # one more than in float32, because a message of it has one type
    ],
)
def test_weights_of_layers_are_gathered_in_bfloat16_and_gradients_summed_in_float32(
    pool: RankPool, tmp_path: Path, engine: str, processes: int, gathers: int
) -> None:
    def launched(engine: str, processes: int, program: str, *words: str, precision: str) -> None:
        flags = ("--mixed_precision", precision)
        done = pool.run(processes, config(engine), words, flags=flags, program=program)
        assert done.status == 0, done.output

    traffic = measured(Case(engine, processes, precision="bf16"), "esm2_60k", 256, tmp_path, launched)
    assert traffic.sizes == traffic.expected
    assert traffic.calls["all_gather"] == 2 * gathers  # micro-batches
    work = Work("esm2_60k", bin_tokens=256, micro_batches=2, bins_per_step=2 * processes, device="cpu")
    in_float32 = expected(Case(engine, processes), work)
    assert traffic.sizes["all_gather"] < 0.55 * in_float32["all_gather"]  # the rest is the embedding, norms and biases
    assert traffic.sizes["reduce_scatter"] == in_float32["reduce_scatter"]


@pytest.mark.parametrize(("engine", "copies"), [("fsdp2", 1), ("zero3", 0), ("ddp", 9)])
def test_no_copy_of_a_gathered_weight_waits_for_the_backward_pass(
    pool: RankPool, recipe_in: Any, tmp_path: Path, engine: str, copies: int
) -> None:
    """DDP, whose weights are whole and in float32, is the control: autocast copies each of four in two layers.

    One more is of the head, which FSDP2 gathers in float32, too. DeepSpeed's own linear map keeps no copy of any.
    """
    words = [recipe_in(tmp_path), *STEP_1, "data.bins_per_step=2"]
    done = pool.run(2, config(engine), words, flags=BF16, fault="say_copies_of_weights")
    assert done.status == 0, done.output
    said = [line for line in done.output.splitlines() if line.startswith("copies of weights: ")]
    assert said == [f"copies of weights: {copies}, of 5 shapes"] * 2
