"""Attention backends: each equals the reference in outputs and gradients, in both architectures, and falls back aloud.

Tolerances. float64 is the truth. One backend in float32 differs from it by rounding, and so does the reference in
float32: a backend may be off by at most three times what the reference is off by. For bfloat16 autocast likewise,
where what is off is the matrix products that every backend shares, and each is held to the reference's own error.
"""

import copy
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from data.alphabet import PAD
from data.batches.batch import Batch
from pretrain.model import attention
from pretrain.model.attention import attend, choice, own_slots
from pretrain.model.attention.choice import Backend, choose
from pretrain.model.attention.layout import layout_of, rotation
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import EsmShape
from pretrain.model.settings import Checkpointing
from support.inputs.flat_batches import Document, document, gradients, mixed_bins, pack, perturb, relative, saved_bytes

ESM2 = EsmShape(layers=3, dim=64, heads=4)
MODERN = EsmShape(layers=3, dim=64, heads=2, architecture="modern", token_dropout=False)
CPU_BACKENDS: tuple[Backend, ...] = ("flash_cpu", "per_document")


flash_cpu = attention.flash_cpu


def model_of(shape: EsmShape, attention: choice.Request, dtype: torch.dtype = torch.float32) -> MaskedLanguageModel:
    model = MaskedLanguageModel(shape, attention)
    perturb(model)
    return model.to(dtype)


def outputs_and_gradients(
    model: MaskedLanguageModel, batch: Batch, autocast: torch.dtype | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    with torch.autocast("cpu", autocast) if autocast else nullcontext():
        logits = model.logits(batch)[batch.tokens != PAD]
        loss = model(batch).sum()
    loss.backward()
    return logits.detach(), gradients(model)


def errors(found: tuple[Tensor, dict[str, Tensor]], truth: tuple[Tensor, dict[str, Tensor]]) -> tuple[float, float]:
    """Largest logit error over the largest logit; norm of the error of all gradients over the norm of them."""
    difference = sum(float((found[1][name].double() - g).square().sum()) for name, g in truth[1].items())
    norm = sum(float(g.square().sum()) for g in truth[1].values())
    return relative(found[0].double(), truth[0]), (difference / norm) ** 0.5


@pytest.mark.parametrize("shape", [ESM2, MODERN], ids=["esm2", "modern"])
@pytest.mark.parametrize("backend", CPU_BACKENDS)
@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["fp32", "bf16"])
def test_backend_equals_the_reference(shape: EsmShape, backend: Backend, autocast: torch.dtype | None) -> None:
    batch = pack(mixed_bins())
    truth = outputs_and_gradients(model_of(shape, "dense", torch.float64), batch)
    of_reference = errors(outputs_and_gradients(model_of(shape, "dense"), batch, autocast), truth)
    of_backend = errors(outputs_and_gradients(model_of(shape, backend), batch, autocast), truth)
    print(f"{backend}: {of_backend}, reference {of_reference}")
    for ours, reference in zip(of_backend, of_reference, strict=True):
        assert 0 < ours <= 3 * reference
    # In float64 the two are one function.
    exact = errors(outputs_and_gradients(model_of(shape, backend, torch.float64), batch), truth)
    assert max(exact) < 1e-6  # angles are float32 in both


@pytest.mark.parametrize("shape", [ESM2, MODERN], ids=["esm2", "modern"])
@pytest.mark.parametrize("backend", [*CPU_BACKENDS, "dense"])
@pytest.mark.parametrize("bins", [[[document(30, 0.0, 1)], [document(20, 0.0, 2)]], [[], []]], ids=["whole", "pads"])
def test_a_batch_without_targets_gives_every_parameter_a_zero_gradient(
    shape: EsmShape, backend: Backend, bins: list[list[Document]]
) -> None:
    """DDP waits for every parameter."""
    model = model_of(shape, backend)
    model(pack(bins, num_slots=40)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


def test_attention_in_float32_under_autocast_is_closer_to_the_truth() -> None:
    """What `flash_cpu` does beyond the reference: scores and sums of a bfloat16 run are not rounded to bfloat16."""
    batch = pack(mixed_bins())
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(640, 4, 16, generator=generator).bfloat16() for _ in range(3))
    cos, sin = rotation(batch.positions, ESM2)
    real = batch.tokens != PAD
    truth, float32, bfloat16 = (
        attend(*(x.to(dtype) for x in (query, key, value)), cos, sin, layout_of(batch, backend))[real].double()
        for dtype, backend in ((torch.float64, "dense"), (torch.bfloat16, "flash_cpu"), (torch.bfloat16, "dense"))
    )
    assert relative(float32, truth) <= 2**-8  # one rounding to bfloat16, of the result
    assert relative(bfloat16, truth) > relative(float32, truth)


