"""What is typed beside sequences: settings that everything else is fitted to, mistakes named at once, a run that is."""

import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pretrain import auto_recipe, machine
from pretrain.__main__ import main
from pretrain.auto_recipe import describe_existing_run, provisional_recipe
from pretrain.machine import CPU_FLOPS, Machine, describe_machine
from pretrain.proposal import rules
from pretrain.proposal.choose import ProposedRecipe, propose_settings
from pretrain.proposal.corpus import CorpusFacts, SplitFacts
from pretrain.proposal.options import ProposalOptions
from pretrain.proposal.recipe_text import format_estimate, format_proposal, recipe_text
from pretrain.recipe import Recipe
from support.launching import torchrun_variables
from zymogen.console.progress import ProgressBar
from zymogen.settings.toml_file import check
from zymogen.trainer.run.directory import RunDirectory

LAPTOP = Machine("cpu", "4 CPU cores", 1, 4, 16e9, 4 * CPU_FLOPS)
CORPUS = CorpusFacts(np.array([340]), np.array([5_605]), None)
SPLIT = SplitFacts(0.1, 0.5, 500, "by clusters", 5_000)


def request(*overrides: str, budget_s: float | None = None) -> ProposalOptions:
    return ProposalOptions(("your.fasta.gz",), overrides, budget_s)


def proposal_of(typed: ProposalOptions, corpus: CorpusFacts = CORPUS) -> ProposedRecipe:
    given = {"run.directory": typed.directory, "data.sources": list(typed.sources), **typed.given}
    return propose_settings(corpus, SPLIT, LAPTOP, typed.budget_s or rules.DEFAULT_BUDGET_S, given)


def text_of(typed: ProposalOptions, corpus: CorpusFacts = CORPUS) -> str:
    program = ".venv/bin/accelerate launch -m pretrain"
    return recipe_text(proposal_of(typed, corpus), program, typed.words(), corpus, LAPTOP, typed.directory)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.bin_tokens=512"],
        ["data.crop_tokens=20000"],
        ["data.crop_tokens=20001", "parallel.context=2"],
        ["parallel.context=3"],
        ["data.curriculum=[[100000, 6000]]"],
        ["optimizer.momentum=0.9"],
        ["optimizer.newton_schulz=bfloat16"],
        ["data.mask.random_prob=0.1"],
        ["data.mask.random_prob=0.1", "model.preset=esm2_800k"],
        ["data.mask.random_prob=0.4", "model.preset=esm2_800k"],
        ["data.mask.mask_prob=0.95", "model.preset=esm2_800k"],
        ["data.mask={select_prob=0.2}"],
        ["data.mask={select_prob=0.2}", "data.mask.random_prob=0.3"],
        ["schedule.decay_end=0.7"],
        ["schedule.decay_end=0.01"],
        ["schedule.decay_start=0.95"],
        ["schedule.decay_start=0.0"],
    ],
)
def test_what_was_not_given_fits_what_was(here: Path, overrides: list[str]) -> None:
    typed = request(*overrides)
    provisional_recipe(typed)
    recipe = check(Recipe, tomllib.loads(text_of(typed)), "the proposal")
    assert typed.given
    for name, value in typed.given.items():
        *sections, last = name.split(".")
        of: object = recipe
        for section in sections:
            of = getattr(of, section)
        found = getattr(of, last)
        assert (list(map(list, found)) if isinstance(found, tuple) else found) == value


