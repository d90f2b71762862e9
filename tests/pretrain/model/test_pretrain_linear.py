"""Linear maps by oneDNN, and under bfloat16 autocast on a CPU that emulates it: float64 of the factors is the truth."""

import pytest
import torch
from torch import Tensor

from pretrain.model import linear
from pretrain.model.linear import FusedLinear, Linear
from zymogen.onednn import HAS_ONEDNN, is_by_onednn

ROUNDING = 2.0**-8
"""Largest relative error of one rounding to bfloat16, whose numbers have 8 binary digits."""
SUMMING = 1e-5
"""Of a sum of products in float32, over the sum of their sizes: 60 terms, 2**-24 each, and a wide margin."""


@pytest.fixture(params=[False, True], ids=["as it is", "emulated"])
def emulates(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways, whatever this machine's CPU can."""
    monkeypatch.setattr(linear, "EMULATES_BFLOAT16", request.param)
    return bool(request.param)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(x: Tensor) -> Tensor:
    return x.detach().bfloat16().double()


def within(x: Tensor, truth: Tensor, sizes: Tensor, *, rounding: float) -> bool:
    """Whether `x` is `truth` up to float32 sums of terms of these sizes, and then one rounding."""
    return bool(((x.double() - truth).abs() <= rounding * truth.abs() + SUMMING * sizes).all())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("leading", [(37,), (5, 7)], ids=["flat", "batched"])
def test_values_and_gradients(emulates: bool, bias: bool, leading: tuple[int, ...]) -> None:
    layer = Linear(60, 48, bias=bias)
    x = drawn(*leading, 60).requires_grad_()
    gradient = drawn(*leading, 48, seed=1).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)
    assert out.dtype == torch.bfloat16
    out.backward(gradient)

    inputs, weight, of_out = rounded(x).flatten(0, -2), rounded(layer.weight), gradient.double().flatten(0, -2)
    truth, sizes = inputs @ weight.t(), inputs.abs() @ weight.abs().t()
    if bias:
        truth, sizes = truth + rounded(layer.bias), sizes + rounded(layer.bias).abs()
    assert within(out.detach().flatten(0, -2), truth, sizes, rounding=ROUNDING)
    assert x.grad is not None
    assert layer.weight.grad is not None
    assert x.grad.dtype == layer.weight.grad.dtype == torch.float32
    of_x = x.grad.flatten(0, -2)
    assert within(of_x, of_out @ weight, of_out.abs() @ weight.abs(), rounding=ROUNDING)
    # Rounded as autocast rounds it, or engines would differ that hold the weight in float32 or in bfloat16.
    assert torch.equal(layer.weight.grad, rounded(layer.weight.grad).float())
    assert within(layer.weight.grad, of_out.t() @ inputs, of_out.abs().t() @ inputs.abs(), rounding=ROUNDING)
    if bias:
        assert torch.equal(layer.bias.grad, rounded(layer.bias.grad).float())
        assert within(layer.bias.grad, of_out.sum(0), of_out.abs().sum(0), rounding=ROUNDING)


def test_a_weight_in_bfloat16_gives_the_gradients_of_one_in_float32(emulates: bool) -> None:
    """Under FSDP2 the weight arrives in bfloat16, and the bias in float32."""
    layer, x = Linear(60, 48), drawn(9, 60)
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.nn.Parameter(layer.weight.detach().to(dtype))
        layer.weight = weight
        layer.bias.grad = None
        with torch.autocast("cpu", torch.bfloat16):
            out = layer(x)
        out.backward(drawn(9, 48, seed=1).bfloat16())
        assert weight.grad is not None
        gradients.append((out, weight.grad.float(), layer.bias.grad))
    assert all(map(torch.equal, *gradients))


def test_a_model_of_bfloat16_needs_no_autocast(emulates: bool) -> None:
    layer = Linear(60, 48).bfloat16()
    x = drawn(9, 60).bfloat16().requires_grad_()
    out = layer(x)
    out.sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is not None
    assert out.dtype == layer.weight.grad.dtype == x.grad.dtype == torch.bfloat16
    truth = rounded(x) @ rounded(layer.weight).t() + rounded(layer.bias)
    sizes = rounded(x).abs() @ rounded(layer.weight).abs().t() + rounded(layer.bias).abs()
    assert within(out.detach(), truth, sizes, rounding=ROUNDING)


