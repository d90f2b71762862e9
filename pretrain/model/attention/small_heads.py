"""Attention of documents on a CPU, compiled: a head of a document at a time, in tiles that stay in registers.

In: queries, keys, values as attention computes with them, where documents are. Out: what each slot gathered and
log-sum-exp of its scores; or gradients. Kept: nothing; what a thread works in is its own, and is there for one call.

torch's kernel leaves these sizes to a matrix library that is made for larger ones. Here 16 queries lie side by side in
two registers, so no sum or maximum is ever taken across a register, and each matrix product is `tile`. What a slot
gets depends on its document alone: not on threads, nor on what else is in the batch.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-arg, var-annotated"

import math
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from data.compiled import compiled
from pretrain.model.attention.registers import add, div, exp, load, maximum, mul, spread, store, sub, tile, turn
from pretrain.model.attention.rotary_kernel import thread_pool


def forward(q: Tensor, k: Tensor, v: Tensor, documents: Tensor, gathered: Tensor, log_sums: Tensor) -> None:
    """Fill the documents' slots of `gathered` and `log_sums`.

    Args:
        q: ``(Q, H, K)`` float32, K a multiple of 8.
        k: ``(S, H, K)``.
        v: likewise.
        documents: ``(D, 4)`` int64, first and end slot of a document's keys, then of its queries.
        gathered: ``(Q, H, K)`` contiguous; slots of no document stay as they are.
        log_sums: ``(Q, H)`` contiguous, likewise.
    """
    _in_parts(_forward, (q, k, v), documents, (gathered, log_sums))


def backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    documents: Tensor,
    gathered: Tensor,
    log_sums: Tensor,
    out: tuple[Tensor, Tensor, Tensor],
) -> None:
    """Fill the documents' slots of `out`, gradients of queries, keys and values; as `forward`."""
    _in_parts(_backward, (gradient, q, k, v, gathered, log_sums), documents, out)


def _in_parts(function: Any, inputs: tuple[Tensor, ...], documents: Tensor, outputs: tuple[Tensor, ...]) -> None:
    kernel, (_, heads, channels) = compiled(function), inputs[0].shape
    assert kernel is not None
    assert channels % 8 == 0
    arrays = [x.detach().contiguous().view(-1).numpy() for x in inputs] + [x.view(-1).numpy() for x in outputs]
    arguments = *arrays, documents.numpy(), heads, channels
    threads = torch.get_num_threads()
    if threads == 1:
        kernel(*arguments, 0, 1)
        return
    parts = 4 * threads  # smaller than a thread's share, so that one that is held up takes fewer
    list(thread_pool(threads).map(lambda part: kernel(*arguments, part, parts), range(parts)))


_BLOCK = 192
"""Keys at a time at most, in sixes: weights of 16 queries for them, and gradients of those, are 24 KiB of cache."""


def _forward(q, k, v, gathered, log_sums, documents, heads, channels, part, parts):
    row, one, scale = heads * channels, np.float32(1), np.float32(1 / math.sqrt(channels))
    size = _longest(documents) * channels
    keys, values, queries = np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.float32)
    columns, out = np.empty(16 * channels, np.float32), np.empty(16 * channels, np.float32)
    weights, state = np.empty(16 * _BLOCK, np.float32), np.empty(32, np.float32)
    for number in range(part, len(documents) * heads, parts):
        document, head = number // heads, number % heads
        start, first = documents[document, 0], documents[document, 2]
        count, asked = documents[document, 1] - start, documents[document, 3] - first
        at, at_query = start * row + head * channels, first * row + head * channels
        _take(k, at, row, keys, count, channels, one)
        _take(v, at, row, values, count, channels, one)
        _take(q, at_query, row, queries, asked, channels, scale)
        block = _even(count)
        for i in range(0, asked, 16):
            _stand(queries, i * channels, columns, channels)
            _clear(out, 16 * channels)
            _clear(state, 16)
            state[16:] = -1e30
            for j in range(0, count, block):
                n = min(block, count - j)
                _score(keys, j * channels, columns, weights, n, channels)
                _weigh(weights, state, out, n, channels)
                _gather(weights, values, j * channels, out, n, channels)
            for query in range(min(16, asked - i)):
                log_sums[(first + i + query) * heads + head] = state[16 + query] + math.log(state[query])
            _divide(out, state, channels)
            _lie(out, queries, i * channels, channels)
        _give(queries, gathered, at_query, row, asked, channels, one)


