"""Which FlashAttention is taken: through torch's own registry and operators, with kernels that stand in for CUDA's.

The stand-ins compute as FlashAttention does: blocks of keys, sums in float32, weights and scores' gradients rounded to
the dtype before each product. They are registered where torch has no kernel, for the CPU, so that everything above
them is real: `varlen_attn`, its gradients, `activate_flash_attention_impl`.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.attention as registry
from torch import Tensor

from pretrain.model.attention import implementation
from pretrain.model.attention.choice import find_varlen
from pretrain.model.attention.implementation import check_backend, disagreement, samples, use_backend
from pretrain.model.attention.layout import Layout
from pretrain.model.attention.sdpa import per_document, varlen
from zymogen.unsupported import UnsupportedFeature

CPU = torch.device("cpu")
EPS = {torch.bfloat16: 2**-7, torch.float16: 2**-10}
UNWRITTEN = {"unwritten: large": 3.0, "unwritten: NaN": torch.nan}
"""Faults that show where a document has keys and no query: what is then left in the gradients of keys and values."""


class Kernel:
    """FlashAttention over packed documents, in blocks of `block` keys; `fault` is what is wrong with it."""

    def __init__(self, block: int, fault: str = "") -> None:
        self.block, self.fault = block, fault

    def documents(self, of_queries: Tensor, of_keys: Tensor) -> Iterator[tuple[slice, slice]]:
        """(queries, keys) of each that has both."""
        for queries, (start, end) in zip(pairwise(of_queries.tolist()), pairwise(of_keys.tolist()), strict=True):
            keys = slice(start, end)
            if self.fault == "neighbour":
                keys = slice(max(0, start - 1), end)
            if self.fault == "last key" and end > start + 1:
                keys = slice(start, end - 1)
            if queries[1] > queries[0]:
                yield slice(*queries), keys

    def weights(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        """(H, queries, keys) float32, before rounding."""
        scores = torch.einsum("qhk,nhk->hqn", query.float(), key.float()) * scale
        if self.fault == "causal":
            scores = scores + torch.full(scores.shape[1:], -torch.inf).triu(1)
        return scores

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, boundaries: tuple[Tensor, Tensor], scale: float
    ) -> Any:
        out, log_sums = torch.empty_like(query), torch.zeros(query.shape[1], query.shape[0])
        for queries, keys in self.documents(*boundaries):
            scores = self.weights(query[queries], key[keys], scale)
            largest = torch.full((*scores.shape[:2], 1), -torch.inf)
            total, sums = torch.zeros(*scores.shape[:2], query.shape[2]), torch.zeros_like(largest)
            for part, v in zip(scores.split(self.block, -1), value[keys].split(self.block), strict=True):
                peak = torch.maximum(largest, part.amax(-1, keepdim=True))
                shrink, weights = (largest - peak).exp(), (part - peak).exp()
                sums = sums * shrink + weights.sum(-1, keepdim=True)
                total = total * shrink + torch.einsum("hqn,nhk->hqk", weights.to(query.dtype).float(), v.float())
                largest = peak
            out[queries] = (total / sums).transpose(0, 1).to(query.dtype)
            log_sums[:, queries] = (largest + sums.log()).squeeze(-1)
        return out, log_sums

    def backward(self, gradient: Tensor, *tensors: Tensor, boundaries: tuple[Tensor, Tensor], scale: float) -> Any:
        query, key, value, out, log_sums = tensors
        grads = [torch.zeros_like(x, dtype=torch.float32) for x in (query, key, value)]
        if self.fault in UNWRITTEN:  # what stood in memory
            grads[1:] = [torch.full_like(x, UNWRITTEN[self.fault]) for x in grads[1:]]
            for _, keys in self.documents(*boundaries):
                for x in grads[1:]:
                    x[keys] = 0
        for queries, keys in self.documents(*boundaries):
            weights = (self.weights(query[queries], key[keys], scale) - log_sums[:, queries, None]).exp()
            d_out = gradient[queries].float()
            d_weights = torch.einsum("qhk,nhk->hqn", d_out, value[keys].float())
            inner = (d_out * out[queries].float()).sum(-1).t()[..., None]
            d_scores = (weights * (d_weights - inner)).to(query.dtype).float()
            grads[0][queries] += torch.einsum("hqn,nhk->qhk", d_scores, key[keys].float()) * scale
            grads[1][keys] += torch.einsum("hqn,qhk->nhk", d_scores, query[queries].float()) * scale
            if self.fault != "gradient":
                grads[2][keys] += torch.einsum("hqn,qhk->nhk", weights.to(query.dtype).float(), d_out)
        return tuple(x.to(query.dtype) for x in grads)


class Handle:
    """What torch removes to have its own kernel back."""

    def __init__(self, remove: Callable[[], None]) -> None:
        self.remove = remove


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What torch's operator runs on a CPU ("active"), and what FA3 and FA4 bring when they are activated."""
    found: dict[str, Any] = {"active": Kernel(64), "FA3": Kernel(176), "FA4": Kernel(128)}
    own = found["active"]
    find_varlen()

    def forward(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *_: Any, scale: float, **__: Any) -> Any:
        if isinstance(found["active"], Exception):
            raise found["active"]
        out, log_sums = found["active"].forward(q, k, v, (cu_q, cu_k), scale)
        return out, log_sums, torch.zeros(2, dtype=torch.uint64), torch.zeros(()), torch.zeros(0)

    def backward(gradient: Tensor, *tensors: Any, scale: float, **_: Any) -> Any:
        *given, cu_q, cu_k = tensors[:7]  # query, key, value, output, log-sums
        return found["active"].backward(gradient, *given, boundaries=(cu_q, cu_k), scale=scale)

    library = torch.library.Library("aten", "IMPL", "CPU")
    library.impl("_flash_attention_forward", forward, "CPU")
    library.impl("_flash_attention_backward", backward, "CPU")

    def activate(name: str) -> Handle:
        found["active"] = found[name]
        return Handle(lambda: found.update(active=own))

    before = dict(registry._registry._FLASH_ATTENTION_IMPLS)
    for name in ("FA3", "FA4"):
        registry.register_flash_attention_impl(name, register_fn=lambda name=name: activate(name))
    (tmp_path / "flash_attn_interface.py").touch()
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    (tmp_path / "flash_attn" / "cute" / "interface.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield found
    registry.restore_flash_attention_impl(_raise_warn=False)
    registry._registry._FLASH_ATTENTION_IMPLS.update(before)
    library._destroy()
    for name in [name for name in sys.modules if name.startswith("flash_attn")]:
        del sys.modules[name]


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an H200 answers."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))


def in_float32(query: Tensor, key: Tensor, value: Tensor, layout: Layout) -> Tensor:
    return per_document(query.float(), key.float(), value.float(), layout)


@pytest.mark.parametrize("head_dim", [16, 24, 64, 128])
@pytest.mark.parametrize("dtype", EPS)
def test_two_that_are_right_agree_within_eps(kernels: dict[str, Any], dtype: torch.dtype, head_dim: int) -> None:
    """Each is as far from float32 as its rounding; together they stay below the bound with room to spare."""
    truth = samples(in_float32, CPU, dtype, head_dim)
    own = samples(varlen, CPU, dtype, head_dim)
    kernels["active"] = kernels["FA3"]
    other = samples(varlen, CPU, dtype, head_dim)
    assert not all(torch.equal(a, b) for a, b in zip(own, other, strict=True))
    assert 0.1 * EPS[dtype] < disagreement(own, truth) < 0.6 * EPS[dtype]
    assert disagreement(other, own) < 0.6 * EPS[dtype]
    assert torch.finfo(dtype).eps == EPS[dtype]


REST = [pytest.param(fault, marks=pytest.mark.slow) for fault in ("neighbour", "last key", "unwritten: large")]


@pytest.mark.parametrize("fault", ["causal", "gradient", "unwritten: NaN", *REST])
def test_one_that_is_wrong_is_not_taken(kernels: dict[str, Any], hopper: None, fault: str) -> None:
    kernels["FA3"] = Kernel(176, fault)
    (third, fourth) = check_backend("auto", CPU, torch.bfloat16, 64).values()
    assert third is not None
    assert "FA3 and FA2 differ by" in third.reason
    assert third.remedy == "take compute.attention=varlen_fa2"
    assert fourth is None
    right = samples(varlen, CPU, torch.bfloat16, 64)
    kernels["active"] = kernels["FA3"]
    assert not disagreement(samples(varlen, CPU, torch.bfloat16, 64), right) <= 10 * EPS[torch.bfloat16]  # NaN neither


def test_the_best_that_agrees_is_active_from_then_on(kernels: dict[str, Any], hopper: None) -> None:
    found = check_backend("auto", CPU, torch.bfloat16, 64)
    assert found == {"FA3": None, "FA4": None}
    assert registry.current_flash_attention_impl() is None  # trying leaves torch's own on
    assert use_backend("auto", [found, found]) == ("FA3", ())
    assert (registry.current_flash_attention_impl(), kernels["active"]) == ("FA3", kernels["FA3"])


def test_one_that_fails_on_another_rank_is_taken_by_none(kernels: dict[str, Any]) -> None:
    failed = UnsupportedFeature("FA3 failed on the first batch (RuntimeError: no kernel image)", "take varlen_fa2")
    assert use_backend("auto", [{"FA3": None, "FA4": None}, {"FA3": failed, "FA4": None}]) == ("FA4", ())
    chosen, (line,) = use_backend("auto", [{"FA3": None}, {"FA3": failed}])
    assert (chosen, registry.current_flash_attention_impl()) == ("FA2", "FA4")
    assert line.startswith("attention: varlen by FA2, because FA3 failed on the first batch (RuntimeError: no kernel")
    chosen, (line,) = use_backend("auto", [{"FA3": None}, {}])
    assert "because another rank has another kind of GPU" in line
    with pytest.raises(ValueError, match=r"attention is 'varlen_fa3', but FA3 failed .*; or take 'varlen_fa2'"):
        use_backend("varlen_fa3", [{"FA3": None}, {"FA3": failed}])


def test_what_the_user_names_is_tried_alone(kernels: dict[str, Any], hopper: None) -> None:
    assert check_backend("varlen_fa2", CPU, torch.bfloat16, 64) == {}
    assert use_backend("varlen_fa2", [{}]) == ("FA2", ())
    assert check_backend("varlen_fa4", CPU, torch.bfloat16, 64) == {"FA4": None}
    assert use_backend("varlen_fa4", [{"FA4": None}]) == ("FA4", ())
    assert kernels["active"] is kernels["FA4"]


def test_one_that_breaks_is_passed_over(kernels: dict[str, Any], hopper: None) -> None:
    kernels["FA3"] = RuntimeError("CUDA error: no kernel image is available for execution on the device\nmore")
    found = check_backend("varlen", CPU, torch.bfloat16, 64)
    assert found["FA3"] is not None
    said = "FA3 failed on the first batch (RuntimeError: CUDA error: no kernel image is available"
    assert found["FA3"].reason.startswith(said)
    assert registry.current_flash_attention_impl() is None
    assert use_backend("varlen", [found]) == ("FA4", ())


def test_what_is_not_installed_is_said_with_how_to(hopper: None) -> None:
    chosen, (line,) = use_backend("auto", [check_backend("auto", CPU, torch.bfloat16, 64)])
    assert chosen == "FA2"
    assert line == (
        "attention: varlen by FA2, because FA3 is not installed (no module flash_attn_interface), and FA4 is not "
        "installed (no module flash_attn.cute.interface); build the folder hopper of "
        "https://github.com/Dao-AILab/flash-attention or pip install flash-attn-4, or compute.attention=varlen_fa2 "
        "tries none"
    )


@pytest.mark.parametrize(("major", "names"), [(8, []), (9, ["FA3", "FA4"]), (10, ["FA4"]), (12, [])])
def test_what_a_gpu_cannot_run_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, hopper: None, major: int, names: list[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (major, 0))
    monkeypatch.setattr(implementation, "_obstacle", lambda *_: None)
    assert list(check_backend("auto", CPU, torch.bfloat16, 64)) == names
    monkeypatch.setattr(torch.version, "hip", "6.2")  # whose capabilities are numbers of other devices
    assert check_backend("auto", CPU, torch.bfloat16, 64) == {}
