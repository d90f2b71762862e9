"""The closing words of a run: what was learned, where the model is, what to try next.

In: a `Summary` and how the run was started. Out: text.
"""

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pretrain.evaluation.evaluate import TITLES
from pretrain.evaluation.scores import MaskedLanguageScores
from pretrain.loop import Summary

PEPTIDE = "MKTAYIAKQRQISFVKSHFSRQ<mask>EERLGLIEVQ"
"""An example to fill in: the start of asparagine synthetase A of E. coli, with a leucine hidden."""


def closing_words(summary: Summary[MaskedLanguageScores], commands: Sequence[tuple[str, str]]) -> str:
    """A few lines for the user who started the run: its results, and the `next_commands`."""
    state, model = summary.state, summary.run.export
    judged = summary.scores.evaluations["mask_all"]
    floor_head = f"{'floor':>8}" if judged.floor is not None else ""
    of_proteins = f" of {training:,} proteins" if (training := summary.scores.num_training) else ""
    lines = [
        "",
        f"Trained on {state.tokens_seen:,} tokens{of_proteins} in {state.step} steps "
        f"({summary.seconds:.0f} s this time).",
        f"Validation perplexity on {judged.sequences} proteins of held-out clusters:",
        "",
        f"    {'corruption':12}{'model':>8}{'95 % interval':>18}{'unigram':>10}{floor_head}",
    ]
    for name, s in summary.scores.evaluations.items():
        floor = f"{s.floor:8.2f}" if s.floor is not None else ""
        interval = "unknown" if math.isnan(s.low) else f"{s.low:.2f} to {s.high:.2f}"
        lines.append(f"    {TITLES[name]:12}{s.perplexity:8.2f}{interval:>18}{s.unigram:10.2f}{floor}")
    lines += ["", *_verdict(summary), "", f"The model, as transformers loads it: {model}", "", "Try next:", ""]
    return "\n".join([*lines, *(f"  {what}\n    {command}" for what, command in commands)])


def next_commands(
    summary: Summary[MaskedLanguageScores],
    recipe: Path,
    overrides: Sequence[str],
    engine: str,
    world_size: int,
    precision: str,
) -> list[tuple[str, str]]:
    """(what it does, command) of three things to do with a new model; every command works as printed.

    Args:
        summary: the run's results.
        recipe: the file that the run was started with.
        overrides: the settings that were given on top of it.
        engine: the name of its engine, which is that of a file in `accelerate_configs/`.
        world_size: number of its processes.
        precision: precision of the launch: 'no', 'bf16' or 'fp16'.
    """
    binaries = Path(sys.executable).parent
    if binaries.is_relative_to(Path.cwd()):
        binaries = binaries.relative_to(Path.cwd())
    flags = f" --num_processes {world_size}" if world_size > 2 else ""
    flags += f" --mixed_precision {precision}" if precision != "bf16" else ""  # the default of the files
    launch = f"{binaries}/accelerate launch --config_file accelerate_configs/{engine}.yaml{flags} -m pretrain"
    kept = [shlex.quote(o) for o in overrides if not o.startswith("schedule.total_tokens=")]
    longer = 2 * summary.state.tokens_seen
    return [
        (
            "fill in a hidden residue, with transformers alone:",
            f'{binaries}/python -c "from transformers import pipeline; '
            f"print(pipeline('fill-mask', '{summary.run.export}')('{PEPTIDE}')[0])\"",
        ),
        (
            "train the same model for as long again:",
            " ".join([launch, str(recipe), *kept, f"schedule.total_tokens={longer} --allow-schedule-change"]),
        ),
        (
            "train on your own sequences:",
            f"{launch} recipes/own_sequences.toml 'data.sources=[\"your.fasta.gz\"]'",
        ),
    ]


def _verdict(summary: Summary[MaskedLanguageScores]) -> list[str]:
    """What the numbers show, judged by mask-all, where nothing can be copied."""
    s = summary.scores.evaluations["mask_all"]
    if math.isnan(s.gain_low) and math.isfinite(s.gain):
        return [
            "All validation proteins are of one cluster, so there is no interval and nothing is claimed: raise "
            "data.validation_fraction."
        ]
    if not s.gain_low > 0:  # so that NaN is no success
        return [
            "It has not learned anything beyond residue frequencies yet (the gain's interval holds 0): train longer."
        ]
    beats = f"It beats residue frequencies by {s.gain:.3f} nats a residue (at least {s.gain_low:.3f}, bootstrap 95 %)."
    if s.floor is None:
        return [beats]
    share = s.gain / (math.log(s.unigram) - math.log(s.floor))
    return [beats, f"That is {share:.0%} of what can be learned: no model can go below the floor."]
