"""The closing words: what they claim follows from the numbers."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pretrain.evaluation.evaluate import Evaluation
from pretrain.evaluation.scores import MaskedLanguageScores
from pretrain.run.directory import RunDirectory
from pretrain.summary import closing_words, next_commands


def words(
    gain: float,
    gain_low: float,
    floor: float | None = None,
    engine: str = "ddp",
    world_size: int = 2,
    precision: str = "bf16",
    low: float = 8.5,
    high: float = 9.5,
) -> str:
    score = Evaluation(9.0, low, high, 18.0, gain, gain_low, floor, 40, 900)
    summary = SimpleNamespace(
        scores=MaskedLanguageScores({"mask_all": score, "80_10_10": score}, num_training=7),
        state=SimpleNamespace(tokens_seen=1000, step=10),
        run=RunDirectory(Path("runs/x")),
        seconds=3.0,
    )
    overrides = ["run.seed=1", "data.sources=['a b.fasta']"]
    commands = next_commands(summary, Path("r.toml"), overrides, engine, world_size, precision)
    return closing_words(summary, commands)


def test_scores_as_the_loop_reads_them() -> None:
    hidden, flattering = (Evaluation(p, 8.5, 9.5, 18.0, 0.7, 0.6, None, 40, 900) for p in (9.0, 7.0))
    scores = MaskedLanguageScores({"mask_all": hidden, "80_10_10": flattering}, num_training=7)
    assert scores.line() == "validation perplexity: mask-all 9.00 (unigram 18.00), 80/10/10 7.00 (unigram 18.00)"
    assert scores.numbers() == {"mask_all": hidden.numbers(), "80_10_10": flattering.numbers()}
    assert scores.rank_metric == 9.0  # not that of the corruption in which a target can be copied


def test_a_gain_beyond_chance_is_claimed() -> None:
    assert "It beats residue frequencies by 0.693 nats a residue (at least 0.600" in words(0.693, 0.6)


@pytest.mark.parametrize(("gain", "gain_low"), [(0.01, -0.001), (0.0, 0.0), (float("-inf"), float("nan"))])
def test_nothing_is_claimed_within_chance_or_without_numbers(gain: float, gain_low: float) -> None:
    said = words(gain, gain_low)
    assert "has not learned anything" in said
    assert "beats" not in said


def test_one_cluster_gives_no_interval_and_no_claim() -> None:
    said = words(0.7, float("nan"), low=float("nan"), high=float("nan"))
    assert "All validation proteins are of one cluster" in said
    assert "mask-all        9.00           unknown     18.00" in said
    assert "beats" not in said
    assert "has not learned" not in said


def test_the_share_of_what_can_be_learned() -> None:
    # From 18 towards 4.5 is 2 halvings; half of that way is one.
    assert "That is 50% of what can be learned" in words(np.log(2), 0.6, floor=4.5)


def test_commands_repeat_what_was_given() -> None:
    said = words(0.5, 0.4, world_size=3)
    assert (
        "accelerate launch --config_file accelerate_configs/ddp.yaml --num_processes 3 -m pretrain r.toml run.seed=1 "
        "'data.sources=['\"'\"'a b.fasta'\"'\"']' schedule.total_tokens=2000 --allow-schedule-change"
    ) in said
    assert "single.yaml -m pretrain" in words(0.5, 0.4, engine="single", world_size=1)
    assert "accelerate_configs/fsdp2.yaml -m pretrain" in words(0.5, 0.4, engine="fsdp2")
    assert "ddp.yaml --mixed_precision no -m pretrain r.toml" in words(0.5, 0.4, precision="no")  # the file says bf16
