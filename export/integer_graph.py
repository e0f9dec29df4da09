"""The coding l21 with integer products: features x (N,d) in, scores (N,C), code_norm and residual (N,) out.

The arithmetic is that of trainer.method.coding with U, B and the templates as integers (export.integer); all else is float32,
above all the leading direction u. All blocks (the face and its parts, or the experts) are in one tensor (N,p,r) from the
projection on, because each node costs more than its arithmetic; shorter blocks end in zeros, and zeros change no sum. The
comment above some nodes is the NumPy line that they compute.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edge.kit.manifest import ABSOLUTE, RELATIVE
from edge.vision.confidence import BLANK
from export.integer import LEVELS_NAME, IntegerMatrix, digit_nodes, product_nodes, scaled_nodes, stored_matrices
from export.nodes import EPS, TINY, Graph
from trainer.method.blocks import Block
from trainer.method.coding import FIRST_TAU, ROUNDING, Coding, code_projected
from trainer.method.parts import FAINT, fuse, unit_part
from trainer.types import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerBlock:
    """A block as the device has it."""

    rows: Array | None
    U: IntegerMatrix
    """(k, r)."""
    B: IntegerMatrix
    """(r, C)."""
    s: Array
    """(r,) float32."""
    u: Array
    """(k,) float32, the leading column of U."""
    Uu: Array
    """(r,) float32, U'u."""

    @classmethod
    def of(cls, block: Block) -> "IntegerBlock":
        u = block.U[:, np.argmax(block.s)]
        return cls(
            rows=block.rows,
            U=IntegerMatrix.of(block.U),
            B=IntegerMatrix.of(np.ascontiguousarray(block.B.T)),
            s=block.s,
            u=u,
            Uu=u @ block.U,
        )

    def own(self, X: Array) -> Array:
        """Return the block's rows of X (d,n), as unit columns."""
        return X if self.rows is None else unit_part(X, self.rows)

    def project(self, own: Array) -> tuple[Array, Array]:
        """Return c (r,n) and outside (n,): trainer.method.coding.project."""
        share = self.u @ own
        rest = own - np.outer(self.u, share)
        c = self.U.product(rest.T).T
        of_rest, of_part = (np.einsum("ij,ij->j", A, A, dtype=np.float64) for A in (rest, c))
        outside = np.maximum(of_rest - of_part, ROUNDING * EPS).astype(np.float32)
        return c + np.outer(self.Uu, share), outside

    def scores(self, w: Array) -> Array:
        """Return B w (C,n) of w (r,n)."""
        norm = np.linalg.norm(w, axis=0)
        return np.asarray(self.B.product((w / np.maximum(norm, TINY)).T).T * norm)


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerFactors:
    """The factors of a model (export.graph.Factors) with integer products."""

    coding: Coding
    blocks: tuple[IntegerBlock, ...]
    """The whole face and its parts, or the network and our own features."""
    templates: IntegerMatrix | None = None
    """(k, C), the cosine beside a network. None: there are no experts."""

    @classmethod
    def of(cls, coding: Coding, blocks: Sequence[Block], templates: Array | None) -> "IntegerFactors":
        cosine = None if templates is None else IntegerMatrix.of(np.ascontiguousarray(templates.T))
        return cls(coding=coding, blocks=tuple(map(IntegerBlock.of, blocks)), templates=cosine)

    @classmethod
    def stored_in(cls, stored: Mapping[str, Array], coding: Coding) -> "IntegerFactors":
        """Read the factors back from the constants of a graph (export.nodes.stored_constants)."""
        names = [name.removesuffix(f"U{LEVELS_NAME}") for name in stored if name.endswith(f"U{LEVELS_NAME}")]
        has_templates = f"templates{LEVELS_NAME}" in stored
        U = stored_matrices(stored, [f"{name}U" for name in names], "c_of_rest")
        B = stored_matrices(stored, [*["templates"] * has_templates, *(f"{name}B" for name in names)], "products")
        templates = B.pop(0) if has_templates else None
        blocks = []
        for at in range(len(names)):
            k, r = U[at].levels.shape
            group, row = ("whole", 0) if at == 0 else ("part", at - 1)
            rows = stored.get(f"{group}_rows")
            blocks.append(
                IntegerBlock(
                    rows=None if rows is None else rows[row, :k],
                    U=U[at],
                    B=B[at],
                    s=stored["s"][0, at, :r],
                    u=stored[f"{group}_u"][0, row, :k],
                    Uu=stored["Uu"][0, at, :r],
                )
            )
        return cls(coding=coding, blocks=tuple(blocks), templates=templates)

    @property
    def confidence(self) -> str:
        """The kind of confidence that the scores have (edge.vision.confidence)."""
        return RELATIVE if self.templates is None else ABSOLUTE

    def results(self, X: Array) -> tuple[Array, Array, Array]:
        """Return scores (C,n), code_norm and residual (n,) of X (d,n): in NumPy, what the graph computes."""
        codes = [self._code(block, X) for block in self.blocks]
        scores = [block.scores(w) for block, (w, _) in zip(self.blocks, codes, strict=True)]
        if self.templates is None:
            together = fuse(scores)
        else:
            together = np.sum([self.templates.product(self.blocks[0].own(X).T).T, *scores], axis=0)
        w, residual = codes[0]
        return together, np.linalg.norm(w, axis=0), residual

    def _code(self, block: IntegerBlock, X: Array) -> tuple[Array, Array]:
        """Return w (r,n) and the residual (n,) of X (d,n)."""
        c, outside = block.project(block.own(X))
        w = code_projected(c, outside, block.s, self.coding)
        error = c - block.s[:, None] * w
        return w, np.sqrt(outside + np.sum(error * error, axis=0))

    def write(self, g: Graph, x: str) -> int:
        """Write the nodes of scores (N,C), code_norm and residual (N,). Return C."""
        c, outside, whole = self._projected(g, x)
        s = g.constant("s", _padded([block.s for block in self.blocks]))
        w = _coded(g, c, outside, s, self.coding)
        # error = c - s * w;  residual = sqrt(outside + sum(error**2));  code_norm = norm(w): those of the first block
        error = g("Sub", [c, g("Mul", [s, w], "s_w")], "error")
        root = g("Sqrt", [g("Add", [outside, _sum_squares(g, error)], "residual_squared")], "residuals")
        norm = g("ReduceL2", [w], "w_norm", axes=[2], keepdims=1)
        flat = g.constant("flat", np.array([-1], np.int64))
        for values, name in ((root, "residual"), (norm, "code_norm")):
            first = g("Gather", [values, g.constant("first_block", np.array(0, np.int64))], f"{name}_column", axis=1)
            g("Reshape", [first, flat], name)

        # products = (w / norm) @ B.T, and x @ templates.T
        unit = g("Div", [w, g("Max", [norm, g.scalar("tiny", TINY)], "w_divisor")], "unit_w")
        names = ["B", *(f"part_{at}/B" for at in range(1, len(self.blocks)))]
        matrices = [(name, at, block.B) for at, (name, block) in enumerate(zip(names, self.blocks, strict=True))]
        length = max(len(block.s) for block in self.blocks)
        sums = product_nodes(g, digit_nodes(g, unit, "unit_w"), (len(self.blocks), length), matrices)
        used = [block.B for block in self.blocks]
        if self.templates is not None:
            rows = digit_nodes(g, whole, "whole")
            sums = product_nodes(g, rows, (1, len(self.templates.levels)), [("templates", 0, self.templates)]) + sums
            used = [self.templates, *used]
        people = len(self.blocks[0].B.scale)
        products = scaled_nodes(g, sums, used, "products")
        share = self._shares(g, products, norm)
        axis = g.constant("block_axis", np.array([1], np.int64))
        g("ReduceSum", [g("Mul", [products, share], "shares_of_scores"), axis], "scores", keepdims=0)
        return people

    def _shares(self, g: Graph, products: str, norm: str) -> str:
        """Return (N,p,1), the weight of each block's products in the scores."""
        if self.templates is not None:
            # scores = x @ templates.T + norm * products + ...
            pads = g.constant("one_before", np.array([0, 1, 0, 0, 0, 0], np.int64))
            return g("Pad", [norm, pads, g.scalar("plus_one", 1.0)], "shares")
        if len(self.blocks) == 1:
            return norm
        # own = norm * products;  divisor = maximum(norm(own), FAINT);  scores = mean(own / divisor * max(own) / divisor)
        length = g("Mul", [g("ReduceL2", [products], "product_norms", axes=[2], keepdims=1), norm], "score_norms")
        scale = g("Div", [norm, g("Max", [length, g.scalar("faint", FAINT)], "divisors")], "score_scales")
        best = g("Mul", [g("ReduceMax", [products], "best_products", axes=[2], keepdims=1), scale], "best")
        mean = g("Mul", [scale, g.scalar("block_share", 1 / len(self.blocks))], "mean_scales")
        return g("Mul", [best, mean], "shares")

    def _projected(self, g: Graph, x: str) -> tuple[str, str, str]:
        """Return c (N,p,r), outside (N,p,1), and the own rows of the first block (N,1,k)."""
        sums: list[str] = []
        shares, squares = [], []
        whole = ""
        for name, blocks in (("whole", self.blocks[:1]), ("part", self.blocks[1:])):
            if not blocks:
                continue
            own = _own(g, x, blocks, name)
            whole = whole or own
            # share = own @ u;  rest = own - share * u
            u = g.constant(f"{name}_u", _padded([block.u for block in blocks]))
            share = g("ReduceSum", [g("Mul", [own, u], f"{name}_own_u"), _last(g)], f"{name}_share", keepdims=1)
            rest = g("Sub", [own, g("Mul", [share, u], f"{name}_share_u")], f"{name}_rest")
            shares.append(share)
            squares.append(_sum_squares(g, rest))
            at = 0 if name == "whole" else 1
            names = [f"part_{at + i}/U" if at else "U" for i in range(len(blocks))]
            length = max(len(block.u) for block in blocks)
            matrices = [(used, i, block.U) for i, (used, block) in enumerate(zip(names, blocks, strict=True))]
            sums += product_nodes(g, digit_nodes(g, rest, f"{name}_rest"), (len(blocks), length), matrices)
        share, rest_squared = (
            columns[0] if len(columns) == 1 else g("Concat", columns, name, axis=1)
            for columns, name in ((shares, "share"), (squares, "rest_squared"))
        )
        c = scaled_nodes(g, sums, [block.U for block in self.blocks], "c_of_rest")
        # outside = maximum(sum(rest**2) - sum(c**2), ROUNDING * eps);  c += share * Uu
        difference = g("Sub", [rest_squared, _sum_squares(g, c)], "difference")
        outside = g("Max", [difference, g.scalar("rounding", ROUNDING * EPS)], "outside")
        Uu = g.constant("Uu", _padded([block.Uu for block in self.blocks]))
        return g("Add", [c, g("Mul", [share, Uu], "share_Uu")], "c"), outside, whole


