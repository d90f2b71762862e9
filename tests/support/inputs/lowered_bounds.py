"""Bounds of sources, lowered so that a small file exceeds them."""

import pytest

_NAMES = {
    "residues": ("data.sources.protein.MAX_RESIDUES", "data.sources.fasta.MAX_RESIDUES"),
    "header": ("data.sources.protein.MAX_HEADER_BYTES", "data.sources.fasta.MAX_HEADER_BYTES"),
    "line": ("data.sources.fasta_text.MAX_LINE_BYTES", "data.sources.biopython.MAX_LINE_BYTES"),
    "inflation": ("data.transport.byte_stream.MAX_INFLATION",),
    "size": ("data.transport.byte_stream.MAX_BYTES",),
}


def lower(patch: pytest.MonkeyPatch, **bounds: float) -> None:
    """Set bounds by the words of `_NAMES`, wherever a module has them."""
    for word, value in bounds.items():
        for name in _NAMES[word]:
            patch.setattr(name, value)
