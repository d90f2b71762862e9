"""docs/first_run.md is a program: its commands are run one after the other in an empty folder."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain.model.memory import MEMORY_SHARE
from support.launching import environment, lines
from support.pages.shown import blocks, commands
from support.places import ROOT

PAGE = ROOT / "docs/first_run.md"
FIRST, *_ = commands(PAGE)


def typed(command: str, folder: Path) -> str:
    """What a command prints in a folder that has the sequences, with seconds in the place of minutes."""
    if command == FIRST:
        command += " --plan"  # an hour is not run
    command = command.replace("--minutes 10", "--minutes 0.02").replace("python -m", f"{sys.executable} -m")
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env={**environment(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.fixture
def folder(families_files: tuple[Path, Path], tmp_path: Path) -> Path:
    """With the sequences, and with what the page's launcher reads."""
    shutil.copy(families_files[0], tmp_path / "your.fasta.gz")
    (tmp_path / "accelerate_configs").symlink_to(ROOT / "accelerate_configs")
    return tmp_path


@pytest.mark.prove
def test_every_command_runs(folder: Path) -> None:
    for command in commands(PAGE):
        typed(command, folder)
    for name, world_size in (("your", 1), ("ddp", 2), ("esm2", 1), ("second", 1)):
        attempts = lines(folder / "runs" / name / "attempts.jsonl")
        assert (attempts[0]["world_size"], attempts[-1]["exit"]) == (world_size, "finished")
        assert (folder / "runs" / name / "export/model.safetensors").is_file()
    assert (folder / "runs/esm2/recipe.toml").is_file()


@pytest.mark.slow
def test_the_rows_of_a_plan_are_those_of_the_page(folder: Path) -> None:
    """In their order and in their words."""
    ((_, shown),) = [block for block in blocks(PAGE) if block[0] == "text"]
    before = [command.endswith("--minutes 10 --plan") for command in commands(PAGE)].index(True)
    *_, plan = [typed(command, folder) for command in commands(PAGE)[: before + 1]]
    here, there = rows(shown), rows(plan[plan.index("proposed for") :])
    there.pop("note", None)
    assert list(here) == list(there)
    assert list(here)[-2:] == ["recipe", "promise"]
    for name, text in here.items():
        assert text == there[name], name


# From here on the words of a row depend on the corpus and on the machine.
OPEN = {
    "machine": "",
    "model": r"(?<=:)",
    "length": r"(?<=\(timed here\))",
    "step": r"(?<= slots,)",
    "split": r"\(MMseqs2",
    "saves": r"(?<=validation every)",  # a fifth of the minutes that steps get, in seconds or minutes
}


def rows(text: str) -> dict[str, str]:
    """The rows of a proposal by name, without what depends on the corpus and with N in the place of each number."""
    text = re.sub(r"\n {3,}", " ", text).replace("\nabout ", "\n  promise  about ")
    found = dict(re.findall(r"^  (\w[\w ]*?)  +(.*)", text, re.M))
    return {name: words(re.split(OPEN.get(name, "$"), row)[0]) for name, row in found.items()}


def words(row: str) -> str:
    row = re.sub(r", [\d,]+ of them distinct", "", row)
    return re.sub(r"\b(?:second|minute|hour|bin)s?\b", "UNIT", re.sub(r"\d[\d,.]*\b", "N", row))


def test_control_other_words_of_a_row_are_seen() -> None:
    ((_, shown),) = [block for block in blocks(PAGE) if block[0] == "text"]
    assert rows(shown)["rate"] != rows(shown.replace("a warm-up over", "warmed up over"))["rate"]
    assert rows(shown)["crop"] == rows(shown.replace("512 tokens", "64 tokens"))["crop"]
    assert "promise" in rows(shown)


def test_the_rules_are_those_of_the_page() -> None:
    from pretrain.proposal import rules

    text = " ".join(PAGE.read_text().split())
    for said in (
        f"gets {rules.TOKENS_PER_PARAMETER:.0f} tokens for each of its parameters",
        f"fits into {100 * MEMORY_SHARE:.0f} % of the memory",
        f"at most {rules.MOST_PASSES:.0f} passes",
        f"at least {rules.LEAST_STEPS} steps",
        f"the length that {rules.CROP_QUANTILE} % of the proteins do not exceed",
        f"at most {rules.MOST_CROP['cpu']} tokens on a CPU and {rules.MOST_CROP['cuda']:,} on a GPU",
        f"{rules.VALIDATION_CLUSTERS} clusters, but no less than {100 * rules.VALIDATION_SHARE[0]:g} % and no more "
        f"than {100 * rules.VALIDATION_SHARE[1]:.0f} %",
        f"clusters of {100 * rules.SPLIT_IDENTITY:.0f} % identity",
        f"up to {rules.SHORT_TOKENS / 1e6:.0f} million tokens: {100 * rules.TARGETS:.0f} % of the residues are targets",
        f"else 15 %), and Muon's momentum is {rules.MOMENTUM} (else 0.95)",
    ):
        assert said in text, said
