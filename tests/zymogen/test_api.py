"""The functions for Python: what the commands write, silently, and without a trace in the process."""

import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import zymogen
from data.homology import mmseqs
from finetune.embed import plan
from finetune.embed.__main__ import main as embed
from finetune.look.__main__ import main as look
from finetune.score.__main__ import main as score
from pretrain.model.masked_language_model import MaskedLanguageModel
from pretrain.model.presets import EsmShape
from pretrain.model.weights import io as transformers_io
from support.inputs.flat_batches import perturb
from support.inputs.token_stores import proteins
from support.inputs.written_runs import WrittenRun
from support.launching import environment
from support.places import ROOT
from zymogen import api
from zymogen.console.progress import ProgressBar

SEQUENCES = [letters for _, letters in proteins(23)] + [proteins(23)[3][1], "mktayiakqr*"]
"""25 sequences, two of which are equal, and one as some files write them."""
WILD_TYPE = "MKTAYIAKQRQISFVKSHFSRQ"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds an ESM-2 and the sequences."""
    folder = tmp_path_factory.mktemp("api")
    ours = MaskedLanguageModel(EsmShape(layers=2, dim=48, heads=4))
    perturb(ours)
    transformers_io.save(ours, folder / "tiny")
    text = "".join(f">p{number}\n{letters}\n" for number, letters in enumerate(SEQUENCES))
    (folder / "in.fasta").write_text(text)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> "zymogen.Model":
    return zymogen.open_model(folder / "tiny", device="cpu")


def test_a_model_describes_itself(model: "zymogen.Model") -> None:
    assert (model.name, model.num_layers, model.dim) == ("tiny", 2, 48)


@pytest.mark.parametrize("pooling", ["mean", "begin", "residue"])
@pytest.mark.parametrize("more", [{}, {"layers": [2, 0], "too_long": "windows", "max_tokens": 20}])
def test_vectors_are_the_commands_bit_for_bit(
    model: "zymogen.Model",
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pooling: str,
    more: dict[str, object],
) -> None:
    monkeypatch.setattr(plan, "PART_TOKENS", 100)  # several parts
    words = [word for name, value in more.items() for word in (f"--{name.replace('_', '-')}", value)]
    words = [str(each) for word in words for each in (word if isinstance(word, list) else [word])]
    out = tmp_path / "out.parquet"
    assert embed([str(folder / "tiny"), str(folder / "in.fasta"), str(out), "--pooling", pooling, *words]) == 0
    ours = model.embed(SEQUENCES, pooling=pooling, **more)  # type: ignore[arg-type]
    assert len(ours) == len(SEQUENCES)
    written = pq.read_table(out)
    for at, layer in enumerate([2, 0] if more else [2]):
        for mine, theirs in zip(ours, written[f"layer_{layer}"].to_pylist(), strict=True):
            assert np.array_equal(mine[..., at, :] if more else mine, np.array(theirs, np.float32))
    again = model.embed(SEQUENCES, pooling=pooling, **more)  # type: ignore[arg-type]
    assert all(map(np.array_equal, ours, again))


def test_no_sequence_has_no_vector(model: "zymogen.Model") -> None:
    assert np.shape(model.embed([])) == (0, 48)
    assert np.shape(model.embed([], layers=[1, 2])) == (0, 2, 48)
    assert model.embed([], pooling="residue") == []


@pytest.mark.parametrize("scheme", ["wt-marginal", "masked-marginal-joint", "pseudo-likelihood"])
def test_scores_are_the_commands(model: "zymogen.Model", folder: Path, tmp_path: Path, scheme: str) -> None:
    rows = ["K2R", "K2R:Q11A", "M1L:K2R:T3S"]
    (tmp_path / "in.csv").write_text("mutant\n" + "\n".join(rows) + "\n")
    words = [str(folder / "tiny"), str(tmp_path / "in.csv"), "--target-seq", WILD_TYPE, "--scheme", scheme]
    assert score([*words, "-o", str(tmp_path / "out.csv")]) == 0
    written = [line.split(",")[1] for line in (tmp_path / "out.csv").read_text().splitlines()[1:]]
    ours = model.score(WILD_TYPE, rows, scheme=scheme)  # type: ignore[arg-type]
    assert [repr(value) for value in ours.tolist()] == written
    assert np.array_equal(
        ours, model.score(WILD_TYPE, ["K12R", "K12R:Q21A", "M11L:K12R:T13S"], scheme=scheme, numbering_offset=-10)
    )  # type: ignore[arg-type]
    sequences = ["MRTAYIAKQRQISFVKSHFSRQ", "MRTAYIAKQRAISFVKSHFSRQ", "LRSAYIAKQRQISFVKSHFSRQ"]
    assert np.array_equal(ours, model.score(WILD_TYPE, sequences=sequences, scheme=scheme))  # type: ignore[arg-type]


def test_an_insertion_has_a_pseudo_likelihood_alone(model: "zymogen.Model") -> None:
    longer = [f"{WILD_TYPE}A"]
    assert np.isfinite(model.score(WILD_TYPE, sequences=longer, scheme="pseudo-likelihood")).all()
    with pytest.raises(ValueError, match=r"^sequences: row 0: has insertions or deletions.* pseudo-likelihood$"):
        model.score(WILD_TYPE, sequences=longer)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: model.embed(["MKT", "MK!T"]), r"^sequences\[1\], 'MK!T', "),
        (lambda model: model.embed(["MKT", ""]), r"^sequences\[1\], '', "),
        (lambda model: model.embed(["M" * 2000]), r"^sequences\[0\] has 2,000 residues, more than the 1,024 that "),
        (lambda model: model.embed(["MKT"], layers=[3]), r"^layers 3: .*tiny has 2 layers; give numbers from 0"),
        (lambda model: model.embed(["MKT"], layers=[1, 1]), r"^layers 1 1: give each layer once"),
        (lambda model: model.embed(["MKT"], pooling="max"), r"^pooling is 'max'; .*'mean', 'begin', 'residue'"),
        (lambda model: model.embed("MKT"), r"^sequences is one string; give a list of sequences"),
        (
            lambda model: model.score("MKT", ["A2K"]),
            r"^mutations: row 0, .*expects A at 2, and wild_type has K",
        ),
        (lambda model: model.score("MKT"), r"^score: give either mutations or sequences"),
        (lambda model: model.score("MKT", ["K2R"], scheme="best"), r"^scheme is 'best'; .*allowed are 'wt-marginal'"),
        (lambda model: model.score("M1KT", ["K2R"]), r"^wild_type 'M1KT' "),
        (lambda _: zymogen.open_model("no/such/model"), r"^no/such/model: no transformers model can be read there"),
        (lambda _: zymogen.open_model("none", base="x"), r"^--base x|^base"),
    ],
)
def test_mistakes_are_one_error(model: "zymogen.Model", call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(model)  # type: ignore[operator]


def test_threads_share_a_model(model: "zymogen.Model") -> None:
    given = [SEQUENCES[number : number + 3] for number in range(4)]
    expected = [model.embed(each, layers=[0, 1, 2]) for each in given]
    found: list[object] = [None] * 4
    # Before a thread's forward pass ends, others have their turn.
    hook = model._encoder.layers[-1].register_forward_hook(lambda *_: time.sleep(0.05))

    def work(number: int) -> None:
        found[number] = model.embed(given[number], layers=[0, 1, 2])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    hook.remove()
    assert all(map(np.array_equal, expected, found))  # type: ignore[arg-type]


TRACES = """
import logging, os, signal, sys, threading, warnings
import zymogen
assert not {name.partition(".")[0] for name in sys.modules} & {"numpy", "torch", "data", "pretrain", "finetune"}
import peft, torch, transformers, urllib3  # which change filters of warnings and, by torch._inductor, a variable
from torch._inductor import codecache
def state():
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    levels = {name: logging.getLogger(name).level for name in ("transformers", "huggingface_hub", "")}
    return dict(os.environ), handlers, levels, torch.get_num_threads(), torch.get_default_dtype(), \
        torch.random.initial_seed(), torch.is_grad_enabled(), warnings.filters[:], sys.getswitchinterval(), \
        threading.active_count(), os.getcwd(), sys.excepthook, sys.path[:]
