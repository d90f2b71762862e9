"""Where things lie: the checkout, and real proteins where a machine has them beside it."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
REAL = ROOT.parent / "shared" / "data" / "pretrain"
"""Real proteins, for tests that say why they skip where these are not there."""
