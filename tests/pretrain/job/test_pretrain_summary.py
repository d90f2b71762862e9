"""The closing words: what they claim follows from the numbers, and each of their commands is for this run."""

import ast
import json
import math
import re
import shlex
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data.order.plan import CorpusProgress, Cursor
from pretrain.__main__ import main
from pretrain.evaluate.scores import CorruptionScores, HeldOutUnit, MaskedLanguageScores
from pretrain.evaluate.verdict import Advice, Judgement, Verdict
from pretrain.recipe import Recipe
from pretrain.summary import PEPTIDE, format_summary, next_commands, schedule_differs
from support.launching import lines
from zymogen.processes.launcher import LaunchCommand, launch_command
from zymogen.settings import json_file
from zymogen.settings.toml_file import read
from zymogen.trainer.run import records
from zymogen.trainer.run.directory import RunDirectory, ScheduleDiffersError
from zymogen.trainer.run.run_json import RunRecord, run_record

SCORES = CorruptionScores(9.0, 8.5, 9.5, 18.0, 0.693, 0.6, 0.8, None, 40, 900)
WORSE = replace(SCORES, gain=-0.3, gain_low=-0.4, gain_high=-0.2)
RECIPE: dict[str, Any] = {
    "run": {"directory": "runs/x"},
    "model": {"preset": "esm2_60k"},
    "data": {
        "sources": ["a b.fasta"],
        "mask": {"name": "bert", "options": {}, "select_prob": 0.15, "mask_prob": 0.8, "random_prob": 0.1},
    },
    "schedule": {"total_tokens": 1000, "peak_lr": None},
}
START = LaunchCommand(Path("r.toml"), ["run.seed=1", "data.sources=['a b.fasta']", "schedule.total_tokens=1000"], "go")


def words(
    scores: CorruptionScores = SCORES,
    *,
    seen: CorpusProgress | None = None,
    held_out: HeldOutUnit = HeldOutUnit.CLUSTERS,
    start: LaunchCommand = START,
    preset: str | None = "esm2_60k",
    folder: Path | None = None,
    corrupted: CorruptionScores = SCORES,
) -> str:
    with tempfile.TemporaryDirectory() as empty:
        run = RunDirectory(folder or Path(empty))
        (run.root / "run.json").write_text(json_file.as_json(RunRecord(recipe=RECIPE | {"model": {"preset": preset}})))
        summary: Any = SimpleNamespace(
            scores=MaskedLanguageScores({"mask_all": scores, "80_10_10": corrupted}, held_out),
            state=SimpleNamespace(tokens_seen=1024, step=10, cursor=Cursor(window=3)),
            run=run,
            seconds=3.0,
            job=SimpleNamespace(corpus_progress={Cursor(window=3): seen}.get),
        )
        return format_summary(summary, start)


USES = ("score variants", "embed proteins", "fine-tune on a table")


def proposed(said: str) -> dict[str, str]:
    """What the words propose: what it does, and the command."""
    return dict(re.findall(r"^  (\S.*):\n {4}(\S.*)$", said.partition("Try next:")[2], re.M))


def next_runs(said: str) -> list[str]:
    """What they propose to train next."""
    return [what for what in proposed(said) if what not in USES][1:]


def test_scores_as_the_loop_reads_them() -> None:
    hidden, flattering = (replace(SCORES, perplexity=p) for p in (9.0, 7.0))
    scores = MaskedLanguageScores({"mask_all": hidden, "80_10_10": flattering}, HeldOutUnit.CLUSTERS)
    assert scores.line() == "validation perplexity: mask-all 9.00 (unigram 18.00), 80/10/10 7.00 (unigram 18.00)"
    diverged = replace(
        scores, evaluations={"mask_all": replace(SCORES, perplexity=6.5e228)}, held_out=HeldOutUnit.NOTHING
    )
    assert diverged.line() == "perplexity on training proteins: mask-all 6e+228 (unigram 18.00)"
    assert scores.numbers() == {"mask_all": hidden.numbers(), "80_10_10": flattering.numbers()}
    assert scores.rank_metric == 9.0  # not that of the corruption in which a target can be copied


