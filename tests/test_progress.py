"""Every command shows a line for its longest work, so that none is silent for minutes."""

import importlib
import os
import random
import re
import shlex
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest

from data.commands.arguments import parsers
from data.homology import mmseqs
from finetune.embed import job as embedding
from pretrain.inspect.__main__ import _parser as inspect_parser
from support.assays import small_run
from support.hub.client import local_hub
from support.inputs.structure_files import globule, pdb_text
from support.places import ROOT
from support.source_tree import PACKAGES, module_name, python_files
from zymogen.console.progress import BuildProgress, ProgressBar

INTERNAL = {"zymogen.processes.parent", "finetune.look.benchmark"}
"""Programs that our own processes start."""
RUN, TUNED = "own/run", "tuned/run"
PHASES: dict[str, tuple[str, str]] = {
    "data build": ("own.fasta --store-dir stores", "built the token store: "),
    "data stats": ("own.fasta --store-dir stores --json", "counting residues and lengths ..."),
    "data verify": ("{store}", "comparing {store} with its hashes ..."),
    "data head": ("own.fasta --store-dir stores --name p1", "looking for the names ..."),
    "data digest": ("own/recipe.toml --steps 1:2", "planning the steps before 1 ..."),
    "data decontaminate": (
        "--training own.fasta --heldout other.fasta --store-dir stores --output hits.tsv --min-identity 0.5",
        "searching for relatives of 2 sequences",
    ),
    "pretrain": ("own/recipe.toml schedule.total_tokens=4_000", "step 1 of "),
    "pretrain.evaluate": (f"{RUN} --training none", "scoring "),
    "pretrain.baselines": ("own/recipe.toml", "fitting ..."),
    "pretrain.compare": (f"{RUN} {RUN}", f"scoring {RUN}"),
    "pretrain.contacts": (f"{RUN} structures", "reading 12 structures ..."),
    "pretrain.export": (RUN, f"exporting {RUN} ..."),
    "pretrain.report": (RUN, "drawing the report ..."),
    "pretrain.inspect verify": (RUN, "with its hashes ..."),
    "pretrain.inspect audit": (RUN, "computing the samples up to step "),
    "pretrain.push": (f"{RUN}/export lab/own", "pushing to lab/own ..."),
    "finetune.look": ("tuned/assays.csv -o look.toml --no-timing", "reading tuned/assays.csv ..."),
    "finetune": ("tuned/recipe.toml schedule.total_tokens=2_000", "step 1 of "),
    "finetune.predict": (f"{TUNED} new.csv -o predicted.csv", "predicting 3 rows ..."),
    "finetune.compare": (f"{TUNED} {TUNED}", "comparing "),
    "finetune.score": (f"{RUN} variants.csv --target-seq MKTAYIAKQR -o scored.csv", " of 2 variants ..."),
    "finetune.proteingym": (f"reference.csv assays --model {RUN}", " of 2 variants ..."),
    "finetune.embed": (f"{RUN} own.fasta embedded.parquet", "embedding: part 1 of 1"),
    "finetune.export": (f"{TUNED} -o exported", f"exporting {TUNED}/bundle, and comparing"),
}
"""Command -> its words, and the beginning or the end of the line of its longest work."""
SHORT = {"pretrain.inspect attempts": "it reads a file of one line for each start; --wait waits as it was asked to"}


def found_commands(root: Path) -> set[str]:
    """Every module that is run by `python -m`, and each of the subcommands of those that have some."""
    files = [path for path in python_files(root, *PACKAGES) if '__name__ == "__main__"' in path.read_text()]
    names = {module_name(root, path).removesuffix(".__main__") for path in files} - INTERNAL
    of_data = {f"data {name}" for name in parsers()[1]}
    (subparsers,) = (each for each in inspect_parser()._actions if hasattr(each, "_name_parser_map"))
    of_inspect = {f"pretrain.inspect {name}" for name in subparsers._name_parser_map}
    return names - {"data", "pretrain.inspect", "zymogen"} | of_data | of_inspect


def test_every_command_is_in_the_table() -> None:
    assert found_commands(ROOT) == {*PHASES, *SHORT}


def test_control_a_new_command_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "finetune").mkdir()
    (tmp_path / "finetune/new.py").write_text('if __name__ == "__main__":\n    pass\n')
    assert "finetune.new" in found_commands(tmp_path)


