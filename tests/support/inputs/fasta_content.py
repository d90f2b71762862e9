"""Reading FASTA in tests: what all blocks of a source hold, in chunks of any size."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import data.sources.fasta
from data.alphabet import STANDARD_RESIDUES, decode
from data.sources.block import RecordBlock, RejectedRecord
from data.sources.fasta import FastaSource
from data.transport.byte_stream import ByteStream

TIDY = b">sp|P1 first protein\nMKTAYIAK\nQRQ\n>P2\nGGGG\n"


class Content(NamedTuple):
    """What all blocks of a source hold."""

    records: list[tuple[bytes, str]]
    digests: list[int]
    rejected: list[RejectedRecord]
    unknown: Counter[str]


def content(blocks: Iterator[RecordBlock]) -> Content:
    """Blocks in one, the arrays of each checked against one another."""
    found = Content([], [], [], Counter())
    for block in blocks:
        assert [a.dtype.name for a in (block.tokens, block.lengths, block.digests)] == ["uint8", "int64", "uint64"]
        assert [a.dtype.name for a in (block.headers, block.header_lengths)] == ["uint8", "int64"]
        assert len(block.lengths) == len(block.header_lengths) == len(block.digests)
        assert len(block.lengths) + len(block.rejected) > 0
        letters = np.split(block.tokens, np.cumsum(block.lengths))
        headers = np.split(block.headers, np.cumsum(block.header_lengths))
        assert len(letters.pop()) == len(headers.pop()) == 0
        found.records.extend((h.tobytes(), decode(t)) for h, t in zip(headers, letters, strict=True))
        found.digests.extend(block.digests.tolist())
        found.rejected.extend(block.rejected)
        found.unknown.update(block.unknown_letters)
    return found


def written(tmp_path: Path, text: bytes, name: str = "a.fasta") -> str:
    path = tmp_path / name
    path.write_bytes(text)
    return str(path)


def read(path: str, policy: str = "refuse") -> Content:
    return content(FastaSource(path, policy).blocks())


def in_pieces(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Have sources arrive in chunks of `size` bytes."""

    class Slow(ByteStream):
        def chunks(self, offset: int = 0) -> Iterator[bytes]:
            whole = b"".join(super().chunks(offset))
            yield from (whole[at : at + size] for at in range(0, len(whole), size))

    monkeypatch.setattr(data.sources.fasta, "ByteStream", Slow)


def byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every record read as those are that the compiled parser leaves."""

    def parse(
        text: object,
        begin: int,
        end: int,
        most: object,
        longest: object,
        is_judged: object,
        tokens: object,
        num_tokens: int,
        headers: object,
        num_header_bytes: int,
        *_: object,
    ) -> tuple[int, int, int, int]:
        return begin, 0, num_tokens, num_header_bytes

    monkeypatch.setattr(data.sources.fasta, "compiled", lambda _: parse)


def many(seed: int = 0, count: int = 300) -> bytes:
    """Records of all widths and lengths, one in seven with a letter that is none."""
    rng = np.random.default_rng(seed)
    records = []
    for i in range(count):
        letters = "".join(rng.choice(list(STANDARD_RESIDUES + "x"), rng.integers(1, 300)))
        letters = letters[:2] + "?" + letters[2:] if i % 7 == 3 else letters
        width = int(rng.choice([1, 10, 60, 64, 1000]))
        lines = "\n".join(letters[k : k + width] for k in range(0, len(letters), width))
        records.append(f">r{i} {'x' * int(rng.integers(0, 90))}\n{lines}\n")
    return "".join(records).encode()
