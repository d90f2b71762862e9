"""The compiled attention of the CPU: as near to float64 as torch's own, and the same whoever shares the batch."""

from importlib import import_module

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

numba = pytest.importorskip("numba")

from pretrain.model.attention import small_heads  # noqa: E402

HEADS = 3
LENGTHS = (1, 5, 7, 16, 33, 191, 192, 193, 385)
"""Around the kernel's steps: 16 queries, 6 keys, blocks of at most 192 keys."""


def spans(lengths: tuple[int, ...]) -> Tensor:
    ends = torch.tensor(lengths).cumsum(0)
    return torch.stack([ends - torch.tensor(lengths), ends], 1)


def documents(lengths: tuple[int, ...]) -> Tensor:
    return spans(lengths).repeat(1, 2)


def drawn(slots: int, channels: int) -> list[Tensor]:
    """Queries, keys, values and the gradient of what was gathered."""
    generator = torch.Generator().manual_seed(channels)
    return [torch.randn(slots, HEADS, channels, generator=generator) for _ in range(4)]


def computed(inputs: list[Tensor], table: Tensor) -> list[Tensor]:
    """What was gathered, log-sum-exp, and gradients of queries, keys and values; zeros where there is no document."""
    query, key, value, gradient = inputs
    gathered, log_sums = torch.zeros_like(query), torch.zeros(query.shape[:2])
    small_heads.forward(query, key, value, table, gathered, log_sums)
    of = torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    small_heads.backward(gradient, query, key, value, table, gathered, log_sums, of)
    return [gathered, log_sums, *of]


def in_float64(inputs: list[Tensor], table: Tensor) -> list[Tensor]:
    """The same by the definition."""
    query, key, value, gradient = (x.double().requires_grad_() for x in inputs)
    gathered, log_sums = torch.zeros_like(query), torch.zeros(query.shape[:2], dtype=torch.float64)
    for start, end, first, last in table.tolist():
        scores = torch.einsum("qhk,shk->hqs", query[first:last], key[start:end]) * query.shape[2] ** -0.5
        gathered[first:last] = torch.einsum("hqs,shk->qhk", scores.softmax(-1), value[start:end])
        log_sums[first:last] = scores.logsumexp(-1).T
    of = torch.autograd.grad(gathered, (query, key, value), gradient)
    return [gathered, log_sums, *of]


def of_torch(inputs: list[Tensor], lengths: tuple[int, ...]) -> list[Tensor]:
    """What torch's kernel gathers, and gradients of queries, keys and values."""
    query, key, value = (x.clone().requires_grad_() for x in inputs[:3])
    pieces = [[x[a:b].transpose(0, 1)[None] for x in (query, key, value)] for a, b in spans(lengths).tolist()]
    gathered = torch.cat([F.scaled_dot_product_attention(*piece)[0].transpose(0, 1) for piece in pieces])
    return [gathered.detach(), *torch.autograd.grad(gathered, (query, key, value), inputs[3])]


def error(got: Tensor, exact: Tensor) -> float:
    return float((got.double() - exact.detach()).norm() / exact.detach().norm())


@pytest.mark.parametrize("channels", [8, 16, 24, 32, 40, 64])
def test_as_near_to_float64_as_torchs_kernel(channels: int) -> None:
    inputs = drawn(sum(LENGTHS), channels)
    exact, ours = in_float64(inputs, documents(LENGTHS)), computed(inputs, documents(LENGTHS))
    theirs = of_torch(inputs, LENGTHS)
    assert error(ours[1], exact[1]) < 1e-6
    for mine, torchs, true in zip([ours[0], *ours[2:]], theirs, [exact[0], *exact[2:]], strict=True):
        assert error(mine, true) < 1.5 * error(torchs, true) < 1e-6


@pytest.mark.parametrize("channels", [16, 24, 64])
def test_neither_threads_nor_neighbours_change_a_bit(channels: int) -> None:
    inputs, before = drawn(sum(LENGTHS), channels), torch.get_num_threads()
    together = computed(inputs, documents(LENGTHS))
    try:
        for threads in (2, 3):
            torch.set_num_threads(threads)
            assert all(map(torch.equal, computed(inputs, documents(LENGTHS)), together))
    finally:
        torch.set_num_threads(before)
    for start, end in spans(LENGTHS).tolist():
        alone = computed([x[start:end].contiguous() for x in inputs], documents((end - start,)))
        assert all(torch.equal(a, b[start:end]) for a, b in zip(alone, together, strict=True))


def test_a_part_of_the_queries_of_a_document() -> None:
    """What a rank has that holds slots 60 to 160: queries of two documents, and keys of all."""
    inputs = drawn(300, 16)
    share = [inputs[0][60:160].contiguous(), *inputs[1:3], inputs[3][60:160].contiguous()]
    table = torch.tensor([[0, 100, 0, 40], [100, 300, 40, 100]])
    for got, exact in zip(computed(share, table), in_float64(share, table), strict=True):
        assert error(got, exact) < 1e-6


def test_scores_far_apart() -> None:
    """Weights of nearly one and nearly nothing, and an exponential that would overflow without the maximum."""
    query, key, value, gradient = drawn(400, 16)
    inputs = [query * 10, key * 10, value, gradient]
    exact, ours = in_float64(inputs, documents((400,))), computed(inputs, documents((400,)))
    for mine, torchs, true in zip([ours[0], *ours[2:]], of_torch(inputs, (400,)), [exact[0], *exact[2:]], strict=True):
        assert error(mine, true) < 1.5 * error(torchs, true)


def test_what_is_not_a_number_stays_so_in_its_document_alone() -> None:
    inputs = drawn(sum(LENGTHS), 16)
    inputs[0][20, 1, 3] = float("nan")
    missing = computed(inputs, documents(LENGTHS))[0].isnan()
    assert missing[20, 1].all()
    assert missing.sum() == 16


def test_attention_takes_them_where_they_were_measured_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    flash_cpu = import_module("pretrain.model.attention.flash_cpu")  # the package's name for it is the function

    def chosen(channels: int, dtype: torch.dtype) -> object:
        return flash_cpu._small_heads(torch.empty(1, 1, channels, dtype=dtype))

    assert chosen(16, torch.float32) is small_heads
    assert chosen(128, torch.float32) is None
    assert chosen(16, torch.float64) is None
    monkeypatch.setattr(flash_cpu, "available", lambda: False)
    assert chosen(16, torch.float32) is None
