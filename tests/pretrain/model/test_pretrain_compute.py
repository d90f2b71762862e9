"""How a model is set up for a machine: what is chosen and said, and that none of it changes the function."""

import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import zymogen.trainer.attempt
import zymogen.trainer.loop
from pretrain.job import PretrainingJob
from pretrain.model import compilation, compute
from pretrain.model.attention.choice import choose
from pretrain.model.compilation import compile_layers, first_step
from pretrain.model.compute import configure
from pretrain.model.encoder import Checkpointing
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import PRESETS
from pretrain.model.settings import ComputeSettings
from pretrain.recipe import Recipe
from support.inputs.flat_batches import document, gradients, mixed_bins, pack, perturb
from zymogen.settings.toml_file import read
from zymogen.trainer.engine import launch
from zymogen.trainer.engine.ranks import ContextGroup
from zymogen.unsupported import UnsupportedFeature

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
PYTHON = "python{}.{}".format(*sys.version_info[:2])


def test_the_first_line_names_what_was_chosen() -> None:
    encoder = MaskedLanguageModel(PRESETS["esm2_60k"]).encoder
    settings = ComputeSettings(checkpointing="selective")
    (line,) = configure(encoder, settings, CPU, torch.float32, launched="ddp, 2 processes")
    chosen = "cpu, float32, attention flash_cpu, not compiled, checkpointing selective"
    assert line == f"compute: ddp, 2 processes, {chosen}"
    assert encoder.checkpointing == "selective"
    assert all(layer.recomputes for layer in encoder.layers)
    configure(encoder, replace(settings, checkpointing="layer", attention="dense"), CPU, torch.float32)
    assert (encoder.checkpointing, encoder.attention) == ("layer", "dense")
    assert not any(layer.recomputes for layer in encoder.layers)


def test_what_is_passed_over_is_said() -> None:
    encoder = MaskedLanguageModel(PRESETS["esm2_60k"]).encoder  # heads of 12 channels
    lines = configure(encoder, ComputeSettings(compile="off"), CUDA, torch.bfloat16)
    assert lines == [
        "compute: cuda, bfloat16, attention per_document, not compiled",
        "attention: not varlen, because varlen takes heads of a multiple of 8 channels up to 256 and these have 12; "
        "every preset but esm2_60k has such heads: model.preset=esm2_8m, say",
    ]


@pytest.mark.parametrize("emulates", [False, True])
def test_what_bfloat16_gains_on_a_processor_without_it_is_said(emulates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "EMULATES_BFLOAT16", emulates)
    encoder = MaskedLanguageModel(PRESETS["esm2_60k"]).encoder
    for dtype, expected in ((torch.bfloat16, emulates), (torch.float32, False)):
        lines = configure(encoder, ComputeSettings(), CPU, dtype)
        assert (
            any("saves memory here and no time; accelerate launch --mixed_precision no" in line for line in lines)
            == expected
        )
        assert ("bfloat16 (emulated)" in lines[0]) == expected


