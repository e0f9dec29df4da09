"""Products of integers, in NumPy and as nodes: the same numbers on every CPU, and for a face whatever the other faces are.

    x (N,k), entries of at most 1  ~  sum_i (a_i - 64)/64/128^i      a_0, a_1, a_2 (N,k) uint8: three digits of 0 to 128
    W (k,m)                        ~  L scale                        L (k,m) int8, -127 to 127; scale (m,), one per column
    x W                            ~  sum_i scale/64/128^i (a_i - 64) L

The digits are three rows of one MatMulInteger, so L is read once. With three, x keeps the precision of float32 (the last unit
is 1e-6), and only the weights lose digits: if a feature has another rounding error (1e-7), the last digit may change, and the
scores of AR by up to 3e-5. With two digits it was 2e-3. The units are constants: a range that DynamicQuantizeLinear takes from
the data would be that of the whole batch.

All sums are exact: without VNNI, onnxruntime adds pairs of products of uint8 and int8 in 16 bits (VPMADDUBSW), which saturate
at 32767. Digits of at most 128 and levels of at most 127 give at most 2 * 128 * 127 = 32512. The other safe forms were worse:
digits of 8 bits need weights of 7 bits, which changed the scores of AR nearly twice as much, and uint8 weights took 1.1 to 1.8
times as long (measured with VNNI).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from export.nodes import TINY, Graph
from trainer.types import Array

ZERO = 64  # the digit of 0
UNITS = (2**-6, 2**-13, 2**-20)  # of the digits: powers of two, so that no scaling rounds
SHIFT = np.float32(ZERO * (UNITS[0] + UNITS[1]))  # makes what the first digit leaves positive
LEVELS = 127
_EXACT = 2048  # terms whose sum is exact in float32: 2048 * 64 * 127 < 2**24
LEVELS_NAME = "_levels"


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerMatrix:
    """A matrix (k,m) as integers, and one scale per column."""

    levels: Array
    """(k, m) int8."""
    scale: Array
    """(m,) float32."""

    @classmethod
    def of(cls, matrix: Array) -> "IntegerMatrix":
        scale = np.maximum(np.abs(matrix).max(axis=0) / LEVELS, TINY).astype(np.float32)
        return cls(levels=np.rint(matrix / scale).astype(np.int8), scale=scale)

    def product(self, rows: Array) -> Array:
        """Return rows @ matrix (N,m) of rows (N,k) whose entries are at most 1: in NumPy, what the nodes compute."""
        of_rows = digits(rows).reshape(-1, len(self.levels))
        # A product of float32 is faster than one of integers, and exact for so few terms.
        sums = np.zeros((len(of_rows), len(self.scale)))
        for start in range(0, len(self.levels), _EXACT):
            terms = slice(start, start + _EXACT)
            sums += (of_rows[:, terms].astype(np.float32) - ZERO) @ self.levels[terms].astype(np.float32)
        return np.asarray((sums.astype(np.float32).reshape(len(rows), len(UNITS), -1) * column_units(self)).sum(axis=1))


def digits(rows: Array) -> Array:
    """Return the digits (N,3,k) uint8 of rows (N,k) whose entries are at most 1."""
    high_unit, middle_unit, low_unit = map(np.float32, UNITS)
    high = _digit(rows / high_unit + ZERO)
    rest = rows + SHIFT - high * high_unit
    middle = _digit(rest / middle_unit)
    low = _digit((rest - middle * middle_unit) / low_unit + ZERO)
    return np.stack([high, middle, low], axis=1).astype(np.uint8)


def _digit(values: Array) -> Array:
    return np.asarray(np.clip(np.rint(values), 0, 255), np.float32)


def column_units(matrix: IntegerMatrix) -> Array:
    """Return (3,m), the units of the sums of each digit."""
    return np.stack([matrix.scale * np.float32(unit) for unit in UNITS])


def digit_nodes(g: Graph, rows: str, name: str) -> str:
    """Return (N,3p,k), `digits` of rows (N,p,k) whose entries are at most 1: first all high digits, then the others."""
    zero, no_zero = (g.constant(f"{kind}_zero", np.array(value, np.uint8)) for kind, value in (("digit", ZERO), ("no", 0)))
    units = [g.scalar(f"{kind}_unit", unit) for kind, unit in zip(("high", "middle", "low"), UNITS, strict=True)]

    def without(values: str, digit: str, unit: str) -> str:
        wide = g("Cast", [digit], f"{digit}_wide", to=TensorProto.FLOAT)
        return g("Sub", [values, g("Mul", [wide, unit], f"{digit}_part")], f"{digit}_rest")

    # high = rint(rows / high_unit) + ZERO;  rest = rows + SHIFT - high * high_unit
    high = g("QuantizeLinear", [rows, units[0], zero], f"{name}_high")
    rest = without(g("Add", [rows, g.scalar("digit_shift", float(SHIFT))], f"{name}_shifted"), high, units[0])
    # middle = rint(rest / middle_unit);  low = rint((rest - middle * middle_unit) / low_unit) + ZERO
    middle = g("QuantizeLinear", [rest, units[1], no_zero], f"{name}_middle")
    low = g("QuantizeLinear", [without(rest, middle, units[1]), units[2], zero], f"{name}_low")
    return g("Concat", [high, middle, low], f"{name}_digits", axis=1)


def product_nodes(
    g: Graph, rows: str, shape: tuple[int, int], matrices: Sequence[tuple[str, int, IntegerMatrix]]
) -> list[str]:
    """Return the sums (N,3,m) int32 of products of rows[:, at, :k] with matrices: (name, at, matrix (k,m)).

    `rows` (N,3p,length) are the digits of rows (N,p,length), shape = (p, length).
    """
    number, length = shape
    axes = g.constant("digit_axes", np.array([1, 2], np.int64))
    results = []
    for name, at, matrix in matrices:
        used, own = len(matrix.levels), rows
        if (number, used) != (1, length):
            limits = {"start": (at, 0), "end": (len(UNITS) * number, used), "step": (number, 1)}
            start, end, step = (g.constant(f"{name}_{limit}", np.array(at, np.int64)) for limit, at in limits.items())
            own = g("Slice", [rows, start, end, axes, step], f"{name}_digits")
        levels = g.constant(name + LEVELS_NAME, matrix.levels)
        results.append(g("MatMulInteger", [own, levels, "digit_zero"], f"{name}_sums"))
    return results


def scaled_nodes(g: Graph, sums: Sequence[str], matrices: Sequence[IntegerMatrix], name: str) -> str:
    """Return (N,p,m), the products of p matrices from their sums (N,3,m). Narrower matrices end in columns of zeros."""
    widest = max(len(matrix.scale) for matrix in matrices)
    padded = []
    for own, matrix in zip(sums, matrices, strict=True):
        missing = widest - len(matrix.scale)
        pads = g.constant(f"{own}_pads", np.array([0, 0, 0, 0, 0, missing], np.int64)) if missing else ""
        padded.append(g("Pad", [own, pads], f"{own}_padded") if missing else own)
    together = padded[0] if len(padded) == 1 else g("Concat", padded, f"{name}_sums", axis=2)
    wide = g("Cast", [together], f"{name}_wide", to=TensorProto.FLOAT)
    # products = sum(sums * units, axis=1)
    units = [np.pad(column_units(matrix), [(0, 0), (0, widest - len(matrix.scale))]) for matrix in matrices]
    in_units = g("Mul", [wide, g.constant(f"{name}_units", np.hstack(units)[None])], f"{name}_of_digits")
    flat = g("ReduceSum", [in_units, g.constant("digit_axis", np.array([1], np.int64))], f"{name}_flat", keepdims=0)
    shape = g.constant(f"{name}_shape", np.array([-1, len(matrices), widest], np.int64))
    return g("Reshape", [flat, shape], name)


def stored_matrices(stored: Mapping[str, Array], names: Sequence[str], name: str) -> list[IntegerMatrix]:
    """Read back the matrices with these names, of which `scaled_nodes` made the products `name`."""
    units = stored[f"{name}_units"][0, 0].reshape(len(names), -1) / np.float32(UNITS[0])
    levels = [stored[own + LEVELS_NAME] for own in names]
    return [IntegerMatrix(levels=own, scale=row[: own.shape[1]]) for own, row in zip(levels, units, strict=True)]
