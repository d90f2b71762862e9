"""The compiled FASTA parser: translates 64 bytes at a time and writes them into the arrays of a block.

In: text that begins and ends between two records. Out: token ids, headers and their lengths, and where parsing stopped:
before a record that is not plain, which `data.sources.fasta` then reads byte by byte. Nothing is kept.

This module imports numba, so it is imported where the first file is read.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

from data.alphabet import LETTER_IDS, REFUSED

WIDTH = 64
"""Bytes that are read and written at a time; the output arrays need as much room after what they will hold."""

LETTER_TABLE: NDArray[np.uint8] = np.where(LETTER_IDS[64:96] == REFUSED, 128, LETTER_IDS[64:96]).astype(np.uint8)
"""(32,) token ids of the bytes 64 to 95, and of the bytes 96 to 127, which have the same; 128 for what is no letter."""

_BYTE, _INT = ir.IntType(8), ir.IntType(64)
_VECTOR = ir.VectorType(_BYTE, WIDTH)


def _all(value: int) -> ir.Constant:
    return ir.Constant(_VECTOR, [value] * WIDTH)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any, to: ir.Type) -> Any:
    whole = make_array(kind)(context, builder, array)  # type: ignore[no-untyped-call]
    data = builder.bitcast(whole.data, _BYTE.as_pointer())
    return builder.bitcast(builder.gep(data, [index]), to.as_pointer())


def _load(*place: Any) -> Any:
    value = place[1].load(_pointer(*place))
    value.align = 1
    return value


def _store(value: Any, *place: Any) -> None:
    place[1].store(value, _pointer(*place)).align = 1


def _looked_up(builder: Any, table: Any, index: Any) -> Any:
    """table[index] for each byte; LLVM compiles it to one instruction on processors that can shuffle bytes."""
    found = ir.Constant(_VECTOR, ir.Undefined)
    for lane in range(WIDTH):
        place = builder.zext(builder.extract_element(index, ir.Constant(_INT, lane)), _INT)
        found = builder.insert_element(found, builder.extract_element(table, place), ir.Constant(_INT, lane))
    return found


def _num_before(builder: Any, flags: Any) -> Any:
    """How many bytes come before the first flag; `WIDTH` without one."""
    count = builder.module.declare_intrinsic("llvm.cttz", [_INT], ir.FunctionType(_INT, [_INT, ir.IntType(1)]))
    return builder.call(count, [builder.bitcast(flags, _INT), ir.Constant(ir.IntType(1), 0)])


def _letters_code(typing: Any, text: Any, at: Any, tokens: Any, to: Any, table: Any) -> tuple[Any, Callable[..., Any]]:
    """Write `WIDTH` bytes of `text` as token ids into `tokens`; return how many letters come before another byte."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        letters = _load(context, builder, text, values[0], values[1], _VECTOR)
        halves = (
            _load(context, builder, table, values[4], ir.Constant(_INT, half), ir.VectorType(_BYTE, 16))
            for half in (0, 16)
        )
        low, high = (_looked_up(builder, half, builder.and_(letters, _all(15))) for half in halves)
        ids = builder.select(builder.icmp_unsigned("!=", builder.and_(letters, _all(16)), _all(0)), high, low)
        in_table = builder.icmp_unsigned("==", builder.and_(letters, _all(0xC0)), _all(0x40))
        ids = builder.select(in_table, ids, _all(128))
        _store(ids, context, builder, tokens, values[2], values[3], _VECTOR)
        return _num_before(builder, builder.icmp_signed("<", ids, _all(0)))

    return types.uint64(text, at, tokens, to, table), generate