@pytest.fixture
def steps_taken(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Where first compiled steps were taken; on a GPU that is not there they all work."""
    taken: list[torch.device] = []
    monkeypatch.setattr(compute, "first_step", lambda _encoder, device, *_: taken.append(device))
    return taken


def test_a_gpu_that_cannot_compile_goes_without(
    monkeypatch: pytest.MonkeyPatch, steps_taken: list[torch.device]
) -> None:
    def second_line(dropout: float = 0.0, dtype: torch.dtype = torch.bfloat16) -> str:
        encoder = MaskedLanguageModel(replace(PRESETS["esm2_800k"], dropout=dropout)).encoder
        steps_taken.clear()
        first, *others = configure(encoder, ComputeSettings(), CUDA, dtype)
        compiled = "not compiled" if others else "compiled"
        assert first == f"compute: cuda, {str(dtype)[6:]}, attention varlen, {compiled}"
        assert steps_taken == ([] if others else [CUDA])  # nothing is tried where it is known not to work
        return "".join(others)

    present = {"triton": True, "gcc": True}
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compilation, "find_spec", lambda name: present[name] or None)
    monkeypatch.setattr(compilation, "which", lambda name: present.get(name) or None)
    monkeypatch.setattr(compilation, "has_headers", lambda: True)
    assert second_line() == ""
    assert second_line(dropout=0.1).startswith("compile: off, because model.dropout is 0.1")
    assert second_line(dtype=torch.float16) == (
        "compile: off, because no layer has been compiled in float16 yet; launch with --mixed_precision bf16, or set "
        "compute.compile=on to be the first"
    )
    monkeypatch.setattr(compilation, "has_headers", lambda: False)
    assert second_line().startswith("compile: off, because Python's headers are not installed (/")
    assert second_line().endswith(f"/Python.h); on Debian or Ubuntu: apt-get install {PYTHON}-dev")
    present["gcc"] = False
    said = "there is no C compiler (gcc or clang); on Debian or Ubuntu: apt-get install gcc"
    assert second_line() == f"compile: off, because {said}"
    monkeypatch.setenv("CC", "/opt/none/cc")
    assert "there is no C compiler (CC is /opt/none/cc)" in second_line()
    present["triton"] = False
    assert second_line() == "compile: off, because triton is not installed; pip install triton"


def test_headers_are_found_where_python_has_them() -> None:
    assert compilation.has_headers() == Path(sysconfig.get_path("include"), "Python.h").is_file()


def fails_in_the_compiler(_graph: object, _inputs: object) -> None:
    raise RuntimeError("Command:\ng++ -O3\nmain.cpp:1:10: fatal error: Python.h: No such file or directory\ncompiling")


def fails_in_the_backward_pass(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    def broken(*_: object) -> None:
        raise RuntimeError("no kernel image")

    return aot_autograd(fw_compiler=lambda g, _: g, bw_compiler=lambda *_: make_boxed_func(broken))(graph, inputs)


@pytest.mark.parametrize("preset", [pytest.param("esm2_60k", marks=pytest.mark.slow), "modern_60k"])
def test_what_a_first_step_compiles_is_what_the_run_compiles(preset: str) -> None:
    """Else the run compiles it all again. The modern layers hold a constant that follows from the depth."""
    found: list[str] = []

    def record(graph: torch.fx.GraphModule, _: object) -> Any:
        found.append(graph.code)
        return graph.forward

    encoder = MaskedLanguageModel(replace(PRESETS[preset], layers=5)).encoder
    assert first_step(encoder, CPU, torch.float32, 96, backend=record) is None
    tried, found = sorted(found), []
    compile_layers(encoder, backend=record)
    batch = compilation._batch(96)
    encoder(batch, torch.arange(0, 96, 8))
    torch._dynamo.reset()
    assert len(tried) == 2  # the layers before the last, and it
    assert sorted(found) == tried


class Configured(Exception):
    """A run came as far as its model's set-up."""


def test_a_first_step_has_the_slots_that_a_rank_computes(
    recipe_in, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def configured(*_: object, num_slots: int, **__: object) -> None:
        asked.append(num_slots)
        raise Configured

    monkeypatch.setattr(compute, "configure", configured)
    recipe = read(Recipe, recipe_in(tmp_path), ["data.bins_per_forward=3"])
    for ranks in (1, 2):
        monkeypatch.setattr(launch, "context_group", lambda *_, ranks=ranks: ContextGroup(0, ranks))
        with pytest.raises(Configured), launch.launch(recipe) as engine:
            zymogen.trainer.attempt.train(recipe, PretrainingJob, engine)
    assert asked == [3 * 128, 3 * 128 // 2]


@pytest.mark.slow
def test_a_first_step_is_compiled_forward_and_backward() -> None:
    dtype = torch.bfloat16
    encoder = MaskedLanguageModel(PRESETS["esm2_60k"]).encoder
    before = {name: p.clone() for name, p in encoder.named_parameters()}
    assert first_step(encoder, CPU, dtype, 96, backend="aot_eager") is None
    failed = first_step(encoder, CPU, dtype, 96, backend=fails_in_the_compiler)
    assert failed is not None
    assert failed.reason == (
        "a first compiled step failed (RuntimeError: main.cpp:1:10: fatal error: Python.h: No such file or directory)"
    )
    assert "compute.compile=off" in failed.remedy
    failed = first_step(encoder, CPU, dtype, 96, backend=fails_in_the_backward_pass)
    assert failed is not None
    assert failed.reason == "a first compiled step failed (RuntimeError: no kernel image)"
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in encoder.named_parameters())


@pytest.mark.prove
@pytest.mark.timeout(300)
def test_generated_code_computes_the_same_and_a_compiler_that_fails_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Through all of inductor, with the compiler of this machine: half a minute."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    compiled = MaskedLanguageModel(replace(PRESETS["esm2_60k"], layers=3))
    plain = MaskedLanguageModel(compiled.shape)
    plain.load_state_dict(compiled.state_dict())
    batch = pack([[document(60, 0.15, 1), document(68, 0.2, 2)]], num_slots=128)
    assert first_step(compiled.encoder, CPU, torch.float32, 128) is None
    compile_layers(compiled.encoder)
    for model in (compiled, plain):
        model(batch).sum().backward()
    expected = gradients(plain)
    for name, gradient in gradients(compiled).items():
        assert float((gradient - expected[name]).norm()) <= 1e-5 * float(expected[name].norm()), name
    torch._dynamo.reset()

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, "/bin/false"))
    failed = first_step(plain.encoder, CPU, torch.float32, 96)
    assert failed is not None
    assert failed.reason.startswith("a first compiled step failed (InvalidCxxCompiler: No working C++ compiler found")