def _coded(g: Graph, c: str, outside: str, s: str, coding: Coding) -> str:
    """Return w (N,p,r): export.l21.code_projected."""
    values = g.constants[s]
    s_squared = g.constant("s_squared", values**2)
    s_c = g("Mul", [s, c], "s_c")
    for k in range(coding.iterations):
        # w = s * c / (s * s + tau);  error = c - s * w.  The first tau is a constant and folds.
        if k == 0:
            w = g("Mul", [c, g.constant("ridge_0", values / (values**2 + FIRST_TAU))], "w_0")
            error = g("Mul", [c, g.constant("error_0_share", FIRST_TAU / (values**2 + FIRST_TAU))], "error_0")
        else:
            w = g("Div", [s_c, g("Add", [s_squared, f"tau_{k}"], f"ridge_{k}")], f"w_{k}")
            error = g("Sub", [c, g("Mul", [s, w], f"s_w_{k}")], f"error_{k}")
        # tau = sqrt(outside + sum(error**2)) / maximum(lam * norm(w), tiny)
        total = g("Add", [outside, _sum_squares(g, error)], f"residual_{k}_squared")
        norm = g("ReduceL2", [w], f"w_{k}_norm", axes=[2], keepdims=1)
        weight = g("Max", [g("Mul", [norm, g.scalar("lam", coding.lam)], f"lam_w_{k}"), g.scalar("tiny", TINY)], f"weight_{k}")
        g("Div", [g("Sqrt", [total], f"residual_{k}"), weight], f"tau_{k + 1}")
    return g("Div", [s_c, g("Add", [s_squared, f"tau_{coding.iterations}"], "ridge")], "w")