def test_one_cluster_gives_no_interval_and_no_claim() -> None:
    nan = math.nan
    said = words(replace(SCORES, low=nan, high=nan, gain_low=nan, gain_high=nan))
    assert "All validation proteins are of one cluster" in said
    assert "    mask-all    9.00   unknown        18.00" in said


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (CorpusProgress(7, 0.5), " of 7 distinct proteins, 0.50 passes, in 10 steps (3 s this time)."),
        (CorpusProgress(7, 5400.2), " of 7 distinct proteins, 5,400 passes, in 10 steps (3 s this time)."),
        (CorpusProgress(7, None), " of 7 distinct proteins in 10 steps (3 s this time)."),
        (CorpusProgress(None, 1.5), ", 1.50 passes, in 10 steps (3 s this time)."),
        (None, " in 10 steps (3 s this time)."),
    ],
)
def test_what_was_seen_is_said_where_it_is_known(seen: CorpusProgress | None, said: str) -> None:
    assert words(seen=seen).splitlines()[1].strip() == f"Trained on 1,024 tokens{said}"


def test_diverged_perplexities_keep_the_table_readable() -> None:
    said = words(replace(WORSE, perplexity=6.5e228, low=1e3, high=math.inf))
    assert "    mask-all    6e+228  1000.00 to inf  18.00" in said


# Commands -----------------------------------------------------------------------------------------


def test_a_model_that_learned_little_is_not_praised_and_a_published_one_is_offered() -> None:
    """Numbers of a run on 147 variants of one protein."""
    little = replace(SCORES, perplexity=17.75, unigram=18.13, gain=0.021, gain_low=0.012, gain_high=0.03)
    said = words(little)
    assert (
        "It learned little beyond residue frequencies, which it beats by 0.021 nats a residue (at least 0.012" in said
    )
    assert "perplexity 17.75, against 18.13" in said
    assert "It beats" not in said
    assert "As an encoder it may be no better than random weights" in said
    assert next_runs(said)[0] == "continue from a published model on the same sequences"
    assert not {*USES} & proposed(said).keys()
    again = "go 'a b.fasta' model.init=facebook/esm2_t6_8M_UR50D run.directory=runs/x_continued"
    assert proposed(said)["continue from a published model on the same sequences"] == again
    undecided = words(replace(little, gain_low=-0.01))
    assert "learned little or nothing beyond residue frequencies" in undecided
    assert "published" not in str(next_runs(words(replace(little, floor=7.0))))  # of synthetic proteins
    for gain, is_little in ((0.0999, True), (0.1, False)):
        assert ("learned little" in words(replace(SCORES, gain=gain, gain_low=0.09))) == is_little


def test_the_uses_of_a_model_that_learned_something_are_offered() -> None:
    said = proposed(words(start=replace(START, launcher=".venv/bin/python -m pretrain")))
    assert [said[what] for what in USES] == [
        ".venv/bin/python -m finetune.score runs/x variants.csv --wild-type wild.fasta -o scored.csv",
        ".venv/bin/python -m finetune.embed runs/x proteins.fasta embedded.parquet",
        ".venv/bin/python -m finetune.look assays.csv --init runs/x -o assays.toml",
    ]
    assert said["fill in a hidden residue, with transformers alone"].startswith(".venv/bin/python -c ")


def test_the_launch_is_repeated() -> None:
    python = "/somewhere/bin/python -m pretrain"
    assert launch_command(f"{python} r.toml run.seed=1") == python
    accelerate = (
        "accelerate launch --config_file 'my configs/any.yaml' --num_processes 3 --mixed_precision no -m pretrain"
    )
    assert launch_command(f'{accelerate} r.toml \'data.sources=["-m", "pretrain"]\'') == accelerate
    assert launch_command("pytest -q").endswith("/python -m pretrain")


def test_fewer_passes_have_a_warm_up_that_fits() -> None:
    schedule = {"total_tokens": 1000, "warmup_tokens": 600, "peak_lr": None}
    found = Verdict(Judgement.BETTER, "", Advice.MORE_DATA, best_tokens=300)
    (_, (_, command), *_) = next_commands(START, found, RECIPE | {"schedule": schedule}, Path("e"), is_embedded=False)
    assert command.endswith("schedule.total_tokens=300 run.directory=runs/x_shorter schedule.warmup_tokens=180")


def test_any_path_can_be_pasted() -> None:
    """The command to fill a mask, as a shell and as Python read it."""
    export = Path('my runs/it\'s "$HOME" `x` \\ ü!/export')
    ((_, command), *_) = next_commands(
        START,
        Verdict(Judgement.BETTER, "", Advice.LARGER),
        RECIPE | {"model": {"preset": None}},
        export,
        is_embedded=False,
    )
    python, flag, code = shlex.split(command)
    assert (Path(python).name, flag) == ("python", "-c")
    names = {call.value for call in ast.walk(ast.parse(code)) if isinstance(call, ast.Constant)}
    assert {"fill-mask", str(export), PEPTIDE} <= names