def _header_code(typing: Any, text: Any, at: Any, headers: Any, to: Any) -> tuple[Any, Callable[..., Any]]:
    """Copy `WIDTH` bytes of `text` into `headers`; return how many come before the first line end or NUL."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        content = _load(context, builder, text, values[0], values[1], _VECTOR)
        _store(content, context, builder, headers, values[2], values[3], _VECTOR)
        ends = (builder.icmp_unsigned("==", content, _all(byte)) for byte in (ord("\n"), 0))
        return _num_before(builder, builder.or_(*ends))

    return types.uint64(text, at, headers, to), generate


_copy_letters: Any = intrinsic(_letters_code)
_copy_header: Any = intrinsic(_header_code)

# Unsigned throughout: numba turns a mix of signed and unsigned into floats, and checks whether signed indices are
# negative.
_U = np.uint64
_0, _1, _4, _20, _WIDTH = _U(0), _U(1), _U(4), _U(20), _U(WIDTH)
_N = LETTER_IDS[ord("N")]
_NUCLEOTIDES = _U(sum(1 << int(LETTER_IDS[letter]) for letter in b"ACGTUNXI"))
"""Bit of each token id that stands for a nucleotide, known or not."""


def parse(
    text: NDArray[np.uint8],
    begin: int,
    end: int,
    max_header_bytes: int,
    max_residues: int,
    is_judged: bool,
    tokens: NDArray[np.uint8],
    num_tokens: int,
    headers: NDArray[np.uint8],
    num_header_bytes: int,
    lengths: NDArray[np.int64],
    header_lengths: NDArray[np.int64],
    letter_ids: NDArray[np.uint8],
    letter_table: NDArray[np.uint8],
) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Read the records of text[begin:end] up to the first one that is not plain.

    A plain record has a header, only letters and whitespace, at most one ``*`` or ``.`` at its end, and keeps to the
    limits. If it is judged, its letters are not those of nucleotides, nor a word for a missing value.

    Args:
        text: text of which text[begin] is the ``>`` of a record.
        begin: where to start.
        end: where to stop: the length of `text`, or where a record begins.
        max_header_bytes: longest header of a plain record.
        max_residues: longest sequence of a plain record.
        is_judged: whether a record is not plain whose letters are nucleotides, except for a twentieth, or which is a
            word of up to 4 letters that begins with N, such as NULL: `data.sources.protein` decides what it is.
        tokens: token ids are written here, from `num_tokens` on; needs room for end - begin + `WIDTH` more.
        num_tokens: how many token ids `tokens` holds.
        headers: header lines are written here, in the same way.
        num_header_bytes: how many bytes `headers` holds.
        lengths: the number of residues of each record is written here, from 0 on; needs room for
            (end - begin) // 4 + 1.
        header_lengths: the number of bytes of each header is written here, in the same way.
        letter_ids: `LETTER_IDS`.
        letter_table: `LETTER_TABLE`.

    Returns:
        Where the first record begins that was not read (`end` if all were), the number of records that were read, and
        how many token ids and header bytes the arrays now hold.
    """
    i, stop, size = _U(begin), _U(end), _U(len(text))
    t, h, record = _U(num_tokens), _U(num_header_bytes), _0
    most_header_bytes, most_residues = _U(max_header_bytes), _U(max_residues)
    usual = _WIDTH
    while i < stop:
        start, first_token, first_byte = i, t, h
        i += _1
        while i < stop and text[i] != 10 and (text[i] == 32 or (text[i] >= 9 and text[i] <= 13)):
            i += _1
        while i < stop:
            if i + _WIDTH <= size:
                num = _copy_header(text, i, headers, h)
                i += num
                h += num
                if num == _WIDTH:
                    continue
            byte = text[i]
            if byte == 10 or byte == 0:
                break
            headers[h] = byte
            i += _1
            h += _1
        while h > first_byte and (headers[h - _1] == 32 or (headers[h - _1] >= 9 and headers[h - _1] <= 13)):
            h -= _1
        plain = i < stop and text[i] == 10 and h > first_byte and h - first_byte <= most_header_bytes
        i += _1
        starred = False
        after_star = _0
        while plain and i < stop:
            if i + _WIDTH <= size:
                num = _copy_letters(text, i, tokens, t, letter_table)
                if num == _WIDTH:
                    i += _WIDTH
                    t += _WIDTH
                    continue
                if num == usual:  # a guess, so that the processor need not wait for the count
                    i += usual
                    t += usual
                else:
                    i += num
                    t += num
                    usual = num
                byte = text[i]
            else:
                byte = text[i]
                token = letter_ids[byte]
                if token != REFUSED:
                    tokens[t] = token
                    i += _1
                    t += _1
                    continue
            if byte == 10:
                i += _1
                if i < stop and text[i] == 62:
                    break
            elif byte == 32 or (byte >= 9 and byte <= 13):
                i += _1
            elif (byte == 42 or byte == 46) and not starred:
                starred = True
                after_star = t
                i += _1
            else:
                plain = False
        if not plain or t == first_token or t - first_token > most_residues or (starred and t != after_star):
            return start, record, first_token, first_byte
        if is_judged:
            # Four letters decide for most proteins, as a third of their letters are nucleotides', too.
            others, most_others = _0, (t - first_token) // _20
            k = first_token
            while k < t and others <= most_others:
                others += _1 - ((_NUCLEOTIDES >> _U(tokens[k])) & _1)
                k += _1
            if others <= most_others or (t - first_token <= _4 and tokens[first_token] == _N):
                return start, record, first_token, first_byte
        lengths[record] = t - first_token
        header_lengths[record] = h - first_byte
        record += _1
    return i, record, t, h
