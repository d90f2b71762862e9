"""How a model is set up for a machine: what is chosen and said, and that none of it changes the function."""

from dataclasses import replace

import pytest
import torch
from test_pretrain_model import document, gradients, mixed_bins, pack, perturb

from pretrain.model import compute
from pretrain.model.compute import compile_layers, configure
from pretrain.model.encoder import Checkpointing
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS
from pretrain.recipe import ComputeSettings

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_the_first_line_names_what_was_chosen() -> None:
    encoder = MaskedLanguageModel(PRESETS["esm2_60k"]).encoder
    settings = ComputeSettings(checkpointing="selective")
    (line,) = configure(encoder, settings, CPU, torch.float32)
    assert line == "compute: cpu float32, attention flash_cpu, not compiled, checkpointing selective"
    assert encoder.checkpointing == "selective"
    assert all(layer.recomputes for layer in encoder.layers)
    configure(encoder, replace(settings, checkpointing="layer", attention="dense"), CPU, torch.float32)
    assert (encoder.checkpointing, encoder.attention) == ("layer", "dense")
    assert not any(layer.recomputes for layer in encoder.layers)


def test_what_is_passed_over_is_said() -> None:
    encoder = MaskedLanguageModel(PRESETS["esm2_60k"]).encoder  # heads of 12 channels
    lines = configure(encoder, ComputeSettings(compile="off"), CUDA, torch.bfloat16)
    assert lines == [
        "compute: cuda bfloat16, attention per_document, not compiled",
        "attention: not varlen, because varlen takes heads of a multiple of 8 channels up to 256 and these have 12",
    ]


@pytest.mark.parametrize("emulates", [False, True])
def test_what_bfloat16_gains_on_a_processor_without_it_is_said(emulates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "EMULATES_BFLOAT16", emulates)
    encoder = MaskedLanguageModel(PRESETS["esm2_60k"]).encoder
    for dtype, expected in ((torch.bfloat16, emulates), (torch.float32, False)):
        lines = configure(encoder, ComputeSettings(), CPU, dtype)
        assert any("saves memory here and no time" in line for line in lines) == expected


def test_a_gpu_that_cannot_compile_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def second_line(dropout: float = 0.0) -> str:
        encoder = MaskedLanguageModel(replace(PRESETS["esm2_800k"], dropout=dropout)).encoder
        first, *others = configure(encoder, ComputeSettings(), CUDA, torch.bfloat16)
        assert first == f"compute: cuda bfloat16, attention varlen, {'not compiled' if others else 'compiled'}"
        return "".join(others)

    present = {"triton": True, "cc": True}
    monkeypatch.setattr(compute, "find_spec", lambda name: present[name] or None)
    monkeypatch.setattr(compute, "which", lambda name: present["cc"] or None)
    assert second_line() == ""
    assert second_line(dropout=0.1).startswith("compile: off, because model.dropout is 0.1")
    present["cc"] = False
    assert second_line() == "compile: off, because there is no C compiler (CC, cc, gcc or clang)"
    present["triton"] = False
    assert second_line() == "compile: off, because triton is not installed"


@pytest.mark.parametrize(
    ("settings", "dropout", "said"),
    [
        ({"attention": "varlen"}, 0.0, r"compute\.attention is 'varlen', but varlen needs a CUDA device .* 'auto'"),
        ({"compile": "on"}, 0.1, r"compute\.compile is 'on', but model\.dropout is 0\.1, .* set it to 'off' or 'auto'"),
    ],
)
def test_what_cannot_be_had_is_refused(settings: dict[str, str], dropout: float, said: str) -> None:
    encoder = MaskedLanguageModel(replace(PRESETS["esm2_60k"], dropout=dropout)).encoder
    with pytest.raises(ValueError, match=said):
        configure(encoder, ComputeSettings(**settings), CPU, torch.float32)