@pytest.mark.parametrize(
    ("preset", "larger"),
    [("esm2_35m", "esm2_150m"), ("modern_800k", "modern_8m"), ("esm2_15b", None), ("modern_600m", None), (None, None)],
)
def test_a_larger_model_is_the_next_of_its_architecture(preset: str | None, larger: str | None) -> None:
    (found,) = [name for what, name in re.findall(r"(model.preset=)(\w+)", words(preset=preset))] or [None]
    assert found == larger


def test_a_wider_model_gets_a_lower_rate() -> None:
    larger = proposed(words(preset="modern_800k"))
    (command,) = (command for what, command in larger.items() if "modern_8m" in what)
    assert "schedule.peak_lr=0.00016" in command.split()  # the default of 4e-4, from width 128 to 320
    assert "schedule.peak_lr" not in str(proposed(words(preset="modern_60k")))  # from width 48 to 128


def test_no_command_speaks_against_the_verdict(tmp_path: Path) -> None:
    def metrics(folder: Path, losses: list[float], perplexities: list[float]) -> Path:
        folder.mkdir()
        for number, (loss, perplexity) in enumerate(zip(losses, perplexities, strict=True), 1):
            where = {"step": number, "tokens": 100 * number, "attempt": 1}
            scores = {"perplexity": perplexity}
            records.append(folder / "metrics.jsonl", {**where, "loss": loss, "skipped_steps": 0.0})
            records.append(folder / "metrics.jsonl", {**where, "validation": {"mask_all": scores, "80_10_10": scores}})
        return folder

    diverged = words(WORSE, folder=metrics(tmp_path / "a", [3.0, 500.0] * 20, [20.0, 600.0] * 20))
    assert "lower schedule.peak_lr" in diverged
    (lower,) = (proposed(diverged)[what] for what in next_runs(diverged))
    assert lower.endswith("schedule.total_tokens=1000 schedule.peak_lr=4e-05 run.directory=runs/x_lower")

    losses = [2.9 - 0.05 * n for n in range(40)]
    learned_by_heart = words(folder=metrics(tmp_path / "b", losses, [9.0 + abs(n - 20) / 10 for n in range(40)]))
    assert "train on more proteins" in learned_by_heart
    (fewer,) = (proposed(learned_by_heart)[what] for what in next_runs(learned_by_heart))
    assert fewer.endswith("schedule.total_tokens=2_100 run.directory=runs/x_shorter")

    flat = words(folder=metrics(tmp_path / "d", [2.2] * 40, [9.0] * 40))
    assert "no longer falls (+0.000 nats over the last half of the training): a larger model can learn more." in flat
    assert next_runs(flat) == [
        "train a larger model, esm2_800k, on 20 tokens for each parameter (some 200,000 times the time of this run)"
    ]

    assert "a larger model" not in words(WORSE)