def drawn(slots: int, channels: int) -> list[Tensor]:
    """Queries, keys, values and the gradient of what is gathered, of three heads."""
    generator = torch.Generator().manual_seed(channels)
    return [torch.randn(slots, 3, channels, generator=generator) for _ in range(4)]


def attended(inputs: list[Tensor], lengths: tuple[int, ...], backend: Backend = "flash_cpu") -> list[Tensor]:
    """What each slot gathered, and gradients of queries, keys and values; what follows the documents are pads."""
    *given, gradient = inputs
    batch = pack([[document(n, 0.0, n) for n in lengths]], num_slots=len(gradient), most_documents=len(LENGTHS))
    cos, sin = rotation(batch.positions, EsmShape(layers=1, dim=gradient[0].numel(), heads=3))
    leaves = [x.clone().requires_grad_() for x in given]
    gathered = attend(*leaves, cos, sin, layout_of(batch, backend))
    gradients, again = (torch.autograd.grad(gathered, leaves, gradient, retain_graph=True) for _ in range(2))
    torch.testing.assert_close(again, gradients, rtol=0, atol=0, equal_nan=True)
    return [gathered.detach(), *gradients]


LENGTHS = (2, 5, 7, 16, 33, 191, 192, 193, 385)
"""Of documents: around the numbers of queries and keys that kernels for a CPU take at a time."""


IS_INTEL = "GenuineIntel" in Path("/proc/cpuinfo").read_text()


@pytest.mark.parametrize("channels", [12, 16, 24, 64])
def test_neither_repetition_nor_threads_nor_neighbours_change_a_bit(channels: int) -> None:
    """Except on an Intel CPU with heads whose rows are no multiple of 64 bytes: repetition alone changes none there.

    MKL takes other instructions by how an array lies in memory, and the kernel gives each thread an array of its own.
    The gradient of a key is a sum over up to 385 queries, in another order then: some twenty roundings of half an ulp.
    """
    inputs, threads = drawn(sum(LENGTHS), channels), torch.get_num_threads()
    together = attended(inputs, LENGTHS)
    assert all(map(torch.equal, attended(inputs, LENGTHS), together))

    def equal(x: Tensor, y: Tensor) -> bool:
        if IS_INTEL and channels % 16:
            return bool((x - y).abs().max() <= 10 * 2**-23 * y.abs().max())
        return torch.equal(x, y)

    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            assert all(map(equal, attended(inputs, LENGTHS), together))
    finally:
        torch.set_num_threads(threads)
    end = 0
    for length in LENGTHS:
        start, end = end, end + length
        alone = attended([x[start:end].contiguous() for x in inputs], (length,))
        assert all(equal(x, y[start:end]) for x, y in zip(alone, together, strict=True))


def test_scores_far_apart() -> None:
    """Weights of nearly one and nearly nothing, and an exponential that would overflow without the maximum."""
    query, key, value, gradient = drawn(400, 16)
    inputs = [query * 10, key * 10, value, gradient]
    truth = attended([x.double() for x in inputs], (400,), "dense")
    ours, reference = attended(inputs, (400,)), attended(inputs, (400,), "dense")
    for x, y, exact in zip(ours, reference, truth, strict=True):
        assert relative(x.double(), exact) <= 3 * relative(y.double(), exact)


def test_pads_get_zeros_and_what_is_not_a_number_stays_in_its_document() -> None:
    inputs, documents = drawn(sum(LENGTHS) + 50, 16), sum(LENGTHS)
    inputs[0][20, 1, 3] = float("nan")  # in the fourth document, slots 14 to 30
    inputs[1][documents + 7] = float("nan")
    gathered, *gradients = attended(inputs, LENGTHS)
    assert gathered[20, 1].isnan().all()
    assert gathered.isnan().sum() == 16
    for x in gradients:
        assert x.isnan().any(1).any(1).nonzero()[:, 0].tolist() in ([20], list(range(14, 30)))
    for x in (gathered, *gradients):
        assert not x[documents:].any()