before = state()
for _ in range(2):
    model = zymogen.open_model(sys.argv[1])
    assert model.embed(["MKTAYIAKQR"] * 3).shape == (3, 48)
    assert model.score("MKTAYIAKQR", ["K2R"]).shape == (1,)
after = state()
differing = [(old, new) for old, new in zip(before, after) if old != new]
sys.exit(str(differing) if differing else 0)
"""


def test_nothing_is_printed_and_the_process_stays_as_it_was(folder: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRACES, str(folder / "tiny")],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_progress_is_printed_where_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(ProgressBar.__init__.__kwdefaults__, "after_s", 0.0)
    monkeypatch.setattr(api, "ProgressBar", lambda text, **_: ProgressBar(text))
    zymogen.open_model(folder / "tiny", device="cpu").embed(["MKT"])
    assert capfd.readouterr() == ("", "")
    zymogen.open_model(folder / "tiny", device="cpu", progress=True).embed(["MKT"])
    assert re.findall(r"(.*): took", capfd.readouterr().err) == ["opening the model", "embedding"]


def test_an_unknown_function_names_all(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match=r"module 'zymogen' has no attribute 'nothing'; it has .*open_model"):
        zymogen.nothing  # noqa: B018
    (tmp_path / "data.py").write_text("raise SystemExit('it was run')\n")
    code = "import zymogen; zymogen.open_model('x')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {tmp_path / 'data.py'} hides the package 'data'")


def test_a_look_finds_what_the_command_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mmseqs, "is_installed", lambda: False)  # relatives are counted by words, which takes no second
    rows = "".join(f"{letters},{1 + n % 7}.{n}\n" for n, (_, letters) in enumerate(proteins(40)))
    Path("in.csv").write_text(f"sequence,activity\n{rows}")
    found = zymogen.look("in.csv")
    assert {name: role for name, (role, _) in found.roles.items()} == {"sequence": "sequence", "activity": "task"}
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]
    assert look(["in.csv", "-o", "theirs.toml"]) == 0
    written = zymogen.look("in.csv", recipe="mine.toml")
    assert Path("mine.toml").read_text() == written.recipe
    assert _values("mine.toml") == _values("theirs.toml")
    with pytest.raises(ValueError, match=r"^none\.csv"):
        zymogen.look("none.csv")


def _values(recipe: str) -> list[str]:
    """Lines of a recipe without comments and its own name."""
    lines = [line.partition("#")[0].strip() for line in Path(recipe).read_text().splitlines()]
    return [line for line in lines if not line.startswith("directory")]


def test_a_run_is_read(tmp_path: Path) -> None:
    run = zymogen.read_run(WrittenRun(steps=5).write(tmp_path / "run"))
    assert run.settings["model"]["preset"]
    assert run.metrics["step"].tolist() == [1, 2, 3, 4, 5]
    assert run.metric("none").shape == (5,)
    with pytest.raises(ValueError, match="none"):
        zymogen.read_run(tmp_path / "none")


def test_the_code_of_the_page_runs(folder: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/api.md").read_text("utf-8"), re.S)
    code = "".join(blocks).replace("facebook/esm2_t6_8M_UR50D", str(folder / "tiny"))
    names: dict[str, object] = {}
    exec(code, names)
    assert np.shape(names["vectors"]) == (3, 48)
    assert np.shape(names["scores"]) == (2,)
    assert np.shape(names["places"]) == (3, 2)
    assert np.array_equal(np.asarray(names["neighbors"])[:, 0], [0, 1, 2])