@pytest.mark.slow
def test_a_run_made_worse_on_purpose_is_told_so(recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """At 3,000 times the usual learning rate; then as its own words say, until it is worse no longer by that cause."""
    recipe = recipe_in(tmp_path)
    given = ["schedule.peak_lr=3.0", "schedule.total_tokens=9_000", "run.checkpoint_every=1000"]
    assert main([str(recipe), *given]) == 0
    said = capsys.readouterr().out
    assert "It is worse than residue frequencies, by " in said
    assert re.search(r"The perplexity is \S+, above that of a guess: lower schedule\.peak_lr\.", said)
    assert "beats" not in said
    assert "train longer" not in said
    (command,) = [line for what, line in proposed(said).items() if "peak rate" in what]
    python, *again = shlex.split(command)
    assert (Path(python).name, again[:3]) == ("python", ["-m", "pretrain", str(recipe)])
    assert read(Recipe, recipe, again[3:]).schedule.peak_lr == 0.3
    assert read(Recipe, recipe, again[3:]).run.directory == f"{tmp_path}/run_lower"


def test_no_command_is_offered_that_would_end_a_run_before_its_tokens(tmp_path: Path) -> None:
    folder, seen = tmp_path / "mine", 900
    records.append(folder / "metrics.jsonl", {"step": 9, "tokens": seen, "attempt": 1})
    (folder / "run.json").write_text(
        json.dumps({"format": "zymogen.run/2", "recipe": {"schedule": {"total_tokens": 1000}}})
    )
    (tmp_path / "mine-2").mkdir()

    def offered(tokens: int) -> list[list[str]]:
        text = schedule_differs(
            "It differs", {"schedule.total_tokens": "1000"}, tokens, folder, LaunchCommand(Path("my.toml"))
        )
        return [shlex.split(line)[4:] for line in text.splitlines()[1:]]

    alone, as_it_was = [f"run.directory={tmp_path}/mine-3"], ["schedule.total_tokens=1000"]
    assert offered(seen) == [alone, as_it_was]
    assert offered(seen + 1) == [alone, as_it_was, ["--allow-schedule-change"]]


def recipe_with(recipe_in, folder: Path, *schedule: str) -> Recipe:
    return read(Recipe, recipe_in(folder), ["schedule.total_tokens=900", *schedule])


def as_written(recipe: Recipe) -> RunRecord:
    """What run.json says of it."""
    return run_record(json_file.as_json(RunRecord(recipe=asdict(recipe))).encode(), "run.json")


def test_a_warm_up_may_be_given_in_tokens_or_as_the_same_share(recipe_in, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    before = as_written(recipe_with(recipe_in, tmp_path, "schedule.warmup_tokens=90"))
    no_tokens = "schedule.warmup_tokens=none"
    tenth, fifth = (recipe_with(recipe_in, tmp_path, no_tokens, f"schedule.warmup={share}") for share in (0.1, 0.2))
    run.require_same(tenth, False, before)
    with pytest.raises(ScheduleDiffersError, match=r"another schedule: .*schedule\.warmup was None, is 0\.2"):
        run.require_same(fifth, False, before)
    with pytest.raises(ScheduleDiffersError, match=r"another schedule: schedule\.warmup was 0\.1, is 0\.2$"):
        run.require_same(fifth, False, as_written(tenth))
    run.require_same(fifth, True, before)


def test_a_length_alone_is_named_where_the_warm_up_is_a_share_of_it(recipe_in, tmp_path: Path) -> None:
    share = ("schedule.warmup_tokens=none", "schedule.warmup=0.1")
    before = as_written(recipe_with(recipe_in, tmp_path, *share))
    longer = recipe_with(recipe_in, tmp_path, *share, "schedule.total_tokens=2_000")
    with pytest.raises(ScheduleDiffersError, match=r"another schedule: schedule\.total_tokens was 900, is 2000$"):
        RunDirectory(tmp_path / "run").require_same(longer, False, before)


def test_a_run_is_not_cut_below_what_it_has_trained_on(recipe_in, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.root.mkdir()
    (run.root / "run.json").write_text(json_file.as_json(as_written(recipe_with(recipe_in, tmp_path))))
    for total in (900, 951):
        run.require_longer(total, seen=950)
    with pytest.raises(ValueError, match=r"schedule\.total_tokens=950 would end .*/run before the 950 tokens"):
        run.require_longer(950, seen=950)


@pytest.mark.slow
def test_another_schedule_is_answered_with_the_command_that_continues(
    recipe_in, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    recipe = recipe_in(tmp_path)
    # With a share, another length means other tokens of warm-up, which nobody has typed.
    recipe.write_text(re.sub(r"(?m)^warmup_tokens = 0", "warmup = 0.1", recipe.read_text()))
    assert main([str(recipe), "schedule.total_tokens=900"]) == 0
    said = capsys.readouterr().out
    assert "The run was too short to show where it was going: train longer." in said
    longer = shlex.split(proposed(said)["train the same model for as long again"])
    assert longer[-2:] == ["schedule.total_tokens=1_800", "--allow-schedule-change"]

    assert main([str(recipe), "schedule.total_tokens=2_000", "run.keep_checkpoints=1"]) == 78
    error = capsys.readouterr().err
    assert "was started with another schedule: schedule.total_tokens was 900, is 2000. Train it in a" in error
    alone, as_it_was, as_typed = error.splitlines()[-3:]
    assert f"run.directory={tmp_path}/run-2" in shlex.split(alone)
    assert "schedule.total_tokens=900" in shlex.split(as_it_was)
    assert main(shlex.split(as_it_was)[3:]) == 0
    assert json.loads((tmp_path / "run/run.json").read_text())["recipe"]["schedule"]["total_tokens"] == 900
    capsys.readouterr()
    python, *words_of_it = shlex.split(as_typed)
    assert (Path(python).name, words_of_it[:2]) == ("python", ["-m", "pretrain"])
    assert main(words_of_it[2:]) == 0
    assert json.loads((tmp_path / "run/run.json").read_text())["recipe"]["schedule"]["total_tokens"] == 2000
    assert lines(tmp_path / "run/metrics.jsonl")[-1]["tokens"] >= 2000

    export = (tmp_path / "run/export/model.safetensors").read_bytes()
    assert main([str(recipe), "schedule.total_tokens=1_000", "--allow-schedule-change"]) == 78
    assert "schedule.total_tokens=1_000 would end" in capsys.readouterr().err
    assert (tmp_path / "run/export/model.safetensors").read_bytes() == export
