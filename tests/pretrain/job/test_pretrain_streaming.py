"""Training from a store that is still being written: killed in its first pass, and continued to the same end."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from data.alphabet import STANDARD_RESIDUES
from support.launching import DDP, end_of, launch, launch_and_kill, lines
from support.rank_pool import RankPool

pytestmark = [pytest.mark.launch, pytest.mark.xdist_group("engines")]

STREAMED = (
    "data.streaming=true",
    "data.clusters=none",
    "data.window_sequences=512",
    "data.crop_tokens=16",
    "data.bin_tokens=1024",
    "data.bins_per_step=7",
    "schedule.total_tokens=100_000",
    "run.checkpoint_every=4",
)


class SlowSite:
    """A web server with one file, of which it sends no more than a part until it is told to."""

    def __init__(self, content: bytes, part: int) -> None:
        self.more = threading.Event()
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()

            def do_GET(self) -> None:
                first = 0
                if asked := self.headers.get("Range"):
                    first = int(asked.removeprefix("bytes=").split("-")[0])
                self.send_response(206 if asked else 200)
                self.send_header("Content-Length", str(len(content) - first))
                if asked:
                    self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
                self.end_headers()
                try:
                    self.wfile.write(content[first : max(first, part)])
                    if site.more.wait(timeout=120):
                        self.wfile.write(content[max(first, part) :])
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the reader was killed

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/proteins.fasta"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def proteins() -> bytes:
    """10,000 records, 20 MB: several blocks of the parser, of which the first holds two thirds of the training."""
    rng = np.random.default_rng(0)
    letters = np.frombuffer(STANDARD_RESIDUES.encode(), np.uint8)
    sequences = letters[rng.integers(0, 20, (10_000, 2000))]
    return b"".join(b">p%d\n%s\n" % (number, sequence.tobytes()) for number, sequence in enumerate(sequences))


@pytest.fixture
def site(proteins: bytes) -> Iterator[SlowSite]:
    site = SlowSite(proteins, part=12_000_000)
    yield site
    site.more.set()
    site.server.shutdown()


def test_killed_while_the_store_is_written(
    pool: RankPool, recipe_in, tmp_path: Path, site: SlowSite, proteins: bytes
) -> None:
    arguments = [recipe_in(tmp_path / "killed"), *STREAMED, f'data.sources=["{site.url}"]']
    run = tmp_path / "killed/run"

    def past_a_checkpoint() -> bool:
        logged = any(line.get("step", 0) >= 6 for line in lines(run / "metrics.jsonl"))
        return logged and any(run.glob("checkpoints/step-*"))

    launch_and_kill(arguments, 2, past_a_checkpoint, tmp_path / "log")
    (store,) = (path for path in (tmp_path / "killed/stores").iterdir() if path.name != "plans")
    assert not (store / "store.json").exists()  # it was trained on before it was whole
    committed = json.loads((store / "progress.json").read_text())
    assert 0 < committed["counts"][0] < 10_000

    site.more.set()
    resumed = pool.run(2, DDP, arguments)
    assert resumed.status == 0, resumed.output
    attempts = [line for line in lines(run / "attempts.jsonl") if "base_step" in line]
    assert attempts[1]["base_step"] in (4, 8)

    # The uninterrupted run, in another world, from the same bytes in a file.
    (tmp_path / "proteins.fasta").write_bytes(proteins)
    whole = [recipe_in(tmp_path / "whole"), *STREAMED, f'data.sources=["{tmp_path / "proteins.fasta"}"]']
    done = pool.run(1, DDP, whole)
    assert done.status == 0, done.output
    end, reference = end_of(run), end_of(tmp_path / "whole/run")
    assert (end.step, end.chain, end.tokens_seen) == (reference.step, reference.chain, reference.tokens_seen)
    waits = [line["loader_wait"] for line in lines(run / "metrics.jsonl") if "loader_wait" in line]
    assert all(0 <= wait <= 1 for wait in waits)

    # Control: another first pass is another chain.
    permuted = [*whole, f"run.directory={tmp_path / 'permuted'}", "data.streaming=false"]
    assert pool.run(1, DDP, permuted).status == 0
    assert end_of(tmp_path / "permuted").chain != reference.chain


def test_a_source_that_breaks_off_ends_every_rank(recipe_in, tmp_path: Path, site: SlowSite, proteins: bytes) -> None:
    broken = tmp_path / "broken.fasta"
    broken.write_bytes(proteins + b">bad\nMK-V\n")
    arguments = [recipe_in(tmp_path), *STREAMED, f'data.sources=["{broken}"]', "schedule.total_tokens=500_000"]
    done = launch(arguments, 2)
    assert done.status != 0, done.output
    assert len(done.errors()) == 1, done.output
    (error,) = done.errors()
    assert "broken.fasta: record 10001 ('bad') has '-' at residue 3" in error
