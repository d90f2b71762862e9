"""Mistakes on the command line are called that, those of a recipe are not, and what was probably meant is named."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain.__main__ import main
from pretrain.recipe import Recipe
from support.places import ROOT
from zymogen.settings.origin import COMMAND_LINE, SettingOrigin
from zymogen.settings.toml_file import read

QUICKSTART = Path("recipes/quickstart.toml")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """The one line with which the program, started in the checkout, answers a command line."""
    monkeypatch.chdir(ROOT)

    def of(*words: str) -> str:
        assert main(list(words)) == 78
        out, err = capsys.readouterr()
        (line,) = err.splitlines()
        assert out == ""
        return line.removeprefix("error: ")

    return of


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run.sead=1"], "on the command line, run.sead=1: there is no setting 'run.sead'; the nearest is 'run.seed'"),
        (["run.seed=many"], "on the command line, run.seed=many: run.seed is 'many': Input should be a valid integer"),
        (["run.log_every=0"], "on the command line, run.log_every=0: run.log_every is 0; it must be at least 1"),
        (["run.log_every=1.5"], "on the command line, run.log_every=1.5: run.log_every is 1.5; it must be a whole "
         "number of steps, or a time: '30 s', '10 min', '2 h'"),
        (["run.log_every=10.0"], "on the command line, run.log_every=10.0: run.log_every is 10.0; it must be a whole "),
        (["run.log_every=true"], "on the command line, run.log_every=true: run.log_every is True; it must be a whole "),
        (["run.seed=0", "run.seed=x"], "on the command line, run.seed=x: run.seed is 'x': Input should"),
        (["run.directory=none"], "on the command line, run.directory=none: run.directory is required"),
        (["schedule.peak_lr=nan"], "on the command line, schedule.peak_lr=nan: schedule.peak_lr is nan; it must be a"),
        (
            ["data.mask={mask_prob = 2.0}"],
            "on the command line, 'data.mask={mask_prob = 2.0}': data.mask.mask_prob is 2.0; it must lie in [0, 1]",
        ),
        (["data.clusters=x", "data.split_identity=0.3"], "on the command line, data.clusters=x, data.split_identity="),
        (["data.crop_tokens=20_000"], "recipes/quickstart.toml with data.crop_tokens=20_000 on the command line: data"),
        (["data.mask.random_prob=0.9"], "recipes/quickstart.toml with data.mask.random_prob=0.9 on the command line: "),
        (["run.seed"], "on the command line: override 'run.seed' has no '='; write section.field=value"),
        (["README.md"], "on the command line: override 'README.md' has no '='; write section.field=value, for example "
         "run.seed=1, or data.sources=README.md"),
        (["--run.seed=1"], "on the command line: unrecognized arguments: --run.seed=1; a setting has no dashes and one "
         "'=': run.seed=1"),
        (["--minuts"], "on the command line: unrecognized arguments: --minuts; did you mean --minutes?"),
        (["--num_processes=2"], "on the command line: unrecognized arguments: --num_processes=2; accelerate launch "
         "takes it, before -m"),
        (["--quick"], "on the command line: unrecognized arguments: --quick; --help lists what may be given"),
        (["data.sources=[a.fasta,b.fasta]"], "on the command line, 'data.sources=[a.fasta,b.fasta]': data.sources is a "
         "list without quotes, as a shell takes them away; write data.sources=a.fasta for one, or 'data.sour"),
    ],
)  # fmt: skip
def test_a_mistake_of_the_command_line(said, words: list[str], expected: str) -> None:
    assert said(str(QUICKSTART), *words).startswith(expected)


@pytest.mark.parametrize(
    ("line", "override", "expected"),
    [
        ("run.sead = 1", "run.seed=1", "there is no setting 'run.sead'"),
        ('run.seed = "many"', "run.log_every=1", "run.seed is 'many'"),
        ("run.log_every = 0", "run.seed=1", "run.log_every is 0"),
        ("data.mask.mask_prob = 2.0", "run.seed=1", "data.mask.mask_prob is 2.0"),
        ('data.sources = "none.fasta"', "run.seed=1", "none.fasta: No such file or directory; check data.sources"),
    ],
)
def test_a_mistake_of_the_recipe(said, tmp_path: Path, line: str, override: str, expected: str) -> None:
    recipe = tmp_path / "mine.toml"
    wanted = {"run.directory": f'"{tmp_path}/run"', "model.preset": '"esm2_60k"', "data.sources": '"a.fasta"'}
    name, _, value = line.partition(" = ")
    recipe.write_text("".join(f"{key} = {text}\n" for key, text in {**wanted, name: value}.items()))
    assert said(str(recipe), override).startswith(f"{recipe}: {expected}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["recipes/quikstart.toml", "recipe/quickstart.toml"])
def test_a_missing_recipe_names_the_nearest(said, name: str) -> None:
    assert said(name) == (
        f"on the command line: recipe {name}: No such file or directory; the nearest is 'recipes/quickstart.toml'"
    )


def test_nothing_near_is_not_named(said) -> None:
    for name in ("zzz/zzz.toml", "~nosuchuser/zzz.toml"):
        assert said(name) == f"on the command line: recipe {name}: No such file or directory"


@pytest.mark.parametrize("setting", ["data.clusters", "data.exclude"])
def test_a_home_that_does_not_exist_is_a_missing_file(said, tmp_path: Path, setting: str) -> None:
    words = [str(QUICKSTART), f"run.directory={tmp_path}/run", f"{setting}=~nosuchuser/pairs.tsv"]
    if setting == "data.clusters":
        (tmp_path / "a.fasta").write_text(">a\nMKV\n")
        words.append(f"data.sources={tmp_path}/a.fasta")
    assert f"~nosuchuser/pairs.tsv: No such file or directory; check {setting}" in said(*words)


@pytest.mark.parametrize("setting", ["data.sources", "data.clusters", "data.exclude"])
def test_a_missing_file_is_refused_before_torch_and_before_the_run_directory(
    said, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zymogen.trainer.engine.launch", None)  # cannot be imported
    for name in ("proteins.fasta", "pairs.tsv"):
        (tmp_path / name).write_text(">a\nMKV\n")
    monkeypatch.chdir(tmp_path)  # a long path would be shortened in the words
    words = [str(ROOT / QUICKSTART), "run.directory=run", "data.sources=proteins.fasta"]
    assert said(*words, f"{setting}=protein.fasta") == (
        f"on the command line, {setting}=protein.fasta: protein.fasta: No such file or directory; check {setting}; "
        f"the nearest is 'proteins.fasta'"
    )
    assert not (tmp_path / "run").exists()


def test_a_source_whose_name_no_recipe_can_hold(said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9.fasta")
    Path(name).write_text(">a\nMKT\n")
    assert "'caf\\udce9.fasta' is no UTF-8, as a recipe must be; rename the file" in said(name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_origin_blames_what_a_message_names() -> None:
    origin = SettingOrigin("r.toml", ["data.clusters=t", "run.seed=1"])
    fields = ["data.clusters", "data.split_identity", "data.crop_tokens"]
    assert origin.error("clusters is 't'", *fields) == "on the command line, data.clusters=t: clusters is 't'"
    assert origin.error("of 60 clusters 3 are empty", *fields) == "r.toml: of 60 clusters 3 are empty"
    assert origin.error("data.clusters_of is 1", *fields).startswith("r.toml: ")
    alone = SettingOrigin(COMMAND_LINE, ["data.bin_tokens=512"])
    message = "data.crop_tokens is 1024, data.bin_tokens is 512"
    assert alone.error(message, "data.crop_tokens", "data.bin_tokens") == (
        f"on the command line, data.bin_tokens=512: {message}"
    )
    long = SettingOrigin("r.toml", [f"run.directory={'x' * 500}"])
    assert len(long.error("run.directory is long", "run.directory")) < 160


# One string in place of a list --------------------------------------------------------------------


def test_one_path_is_a_list_of_one(tmp_path: Path) -> None:
    def recipe(sources: str, *overrides: str) -> Recipe:
        path = tmp_path / "r.toml"
        path.write_text(f'run.directory = "r"\nmodel.preset = "esm2_8m"\ndata.sources = {sources}\n')
        return read(Recipe, path, overrides)

    bracketed = recipe('["your.fasta.gz"]', 'run.trackers=["tensorboard"]')
    assert recipe('"your.fasta.gz"', "run.trackers=tensorboard") == bracketed
    assert recipe('["a", "b"]', "data.sources=your.fasta.gz", "run.trackers=tensorboard") == bracketed
    assert bracketed.data.sources == ("your.fasta.gz",)
    with pytest.raises(ValueError, match=r"run\.trackers is 'tensorbord'; the nearest is 'tensorboard'"):
        recipe('"a"', "run.trackers=tensorbord")
    with pytest.raises(ValueError, match=r"data\.crop_tokens is '32'"):
        recipe('"a"', 'data.crop_tokens="32"')


def test_the_answer_imports_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys, pretrain.__main__ as program; "
        f"assert program.main(['recipes/quickstart.toml', 'data.sources={tmp_path}/none.fasta']) == 78; "
        "sys.exit('torch' in sys.modules or 'accelerate' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("error: on the command line, data.sources=")


@pytest.mark.slow
def test_an_estimate_of_a_run_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "x.fasta").write_text("".join(f">{n}\n{'MKTAYIAKQR' * (n + 2)}\n" for n in range(9)))
    program = (
        "import sys, pretrain.__main__ as program; "
        f"assert program.main(['x.fasta', 'data.store_dir={tmp_path}/stores', '--plan', '--untimed']) == 0; "
        "sys.exit('torch' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "1"}
    how = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run([sys.executable, "-c", program], **how)
    assert done.returncode == 0, done.stderr


PODS = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "PET_NNODES": "2"}
"""What Kubeflow's training operator sets in each pod, for whatever is started there."""
_OF_ONE_PROCESS = re.compile(
    r"^main = (?:make_compare_main\(|make_main\([^=]*is_alone=True)|run_and_report\(lambda.*is_alone=True", re.MULTILINE
)
OF_ONE_PROCESS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("pretrain", "finetune")
    for path in (ROOT / package).rglob("*.py")
    if _OF_ONE_PROCESS.search(path.read_text()) and path.name != "command.py"
)


@pytest.mark.parametrize("module", OF_ONE_PROCESS)
def test_a_command_of_one_process_does_its_work_in_a_pod_and_is_refused_under_a_launcher(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = importlib.import_module(module).main
    monkeypatch.setattr(sys, "argv", ["command"])  # of which each lacks something
    assert command([]) == 78
    alone = capsys.readouterr().err.splitlines()[-1]  # where torch is not imported yet, there are lines of that
    assert "the following arguments are required" in alone
    monkeypatch.setattr("zymogen.command_line.command._PATIENCE_S", -1)  # fails where a rank waits for rank 0's words
    for name, value in PODS.items():
        monkeypatch.setenv(name, value)
    assert command([]) == 78
    assert capsys.readouterr().err.splitlines() == [alone]
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert command([]) == 78
    assert "error: 2 processes were started, and each would do and write the same" in capsys.readouterr().err


def test_the_commands_of_one_process_are_known() -> None:
    assert {"pretrain.inspect.__main__", "pretrain.export.__main__", "finetune.score.__main__"} <= set(OF_ONE_PROCESS)
    assert len(OF_ONE_PROCESS) == 11
