"""Shares of a batch, the exchange that is chosen for them, and what a GPU is told of them: all without processes."""

from dataclasses import fields, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from data.batches.batch import span_of_rank
from pretrain.model.attention.layout import layout_of
from pretrain.model.context import Exchange, choose_exchange
from support.context_ranks import BATCHES, varlen_kernel
from support.inputs.flat_batches import document, pack
from zymogen.trainer.engine.engine import Engine
from zymogen.trainer.engine.ranks import ContextGroup
from zymogen.trainer.engine.settings import ExchangeRequest


@pytest.mark.parametrize("size", [1, 2, 3, 4, 60])
def test_shares_of_a_batch_hold_each_target_once(size: int) -> None:
    batch = BATCHES["packed"]()
    shares = [batch.share(rank, size) for rank in range(size)]
    assert torch.equal(torch.cat([share.targets[0].slots for share in shares]), batch.targets[0].slots)
    for rank, share in enumerate(shares):
        assert all(rank * 960 // size <= slot < (rank + 1) * 960 // size for slot in share.targets[0].slots.tolist())
        assert share.counts.tolist() == [len(share.targets[0].slots)]
        assert share.counts.dtype == batch.counts.dtype
        whole = replace(share, targets=batch.targets)
        assert all(getattr(whole, f.name) is getattr(batch, f.name) for f in fields(batch))
    assert size > 1 or shares[0] is batch
    assert BATCHES["idle"]().share(1, 2).counts.tolist() == [0]


def test_slots_that_cannot_be_shared_evenly_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"960 slots .* by 7 ranks .* data\.bin_tokens must be .* parallel\.context, 7"
    ):
        BATCHES["packed"]().share(0, 7)


def test_an_idle_batch_is_a_batch_of_pads() -> None:
    batch = BATCHES["packed"]()
    expected = replace(pack([[], [], []]), draw_keys=(0, 0, 0))
    (idle,), (none,) = batch.idle().targets, expected.targets
    for field in fields(idle):
        torch.testing.assert_close(getattr(idle, field.name), getattr(none, field.name), rtol=0, atol=0)
    for field in fields(batch):
        found, wanted = getattr(batch.idle(), field.name), getattr(expected, field.name)
        if isinstance(found, Tensor):
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
            assert found.shape == getattr(batch, field.name).shape
        elif field.name != "targets":
            assert found == wanted


@pytest.mark.parametrize(
    ("request_", "heads", "size", "expected"),
    [
        ("auto", 20, 4, "ulysses"),
        ("auto", 15, 1, "ulysses"),
        ("ulysses", 20, 5, "ulysses"),
        ("all_gather", 20, 4, "all_gather"),
        ("all_gather", 20, 8, "all_gather"),
    ],
)
def test_the_exchange_that_can_take_it_is_chosen(
    request_: ExchangeRequest, heads: int, size: int, expected: Exchange
) -> None:
    assert choose_exchange(request_, heads, size) == (expected, ())


def test_heads_that_cannot_be_shared_fall_to_the_other_exchange_or_are_refused() -> None:
    exchange, (line,) = choose_exchange("auto", 20, 8)
    assert exchange == "all_gather"
    assert line == (
        "exchange: not ulysses, because ulysses gives each rank as many heads, and parallel.context 8 does not divide "
        "20 heads"
    )
    with pytest.raises(
        ValueError,
        match=r"exchange is 'ulysses', but .*context 8 does not divide 20 heads; take .* or a .* of 2, 4, 5, 10, 20$",
    ):
        choose_exchange("ulysses", 20, 8)
    with pytest.raises(ValueError, match=r"parallel\.exchange is 'ring'; allowed are auto, ulysses, all_gather"):
        choose_exchange("ring", 20, 2)  # type: ignore[arg-type]


def test_boundaries_of_queries_and_keys_equal_a_mask() -> None:
    """What the GPU kernel is told where keys are gathered, on random packings."""
    generator = np.random.default_rng(0)
    for trial in range(100):
        size, documents, left = (2, 3, 4)[trial % 3], [], 96
        while (length := int(generator.integers(3, 60))) <= left and len(documents) < 6:
            documents.append(document(length, 0.0, length))
            left -= length
        batch = pack([documents], num_slots=96)
        query, key, value = torch.from_numpy(generator.standard_normal((3, 96, 2, 4)))
        # Pads are a document to this backend.
        mask = batch.documents[:, None] == batch.documents[None]
        expected = F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in (query, key, value)), attn_mask=mask)
        found = []
        for rank in range(size):
            first, end = span_of_rank(96, rank, size)
            context = SimpleNamespace(exchange="all_gather", name="", span=partial(span_of_rank, rank=rank, size=size))
            layout = layout_of(batch, "varlen", context)
            assert layout.query_boundaries is not None
            found.append(
                varlen_kernel(
                    query[first:end],
                    key,
                    value,
                    cu_seq_q=layout.query_boundaries,
                    cu_seq_k=layout.boundaries,
                    max_q=layout.longest,
                    max_k=layout.longest,
                    scale=0.5,
                )
            )
        torch.testing.assert_close(torch.cat(found), expected.transpose(0, 1), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("size", "data_ranks"), [(1, [0, 1, 2, 3]), (2, [0, 0, 1, 1]), (4, [0, 0, 0, 0])])
def test_neighbours_share_their_bins(size: int, data_ranks: list[int]) -> None:
    """With two ranks, any way to count them gives the same."""
    worlds = (SimpleNamespace(process_index=rank, num_processes=4, device=torch.device("cpu")) for rank in range(4))
    engines = [Engine(world, context=ContextGroup(rank % size, size)) for rank, world in enumerate(worlds)]
    assert [engine.data_rank for engine in engines] == data_ranks
    assert {engine.data_world_size for engine in engines} == {4 // size}
