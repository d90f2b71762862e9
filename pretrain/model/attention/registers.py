"""Registers of eight float32 for compiled kernels: what a compiler does not find in loops, said outright.

In: flat float32 arrays and offsets. Out: functions for kernels to call. Kept: nothing.

Needs numba, so import it late. numba's cache looks at the file of a kernel and not at this one: clear it after a change
here.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

_EXP2 = (1.0, 0.693147206, 0.240226469, 0.0555032878, 0.00961848896, 0.00133999314, 0.00015345812)
"""Powers of two between -1/2 and 1/2 to 2e-9, as near as a polynomial of degree 6 comes."""
_LOG2_E = 1.4426950216293335, 1.9259629911266175e-8
"""In two float32: rounding it to one would be an error as large as a score times that of float32."""
_EIGHT, _INTEGERS = ir.VectorType(ir.FloatType(), 8), ir.VectorType(ir.IntType(32), 8)
_N = types.intp


class _Register(types.Type):
    pass


@register_model(_Register)
class _RegisterModel(models.PrimitiveModel):
    def __init__(self, manager, of):
        super().__init__(manager, of, _EIGHT)


_REGISTER = _Register("float32x8")


def _operator(emit):
    return intrinsic(lambda _, x, y: (_REGISTER(_REGISTER, _REGISTER), lambda context, b, signature, xs: emit(b, *xs)))


def _larger(b, x, y):
    return b.select(b.fcmp_ordered(">", x, y), x, y)  # y where either is NaN, as the CPU's instruction has it


add = _operator(lambda b, x, y: b.fadd(x, y))
sub = _operator(lambda b, x, y: b.fsub(x, y))
mul = _operator(lambda b, x, y: b.fmul(x, y))
div = _operator(lambda b, x, y: b.fdiv(x, y))
maximum = _operator(_larger)


def _multiply_add(b, x, y, z):
    return b.fadd(b.fmul(x, y, flags=["contract"]), z, flags=["contract"])  # one instruction where the CPU has it


def _spread(b, x):
    undefined = ir.Constant(_EIGHT, ir.Undefined)
    return b.shuffle_vector(b.insert_element(undefined, x, ir.IntType(32)(0)), undefined, _INTEGERS([0] * 8))


def _place(context, b, kind, array, offset):
    # Not array[offset], which first asks whether the offset counts from the end.
    return b.gep(context.make_array(kind)(context, b, array).data, [offset])


def _place_of_eight(context, b, kind, array, offset):
    return b.bitcast(_place(context, b, kind, array, offset), _EIGHT.as_pointer())


def _along(b, at, step, count):
    return b.add(at, b.mul(step, step.type(count)))


@intrinsic
def spread(_, x):
    """One number eight times."""
    return _REGISTER(types.float32), lambda context, b, signature, xs: _spread(b, xs[0])


@intrinsic
def load(_, array, at):
    """Eight numbers from an offset on."""

    def emit(context, b, signature, xs):
        return b.load(_place_of_eight(context, b, array, *xs), align=4)

    return _REGISTER(array, _N), emit


@intrinsic
def store(_, array, at, x):
    """Eight numbers to an offset."""

    def emit(context, b, signature, xs):
        b.store(xs[2], _place_of_eight(context, b, array, *xs[:2]), align=4)
        return context.get_dummy_value()

    return types.void(array, _N, _REGISTER), emit


@intrinsic
def exp(_, x):
    """Exponentials, to rounding; below -87, that of -87."""

    def emit(context, b, signature, xs):
        log2_e, rest_of_it, magic = (_EIGHT([number] * 8) for number in (*_LOG2_E, 1.5 * 2**23))
        x = _larger(b, _EIGHT([-87.0] * 8), xs[0])
        rounded = _multiply_add(b, x, log2_e, magic)  # has the nearest whole number in its last bits
        rest = _multiply_add(b, x, log2_e, b.fsub(magic, rounded))
        rest = _multiply_add(b, x, rest_of_it, rest)
        power = _EIGHT([_EXP2[-1]] * 8)
        for coefficient in _EXP2[-2::-1]:
            power = _multiply_add(b, power, rest, _EIGHT([coefficient] * 8))
        exponent = b.shl(b.bitcast(rounded, _INTEGERS), _INTEGERS([23] * 8))
        return b.bitcast(b.add(b.bitcast(power, _INTEGERS), exponent), _EIGHT)

    return _REGISTER(_REGISTER), emit


@intrinsic(prefer_literal=True)
def tile(_, rows, registers, keep, x, at_x, row_x, step_x, y, at_y, step_y, out, at, row, depth):
    """``out = X Y``, or with `keep` what is in `out` and that; literal `rows` by 8 literal `registers`.

    Of 16 registers, one of 6 x 2 fills 15; and enough sums are under way that none waits for another.
    """
    height, width, keeps = (n.literal_value for n in (rows, registers, keep))

    def emit(context, b, signature, xs):
        at_x, row_x, step_x, at_y, step_y, at, row, depth = (xs[i] for i in (4, 5, 6, 8, 9, 11, 12, 13))
        cells = [(r, i) for r in range(height) for i in range(width)]
        starts = [b.add(_along(b, at, row, r), row.type(8 * i)) for r, i in cells]
        places = [_place_of_eight(context, b, out, xs[10], start) for start in starts]
        zero = _EIGHT([0.0] * 8)
        sums = [cgutils.alloca_once_value(b, zero) for _ in cells]
        with cgutils.for_range(b, depth) as loop:
            from_x = b.add(at_x, b.mul(loop.index, step_x))
            from_y = b.add(at_y, b.mul(loop.index, step_y))
            starts = [b.add(from_y, from_y.type(8 * i)) for i in range(width)]
            ys = [b.load(_place_of_eight(context, b, y, xs[7], start), align=4) for start in starts]
            ones = [b.load(_place(context, b, x, xs[3], _along(b, from_x, row_x, r))) for r in range(height)]
            for (r, i), s in zip(cells, sums, strict=True):
                b.store(_multiply_add(b, _spread(b, ones[r]), ys[i], b.load(s)), s)
        for s, place in zip(sums, places, strict=True):
            total = b.load(s)
            if keeps:  # last, so that rounding grows with `depth` and not with all that was added before
                total = b.fadd(total, b.load(place, align=4))
            b.store(total, place, align=4)
        return context.get_dummy_value()

    return types.void(rows, registers, keep, x, _N, _N, _N, y, _N, _N, out, _N, _N, _N), emit


@intrinsic
def turn(_, x, at_x, row_x, out, at, row):
    """Rows of 8 x 8 become columns: in squares of 4, 2 and 1, what is off the diagonal changes sides."""

    def emit(context, b, signature, xs):
        from_x, row_x, to, row = xs[1], xs[2], xs[4], xs[5]
        lines = [b.load(_place_of_eight(context, b, x, xs[0], _along(b, from_x, row_x, r)), align=4) for r in range(8)]
        for half in (4, 2, 1):
            low = _INTEGERS([i + 8 - half if i & half else i for i in range(8)])
            high = _INTEGERS([i + 8 if i & half else i + half for i in range(8)])
            for r in (r for r in range(8) if not r & half):
                pair = lines[r], lines[r + half]
                lines[r], lines[r + half] = b.shuffle_vector(*pair, low), b.shuffle_vector(*pair, high)
        for r, line in enumerate(lines):
            b.store(line, _place_of_eight(context, b, out, xs[3], _along(b, to, row, r)), align=4)
        return context.get_dummy_value()

    return types.void(x, _N, _N, out, _N, _N), emit
