"""The card of a fine-tuned model: tasks, scores, the audit, tasks without a score; and the lines that load it."""

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from huggingface_hub import ModelCard

from finetune.bundle.card import CARD, bundle_card, export_card
from finetune.bundle.folder import open_folder, with_evaluation
from finetune.bundle.manifest import BundleManifest
from finetune.metrics.scores import TaskScores
from finetune.results.results import Results
from finetune.splits.audit import Overlap, SplitAudit
from pretrain.card.text import FOLDER
from pretrain.export.checksums import CHECKSUMS
from pretrain.model.presets import PRESETS
from pretrain.push.folder import finished_files
from support.pages.cards import numbers_of, unknown_numbers
from support.places import ROOT
from zymogen.settings.json_file import validate

pytestmark = pytest.mark.xdist_group("bundle")  # one worker makes the run


@pytest.fixture
def bundle(folder: Path, tmp_path: Path) -> Path:
    """The bundle of a run, with a task that could not be scored and an audit."""
    copy = shutil.copytree(folder / "run/bundle", tmp_path / "bundle")
    with_evaluation(copy, evaluation_of(copy))
    return copy


def evaluation_of(bundle: Path) -> Results:
    results = manifest_of(bundle).evaluation
    assert results is not None
    tasks = [*results.scores.tasks]
    tasks[1] = replace(tasks[1], value=None, low=None, high=None, undefined="no label")
    compared = Overlap("train", 1234, 9, 5, (0.3,), (77,), 1234)
    audit = SplitAudit("f", "MMseqs2 9", False, (compared,), None, ("said",))
    return replace(results, scores=TaskScores(tuple(tasks)), audit=audit)


def manifest_of(bundle: Path) -> BundleManifest:
    return BundleManifest.read(bundle)


def unknown(card: str, bundle: Path) -> list[str]:
    """The numbers on a card that bundle.json does not have."""
    content = json.loads((bundle / "bundle.json").read_text())
    shares = {f"{count / 1234:.1%}".rstrip("%") for count in (5, 77)}  # of the audit's tested sequences
    return unknown_numbers(card, {*numbers_of(content, lambda value: {f"{value:.3f}"}), *shares})


def test_the_card_of_a_bundle_has_its_tasks_and_scores(bundle: Path) -> None:
    card, content = (bundle / CARD).read_text(), json.loads((bundle / "bundle.json").read_text())
    assert unknown(card, bundle) == []
    assert unknown(card.replace("77 of 1,234", "7654 of 1,234"), bundle) == ["7654"]
    assert "Tasks without a score:\n\n| Task | Why |\n| --- | --- |\n" in card
    assert "| fold | no label |" in card
    assert "| train | identity of at least 30% | 77 of 1,234 (6.2%) |" in card
    assert "| energy | not measured |" in card
    scored = [each for each in content["evaluation"]["scores"]["tasks"] if each["value"] is not None]
    results = ModelCard(card).data.eval_results
    assert [result.metric_value for result in results] == [each["value"] for each in scored]
    for result, of in zip(results, scored, strict=True):
        theirs = {
            baseline["name"]: each["value"]
            for baseline in content["evaluation"]["baselines"]
            for each in baseline["scores"]["tasks"]
            if each["task"] == of["task"] and each["value"] is not None
        }
        assert result.metric_args["baselines"] == theirs
        best = max(theirs, key=lambda name: theirs[name])
        assert re.search(rf" of {of['labels']} labels, .* \| {theirs[best]:.3f} \({best}\) \|", card)


def test_the_picture_of_the_scores_lies_beside_the_card(bundle: Path) -> None:
    """It is drawn of the numbers that the card has, and listed with its hash; one that somebody changed is kept."""
    results = manifest_of(bundle).evaluation
    assert results is not None
    picture, card = bundle / "scores.svg", (bundle / CARD).read_text()
    line = f"{hashlib.sha256(picture.read_bytes()).hexdigest()}  scores.svg"
    assert line in (bundle / CHECKSUMS).read_text().splitlines()
    assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    (shown,) = re.findall(r"!\[([^]]*)\]\(scores\.svg\)\n\n(Scores of the tested proteins\. .*)\n", card)
    for each in results.scores.tasks:
        assert (f"{each.task}, " in shown[0].replace("\\", "")) == (each.value is not None)
        if each.value is not None:
            assert f"{each.value:.3f}" in shown[0]
            assert f"{each.value:.3f}" in picture.read_text()
    assert {"scores.svg", CARD} <= finished_files(bundle).keys()
    picture.write_text("mine")
    with_evaluation(bundle, results)
    assert picture.read_text() == "mine"  # as it has these results
    with_evaluation(bundle, None)
    assert (bundle.with_name("bundle-1") / "scores.svg").read_text() == "mine"
    assert not picture.exists()
    assert "scores.svg" not in (bundle / CARD).read_text()
    with_evaluation(bundle, results)
    assert (bundle / CARD).read_text() == card
    assert {path.name for path in bundle.parent.glob("bundle*")} == {"bundle", "bundle-1"}


def test_a_bundle_before_the_end_of_its_run_says_so(bundle: Path) -> None:
    with_evaluation(bundle, None)
    card = (bundle / CARD).read_text()
    assert "Scores and relatives of tested proteins: not measured." in card
    assert ModelCard(card).data.get("eval_results") is None


def test_a_card_that_somebody_wrote_is_kept(bundle: Path) -> None:
    (bundle / CARD).write_text((bundle / CARD).read_text().replace("not stated", "mit"))
    mine = (bundle / CARD).read_bytes()
    with_evaluation(bundle, None)
    assert (bundle.with_name("bundle-1") / CARD).read_bytes() == mine
    assert open_folder(bundle).manifest.evaluation is None


def test_planted_tokens_reach_no_card(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "opaque_secret")
    text = (bundle / "bundle.json").read_text()
    content = json.loads(text)
    content["reading"]["table"] = ["https://host.example/a.csv?sig=hf_planted2", "opaque_secret.csv"]
    content["base"] |= {"init": "hf_planted3planted3planted3", "preset": None}
    card = bundle_card(validate(BundleManifest, json.dumps(content).encode()))
    assert "host.example: a.csv" in card
    assert not [word for word in ("planted", "opaque") if word in card.replace("\\", "")]


def blocks(card: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", card, re.S)


@pytest.mark.slow
def test_the_lines_of_a_bundles_card_run_as_shown(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "variants.csv").write_text("sequence\nMKTAYIAKQRQ\n")
    (line,) = blocks((bundle / CARD).read_text(), "bash")
    words = [sys.executable, *shlex.split(line.replace(FOLDER, str(bundle)))[1:]]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "kd" in (tmp_path / "predicted.csv").read_text().splitlines()[0]


@pytest.mark.parametrize("level", ["sequence", "residue"])
def test_the_card_of_an_export_names_its_class(bundle: Path, level: str) -> None:
    manifest = manifest_of(bundle)
    objective = next(each for each in manifest.tasks if each.settings.level == level)
    card = export_card(manifest, objective, "EsmForIt")
    kind = "Sequence" if level == "sequence" else "Token"
    assert f"import AutoModelFor{kind}Classification, AutoTokenizer" in card
    modern = export_card(replace(manifest, encoder=PRESETS["modern_60k"]), objective, "EsmcForIt")
    assert ("It needs `transformers>=5.17`" in modern, "It needs" in card) == (True, False)
    assert ModelCard(card).data["pipeline_tag"] == ("text" if level == "sequence" else "token") + "-classification"
    assert unknown(card, bundle) == []
