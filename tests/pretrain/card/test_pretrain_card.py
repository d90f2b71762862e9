"""The card of a run: its numbers are the run's, its metadata are read by the Hub's library, its lines run as shown."""

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from huggingface_hub import ModelCard

from pretrain.__main__ import main
from pretrain.card import text as card_text
from pretrain.card.card import write_card
from pretrain.card.text import FOLDER, hub_model
from pretrain.export.contact_head import NOT_FITTED
from pretrain.report.results import ASSAYS, CONTACTS, EVALUATION, read
from pretrain.report.section import source_names
from support.inputs.written_runs import IDENTITIES, LENGTHS, TOKENS_A_STEP, WEIGHTS, WrittenRun, evaluation, measure
from support.pages.cards import numbers_of, unknown_numbers
from support.places import ROOT
from zymogen.console.format import format_number
from zymogen.trainer.run import records
from zymogen.trainer.run.reader import RunReader


def unknown(card: str, root: Path) -> list[str]:
    """The numbers of a card that neither run.json nor metrics.jsonl has, nor are computed from them."""
    lines = list(records.read(root / "metrics.jsonl"))
    content = [json.loads((root / "run.json").read_text()), lines]
    known = set(numbers_of(content, lambda value: {format_number(value), f"{value:.0f}"}))
    steps = [*{line["step"]: line for line in lines if "tokens_per_s" in line}.values()]  # a restart takes some again
    steps.sort(key=lambda line: line["step"])
    seconds = [
        (after["tokens"] - before["tokens"]) / after["tokens_per_s"]
        for before, after in pairwise([{"tokens": 0}, *steps])
    ]
    known.add(f"{sum(seconds) / 3600:.3g}")
    if all("flops_per_s" in line for line in steps):
        known.add(f"{sum(s * line['flops_per_s'] for s, line in zip(seconds, steps, strict=True)):.3g}")
    return unknown_numbers(card, known)


FACTS: dict[str, Any] = {"is_modern": False, "dtype": "float32", "contacts": NOT_FITTED}


def card_of(root: Path, step: int | None = None) -> str:
    step = RunReader(root).steps if step is None else step
    folder = root.parent / f"card-{step}"
    folder.mkdir(exist_ok=True)
    exported = {**FACTS, "step": step, "tokens": step * TOKENS_A_STEP, "weights": {WEIGHTS}}
    return write_card(root, folder, **exported).read_text()


def change(root: Path, **parts: Any) -> None:
    """Change what run.json says of the recipe's data and of the corpus."""
    path = root / "run.json"
    content = json.loads(path.read_text())
    for name, values in parts.items():
        where = content["recipe"] if name in content["recipe"] else content
        where[name] |= values
    path.write_text(json.dumps(content))