def test_a_first_step_that_fails_on_one_rank_leaves_all_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = UnsupportedFeature("a first compiled step failed (CalledProcessError)", "compute.compile=off")
    for finder in ("find_spec", "which"):
        monkeypatch.setattr(compilation, finder, lambda name: name)
    monkeypatch.setattr(compilation, "has_headers", lambda: True)
    for mine, theirs in ((failed, None), (None, failed), (None, None)):
        monkeypatch.setattr(compute, "first_step", lambda *_, mine=mine: mine)
        compiled: list[object] = []
        monkeypatch.setattr(compute, "compile_layers", compiled.append)
        encoder = MaskedLanguageModel(PRESETS["esm2_800k"]).encoder
        answers = {UnsupportedFeature: theirs, type(None): theirs, dict: {}}

        def gather(value: object, answers: dict = answers) -> list[object]:
            return [value, answers[type(value)]]

        first, *others = configure(encoder, ComputeSettings(), CUDA, torch.bfloat16, gather=gather)
        works = not mine and not theirs
        assert (first.endswith(", compiled"), compiled) == (works, [encoder] if works else [])
        assert others == ([] if works else [f"compile: off, because {failed}"])
        if not works:
            with pytest.raises(ValueError, match=r"is 'on', but a first compiled step failed \(Called"):
                configure(encoder, ComputeSettings(compile="on"), CUDA, torch.bfloat16, gather=gather)


def test_float32_products_on_a_gpu_are_tf32_where_the_recipe_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", set_to.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA A100")
    encoder = MaskedLanguageModel(PRESETS["esm2_800k"]).encoder

    def first_line(capability: tuple[int, int], device: torch.device = CUDA, **settings: bool) -> str:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
        choose.cache_clear()
        return configure(encoder, ComputeSettings(**settings), device, torch.float32)[0]

    with_tf32 = "compute: cuda (NVIDIA A100), float32 (products in TF32), attention per_document, not compiled"
    assert first_line((8, 0)) == with_tf32
    assert first_line((8, 0), tf32=False) == with_tf32.replace(" (products in TF32)", "")
    assert first_line((7, 0)) == with_tf32.replace(" (products in TF32)", "")  # nothing there has it
    assert set_to == ["high", "highest", "high"]
    assert "TF32" not in first_line((8, 0), CPU)
    assert len(set_to) == 3  # a CPU is left alone
    choose.cache_clear()


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
    obstacle = UnsupportedFeature("ZeRO-3 gathers parameters in hooks", "fsdp2.yaml is compiled")
    said = f"compute.compile is 'on', but {obstacle.reason}; set it to 'off' or 'auto', or: {obstacle.remedy}"
    with pytest.raises(ValueError, match=said):
        configure(encoder, ComputeSettings(compile="on"), CPU, torch.float32, obstacle)
    assert configure(encoder, ComputeSettings(), CPU, torch.float32, obstacle)[1:] == []  # not wanted there anyway
    assert f"compile: off, because {obstacle}" in configure(encoder, ComputeSettings(), CUDA, torch.bfloat16, obstacle)


def test_float32_on_a_gpu_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attention is a loop over documents, which no graph holds."""
    encoder = MaskedLanguageModel(PRESETS["esm2_800k"]).encoder
    lines = configure(encoder, ComputeSettings(), CUDA, torch.float32)
    assert lines[0] == "compute: cuda, float32, attention per_document, not compiled"
    assert lines[-1].startswith("compile: off, because attention is per_document")
    with pytest.raises(ValueError, match=r"compute\.compile is 'on', but attention is per_document"):
        configure(encoder, ComputeSettings(compile="on"), CUDA, torch.float32)


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("preset", "mode"),
    [
        ("esm2_60k", "none"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("modern_60k", "layer"),
                ("esm2_60k", "selective"),
                ("esm2_60k", "layer"),
                ("modern_60k", "none"),
                ("modern_60k", "selective"),
            )
        ),
    ],
)
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