def _backward(gradient, q, k, v, gathered, log_sums, of_q, of_k, of_v, documents, heads, channels, part, parts):
    row, one, scale = heads * channels, np.float32(1), np.float32(1 / math.sqrt(channels))
    size = _longest(documents) * channels
    keys, values, queries = np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.float32)
    of_out, outs = np.empty(size, np.float32), np.empty(size, np.float32)
    of_keys, of_values = np.empty(size, np.float32), np.empty(size, np.float32)
    columns, of_columns = np.empty(16 * channels, np.float32), np.empty(16 * channels, np.float32)
    out, state = np.empty(16 * channels, np.float32), np.empty(32, np.float32)
    weights, of_scores = np.empty(16 * _BLOCK, np.float32), np.empty(16 * _BLOCK, np.float32)
    for number in range(part, len(documents) * heads, parts):
        document, head = number // heads, number % heads
        start, first = documents[document, 0], documents[document, 2]
        count, asked = documents[document, 1] - start, documents[document, 3] - first
        at, at_query = start * row + head * channels, first * row + head * channels
        _take(k, at, row, keys, count, channels, one)
        _take(v, at, row, values, count, channels, one)
        _take(q, at_query, row, queries, asked, channels, scale)
        _take(gradient, at_query, row, of_out, asked, channels, one)
        _take(gathered, at_query, row, outs, asked, channels, one)
        _clear(of_keys, (count + 5) * channels)
        _clear(of_values, (count + 5) * channels)
        block = _even(count)
        for i in range(0, asked, 16):
            _stand(queries, i * channels, columns, channels)
            _stand(of_out, i * channels, of_columns, channels)
            _stand(outs, i * channels, out, channels)
            _inner(of_columns, out, state, channels)
            _clear(state, 16)  # the weights of queries that are not there stay finite
            for query in range(min(16, asked - i)):
                state[query] = log_sums[(first + i + query) * heads + head]
            _clear(out, 16 * channels)
            for j in range(0, count, block):
                n = min(block, count - j)
                _score(keys, j * channels, columns, weights, n, channels)
                _score(values, j * channels, of_columns, of_scores, n, channels)
                _differentiate(weights, of_scores, state, n)
                _gather(of_scores, keys, j * channels, out, n, channels)
                _scatter(weights, of_out, i * channels, of_values, j * channels, n, channels)
                _scatter(of_scores, queries, i * channels, of_keys, j * channels, n, channels)
            _lie(out, outs, i * channels, channels)
        _give(outs, of_q, at_query, row, asked, channels, scale)
        _give(of_keys, of_k, at, row, count, channels, one)
        _give(of_values, of_v, at, row, count, channels, one)


@numba.njit
def _longest(documents):
    """Slots of the longest, and as many more as a tile may read and write behind the last."""
    longest = 0
    for i in range(len(documents)):
        longest = max(longest, documents[i, 1] - documents[i, 0], documents[i, 3] - documents[i, 2])
    return longest + 16


