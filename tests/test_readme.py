"""README.md, the how-tos and what a finished run prints are programs: their commands run, in a copy of the checkout.

A command that no runner here knows fails its test, so a page cannot come to show what nobody has tried.
"""

import gzip
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from data.sources.synthetic import Families, write_corpus
from support.hub.server import serving
from support.launching import lines
from support.pages.checkout import HUB_NAME, Checkout, tiny_model
from support.pages.shown import README, blocks, commands
from support.places import ROOT

HOWTO = sorted((ROOT / "docs" / "howto").glob("*.md"))
CLUSTER = ROOT / "docs" / "howto" / "cluster.md"  # whose commands need one: test_docs.py reads their recipes

# Running them ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    folder = tmp_path_factory.mktemp("checkout")
    listing = ["git", "-c", "safe.directory=*", "ls-files", "-coz", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    (folder / ".venv").symlink_to(sys.prefix, target_is_directory=True)
    small = Families(num_families=40, members_per_family=3, mean_residues=60, max_residues=150)
    fasta, _ = write_corpus(tmp_path_factory.mktemp("families"), small)
    shutil.copy(fasta, folder / "your.fasta.gz")
    return Checkout(folder)


def own_run(checkout: Checkout) -> Path:
    """The run of the page's first training command, which later lines of the page refer to."""
    return checkout.train(next(c for c in commands(README) if "-m pretrain " in c and c.startswith("accelerate")))


def make_setup(command: str, checkout: Checkout) -> None:
    assert checkout.bash(command.replace("make", "make -n", 1)) == "python3 bootstrap.py\n"  # it has run for this test


def your_run(checkout: Checkout) -> None:
    """`runs/your`, which later lines of the how-tos refer to."""
    train_own(next(c for c in commands(README) if c.endswith("-m pretrain your.fasta.gz")), checkout)


def train_own(command: str, checkout: Checkout) -> None:
    output = checkout.bash(f"{command} --minutes 0.05", OMP_NUM_THREADS="1")
    run = checkout.folder / "runs/your"
    assert lines(run / "attempts.jsonl")[-1]["exit"] == "finished"
    assert {"recipe.toml", "report.html", "export"} <= {path.name for path in run.iterdir()}
    assert "The run in pictures: runs/your/report.html" in output


def make_test(command: str, checkout: Checkout) -> None:
    """CI runs this command itself; a test that ran all tests would run itself."""
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


def shape_of(closing_words: str) -> list[str]:
    """The words of each line, every number as 0, whatever folder the environment is in."""
    plain = closing_words.replace(f"{sys.prefix}/bin", ".venv/bin").strip()
    return [" ".join(re.sub(r"\d[\d,.]*", "0", line).split()) for line in plain.splitlines()]


def quickstart(command: str, checkout: Checkout, total_tokens: str) -> tuple[str, float]:
    """What the whole command prints on a part of its 1.6 million tokens, and the perplexity where it ends."""
    recipe = checkout.folder / "recipes/quickstart.toml"
    whole = recipe.read_text()
    part, found = re.subn(r"(?m)^total_tokens = 1_600_000$", f"total_tokens = {total_tokens}", whole)
    assert found == 1
    recipe.write_text(part)
    shutil.rmtree(checkout.folder / "runs/quickstart", ignore_errors=True)
    # An environment knows the place where it was made, and `make setup` would make another one here.
    output = checkout.bash(f"{command.replace('make', 'make -o setup', 1)} # {total_tokens} tokens")
    recipe.write_text(whole)
    rows = re.findall(r"^ +(mask-all|80/10/10) +([\d.]+) +[\d.]+ to [\d.]+ +([\d.]+) +([\d.]+)$", output, re.M)
    assert [row[0] for row in rows] == ["mask-all", "80/10/10"]
    assert all(float(floor) < float(model) < float(unigram) for _, model, unigram, floor in rows)
    return output, float(rows[0][1])


def closing_words(output: str) -> tuple[list[str], list[str]]:
    """The shapes of those that the page shows, and of those that were printed."""
    shown = next(text for language, text in blocks(README) if language == "text")
    return shape_of(shown), shape_of(output[output.index("Trained on ") :])


def make_pretrain(command: str, checkout: Checkout) -> None:
    output, _ = quickstart(command, checkout, "120_000")
    assert "It beats residue frequencies by" in output
    shown, printed = closing_words(output)
    falls = shown.index(next(line for line in shown if "loss still falls" in line))
    assert shown[:falls] == printed[:falls]  # so few tokens do not tell whether it falls, and what to try next
    assert (checkout.folder / "runs/quickstart/export/config.json").is_file()


def activate(command: str, checkout: Checkout) -> None:
    found = checkout.bash(f"{command} && command -v accelerate && command -v python").split()
    assert [Path(path).resolve().parent for path in found][:1] == [Path(sys.prefix, "bin").resolve()]


def show_help(command: str, checkout: Checkout) -> None:
    said = "  schedule.total_tokens\n      training ends here [int above 0, in tokens; default"
    assert said in checkout.bash(command)


def show_statistics(command: str, checkout: Checkout) -> None:
    said = checkout.bash(command)
    assert re.search(r"records +120\b", said), said


def pretrain(command: str, checkout: Checkout) -> None:
    run = checkout.train(command)
    model = json.loads((run / "run.json").read_text())["recipe"]["model"]
    given = str(checkout.folder / "published") if HUB_NAME in command else None
    assert (model["preset"], model["init"]) == (None if given else tiny_model(command), given)


def export(command: str, checkout: Checkout) -> None:
    run = own_run(checkout)
    shutil.rmtree(run / "export")
    assert checkout.bash(command).endswith(f": {run.relative_to(checkout.folder)}/export\n")
    assert {"config.json", "model.safetensors", "README.md"} <= {path.name for path in (run / "export").iterdir()}


def assay_table(checkout: Checkout) -> None:
    """A table of 40 of the user's proteins, and some of them without labels."""
    with gzip.open(checkout.folder / "your.fasta.gz", "rt") as file:
        sequences = [text.partition("\n")[2].replace("\n", "") for text in file.read().split(">")[1:]][:40]
    rows = [f"p{n},{letters},{37 * n % 101 / 10},{('yes', 'no', '')[n % 3]}" for n, letters in enumerate(sequences)]
    (checkout.folder / "your_assays.csv").write_text("\n".join(["id,sequence,activity,stable", *rows]) + "\n")
    (checkout.folder / "your_new.fasta").write_text("".join(f">n{n}\n{s}\n" for n, s in enumerate(sequences[:3])))


def look(command: str, checkout: Checkout) -> str:
    assay_table(checkout)
    start = own_run(checkout).relative_to(checkout.folder)
    return checkout.bash(command.replace("--init runs/your ", f"--init {start} "), OMP_NUM_THREADS="1")


def look_at_a_table(command: str, checkout: Checkout) -> None:
    said = look(command, checkout)
    assert re.search(r"^  activity +task +numbers, ", said, re.M), said
    assert re.search(r"^  stable +task +yes or no", said, re.M), said


def finetune(command: str, checkout: Checkout) -> str:
    look(next(c for c in commands(README) if "finetune.look" in c), checkout)
    return checkout.bash(f"{command} schedule.passes=2 split.folds=3", OMP_NUM_THREADS="1")


def finetune_a_table(command: str, checkout: Checkout) -> None:
    said = finetune(command, checkout)
    assert "scores of out-of-fold predictions of all folds, beside baselines on the same labels" in said
    assert {"scores.json", "predictions.csv", "report.html"} <= {
        p.name for p in checkout.folder.glob("runs/your_assays/*")
    }


def predict_new_ones(command: str, checkout: Checkout) -> None:
    finetune(next(c for c in commands(README) if c.endswith(" -m finetune your_assays.toml")), checkout)
    checkout.bash(command, OMP_NUM_THREADS="1")
    header, *rows = (checkout.folder / "predictions.csv").read_text().splitlines()
    assert header.startswith("id,sequence,activity,")
    assert [row.partition(",")[0] for row in rows] == ["n0", "n1", "n2"]


def score_variants(command: str, checkout: Checkout) -> None:
    your_run(checkout)
    (checkout.folder / "your_target.fasta").write_text(">mine\nMKTAYIAKQRQISFVKSHFSRQ\n")
    (checkout.folder / "your_variants.csv").write_text("mutant,dose\nK2R,1\nK2R:T3W,2\nWT,3\n")
    checkout.bash(command, OMP_NUM_THREADS="1")
    header, *rows = (checkout.folder / "scored.csv").read_text().splitlines()
    assert header == "mutant,dose,your:masked-marginal-wt-fill,note"
    first, second, wild = (float(row.split(",")[2]) for row in rows)
    assert wild == 0.0
    assert len({first, second, wild}) == 3


def embed_proteins(command: str, checkout: Checkout) -> None:
    import pyarrow.parquet as pq

    your_run(checkout)
    assay_table(checkout)
    checkout.bash(command, OMP_NUM_THREADS="1")
    table = pq.read_table(checkout.folder / "embedded.parquet")
    assert table["id"].to_pylist() == ["n0", "n1", "n2"]
    assert table.column_names[:2] == ["id", "residues"]


def push_model(command: str, checkout: Checkout) -> None:
    your_run(checkout)
    with serving("hf_of_this_test") as hub:
        said = {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token, "HF_HOME": str(checkout.folder / "login")}
        checkout.bash(command, HF_HUB_DISABLE_XET="1", HF_HUB_OFFLINE="0", **said)
        held = hub.repositories[command.split()[4]].files
    exported = [path for path in (checkout.folder / "runs/your/export").glob("[!.]*") if path.is_file()]
    assert {path.name: path.read_bytes() for path in exported}.items() <= dict(held).items()


RUNNERS: dict[str, Callable[[str, Checkout], None]] = {
    r"make setup": make_setup,
    r"(\.venv/bin/)?python -m pretrain \S+\.fasta\.gz": train_own,
    r"make pretrain": make_pretrain,
    r"make test": make_test,
    r"source \.venv/bin/activate": activate,
    r"python -m pretrain --help-settings": show_help,
    r"python -m data stats \S+": show_statistics,
    r"python -m pretrain\.export \S+": export,
    r"python -m finetune\.look \S+ --init \S+ -o \S+": look_at_a_table,
    r"accelerate launch --config_file accelerate_configs/\w+\.yaml -m finetune \S+": finetune_a_table,
    r"python -m finetune\.predict \S+ \S+ -o \S+": predict_new_ones,
    r"python -m finetune\.score \S+ \S+ --wild-type \S+ -o \S+": score_variants,
    r"python -m finetune\.embed \S+ \S+ \S+": embed_proteins,
    r"python -m pretrain\.push \S+ \S+ --private": push_model,
    r"accelerate launch --config_file accelerate_configs/\w+\.yaml (--\w+ \w+ )*-m pretrain recipes/.*": pretrain,
}
SLOW = ("make pretrain", "--num_processes", "-m finetune")
PROVED = ("--num_processes 8", "recipes/modern_35m.toml")
"""Begun here are these with a tiny model; what they say besides, others say, too."""


def runner_of(command: str) -> Callable[[str, Checkout], None]:
    fitting = [runner for pattern, runner in RUNNERS.items() if re.fullmatch(pattern, command)]
    assert len(fitting) == 1, f"a page shows {command!r}, which no runner here knows; add one to RUNNERS"
    return fitting[0]


def in_its_tier(command: str) -> object:
    tier = [pytest.mark.prove] if any(s in command for s in PROVED) else [pytest.mark.slow]
    return pytest.param(command, marks=tier if any(s in command for s in (*PROVED, *SLOW)) else [])


def in_its_tier_too(command: str) -> object:
    """Of a how-to: the training commands are those of the README."""
    return pytest.param(command, marks=pytest.mark.prove if "-m pretrain " in command else [pytest.mark.slow])


@pytest.mark.launch
@pytest.mark.xdist_group("readme")
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "command",
    [in_its_tier(command) for command in commands(README)],
    ids=lambda command: command.replace("accelerate launch --config_file accelerate_configs/", "")[:60],
)
def test_command_of_the_readme_runs(command: str, checkout: Checkout) -> None:
    runner_of(command)(command, checkout)