MIXTURE = {
    "data": {
        "sources": [],
        "mixture": [
            {"sources": ["a.fasta", "b.fasta"], "weight": 3, "split_identity": 0.5, "clusters": None, "exclude": None},
            {"sources": ["c.fasta"], "weight": 1, "split_identity": None, "clusters": None, "exclude": "gone.tsv"},
        ],
    },
    "corpus": {
        "mixture": [
            {"training_records": 4321, "validation_records": 77, "residues": 987_654, "copies_of_validation": 5},
            {
                **{"training_records": None, "validation_records": 12, "residues": None},
                **{"excluded_records": 33, "copies_of_excluded": 2},
            },
        ]
    },
}
RUNS: dict[str, tuple[WrittenRun, dict[str, Any]]] = {
    "validated": (WrittenRun(floor=7.5), {}),
    "never validated": (WrittenRun(validate_every=0), {}),
    "a mixture": (WrittenRun(), MIXTURE),
    "diverged": (WrittenRun(diverges_at=60), {}),
    "restarted": (WrittenRun(attempts=5), {}),
    "of an early version": (WrittenRun(held_out=None), {}),
    "before a step": (WrittenRun(steps=0), {}),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_number_is_the_runs(name: str, tmp_path: Path) -> None:
    run, changed = RUNS[name]
    root = run.write(tmp_path / "run")
    change(root, **changed)
    card = card_of(root)
    assert unknown(card, root) == []
    data = ModelCard(card).data
    assert data["pipeline_tag"] == "fill-mask"
    assert data.get("base_model") is None
    validated = name not in ("never validated", "diverged", "before a step")
    assert (data.get("eval_results") is not None) == validated
    assert ("Not validated at this step" in card) == (name in ("never validated", "before a step"))
    assert ("Relatives of the held-out proteins may have trained" in card) == (run.held_out == "equal sequences")
    assert "| energy | not measured |" in card
    assert "| FLOPs in training steps | not measured |" in card
    if name == "a mixture":
        assert (
            "| corpus | weight 3, 4,321 training and 77 validation sequences, split by MMseqs2 clusters at 50% " in card
        )
        assert "read from a.fasta, b.fasta; 5 copies of validation sequences left out; not decontaminated" in card
        assert (
            "weight 1, a stream and 12 validation sequences, split by equal sequences; read from c.fasta; 0 cop" in card
        )
        assert "decontaminated: 33 records that gone.tsv lists never train, nor 2 copies of them" in card


def test_a_number_that_is_not_the_runs_is_noticed(tmp_path: Path) -> None:
    root = WrittenRun().write(tmp_path / "run")
    assert unknown(card_of(root).replace("5,605 training", "5,606 training"), root) == ["5,606"]


def test_model_index_has_value_interval_and_baseline(tmp_path: Path) -> None:
    root = WrittenRun(floor=7.5).write(tmp_path / "run")
    (last,) = [line["validation"] for line in records.read(root / "metrics.jsonl") if "validation" in line][-1:]
    results = ModelCard(card_of(root)).data.eval_results
    assert [result.metric_name for result in results] == ["Perplexity, mask-all", "Perplexity, 80/10/10"]
    for result, of in zip(results, last.values(), strict=True):
        assert result.metric_value == of["perplexity"]
        assert {name: result.metric_args[name] for name in ("low", "high", "unigram")} == {
            name: of[name] for name in ("low", "high", "unigram")
        }


def test_the_card_of_an_earlier_step_knows_nothing_later(tmp_path: Path) -> None:
    root = WrittenRun(validate_every=25).write(tmp_path / "run")
    lines = {line["step"]: line for line in records.read(root / "metrics.jsonl") if "validation" in line}
    assert (
        ModelCard(card_of(root, 50)).data.eval_results[0].metric_value
        == lines[50]["validation"]["mask_all"]["perplexity"]
    )
    assert "Not validated at this step" in card_of(root, 60)
    assert "| trained for | 60 steps, " in card_of(root, 60)
    whole, part = (re.search(r"steps \| ([\d.]+) hours", card_of(root, step)) for step in (100, 50))
    assert whole
    assert part
    assert 1.8 < float(whole[1]) / float(part[1]) < 2.2


# Measured after the end of the run ----------------------------------------------------------------

MEASURED = {**FACTS, "step": 100, "tokens": 800_000, "weights": {WEIGHTS}}
PICTURES = ("perplexity-length", "perplexity-identity", "contacts", "contact-map", "assays-0")


def test_what_was_measured_stands_in_tables_pictures_and_model_index(tmp_path: Path) -> None:
    root = measure(WrittenRun().write(tmp_path / "run"))
    (tmp_path / "out").mkdir()
    card = write_card(root, tmp_path / "out", **MEASURED).read_text()
    svg = "{http://www.w3.org/2000/svg}svg"
    for name in ("loss", *PICTURES):
        assert ElementTree.parse(tmp_path / f"out/{name}.svg").getroot().tag == svg
        assert len(re.findall(rf"!\[[^]]*\]\({name}\.svg\)\n\n[A-Z][^\n]+\.\n", card)) == 1, name
    assert {path.stem for path in (tmp_path / "out").glob("*.svg")} == {"loss", *PICTURES}
    for row in (
        "| mask-all | all | 9 | 14.50 | 14.20 to 14.90 | 17.80 |",
        "| 80/10/10 | all | 9 | 12.50 | 12.20 to 12.90 | 17.80 |",
        f"| mask-all | {LENGTHS[1]} | 9 | 14.75 | 14.45 to 15.15 | 17.80 |",
        f"| mask-all | {IDENTITIES[2]} | 9 | 15.00 | unknown | 17.80 |",
        "| P@L/2 | 0.310 | 0.290 to 0.330 | 0.050 | 0.021 |",
        "| Activity | 3 | 0.425 |",
        "| mean over types | 4 | 0.650 |",
    ):
        assert row in card
    rows = re.findall(r"^\| (mask-all|80/10/10) \| ([^|]+) \| 9 ", card, re.M)
    assert [each for _, each in rows] == ["all", "all", *LENGTHS, *IDENTITIES]
    assert "of nobody" not in card
    assert "other:wt-marginal" not in card  # of other weights, in the same file
    assert "- What embeddings are worth for other tasks: not measured" in card
    found = {result.metric_name: result for result in ModelCard(card).data.eval_results}
    by_bucket = {(row.corruption, row.bucket): row for row in evaluation().rows}
    by_length = found[f"Perplexity, mask-all, length: {LENGTHS[0]}"]
    assert by_length.metric_value == by_bucket["mask_all", LENGTHS[0]].perplexity
    assert by_length.metric_args["unigram"] == 17.8
    assert by_length.dataset_revision == evaluation().set
    assert found["P@L/5"].metric_value == 0.31
    assert (found["P@L/5"].metric_args["chance"], found["P@L/5"].metric_args["random weights"]) == (0.021, 0.05)
    assert found["Spearman, own:wt-marginal"].metric_value == pytest.approx(0.65)
    assert found["Spearman, own:wt-marginal"].metric_args["assays"] == 4


def test_what_was_measured_of_other_weights_is_not_on_the_card(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = measure(WrittenRun().write(tmp_path / "run"))
    (tmp_path / "out").mkdir()
    card = write_card(root, tmp_path / "out", **MEASURED | {"weights": {"ef" * 32}}).read_text()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"README.md", "loss.svg"}
    assert "Measured" not in card
    assert len(ModelCard(card).data.eval_results) == 2  # the validation's
    assert "Scores of variants, precision of contacts, " in card
    files = ", ".join(f"{root}/{name}" for name in (EVALUATION, CONTACTS, ASSAYS))
    assert capsys.readouterr().err == f"not of the exported weights, and not on the card: {files}\n"
    content = json.loads((root / CONTACTS).read_text())
    del content["weights"]  # as a version wrote it that did not say it
    (root / CONTACTS).write_text(json.dumps(content))
    (root / ASSAYS).write_text("DMS_id,UniProt_ID,selection_type,column,spearman\na,A,Activity,own:x,0.5\n")
    assert read(root, {WEIGHTS}).of_others == (CONTACTS, ASSAYS)


def test_of_one_frozen_set_the_figure_over_all_stands_once_in_model_index(tmp_path: Path) -> None:
    root = measure(WrittenRun().write(tmp_path / "run"))
    lines = [*records.read(root / "metrics.jsonl")]
    for line in lines:
        if "validation" in line:
            line["set"] = evaluation().set
    (root / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    card = card_of(root)
    assert f"The frozen set is `{evaluation().set}`." in card
    names = [result.metric_name for result in ModelCard(card).data.eval_results]
    assert names.count("Perplexity, mask-all") == 1
    assert f"Perplexity, mask-all, length: {LENGTHS[0]}" in names
    validated = ModelCard(card).data.eval_results[0]
    assert validated.metric_args["set"] == evaluation().set


SECRET = "hf_planted0123456789"


def test_planted_tokens_reach_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "opaque-secret-of-a-user")
    monkeypatch.setattr(sys, "argv", ["pretrain", f"--token={SECRET}"])
    sources = (f"https://me:{SECRET}@host.example/own.fasta.gz?sig={SECRET}", "opaque-secret-of-a-user.fasta")
    root = WrittenRun(sources=sources).write(tmp_path / SECRET)
    change(root, model={"init": f"https://x:{SECRET}@host.example/model"})
    names = (measure(root) / CONTACTS).read_text().replace('"own"', f'"{SECRET}"')
    (root / CONTACTS).write_text(names)
    (tmp_path / "out").mkdir()
    write_card(root, tmp_path / "out", **MEASURED)
    assert {path.stem for path in (tmp_path / "out").iterdir()} == {"README", "loss", *PICTURES}
    for path in (tmp_path / "out").iterdir():
        assert b"planted" not in path.read_bytes()
        assert b"opaque-secret" not in path.read_bytes()
        assert b"//me" not in path.read_bytes()
    assert "host.example: own.fasta.gz" in (tmp_path / "out/README.md").read_text()


def test_names_from_elsewhere_are_shown_as_they_are(tmp_path: Path) -> None:
    root = WrittenRun(sources=("a|b`<script>.fasta",)).write(tmp_path / "--- a: *b*\n|x")
    card = card_of(root)
    assert ModelCard(card).data.eval_results[0].metric_value
    assert r"read from a\|b\`\<script\>.fasta;" in card
    assert "\n# --- a: \\*b\\* \\|x\n" in card


def test_what_a_model_started_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of two words may be a folder of old: only a model in the cache of downloads is one of the Hub."""
    monkeypatch.setattr(card_text, "try_to_load_from_cache", lambda name, _: "/there" if name == "some/model" else None)
    root = WrittenRun().write(tmp_path / "run")
    for init, base in (("some/model", "some/model"), ("runs/own", None), (str(tmp_path), None)):
        change(root, model={"init": init, "preset": None})
        card = card_of(root)
        assert ModelCard(card).data.get("base_model") == base
        assert ("[some/model](https://huggingface.co/some/model)" in card) == bool(base)
        assert str(tmp_path) not in card
    monkeypatch.undo()
    assert hub_model("no name/of/one") is None
    assert source_names(["datasets://user/name"]) == "datasets: name"


def test_without_a_library_to_draw_with_the_card_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    root = WrittenRun().write(tmp_path / "run")
    (tmp_path / "out").mkdir()
    card = write_card(root, tmp_path / "out", **MEASURED).read_text()
    assert "loss.svg" not in card
    assert "| mask-all |" in card
    assert "the card's pictures were not drawn: " in capsys.readouterr().err


# Lines that are run as shown ----------------------------------------------------------------------

BESIDE = 'print("ran", tuple(logits.shape), *([tuple(contacts.shape)] if "contacts" in globals() else []))'


def run_as_shown(folder: Path, tmp_path: Path) -> list[str]:
    """Every block of Python on a card, with the folder's path, where this project cannot be imported."""
    blocks = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)
    program = "\n".join([*blocks, BESIDE]).replace(FOLDER, str(folder))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [str(len(blocks)), *done.stdout.splitlines()]


@pytest.mark.slow
def test_the_lines_of_a_card_run_as_shown(recipe_in, tmp_path: Path) -> None:
    """Those of a model without a contact head, and those that `pretrain.contacts --write` adds."""
    from pretrain.export.contact_head import write
    from pretrain.model.weights.names import ContactHead

    assert main([str(recipe_in(tmp_path)), "run.validation_sequences=4", "schedule.total_tokens=2_000"]) == 0
    root, folder = tmp_path / "run", tmp_path / "run/export"
    assert unknown((folder / "README.md").read_text(), root) == []
    assert (folder / "loss.svg").read_text().startswith("<svg ")
    assert run_as_shown(folder, tmp_path) == ["1", "ran (1, 24, 33)"]
    write(folder, ContactHead((1.0,) * 8, -1.0), "4 chains")
    assert run_as_shown(folder, tmp_path) == ["2", "ran (1, 24, 33) (1, 22, 22)"]
    assert str(ROOT) not in (folder / "README.md").read_text()
