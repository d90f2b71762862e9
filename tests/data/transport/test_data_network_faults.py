"""A network that fails at any place: the store is byte-equal to that of the local file, or there is one error."""

import gzip
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from data.settings import IngestSettings
from data.sources.fasta import FastaSource
from data.store.build import open_or_build
from data.store.token_store import TokenStore
from support.inputs.fasta_content import many
from support.inputs.faulty_server import Clock, Fault, Site, serving
from support.inputs.packed_bytes import bgzip, framed
from support.inputs.seeded_source import contents

INGEST = IngestSettings()
PACKINGS = {"plain": bytes, "gzip": gzip.compress, "bgzip": bgzip, "zstd": framed}
BEFORE = many(seed=1, count=2500).replace(b"?", b"")
AFTER = many(seed=2, count=2500).replace(b"?", b"")
STOPS = ("drop", "drop", "reset", "stall")
"""After a random number of bytes."""
ANSWERS = ("500", "502", "503", "429", "408", "hang-up", "whole", "whole", "part", "part", "elsewhere", "silence")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[bytes, dict[str, bytes]]:
    """The stores of both contents, read from disk."""
    folder = tmp_path_factory.mktemp("local")
    stores = {}
    for name, text in (("before", BEFORE), ("after", AFTER)):
        (folder / name).write_bytes(text)
        stores[text] = of(build(str(folder / name), folder / "stores"))
    return stores


def build(location: str, store_dir: Path) -> TokenStore:
    return open_or_build([FastaSource(location, "refuse")], store_dir, "refuse", INGEST, progress=lambda *_: None)


def of(store: TokenStore) -> dict[str, bytes]:
    found = contents(store.folder)
    return {name: found[name] for name in found if name != "store.json"} | {"": store.fingerprint.encode()}


def site_of(seed: int, clock: Clock) -> tuple[Site, bool]:
    """A server with habits and up to five faults, and whether its file changes."""
    rng = random.Random(seed)
    pack = PACKINGS[rng.choice(list(PACKINGS))]
    content = pack(BEFORE)
    faults = []
    for _ in range(rng.randint(0, 4)):
        kind = rng.choice(rng.choice((STOPS, ANSWERS)))
        at = rng.choice((0, 1, rng.randrange(300), rng.randrange(len(content)), rng.randrange(len(content) // 3)))
        faults.append(Fault(kind, at, rng.choice(("", "", "7"))))
    faults.insert(0, Fault("drop", rng.randrange(len(content))))  # so that there is something to continue with
    changes = rng.random() < 0.3
    if changes:
        faults.insert(rng.randint(0, len(faults)), Fault("change"))
    site = Site(
        content,
        after=pack(AFTER),
        faults=faults,
        head_faults=[Fault(rng.choice(ANSWERS[:6])) for _ in range(rng.choice((0, 0, 1, 2)))],
        says_etag=rng.choice(('"{}"', '"{}"', 'W/"{}"', "", "")),
        says_modified=rng.random() < 0.3,
        framing=rng.choice(("length", "length", "chunked")),
        ranges=rng.random() < 0.75,
        clock=clock,
    )
    return site, changes


def run(seed: int, tmp_path: Path, local: dict[bytes, dict[str, bytes]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        site, changes = site_of(seed, Clock(patch))
        print(f"program {seed}: {replace(site, content=b'', after=b'')}")
        said = ""
        with serving(site):
            try:
                found = of(build(site.url, tmp_path))
            except ValueError as error:
                said = str(error)
                site.faults.clear()
                found = of(build(site.url, tmp_path))
        assert len(site.asked) >= 2
        if changes:  # the store of one of the two, never a mixture; or an error, and then that of the new one
            wanted = "changed while it was read.*[:;] the same command reads it again|; .* build its store again"
            assert not said or re.search(wanted, said)
            assert found in ([local[AFTER]] if said else [local[BEFORE], local[AFTER]])
        else:
            assert said == ""
            assert found == local[BEFORE]
        assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(n, marks=pytest.mark.slow) for n in range(8, 20))])
def test_programs_of_faults(seed: int, tmp_path: Path, local: dict[bytes, dict[str, bytes]]) -> None:
    run(seed, tmp_path, local)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(1000, marks=pytest.mark.slow),
        *(pytest.param(n, marks=pytest.mark.prove) for n in (1050, 1100, 1150)),
    ],
)
def test_many_programs_of_faults(first: int, tmp_path: Path, local: dict[bytes, dict[str, bytes]]) -> None:
    for seed in range(first, first + 50):
        run(seed, tmp_path / str(seed), local)
