"""Blocks of a FASTA file: reading continues after any of them; neither chunks nor the parser change what they hold."""

import gzip
from pathlib import Path

import numpy as np
import pytest

import data.sources.fasta
from data.sources.block import RecordBlock, SourcePosition
from data.sources.fasta import FastaSource
from support.inputs.fasta_content import TIDY, byte_by_byte, content, in_pieces, many, read, written


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_restart_at_every_block(tmp_path: Path, compress, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"\n\n" + many()
    source = FastaSource(written(tmp_path, compress(text)), "refuse")
    in_pieces(monkeypatch, 1000)
    monkeypatch.setattr(data.sources.fasta, "BLOCK_BYTES", 4000)
    blocks = list(source.blocks())
    assert len(blocks) > 10
    for done, block in enumerate(blocks, 1):
        assert block.end.records == sum(len(b.lengths) + len(b.rejected) for b in blocks[:done])
        assert text[block.end.offset :].startswith(b">") == (done < len(blocks))
        assert content(source.blocks(block.end)) == content(iter(blocks[done:]))
    assert blocks[-1].end == SourcePosition(300, len(text))
    assert blocks[-1].bytes_read == source.num_bytes == len(compress(text))


def test_a_source_that_changed_is_not_continued(tmp_path: Path) -> None:
    source = FastaSource(written(tmp_path, TIDY), "refuse")
    with pytest.raises(ValueError, match="no record begins at byte 5, where reading is to continue"):
        list(source.blocks(SourcePosition(1, 5)))
    with pytest.raises(ValueError, match="ends 57 bytes before the place up to which it was read"):
        list(source.blocks(SourcePosition(1, 100)))
    assert list(source.blocks(SourcePosition(2, len(TIDY)))) == []


def test_chunks_may_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.sources.fasta_text._LONG_BYTES", 100)
    path = written(tmp_path, b"\xef\xbb\xbf\r\n" + many(1, 60).replace(b"\n", b"\r\n") + b">last\nMK*")
    whole = read(path)
    assert len(whole.records) + len(whole.rejected) == 61
    assert len(whole.rejected) == 9
    for size in (1, 2, 7, 64, 4096):
        in_pieces(monkeypatch, size)
        assert read(path) == whole


def test_blocks_are_the_same_without_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data.sources.fasta, "BLOCK_BYTES", 10_000)
    in_pieces(monkeypatch, 3000)
    for policy in ("refuse", "count"):
        source = FastaSource(written(tmp_path, many(2)), policy)
        compiled = list(source.blocks())
        with monkeypatch.context() as without:
            byte_by_byte(without)
            slow = list(source.blocks())
        assert len(compiled) == len(slow) > 3
        for ours, theirs in zip(compiled, slow, strict=True):
            for name in RecordBlock.__slots__:
                a, b = getattr(ours, name), getattr(theirs, name)
                assert a.tolist() == b.tolist() if isinstance(a, np.ndarray) else a == b


def test_what_is_common_is_not_read_byte_by_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(written(tmp_path, TIDY))

    def too_slow(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(data.sources.fasta._FastaReader, "_add_unusual", too_slow)
    text = TIDY.replace(b"GGGG", b"GGHG") * 20  # four G could be a nucleic acid
    for changed in (text, text.replace(b"\n", b"\r\n"), text.lower(), text.replace(b"QRQ", b"Q\tR \vQ\f\n\n*")):
        assert len(read(written(tmp_path, changed)).records) == 40