@pytest.mark.parametrize("shape", [ESM2, MODERN], ids=["esm2", "modern"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=["fp32", "bf16"])
def test_checkpointing_changes_no_bit(shape: EsmShape, dropout: float, autocast: torch.dtype | None) -> None:
    batch = pack(mixed_bins())
    model = model_of(replace(shape, dropout=dropout), "auto")
    with torch.autocast("cpu", autocast) if autocast else nullcontext():
        model(batch).sum().backward()
    kept = gradients(model)
    for mode in ("selective", "layer"):
        model.zero_grad()
        model.encoder.checkpointing = mode
        with torch.autocast("cpu", autocast) if autocast else nullcontext():
            model(batch).sum().backward()
        for name, gradient in gradients(model).items():
            assert torch.equal(gradient, kept[name]), (mode, name)


def test_checkpointing_keeps_fewer_bytes() -> None:
    batch = pack([[document(300, 0.15, 1)]], num_slots=300)
    kept = {}
    for mode in ("none", "selective", "layer"):
        model = model_of(replace(ESM2, layers=8), "auto")
        model.encoder.checkpointing = mode
        kept[mode] = saved_bytes(model, batch) / (300 * 64 * 8)
    print(kept)
    # Numbers of 4 bytes a slot, channel and layer. None: what two norms take and give, 4; queries, keys, values and
    # what they gather, 4; both sides of the GELU, 8; but 9.3 of these 16 at the targets alone in the last layer.
    # Selective: what two norms take, and the four of attention. Layer: what it takes. On top, what is not of the
    # layers: embedding, angles, labels.
    read = len(batch.targets[0].slots) / 300
    for mode, numbers in {
        "none": (7 * 16 + 6 + 11 * read) / 8,
        "selective": (7 * 6 + 5 + 2 * read) / 8,
        "layer": 1,
    }.items():
        assert 0.99 * 4 * numbers <= kept[mode] < 4 * (numbers + 1.3), mode


def test_only_read_slots_of_the_last_layer_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model_of(ESM2, "auto"), pack(mixed_bins())
    rows = []
    monkeypatch.setattr(attention, "flash_cpu", lambda q, *rest: (rows.append(len(q)), flash_cpu(q, *rest))[1])
    for layer in model.encoder.layers:
        layer.feed_forward.register_forward_hook(lambda _, args, __: rows.append(len(args[0])))
    whole = model.logits(batch)
    assert rows == [640] * 6
    rows.clear()
    chosen = model.logits(batch, batch.targets[0].slots)
    assert rows == [640] * 4 + [len(batch.targets[0].slots)] * 2
    assert relative(chosen, whole[batch.targets[0].slots]) < 1e-6
    whole[batch.targets[0].slots].square().sum().backward()
    expected = gradients(model)
    model.zero_grad()
    chosen.square().sum().backward()
    for name, gradient in gradients(model).items():
        assert float((gradient - expected[name]).norm() / expected[name].norm()) < 2e-6, name


READ = [[], [1], [0, 1, 639], [7, 600, 3, 3, 40, 321, 639, 0]]
"""Slots of two bins of 320: none, one, one of pads, several in no order and one of them twice."""


@pytest.mark.parametrize("read", READ, ids=len)
@pytest.mark.parametrize("backend", [*CPU_BACKENDS, "dense"])
def test_queries_of_some_slots_are_those_of_all(backend: Backend, read: list[int]) -> None:
    batch, slots = pack(mixed_bins()), torch.tensor(read, dtype=torch.int64)
    cos, sin = rotation(batch.positions, ESM2)
    layout = layout_of(batch, backend)
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(640, 4, 16, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(len(read), 4, 16, generator=generator, dtype=torch.float64)
    whole = attend(*leaves, cos, sin, layout)[slots]
    some = own_slots(attend(*leaves, cos, sin, layout, slots), layout, slots)
    expected = (torch.autograd.grad(x, leaves, gradient) for x in (whole, some))
    for x, y in [(whole, some), *zip(*expected, strict=True)]:
        assert x.shape == y.shape
        assert float((y - x).norm().detach()) <= 1e-12 * float(x.norm().detach())


@pytest.mark.parametrize("shape", [ESM2, MODERN], ids=["esm2", "modern"])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "layer"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_vectors_of_some_slots_are_those_of_all(shape: EsmShape, checkpointing: Checkpointing, dropout: float) -> None:
    batch, slots = pack(mixed_bins()), torch.tensor(READ[-1])
    encoder = model_of(replace(shape, dropout=dropout), "auto", torch.float64).encoder
    found = []
    for read in (None, slots):
        encoder.zero_grad()
        encoder.checkpointing = checkpointing if read is not None else "none"
        vectors = encoder(batch, read) if read is not None else encoder(batch)[slots]
        vectors.square().sum().backward()
        found.append({"vectors": vectors.detach()} | gradients(encoder))
    for name, whole in found[0].items():
        assert float((found[1][name] - whole).norm()) <= 1e-12 * float(whole.norm()), name


def test_operator_passes_torch_s_own_checks() -> None:
    batch = pack(mixed_bins()[:1], num_slots=320)
    cos, sin = rotation(batch.positions, ESM2)
    inputs = [torch.randn(320, 4, 16, requires_grad=True) for _ in range(3)]
    spans = layout_of(batch, "flash_cpu").spans
    torch.library.opcheck(torch.ops.zymogen.flash_cpu.default, (*inputs, cos, sin, spans))
    some = torch.tensor([7, 300, 3])
    query = inputs[0][some].detach().requires_grad_()
    torch.library.opcheck(torch.ops.zymogen.flash_cpu.default, (query, *inputs[1:], cos, sin, spans, "", some))


@pytest.mark.parametrize(
    ("request_", "device", "dtype", "head_dim", "expected"),
    [
        ("auto", "cpu", torch.float32, 16, "flash_cpu"),
        ("auto", "cpu", torch.bfloat16, 64, "flash_cpu"),
        ("auto", "cuda", torch.bfloat16, 64, "varlen"),
        ("auto", "cuda", torch.float16, 16, "varlen"),
        ("auto", "mps", torch.float32, 64, "per_document"),
        ("dense", "cuda", torch.float32, 20, "dense"),
    ],
)
def test_the_best_that_can_take_it_is_chosen(
    request_: choice.Request, device: str, dtype: torch.dtype, head_dim: int, expected: Backend
) -> None:
    assert choose(request_, device, dtype, head_dim) == (expected, ())


@pytest.mark.parametrize(
    ("dtype", "head_dim", "because"),
    [
        (torch.float32, 64, "takes bfloat16 and float16 and this is float32"),
        (torch.bfloat16, 20, "takes heads of a multiple of 8 channels up to 256 and these have 20"),
        (torch.bfloat16, 512, "and these have 512"),
    ],
)
def test_what_a_backend_cannot_take_falls_to_the_next_or_is_refused(
    dtype: torch.dtype, head_dim: int, because: str
) -> None:
    backend, lines = choose("auto", "cuda", dtype, head_dim)
    assert backend == "per_document"
    (line,) = lines
    assert line.startswith("attention: not varlen, because varlen")
    assert because in line
    with pytest.raises(ValueError, match=r"compute\.attention is 'varlen', but varlen .*take 'auto' or one of per_doc"):
        choose("varlen", "cuda", dtype, head_dim)


def test_a_torch_whose_varlen_has_no_scale_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.nn.attention.varlen as module

    def of_torch_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):  # type: ignore[no-untyped-def]
        raise AssertionError

    assert choice.find_varlen() is not None
    monkeypatch.setattr(module, "varlen_attn", of_torch_2_10)
    choose.cache_clear()
    try:
        assert choose("auto", "cuda", torch.bfloat16, 64)[0] == "per_document"
    finally:
        choose.cache_clear()


def test_a_gpu_before_ampere_goes_without_varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    choose.cache_clear()
    try:
        backend, (line,) = choose("auto", "cuda", torch.float16, 64)
    finally:
        choose.cache_clear()
    assert backend == "per_document"
    assert "varlen needs a GPU from Ampere on and this is Tesla T4" in line


@pytest.mark.parametrize(
    ("bins", "expected"),
    [
        ([[100, 60]], 256),  # 160 pads behind 160 of 320 slots
        ([[300]], 512),
        ([[20, 20]], 512),  # 280 pads
        ([[320], [320]], 512),
        ([[128, 128, 64]], 128),
    ],
)
def test_longest_bounds_documents_and_pads(bins: list[list[int]], expected: int) -> None:
    documents: list[list[Document]] = [[document(n, 0.1, n) for n in one] for one in bins]
    batch = pack(documents, num_slots=320)
    layout = layout_of(batch, "varlen")
    assert layout.longest == expected
    assert layout.boundaries is not None
    lengths = layout.boundaries.diff()
    assert layout.longest >= int(lengths.max())
    assert layout.boundaries[0] == 0
    assert layout.boundaries[-1] == 320 * len(bins)
    assert len(lengths).bit_count() == 1
    starts = set(layout.boundaries.tolist())
    assert all(start in starts and end in starts for start, end in batch.spans)
    assert int((lengths > 0).sum()) == len(batch.spans) + sum(sum(one) < 320 for one in bins)
    assert layout.spans.tolist() == [list(span) for span in batch.spans]


def test_deep_copies_keep_the_backend() -> None:
    model = model_of(ESM2, "dense")
    assert copy.deepcopy(model).encoder.attention == "dense"