@pytest.fixture
def place(recipe_in: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with everything that the commands read."""
    monkeypatch.chdir(tmp_path)
    draws = random.Random(0)
    proteins = ["".join(draws.choices("ACDEFGHIKLMNPQRSTVWY", k=60)) for _ in range(8)]
    fasta = [f">p{number}\n{letters}\n" for number, letters in enumerate(proteins)]
    Path("own.fasta").write_text("".join(fasta))
    Path("other.fasta").write_text("".join(fasta[:2]))
    recipe_in(Path("own").absolute())
    one = small_run.write(Path("tuned").absolute(), count=120)
    begin, _, rest = one.read_text().partition("[[tasks]]")
    task = '[heads]\nform = "transformers"\n\n[[tasks]]\nname = "binds"\ntype = "binary"\nclasses = ["no", "yes"]\n\n'
    one.write_text(f"{begin}{task}[split]{rest.partition('[split]')[2]}")
    Path("new.csv").write_text("name,sequence\na,MKTAYIAKQRQISFVK\nb,MKVLAAGIVGMKVLAAG\nc,GGSGGSGGSGGSGGS\n")
    Path("variants.csv").write_text("mutant\nK2R\nT3W\n")
    Path("structures").mkdir()
    for seed in range(12):
        Path(f"structures/p{seed:02}.pdb").write_text(pdb_text(globule(60, seed)))
    Path("reference.csv").write_text(
        "DMS_id,DMS_filename,UniProt_ID,target_seq,coarse_selection_type\nA_1,A_1.csv,A,MKTAYIAKQR,Activity\n"
    )
    Path("assays").mkdir()
    Path("assays/A_1.csv").write_text(
        "mutant,mutated_sequence,DMS_score,DMS_score_bin\nK2R,MRTAYIAKQR,0.5,0\nT3W,MKWAYIAKQR,1.5,1\n"
    )
    return tmp_path


class Terminal:
    """A pseudo-terminal in place of standard error; what was written to it is read all the time, so that none waits."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        ours, theirs = os.openpty()
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "300")
        self._stream = os.fdopen(theirs, "w")
        patch.setattr(sys, "stderr", self._stream)
        self._shown: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=self._read, args=[ours], daemon=True).start()

    def _read(self, ours: int) -> None:
        while shown := os.read(ours, 1 << 16):
            self._shown.put(shown)

    def shown(self) -> str:
        """What was shown since this was asked last, as lines without the codes that move the cursor."""
        print("\0", file=self._stream, flush=True)
        found = b""
        while b"\0" not in found:
            found += self._shown.get(timeout=60)
        plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", found.decode())
        return re.sub(r"(?:^|(?<=[\r\n]))[-\\|/] | \d+:\d\d:\d\d\s*(?=[\r\n])", "", plain)


def show_at_once(line: ProgressBar) -> None:
    """What is shown after seconds."""
    if line._bar:
        line._bar.update(line._task, description=line._text)
        line._show()
    else:
        line.print(f"{line._text} ...")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("place_of_lines", ["a file", "a terminal"])
def test_the_longest_work_of_every_command_has_a_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], place_of_lines: str
) -> None:
    """Lines that are shown after seconds are shown at once here."""
    monkeypatch.setattr(ProgressBar, "_tell", show_at_once)
    monkeypatch.setattr(BuildProgress, "told_from_s", 0.0)
    monkeypatch.setattr(embedding, "_EVERY_S", -1.0)
    terminal = Terminal(monkeypatch) if place_of_lines == "a terminal" else None
    has_mmseqs = mmseqs.is_installed()

    def run(command: str, words: str) -> str:
        module, _, more = command.partition(" ")
        name = f"{module}.__main__" if (ROOT / module.replace(".", "/")).is_dir() else module
        status = importlib.import_module(name).main([*more.split(), *shlex.split(words)])
        said = capfd.readouterr()
        shown = terminal.shown() if terminal else said.err
        assert status == 0, f"{command} {words}\n{said.out}{shown}"
        return shown

    silent = {}
    with local_hub(place / "home"):
        for command, (words, line) in PHASES.items():
            store = next(iter(sorted(Path("stores").glob("*/store.json"))), Path("x/y")).parent
            needs_mmseqs = command == "data decontaminate"
            monkeypatch.setattr(mmseqs, "is_installed", lambda needs=needs_mmseqs: needs)  # words are faster
            if needs_mmseqs and not has_mmseqs:
                continue
            said = run(command, words.format(store=store))
            if terminal:  # where the time runs on beside a line, in place of dots, and a fast step is not drawn
                line = line.removesuffix(" ...").replace("step 1 of ", "step ")
            if not any(each.startswith(line.format(store=store)) or each.endswith(line) for each in said.splitlines()):
                silent[command] = said
    assert silent == {}