@pytest.mark.parametrize("autocast", [None, torch.float16], ids=["float32", "float16"])
def test_other_types_are_torch_s_own(emulates: bool, autocast: torch.dtype | None) -> None:
    layer, x = Linear(60, 48), drawn(9, 60)
    with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
        assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_autocast_leaves_float64_alone(emulates: bool) -> None:
    layer, x = Linear(60, 48).double(), drawn(9, 60).double()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_the_input_is_kept_once_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "EMULATES_BFLOAT16", True)
    layer = FusedLinear(60, 16, 3, bias=True)
    kept: list[Tensor] = []
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x),
        torch.autocast("cpu", torch.bfloat16),
    ):
        layer(drawn(9, 60))
    assert [(tuple(x.shape), x.dtype) for x in kept if x is not layer.weight] == [((9, 60), torch.bfloat16)]


def test_it_is_compiled_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "EMULATES_BFLOAT16", True)
    layer, x = Linear(60, 48), drawn(9, 60)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        plain, out = layer(x), compiled(x)
    assert torch.equal(plain, out)
    of_plain, of_out = (torch.autograd.grad(y.float().square().sum(), layer.weight)[0] for y in (plain, out))
    torch.testing.assert_close(of_out, of_plain, rtol=1e-6, atol=1e-5)


onednn = pytest.mark.skipif(not HAS_ONEDNN, reason="torch has no MKL or no oneDNN here")


@onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("leading", [(256,), (2, 128)], ids=["flat", "batched"])
def test_float32_by_onednn(bias: bool, leading: tuple[int, ...]) -> None:
    layer, x = Linear(160, 128, bias=bias), drawn(*leading, 160).requires_grad_()
    gradient = drawn(128, *leading, seed=1).movedim(0, -1)  # in another layout than the product's
    assert is_by_onednn(x, layer.weight)
    out = layer(x)
    out.backward(gradient)

    inputs, weight, of_out = (y.detach().double() for y in (x, layer.weight, gradient))
    inputs, of_out = inputs.flatten(0, -2), of_out.flatten(0, -2)
    truth, sizes = inputs @ weight.t(), inputs.abs() @ weight.abs().t()
    if bias:
        truth, sizes = truth + layer.bias.detach().double(), sizes + layer.bias.detach().double().abs()
    assert out.shape == (*leading, 128)
    assert within(out.detach().flatten(0, -2), truth, sizes, rounding=0)
    assert x.grad is not None
    assert layer.weight.grad is not None
    assert within(x.grad.flatten(0, -2), of_out @ weight, of_out.abs() @ weight.abs(), rounding=0)
    assert within(layer.weight.grad, of_out.t() @ inputs, of_out.abs().t() @ inputs.abs(), rounding=0)
    assert layer.weight.grad.is_contiguous()
    if bias:
        assert within(layer.bias.grad, of_out.sum(0), of_out.abs().sum(0), rounding=0)


@onednn
def test_a_sum_s_gradient_has_no_memory_of_its_own() -> None:
    layer, x = Linear(160, 128), drawn(256, 160)
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(128, 160))


@onednn
def test_frozen_weights_have_no_gradient() -> None:
    layer, x = Linear(160, 128).requires_grad_(False), drawn(256, 160).requires_grad_()
    layer(x).sum().backward()
    assert layer.weight.grad is None
    assert x.grad is not None


@pytest.mark.parametrize(
    ("x", "out"),
    [
        (drawn(257, 160), 128),  # rows that are no multiple
        (drawn(128, 160), 128),  # too few products
        (drawn(256, 160).double(), 128),
        (drawn(160, 256).t(), 128),  # in another layout
    ],
    ids=["rows", "small", "float64", "layout"],
)
def test_what_onednn_does_not_take_is_torch_s_own(x: Tensor, out: int) -> None:
    layer = Linear(160, out).to(x.dtype)
    assert not is_by_onednn(x, layer.weight)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


@onednn
def test_autocast_and_a_switch_leave_products_to_torch() -> None:
    x, weight = drawn(256, 160), drawn(128, 160)
    assert is_by_onednn(x, weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert not is_by_onednn(x, weight)
    before = torch._C._get_mkldnn_enabled()
    try:
        torch._C._set_mkldnn_enabled(False)
        assert not is_by_onednn(x, weight)
    finally:
        torch._C._set_mkldnn_enabled(before)


@onednn
def test_products_by_onednn_are_compiled_whole() -> None:
    layer, x = Linear(160, 128), drawn(256, 160)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=SUMMING)
