"""TOML that is written parses back, whatever a file is called."""

import tomllib

import pytest

from finetune.look.recipe_text import recipe_text as looked
from pretrain.proposal.reasons import SettingChoice
from pretrain.proposal.recipe_text import comment, toml_value
from zymogen.console.safe_text import printable

EVERY = [chr(number) for number in range(0x110000) if not 0xD800 <= number < 0xE000]


def test_every_character_is_read_back_from_a_value_and_from_a_key() -> None:
    for begin in range(0, len(EVERY), 4096):
        text = "".join(EVERY[begin : begin + 4096])
        content = tomllib.loads(f"one = {toml_value(text)}\nseveral = {toml_value([text, text])}\n")
        assert content == {"one": text, "several": [text, text]}
    for letter in (*map(chr, range(0x100)), "\u2028", "\ufeff", "\U0001f600"):
        assert tomllib.loads(f"table = {toml_value({letter: letter})}") == {"table": {letter: letter}}


@pytest.mark.parametrize(
    "letter", [*map(chr, range(0x21)), *map(chr, range(0x7F, 0xA1)), "\u2028", "\u202e"], ids=ascii
)
def test_every_control_character_may_stand_in_acomment(letter: str) -> None:
    text = f"by: python -m pretrain 'a{letter}b.fasta'"
    written = "\n".join([*comment(text), f"a = {toml_value(text)}"])
    assert tomllib.loads(written) == {"a": text}
    recipe = looked([text], [("[data]", text, [SettingChoice("table", text, text)])])
    assert tomllib.loads(recipe) == {"data": {"table": text}}


def test_a_terminal_gets_no_control_character() -> None:
    shown = printable("".join(EVERY))
    assert [letter for letter in shown if not letter.isprintable() and ord(letter) < 0x2100] == [
        letter for letter in EVERY if ord(letter) < 0x2100 and not letter.isprintable() and printable(letter) == letter
    ]
    assert {"\x00", "\x07", "\x1b", "\r", "\x7f", "\x9b", "\u202e"}.isdisjoint(shown)
    assert printable("a\tb\nc\x1b[2J") == "a\tb\nc\\x1b[2J"