@pytest.mark.prove
@pytest.mark.launch
@pytest.mark.xdist_group("readme")
@pytest.mark.timeout(1500)
def test_half_of_the_tokens_reach_what_all_of_them_did_before_muon_and_neighbours(checkout: Checkout) -> None:
    output, perplexity = quickstart("make pretrain", checkout, "800_000")
    assert perplexity < 9.9
    shown, printed = closing_words(output)
    assert shown == printed


@pytest.mark.launch
@pytest.mark.xdist_group("readme")
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "command",
    [in_its_tier_too(command) for page in HOWTO if page != CLUSTER for command in commands(page)],
    ids=lambda command: command.replace("accelerate launch --config_file accelerate_configs/", "")[:60],
)
def test_command_of_a_how_to_runs(command: str, checkout: Checkout) -> None:
    runner_of(command)(command, checkout)


def test_control_an_unknown_command_is_seen() -> None:
    for command in (
        "make deploy",
        "python -m pretrain.export",
        "accelerate launch -m pretrain recipes/quickstart.toml",
    ):
        with pytest.raises(AssertionError, match="which no runner here knows"):
            runner_of(command)


@pytest.mark.launch
@pytest.mark.xdist_group("readme")
def test_python_of_the_readme_runs(checkout: Checkout) -> None:
    own_run(checkout)
    (program,) = [text for language, text in blocks(README) if language == "python"]
    (checkout.folder / "program.py").write_text(f"{program}\nprint(tuple(vectors.shape))\n")
    said = checkout.bash("python program.py")
    assert re.search(r"'token_str': '\S+', 'sequence': '[A-Z ]+'", said)
    assert said.endswith("\n(1, 12, 48)\n")  # ten residues and two ends, in the width of esm2_60k