@numba.njit
def _even(count):
    """Keys of a block, so that blocks of a document are about as long."""
    blocks = 6 * ((count + _BLOCK - 1) // _BLOCK)
    return (count + blocks - 1) // blocks * 6


@numba.njit
def _take(x, at, row, out, rows, channels, factor):
    """Rows, one behind the other, and zeros up to 16 more, which tiles take in."""
    factors, zero = spread(factor), spread(np.float32(0))
    for i in range(rows):
        for c in range(0, channels, 8):
            store(out, i * channels + c, mul(factors, load(x, at + i * row + c)))
    for c in range(rows * channels, (rows + 15) * channels, 8):
        store(out, c, zero)


@numba.njit
def _give(x, out, at, row, rows, channels, factor):
    factors = spread(factor)
    for i in range(rows):
        for c in range(0, channels, 8):
            store(out, at + i * row + c, mul(factors, load(x, i * channels + c)))


@numba.njit
def _clear(out, size):
    zero = spread(np.float32(0))
    for i in range(0, size, 8):
        store(out, i, zero)


@numba.njit
def _stand(x, at, out, channels):
    """16 rows become columns."""
    for c in range(0, channels, 8):
        for half in range(0, 16, 8):
            turn(x, at + half * channels + c, channels, out, c * 16 + half, 16)


@numba.njit
def _lie(x, out, at, channels):
    """And rows again."""
    for c in range(0, channels, 8):
        for half in range(0, 16, 8):
            turn(x, c * 16 + half, 16, out, at + half * channels + c, channels)


@numba.njit
def _score(x, at, columns, out, keys, channels):
    """Products of rows with 16 columns, ``(keys, 16)``."""
    for j in range(0, keys, 6):
        tile(6, 2, 0, x, at + j * channels, channels, 1, columns, 0, 16, out, j * 16, 16, channels)


@numba.njit
def _gather(weights, x, at, out, keys, channels):
    """Add rows by weight to 16 columns."""
    c = 0
    while c < channels:
        if channels - c == 4 or channels - c == 8:
            tile(4, 2, 1, x, at + c, 1, channels, weights, 0, 16, out, c * 16, 16, keys)
            c += 4
        else:
            tile(6, 2, 1, x, at + c, 1, channels, weights, 0, 16, out, c * 16, 16, keys)
            c += 6


@numba.njit
def _scatter(weights, x, at_x, out, at, keys, channels):
    """Add 16 rows by weight to each row."""
    for j in range(0, keys, 6):
        for c in range(0, channels - 8, 16):
            tile(6, 2, 1, weights, j * 16, 16, 1, x, at_x + c, channels, out, at + j * channels + c, channels, 16)
        if channels % 16:
            c = channels - 8
            tile(6, 1, 1, weights, j * 16, 16, 1, x, at_x + c, channels, out, at + j * channels + c, channels, 16)


@numba.njit
def _weigh(scores, state, out, keys, channels):
    """Turn scores into weights, under the largest so far; what was gathered under another is scaled to it."""
    before0, before1 = load(state, 16), load(state, 24)
    largest0, largest1 = before0, before1
    for j in range(0, 16 * keys, 16):
        largest0 = maximum(load(scores, j), largest0)
        largest1 = maximum(load(scores, j + 8), largest1)
    factor0, factor1 = exp(sub(before0, largest0)), exp(sub(before1, largest1))
    for c in range(0, 16 * channels, 16):
        store(out, c, mul(load(out, c), factor0))
        store(out, c + 8, mul(load(out, c + 8), factor1))
    total0 = total1 = spread(np.float32(0))
    for j in range(0, 16 * keys, 16):
        weight0, weight1 = exp(sub(load(scores, j), largest0)), exp(sub(load(scores, j + 8), largest1))
        store(scores, j, weight0)
        store(scores, j + 8, weight1)
        total0, total1 = add(total0, weight0), add(total1, weight1)
    store(state, 0, add(mul(load(state, 0), factor0), total0))
    store(state, 8, add(mul(load(state, 8), factor1), total1))
    store(state, 16, largest0)
    store(state, 24, largest1)


@numba.njit
def _divide(out, state, channels):
    one = spread(np.float32(1))
    inverse0, inverse1 = div(one, load(state, 0)), div(one, load(state, 8))
    for c in range(0, 16 * channels, 16):
        store(out, c, mul(load(out, c), inverse0))
        store(out, c + 8, mul(load(out, c + 8), inverse1))


@numba.njit
def _inner(x, y, state, channels):
    """Inner products of columns, into the second half of `state`."""
    for half in range(0, 16, 8):
        total = spread(np.float32(0))
        for c in range(half, 16 * channels, 16):
            total = add(total, mul(load(x, c), load(y, c)))
        store(state, 16 + half, total)


@numba.njit
def _differentiate(scores, of_weights, state, keys):
    """Turn scores into weights, and gradients of weights into gradients of scores."""
    sum0, sum1, inner0, inner1 = load(state, 0), load(state, 8), load(state, 16), load(state, 24)
    for j in range(0, 16 * keys, 16):
        weight0, weight1 = exp(sub(load(scores, j), sum0)), exp(sub(load(scores, j + 8), sum1))
        store(scores, j, weight0)
        store(scores, j + 8, weight1)
        store(of_weights, j, mul(weight0, sub(load(of_weights, j), inner0)))
        store(of_weights, j + 8, mul(weight1, sub(load(of_weights, j + 8), inner1)))
