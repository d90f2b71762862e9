"""What `python -m benchmarks.communication` counts is what the engines have to exchange, to the byte."""

import json
import sys

import pytest

from benchmarks.communication.expected import Case, Work, expected, weighted
from support.launching import run

CASES = ("fsdp2/muon", "ddp/ulysses")
"""They have all that these engines exchange, and what attention and Muon do; a launch is dear."""


@pytest.mark.prove
def test_bytes_of_a_step_are_those_expected() -> None:
    words = ["-m", "benchmarks.communication", "--only", *CASES, "--preset", "esm2_60k", "--bin-tokens", "256"]
    done = run([sys.executable, *words])
    assert done.status == 0, done.output
    rows = json.loads(done.output.splitlines()[-1])["rows"]
    assert [row["work"].partition(",")[0] for row in rows] == list(CASES)
    for row in rows:
        assert row["sizes"] == row["expected"], row["work"]
        assert row["holds"]
        assert 0 < row["seconds_in_flight"] < 60
        assert 0 < row["share"] <= 1


def test_expectations_by_hand() -> None:
    """ESM-2 60k: 32 parameters of 60,705 elements in all, 4,161 of them outside the two layers; 48 channels."""
    work = Work("esm2_60k", bin_tokens=256, micro_batches=2, bins_per_step=4, device="cpu")
    step = 8 * (1 + 4 + 6) + 4 * 4  # targets, bins, what ranks tell each other; the losses of each bin
    assert expected(Case("ddp", 2), work) == {"all_reduce": 4 * 60_705 + step}
    # Cut in two, the 33 rows of the embedding and of its bias become 34.
    rest, layers = 4 * (4_161 + 48 + 1), 4 * (60_705 - 4_161)
    sharded = {"all_gather": 2 * (2 * layers + rest), "reduce_scatter": 2 * (layers + rest)}
    assert expected(Case("fsdp2", 2), work) == {**sharded, "all_reduce": 8 + step}
    assert expected(Case("hsdp", 4), work) == {**sharded, "all_reduce": (layers + rest) // 2 + 8 + step}
    heads = expected(Case("ddp", 2, "ulysses"), work)["all_to_all"]
    assert heads == 2 * 2 * 2 * 4 * 128 * 48 * 4  # micro-batches, layers, ways, tensors, own slots, channels, bytes
    # Each layer has 3 + 1 maps of 48 x 48 and two of 192 x 48: two ranks have one layer's worth each.
    maps = 2 * (4 * 48 * 48 + 2 * 192 * 48)
    muon = expected(Case("ddp", 2, optimizer="muon"), work)
    assert muon == {"all_reduce": 4 * 60_705 + step, "all_gather": 4 * maps}
    cut = expected(Case("fsdp2", 2, optimizer="muon"), work)
    assert cut["all_gather"] == sharded["all_gather"] + 2 * 4 * maps  # combined momenta, and the results
    keys = expected(Case("ddp", 2, "all_gather"), work)
    assert (keys["all_gather"], keys["reduce_scatter"]) == (heads, heads // 2)  # gathered again for the gradient
    assert weighted({"all_reduce": 1, "all_gather": 10}) == 12