# What a finished run prints -------------------------------------------------------------------------------------------


def next_commands(output: str) -> list[str]:
    """The commands under "Try next:"."""
    return re.findall(r"^ {4}(\S.*)$", output.partition("Try next:")[2], re.M)


@pytest.mark.prove
@pytest.mark.launch
@pytest.mark.xdist_group("readme")
@pytest.mark.timeout(600)
def test_what_a_run_proposes_runs_as_printed(checkout: Checkout) -> None:
    run = own_run(checkout)
    fill_in, published, longer = next_commands(checkout.outputs[run])  # too short to propose a larger model
    assert "model.init=facebook/esm2" in published  # a run so short learns little

    assert re.search(r"'token_str': '\S+'", checkout.bash(fill_in))

    checkout.bash(longer)
    starts = [line for line in lines(run / "attempts.jsonl") if "cause" in line]
    assert [start["cause"] for start in starts] == ["fresh", "continued: attempt 1 ended as finished"]
    last = lines(run / "metrics.jsonl")[-1]
    assert last["step"] > starts[1]["base_step"] > 0
    assert last["tokens"] >= 6000

    # What a run on the embedded corpus proposes.
    checkout.bash(
        f"{longer.partition('-m pretrain')[0]}-m pretrain your.fasta.gz --minutes 0.05 run.directory=runs/as_proposed"
    )
    run = json.loads((checkout.folder / "runs/as_proposed/run.json").read_text())
    assert run["recipe"]["data"]["sources"] == ["your.fasta.gz"]


# What pages name ------------------------------------------------------------------------------------------------------


def test_blocks_are_of_languages_that_are_read_here() -> None:
    assert {language for language, _ in blocks(README)} == {"bash", "python", "text"}