def _own(g: Graph, x: str, blocks: Sequence[IntegerBlock], name: str) -> str:
    """Return (N,p,k), the rows of x (N,d) of each block at unit length (trainer.method.parts.unit_part)."""
    if blocks[0].rows is None:
        shape = g.constant(f"{name}_shape", np.array([-1, 1, len(blocks[0].u)], np.int64))
        return g("Reshape", [x, shape], f"{name}_own")
    lists = [np.asarray(block.rows, np.int64) for block in blocks]
    if len({len(rows) for rows in lists}) > 1:
        # -1 is the last entry: shorter lists of rows end with the index of a zero.
        x = g("Pad", [x, g.constant("one_zero", np.array([0, 0, 0, 1], np.int64))], "x_and_zero")
    rows = g.constant(f"{name}_rows", _padded(lists, fill=-1)[0])
    own = g("Gather", [x, rows], f"{name}_rows_of_x", axis=1)
    # present = length > BLANK;  own * present / maximum(length, BLANK)
    blank = g.scalar("blank", BLANK)
    length = g("Sqrt", [_sum_squares(g, own)], f"{name}_length")
    present = g("Cast", [g("Greater", [length, blank], f"{name}_above")], f"{name}_present", to=1)
    scale = g("Div", [present, g("Max", [length, blank], f"{name}_divisor")], f"{name}_scale")
    return g("Mul", [own, scale], f"{name}_own")


def _padded(lists: Sequence[Array], fill: int = 0) -> Array:
    """Return (1, number, longest): lists of different lengths, with `fill` at the end."""
    table = np.full((1, len(lists), max(map(len, lists))), fill, lists[0].dtype)
    for row, values in zip(table[0], lists, strict=True):
        row[: len(values)] = values
    return table


def _last(g: Graph) -> str:
    return g.constant("axis_2", np.array([2], np.int64))


def _sum_squares(g: Graph, rows: str) -> str:
    """Return (N,p,1) of (N,p,k), as Graph.sum_squares."""
    return g("ReduceSum", [g("Mul", [rows, rows], f"{rows}_squares"), _last(g)], f"{rows}_squared", keepdims=1)
