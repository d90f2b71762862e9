"""What `make setup` runs: makes `.venv` once, with the pinned versions.

In: `setup.cfg`, `pyproject.toml` and `constraints.txt`. Out: `.venv`. Kept: a stamp in it, the hash of those files;
while the stamp matches there is nothing to do. It is written last, so an interrupted install is taken up again.

Standard library only, and no syntax newer than Python 3.7, so that an old interpreter can say what it lacks.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "zymogen-setup"
INPUTS = ("setup.cfg", "pyproject.toml", "constraints.txt", "bootstrap.py")
PINNED = ("-c", "constraints.txt")
MINIMUM = (3, 11)


def say(text: str) -> None:
    """Prints one line of progress."""
    print("setup: " + text, flush=True)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in the project's root, quietly; the caller looks at `returncode`."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)


def pip_install(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `pip install` in the environment."""
    options = ("--quiet", "--disable-pip-version-check", "--no-input")
    return run(VENV / "bin" / "python", "-m", "pip", "install", *options, *arguments)


def demand(done: subprocess.CompletedProcess[str], advice: str) -> None:
    """Stops with the command's own message and the advice unless it succeeded."""
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}setup: {advice}")


def digest() -> str:
    """Hash of what decides the environment; the place counts, because an environment cannot be moved."""
    parts = [str(ROOT).encode(), *((ROOT / name).read_bytes() for name in INPUTS)]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def has_gpu() -> bool:
    """Whether an NVIDIA driver is loaded, or `nvidia-smi` lists a device."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    return shutil.which("nvidia-smi") is not None and "GPU 0" in run("nvidia-smi", "-L").stdout


def environment_works() -> bool:
    """Whether `.venv` is whole, stands where it was made, and runs a Python that is new enough."""
    # Of an environment that was moved or copied, the scripts' first line names the old place.
    try:
        found = run(VENV / "bin" / "pip", "--version").stdout.strip()
        place, _, python = found.partition(" from ")[2].rpartition(" (python ")
        version = tuple(int(part) for part in python.rstrip(")").split("."))
    except (OSError, ValueError):
        return False
    return VENV in Path(place).resolve().parents and version >= MINIMUM


def make_environment() -> None:
    """Makes `.venv` from the running interpreter, or stops with what to install."""
    version = "{}.{}".format(*sys.version_info[:2])
    if sys.version_info < MINIMUM:
        sys.exit(
            f"setup: this is Python {version}, and 3.11 or newer is needed; "
            "install one and name it, for example: make setup PYTHON=python3.11"
        )
    advice = f"Python {version} cannot make an environment; on Debian: apt-get install python3-venv"
    if any(importlib.util.find_spec(name) is None for name in ("venv", "ensurepip")):
        sys.exit(f"setup: {advice}")
    say(f"making .venv with Python {version}")
    demand(run(sys.executable, "-m", "venv", "--clear", VENV), advice)


def download_size(requirement: str) -> str:
    """What installing `requirement` would download, such as "3,170 MB", or "size unknown"."""
    try:
        plan = json.loads(pip_install("--dry-run", "--report", "-", requirement, *PINNED).stdout)
        trust = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
        total = 0
        for item in plan["install"]:
            head = urllib.request.Request(item["download_info"]["url"], method="HEAD")
            with urllib.request.urlopen(head, timeout=10, context=trust) as answer:
                total += int(answer.headers["Content-Length"])
    except (OSError, KeyError, TypeError, ValueError):
        return "size unknown"
    return f"{total / 1e6:,.0f} MB to download"


def install_torch() -> None:
    """Installs torch: with a GPU, the registry's build; without, a CPU build where pip can see one."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    torch = next(pin for pin in pins if pin.startswith("torch=="))
    cpu = f"{torch}+cpu"
    advice = "pip could not install torch; the same command goes on from here"
    if has_gpu():
        say(f"a GPU is here: installing {torch} with CUDA")
        # +cpu sorts above the plain version: pip would take it wherever both are on offer.
        demand(pip_install(f"{torch},!={cpu.partition('==')[2]}", *PINNED), advice)
        return
    say(f"no GPU here: installing {cpu} if pip can see that build")
    # No constraints here: with them pip reports a missing build as a conflict. What torch needs comes with the rest.
    done = pip_install("--no-deps", cpu)
    if f"No matching distribution found for {cpu}" in done.stderr:
        say(f"it cannot: installing {torch} with CUDA, {download_size(torch)}")
        done = pip_install(torch, *PINNED)
    demand(done, advice)


def main() -> None:
    """Brings `.venv` to what the four files ask for; does nothing where it is there already."""
    wanted = digest()
    works = environment_works()
    if works and STAMP.exists() and STAMP.read_text(encoding="utf-8") == wanted:
        return
    if not works:
        make_environment()
    STAMP.unlink(missing_ok=True)
    install_torch()
    say("installing the rest, at the versions in constraints.txt")
    advice = "pip could not install the above; the same command goes on from here"
    demand(pip_install("-e", ".[deepspeed,s3,trackers,test,dev]", *PINNED), advice)
    unfinished = STAMP.with_suffix(".part")
    unfinished.write_text(wanted, encoding="utf-8")
    unfinished.replace(STAMP)
    say("done")


if __name__ == "__main__":
    main()