def test_partners_have_the_values_that_fit() -> None:
    def value(name: str, *overrides: str) -> object:
        return next(choice.value for choice in proposal_of(request(*overrides)).choices if choice.name == name)

    assert value("data.mask.mask_prob", "data.mask.random_prob=0.1") == 0.9
    assert value("data.mask.mask_prob", "data.mask.random_prob=0.1", "model.preset=esm2_800k") == 0.8
    assert value("data.mask.random_prob", "data.mask.mask_prob=0.95", "model.preset=esm2_800k") == 0.05
    assert value("schedule.decay_start", "schedule.decay_end=0.7") == 0.56
    assert value("schedule.decay_start") == rules.DECAY_START
    assert value("optimizer.name", "optimizer.momentum=0.9") == "muon"
    assert value("data.bin_tokens", "data.curriculum=[[100000, 6000]]") == 6000


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["data.bin_tokens=512", "data.crop_tokens=1024"], "on the command line, data.bin_tokens=512, data.crop_tokens="
         "1024: data.crop_tokens is 1024; it must lie between 3"),
        (["data.bin_tokens=2"], "on the command line, data.bin_tokens=2: data.crop_tokens is 2; it must lie between 3"),
        (["optimizer.momentum=0.9", "optimizer.name=adamw"], "only optimizer.name = 'muon' reads it, and"),
        (["data.streaming=true"], "data.streaming is true, and a recipe is chosen for sequences that have all been"),
        (["run.directory=runs/a", "data.store_dir=runs/a/"], "on the command line, run.directory=runs/a, data.store_dir"
         "=runs/a/: run.directory is runs/a, where token stores are kept (data.store_dir); choose another"),
        (["data.mask=5"], "on the command line, data.mask=5: there is no setting 'data.mask'"),
        (["data.bin_tokens.x=5"], "there is no setting 'data.bin_tokens.x'; the nearest is 'data.bin_tokens'"),
    ],
)  # fmt: skip
def test_what_cannot_be_fitted_is_refused_at_once(here: Path, overrides: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        provisional_recipe(request(*overrides))


def test_none_leaves_the_choice_to_the_rules(here: Path) -> None:
    names = ("data.validation_fraction", "schedule.total_tokens", "data.crop_tokens", "data.bins_per_step",
             "model.init", "model.preset", "schedule.peak_lr", "run.directory")  # fmt: skip
    typed = request(*(f"{name}=none" for name in names), "data.crop_tokens=64", "data.crop_tokens=none", "run.seed=3")
    assert typed.settings == ["run.seed=3"]
    assert typed.given == {"run.seed": 3}
    assert typed.directory == "runs/your"
    provisional_recipe(typed)
    assert all(f"{name}=none" in text_of(typed) for name in names)  # in the command, as it was typed
    check(Recipe, tomllib.loads(text_of(typed)), "the proposal")
    assert proposal_of(typed) == proposal_of(request("run.seed=3"))
    assert len(format_proposal(proposal_of(typed), typed.sources, CORPUS, LAPTOP)) > 8


def test_none_means_no_clustering(here: Path) -> None:
    typed = request("data.split_identity=none")
    assert typed.given == {"data.split_identity": None}
    assert request("data.split_identity=none", "data.split_identity=0.3").given == {"data.split_identity": 0.3}
    provisional_recipe(typed)
    assert "split_identity =" not in text_of(typed)


# A run that exists --------------------------------------------------------------------------------


@pytest.fixture
def kept(here: Path) -> CorpusFacts:
    """The corpus of a run of forty proteins in the folder `runs/your`, whose passes take seconds of its hour."""
    few = CorpusFacts(np.array([340]), np.array([40]), None)
    run = RunDirectory(here / "runs/your")
    run.root.mkdir(parents=True)
    run.describe_recipe(provisional_recipe(request()))
    run.recipe.write_text(text_of(request(), few))
    run.describe_recipe(provisional_recipe(request()))  # of the recipe that is kept now
    (run.root / "metrics.jsonl").touch()
    return few


def test_a_recipe_says_what_it_was_chosen_for() -> None:
    content = " ".join(text_of(request("run.seed=3", budget_s=600)).replace("\n# ", " ").split())
    assert "# Chosen for 10 minutes on 4 CPU cores and 5,605 proteins of 1,905,700 residues, by:" in content
    assert "by: .venv/bin/accelerate launch -m pretrain your.fasta.gz run.seed=3 --minutes 10 " in content
    assert ".venv/bin/accelerate launch -m pretrain COPY.toml run.directory=runs/your-2 " in content


def test_a_mistyped_file_is_missed_before_its_run_is_blamed(kept: CorpusFacts, here: Path) -> None:
    (here / "your.fasta.gz").write_text(">a\nMKV\n")
    said = "on the command line: your.fasta: No such file or directory; .*; the nearest is 'your.fasta.gz'"
    with pytest.raises(ValueError, match=said):
        provisional_recipe(ProposalOptions(("your.fasta",), (), None))
    (here / "your.fasta").write_text(">a\nMKV\n")
    with pytest.raises(ValueError, match=re.escape("runs/your is the directory of a run on your.fasta.gz: choose")):
        provisional_recipe(ProposalOptions(("your.fasta",), (), None))


def test_a_mistyped_setting_is_no_mistake_of_the_recipe_that_is_kept(kept: CorpusFacts) -> None:
    said = "on the command line, model.preest=esm2_8m: there is no setting 'model.preest'"
    with pytest.raises(ValueError, match=said):
        provisional_recipe(request("model.preest=esm2_8m"))


@pytest.mark.parametrize("times", [1, 3])
def test_another_time_for_a_run_that_exists(kept: CorpusFacts, times: int) -> None:
    tokens = times * proposal_of(request(), kept).plan.total_tokens  # of the last attempt
    if times > 1:
        longer = request(f"schedule.total_tokens={tokens}")
        RunDirectory(Path("runs/your")).describe_recipe(provisional_recipe(longer))
    first, line = describe_existing_run(request("schedule.total_tokens=7", "run.seed=0", budget_s=7200))
    assert first == (
        "nothing is proposed: without --plan, runs/your is continued by runs/your/recipe.toml, chosen when it began"
    )
    said, _, command = line.partition("; for twice as long: ")
    assert said == f"its length stays {tokens:,} tokens, whatever time is given"
    words = shlex.split(command)
    assert words[0] == str(Path(sys.executable))
    assert words[-4:] == [
        "runs/your/recipe.toml",  # which can be typed, however many files there are
        "run.seed=0",
        f"schedule.total_tokens={2 * tokens}",
        "--allow-schedule-change",
    ]
    assert len(describe_existing_run(request())) == 1


def test_a_choice_that_was_left_to_the_rules_stays_that_of_the_run(kept: CorpusFacts) -> None:
    chosen = provisional_recipe(request())
    assert chosen.data.crop_tokens != 1024  # the default
    assert provisional_recipe(request("data.crop_tokens=none", "schedule.total_tokens=none")) == chosen


@pytest.mark.parametrize("more", [[], ["--untimed"]])
def test_a_plan_for_a_run_that_exists_proposes_nothing(
    kept: CorpusFacts, here: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "zymogen.trainer.engine.launch", None)  # cannot be imported
    (here / "your.fasta.gz").write_text(">a\nMKV\n")
    assert main(["your.fasta.gz", "--plan", *more]) == 0
    assert capsys.readouterr().out == (
        "nothing is proposed: without --plan, runs/your is continued by runs/your/recipe.toml, chosen when it began\n"
    )


# An outline ---------------------------------------------------------------------------------------


def test_an_outline_is_that_of_the_run(
    here: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, object] = {}

    def looked(*of: object, **gpu: object) -> Machine:
        given.update(of=of, **gpu)
        return LAPTOP

    monkeypatch.setattr(auto_recipe, "describe_machine", looked)
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION", raising=False)
    (here / "your.fasta").write_text("".join(f">{n}\nMK{'A' * n}\n" for n in range(60)))
    assert main(["your.fasta", "--plan", "--untimed"]) == 0
    out, err = capsys.readouterr()
    assert given == {"of": (1, 1, "bf16", "single"), "gpu": True}
    assert out.startswith("proposed for 60 minutes:\n  corpus    your.fasta: 60 proteins")
    assert "no step was timed" in out
    assert "recipe.toml" not in out
    assert "proposed" not in err
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert main(["your.fasta", "--plan", "--untimed"]) == 0
    assert given == {"of": (1, 1, "no", "single"), "gpu": False}
    assert not (here / "runs/your").exists()


def test_an_outline_is_of_one_process(
    here: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "your.fasta").write_text(">a\nMKV\n")
    for name, value in torchrun_variables(0, 4, 29500).items():
        monkeypatch.setenv(name, value)
    assert main(["your.fasta", "--plan", "--untimed"]) == 78
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: on the command line: --untimed estimates what one process does, and 4 were launched")
    assert not (here / "runs").exists()


def test_a_gpu_that_is_not_used_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_gpu", lambda: ("an H100", 80e9, 989e12))
    assert describe_machine(2, 2, "bf16", "ddp", gpu=True).name == "2 x an H100"
    assert describe_machine(2, 2, "bf16", "ddp", gpu=False).kind == "cpu"


def test_a_promise_says_what_was_timed() -> None:
    plan = proposal_of(request()).plan
    assert format_estimate(plan, others_timed=False).endswith(
        "(by an estimate of this machine's speed: no step was timed)"
    )
    assert format_estimate(plan, others_timed=True).endswith(
        "(by an estimate of this size's speed, from those of the sizes that were timed)"
    )
    timed = propose_settings(CORPUS, SPLIT, LAPTOP, 3600, {}, {plan.size: plan.tokens_per_s}).plan
    assert format_estimate(timed, others_timed=True) == format_estimate(timed, others_timed=False)
    assert format_estimate(timed, others_timed=True).endswith(" seconds")


# Timed steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [1, 2, 8])
def test_steps_that_are_timed_are_no_larger_than_those_that_are_trained(here: Path, context: int) -> None:
    slow = Machine("cpu", "8 CPU cores, 8 processes", 8, 1, 16e9, 1e8, engine="ddp")
    typed = request("model.preset=modern_35m", f"parallel.context={context}")
    given = {"run.directory": "r", "data.sources": ["your.fasta.gz"], **typed.given}
    found = propose_settings(CORPUS, SPLIT, slow, 3600, given)
    recipe = check(Recipe, tomllib.loads(recipe_text(found, "p", "w", CORPUS, slow, "r")), "the proposal")
    timed = auto_recipe._in_short_steps(recipe, found, slow).data.bins_per_step
    assert timed == 8 // context <= recipe.data.bins_per_step


class OneProcess:
    """What a proposal needs of an engine."""

    world_size, ranks_per_node, precision, name, is_main, rank = 1, 1, "no", "single", True, 0
    device = SimpleNamespace(type="cpu")

    def on_main(self, work: Callable[[], object]) -> object:
        return work()

    on_each_node = on_main


@pytest.mark.parametrize("planned", [True, False])
def test_every_size_that_is_timed_is_named_while_it_is(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, planned: bool
) -> None:
    work: list[str] = []

    class Line(ProgressBar):
        def __init__(self, text: str, **how: bool) -> None:
            work.append(text)
            super().__init__(text, **how)

    def timed(recipe: Recipe, engine: object, seconds: float) -> float:
        work.append(recipe.model.preset)
        return 1e6

    monkeypatch.setattr(auto_recipe, "ProgressBar", Line)
    monkeypatch.setattr("pretrain.timing.timed_tokens_per_s", timed)
    (here / "your.fasta.gz").write_text("".join(f">{n}\nMK{'A' * n}\n" for n in range(60)))
    text = auto_recipe.propose(request("data.split_identity=none"), OneProcess(), planned=planned)
    first, *timings = work
    assert first == "looking at the proteins"
    assert timings
    assert timings[::2] == [f"timing steps of {size}" for size in timings[1::2]]
    out, err = capsys.readouterr()
    shown, silent = (out, err) if planned else (err, out)
    assert shown.startswith("proposed for 60 minutes:\n")
    assert "proposed" not in silent
    where = "would be written to runs/your/recipe.toml" if planned else "runs/your/recipe.toml"
    assert f"\n  recipe    {where}\n" in shown
    assert f" by: {sys.executable} -m pretrain your.fasta.gz data.split_identity=none" in " ".join(
        text.replace("\n# ", " ").split()
    )
