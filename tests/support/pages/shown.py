"""What the documentation shows: its fenced blocks, its commands, and the recipe that a command trains."""

import re
import shlex
from pathlib import Path

from pretrain.recipe import Recipe
from support.places import ROOT
from zymogen.settings.toml_file import read

README = ROOT / "README.md"


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)


def commands(page: Path) -> list[str]:
    """Every command of the bash blocks, continued lines joined."""
    shown = [text.replace("\\\n", " ") for language, text in blocks(page) if language == "bash"]
    return [" ".join(line.split()) for text in shown for line in text.splitlines() if line.strip()]


def recipe_of(command: str, root: Path = ROOT) -> Recipe:
    """The recipe that a training command asks for, overrides applied."""
    words = shlex.split(command)
    after = words[words.index("pretrain") + 1 :]
    return read(Recipe, root / after[0], [word for word in after[1:] if not word.startswith("--")])
