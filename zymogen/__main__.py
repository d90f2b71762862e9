"""The command `zymogen`: one name for all commands; `zymogen NAME ...` is `python -m NAME ...`.

In: the name of a command, and its arguments. Out: what that command does, and its exit status; 78 for an unknown name.
Kept: nothing. Unlike `python -m`, it does not look for modules in the working directory.
"""

import argparse
import os
import sys
from runpy import run_module

from zymogen.own_packages import require_own

COMMANDS = {
    "Data": {
        "data": "build, describe and verify stores of protein sequences",
    },
    "Pretrain": {
        "pretrain": "train an encoder on sequences, or resume a run",
        "pretrain.evaluate": "score a run or a model on held-out proteins",
        "pretrain.baselines": "score simple predictors on the same proteins",
        "pretrain.compare": "compare models on the same proteins, with intervals",
        "pretrain.contacts": "score residue contacts from attention maps",
    },
    "Fine-tune": {
        "finetune.look": "inspect an assay table and write a recipe",
        "finetune": "train on an assay table, or resume a run",
        "finetune.compare": "compare runs on the same rows, with intervals",
        "finetune.proteingym": "score the assays of ProteinGym",
    },
    "Use": {
        "finetune.embed": "embed proteins: one vector each, or one per residue",
        "finetune.score": "score variants without labels",
        "finetune.predict": "predict the tasks of a fine-tuned model for a table",
    },
    "Publish": {
        "pretrain.export": "export a run as a folder that transformers loads",
        "finetune.export": "export a fine-tuned model for transformers or peft",
        "pretrain.push": "upload an export to a model hub",
    },
    "Inspect": {
        "pretrain.inspect": "print what a run did, attempt by attempt",
        "pretrain.report": "draw a run as one HTML page",
    },
}
"""Job -> name of a module -> purpose."""


def main() -> int:
    """Run one command, and return the exit status if it leaves one."""
    width = max(len(name) for commands in COMMANDS.values() for name in commands) + 2
    groups = (
        "\n".join([f"{job}:", *(f"  {name:{width}}{purpose}" for name, purpose in commands.items())])
        for job, commands in COMMANDS.items()
    )
    parser = argparse.ArgumentParser(
        prog="zymogen",
        usage="zymogen COMMAND [ARGUMENT ...]",
        description="Protein language models. 'zymogen COMMAND --help' lists a command's arguments.",
        epilog="\n".join([*groups, "", "Several processes: accelerate launch -m COMMAND ..."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    words = sys.argv[1:] or ["--help"]
    if words[0] in ("-h", "--help"):
        parser.print_help()
        return 0
    names = [name for commands in COMMANDS.values() for name in commands]
    if words[0] not in names:
        from difflib import get_close_matches

        by_end = [name for name in names if name.endswith(f".{words[0]}")]
        near = by_end or get_close_matches(words[0], names, 3)
        hint = f"did you mean {' or '.join(near)}?" if near else "zymogen --help lists them"
        print(f"error: unknown command {words[0]!r}; {hint}", file=sys.stderr, flush=True)
        return 78
    os.environ["PYTHONSAFEPATH"] = "1"  # for processes that the command starts
    sys.argv = ["-m", *words[1:]]  # as `python -m` has it while it looks for the module
    require_own("data", "pretrain", "finetune")
    run_module(words[0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