def test_an_engine_may_be_in_the_way_of_compiling() -> None:
    encoder = MaskedLanguageModel(PRESETS["esm2_60k"]).encoder
    obstacle = "ZeRO-3 gathers parameters in hooks inside of what is compiled"
    with pytest.raises(ValueError, match=f"compute.compile is 'on', but {obstacle}; set it to 'off' or 'auto'"):
        configure(encoder, ComputeSettings(compile="on"), CPU, torch.float32, obstacle)
    assert configure(encoder, ComputeSettings(), CPU, torch.float32, obstacle)[1:] == []  # not wanted there anyway
    assert f"compile: off, because {obstacle}" in configure(encoder, ComputeSettings(), CUDA, torch.bfloat16, obstacle)


def test_float32_on_a_gpu_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attention is a loop over documents, which no graph holds."""
    encoder = MaskedLanguageModel(PRESETS["esm2_800k"]).encoder
    lines = configure(encoder, ComputeSettings(), CUDA, torch.float32)
    assert lines[0] == "compute: cuda float32, attention per_document, not compiled"
    assert lines[-1].startswith("compile: off, because attention is per_document")
    with pytest.raises(ValueError, match=r"compute\.compile is 'on', but attention is per_document"):
        configure(encoder, ComputeSettings(compile="on"), CUDA, torch.float32)


def test_a_compiled_run_validates_and_meets_many_layouts() -> None:
    """Layers share one count of graphs: beyond torch's usual 8 a run would go on uncompiled, or end."""
    from torch._dynamo.utils import counters

    model = MaskedLanguageModel(replace(PRESETS["esm2_60k"], layers=3))
    perturb(model)
    plain = MaskedLanguageModel(model.shape)
    plain.load_state_dict(model.state_dict())
    torch._dynamo.reset()
    counters.clear()
    compile_layers(model.encoder, backend="eager")
    sizes = [([200], 320), ([30] * 6, 320), ([100, 90], 320), ([99], 160), ([20] * 3, 160), ([400], 480), ([7], 128)]
    for lengths, slots in sizes:
        batch = pack([[document(n, 0.2, n) for n in lengths]], num_slots=slots)
        model(batch).sum().backward()
        for validating in (model, plain):
            validating.eval()
        with torch.no_grad():
            torch.testing.assert_close(model.target_losses(batch), plain.target_losses(batch))
        model.train()
    assert not counters["graph_break"]
    assert not counters["resume_in_convert_frame"]
    assert torch._dynamo.config.recompile_limit >= 64
    torch._dynamo.reset()


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"compute\.compile is 'yes'; allowed are 'auto', 'on', 'off'"):
        ComputeSettings(compile="yes")


@pytest.mark.parametrize("preset", ["esm2_60k", "modern_60k"])
@pytest.mark.parametrize("mode", ["none", "selective", "layer"])
def test_compiled_layers_are_whole_graphs_of_the_same_function(preset: str, mode: Checkpointing) -> None:
    """Through the compiler's front end, which is where a graph breaks; code generation is torch's business."""
    from torch._dynamo.utils import counters

    model = MaskedLanguageModel(replace(PRESETS[preset], layers=4))
    perturb(model)
    names = list(model.state_dict())
    batches = [
        pack(mixed_bins()),
        pack([[document(200, 0.15, 1)], [document(100, 0.2, 2), document(90, 0.1, 3)]]),
        pack([[document(30, 0.15, 1)] * 5, [document(99, 0.5, 3)]]),
    ]
    expected = []
    for batch in batches:
        model.zero_grad()
        model(batch).sum().backward()
        expected.append(gradients(model))
    torch._dynamo.reset()
    counters.clear()
    configure(model.encoder, ComputeSettings(checkpointing=mode), CPU, torch.float32)
    compile_layers(model.encoder, backend="aot_eager")
    for batch, wanted in zip(batches, expected, strict=True):
        model.zero_grad()
        model(batch).sum().backward()
        for name, gradient in gradients(model).items():
            assert float((gradient - wanted[name]).norm()) <= 1e-5 * float(wanted[name].norm()), name
    # One for the layers before the last, one for it, and one of each for any number of documents and targets.
    assert counters["stats"]["unique_graphs"] <= 5
    assert not counters["graph_break"]
    assert list(model.state_dict()) == names
    torch._dynamo.reset()
