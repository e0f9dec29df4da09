"""The baselines' coders as nodes: features x (N,d) in, scores (N,C), code_norm and residual (N,) out.

The arithmetic is that of trainer.baselines.coders, and the NumPy line stands above the nodes it becomes. Faces are rows here,
and matrices are stored and read as in NumPy. What is computed from constants alone is folded when the graph is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from export.nodes import TINY, Graph, Precision, Stored
from trainer.baselines.coders import BaselineCoder, BaselineCoding
from trainer.baselines.llc import SMALLEST, LLCCoding
from trainer.baselines.lrrs import SparseCoding
from trainer.baselines.src import ERROR_STEP, RELAXATION, STEP, SRCCoding
from trainer.model import Model
from trainer.types import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class BaselineFactors:
    """What the device needs of D and W, in the precision in which it is stored."""

    constants: dict[str, Array]
    """Those of trainer.baselines.coders."""

    @classmethod
    def of(cls, model: Model) -> BaselineFactors:
        assert isinstance(model.coder, BaselineCoder)
        return cls(constants=dict(model.coder.constants))

    @classmethod
    def stored_in(cls, graph: bytes) -> BaselineFactors:
        """Read back from a graph, as wide as the runtime will make them."""
        stored = Stored(graph)
        return cls(constants={name: stored[name] for name in ("Dt", "W", "K", "M") if name in stored})

    @property
    def people(self) -> int:
        return len(self.constants["W"])

    def scores(self, X: Array, coding: BaselineCoding) -> Array:
        """(C,n) of X (d,n): what the graph computes, in NumPy."""
        return self._coder(coding).scores(X)

    def sizes(self, X: Array, coding: BaselineCoding) -> tuple[Array, Array]:
        """code_norm and residual (n,) of X (d,n)."""
        Z = self._coder(coding).code(X)
        return np.linalg.norm(Z, axis=0), np.linalg.norm(X - self.constants["Dt"].T @ Z, axis=0)

    def steps(self, X: Array, coding: BaselineCoding) -> list[Array]:
        """The scores after 1, 2, 3... iterations."""
        coder = self._coder(coding)
        kept: list[Array] = []
        coder.code(X, lambda _, Z: kept.append(coder.scores(X, Z)))
        return kept

    def _coder(self, coding: BaselineCoding) -> BaselineCoder:
        return BaselineCoder(coding=coding, constants=self.constants)

    def write(self, g: Graph, x: str, coding: BaselineCoding, precision: Precision) -> None:
        """The nodes of scores, code_norm and residual."""
        for name, value in self.constants.items():
            g.weight(name, value, precision)
        if isinstance(coding, LLCCoding):
            _llc(g, x, replace(coding, neighbours=min(coding.neighbours, len(self.constants["Dt"]))))
            return
        if isinstance(coding, SRCCoding) and not coding.occlusion:
            z = _sparse(g, x, coding)
        else:
            z = _robust(g, x, coding, length=self.constants["Dt"].shape[1])
        # code_norm = norm(z);  residual = norm(x - D z)
        g("ReduceL2", [z], "code_norm", axes=[1], keepdims=0)
        error = g("Sub", [x, g("MatMul", [z, "Dt"], "Dz")], "error")
        root = g("Sqrt", [g.sum_squares(error, "residual_squared")], "residual_column")
        g("Reshape", [root, g.constant("flat", np.array([-1], np.int64))], "residual")
        if isinstance(coding, SRCCoding):
            _explained(g, x, z, error, coding)
        else:
            # scores = W z
            g("Gemm", [z, "W"], "scores", transB=1)


def _explained(g: Graph, x: str, z: str, error: str, coding: SRCCoding) -> None:
    """scores (N,C): trainer.baselines.src.scores."""
    seen = x
    if coding.occlusion:
        # x - soft_threshold(x - D z, lam)
        covered = _soft(g, error, coding.lam, "covered")[0]
        seen = g("Sub", [x, covered], "seen")
    # own = D'D, and zero for atoms of different people
    same = g("Gemm", ["W", "W"], "same_person", transA=1)
    own = g("Mul", [g("Gemm", ["Dt", "Dt"], "G", transB=1), same], "G_own")
    # z_c'(2 D_c'x - G_cc z_c) / maximum(|x|^2, tiny)
    b = g("Gemm", [seen, "Dt"], "b", transB=1)
    both = g("Sub", [g("Add", [b, b], "two_b"), g("MatMul", [z, own], "G_own_z")], "two_b_G_own_z")
    of_people = g("Gemm", [g("Mul", [z, both], "of_atoms"), "W"], "of_people", transB=1)
    length = g("Max", [g.sum_squares(seen, "seen_squared"), g.scalar("tiny", TINY)], "seen_length_squared")
    g("Div", [of_people, length], "scores")


def _soft(g: Graph, rows: str, bound: float, name: str) -> tuple[str, str]:
    """S_bound(rows), called `name`, and what it takes away: clip(rows, -bound, bound)."""
    bounds = [g.scalar(f"{name}_{side}", sign * bound) for side, sign in (("least", -1), ("most", 1))]
    taken = g("Clip", [rows, *bounds], f"{name}_taken")
    return g("Sub", [rows, taken], name), taken


def _scaled(g: Graph, rows: str, factor: float, name: str) -> str:
    return rows if factor == 1 else g("Mul", [rows, g.scalar(f"{name}_scale", factor)], name)


def _relaxed(g: Graph, new: str, before: tuple[str, str] | None, a: float, name: str) -> str:
    """a new + (1 - a) old + dual, called `name`; (old, dual) are both zero at first."""
    if before is None:
        return g("Mul", [new, g.scalar("a", a)], name)
    old, dual = before
    rest = g("Add", [g("Mul", [old, g.scalar("one_minus_a", 1 - a)], f"{name}_of_old"), dual], f"{name}_rest")
    return g("Add", [g("Mul", [new, g.scalar("a", a)], f"{name}_of_new"), rest], name)


def _sparse(g: Graph, x: str, coding: SRCCoding) -> str:
    """z (N,m): trainer.baselines.src._steps."""
    z = Kx = g("Gemm", [x, "K"], "Kx", transB=1)
    before = None
    for k in range(coding.iterations):
        if before is not None:
            # z = K x + M (j - u)
            z = g("Gemm", [g("Sub", before, f"j_u_{k}"), "M", Kx], f"z_{k}", transB=1)
        # f = a z + (1 - a) j + u;  u = clip(f, -STEP, STEP);  j = f - u
        before = _soft(g, _relaxed(g, z, before, float(RELAXATION), f"f_{k}"), float(STEP), f"j_{k + 1}")
    assert before is not None
    return before[0]


def _robust(g: Graph, x: str, coding: SRCCoding | SparseCoding, length: int) -> str:
    """z (N,m): trainer.baselines.lrrs.code_sparsely, in whose letters this is, and src._robust_steps."""
    if isinstance(coding, SRCCoding):
        a, ratio, share = float(RELAXATION), 1.0, float(1 / (1 + coding.lam / ERROR_STEP))
        bounds = [(float(ERROR_STEP), float(STEP), 0.0)] * coding.iterations
    else:
        a, ratio, share = coding.relaxation, 1 / coding.rho, 1.0
        steps = [(mu, 1 / (coding.kappa * mu)) for mu in coding.penalties(length).tolist()]
        bounds = [(coding.lam / mu, coding.beta * t, t) for mu, t in steps]
    of_error = of_code = None
    for k, (error_bound, code_bound, t) in enumerate(bounds):
        if of_error is None or of_code is None:
            z = g("Gemm", [x, "K"], "z_0", transB=1)
        else:
            # z = K (x - e + y1) + M (j - y2)
            seen = g("Add", [g("Sub", [x, of_error[0]], f"x_e_{k}"), of_error[1]], f"x_e_y1_{k}")
            pulled = g("Gemm", [g("Sub", of_code, f"j_y2_{k}"), "M"], f"M_j_y2_{k}", transB=1)
            z = g("Gemm", [seen, "K", pulled], f"z_{k}", transB=1)
        # g = a z + (1 - a) j + y2;  j = B_t(S_{beta t}(g));  y2 = (g - j)/rho
        whole = _relaxed(g, z, of_code, a, f"g_{k}")
        j, taken = _soft(g, whole, code_bound, f"S_g_{k}")
        if t:
            # s * (1 - t / maximum(norm(s), t))
            norm = g("Max", [g("ReduceL2", [j], f"S_g_{k}_norm", axes=[1], keepdims=1), g.scalar(f"t_{k}", t)], f"bounded_{k}")
            kept = g("Sub", [g.scalar("one", 1.0), g("Div", [f"t_{k}", norm], f"lost_{k}")], f"kept_{k}")
            j = g("Mul", [j, kept], f"j_{k + 1}")
            taken = g("Sub", [whole, j], f"g_j_{k}")
        if k + 1 == len(bounds):
            break
        of_code = j, _scaled(g, taken, ratio, f"y2_{k + 1}")
        # f = a (x - D z) + (1 - a) e + y1;  q = clip(share * f, -bound, bound);  e = f - q;  y1 = q/rho
        f = _relaxed(g, g("Sub", [x, g("MatMul", [z, "Dt"], f"Dz_{k}")], f"x_Dz_{k}"), of_error, a, f"F_{k}")
        q = _soft(g, _scaled(g, f, share, f"share_F_{k}"), error_bound, f"e_of_share_{k}")[1]
        of_error = g("Sub", [f, q], f"e_{k + 1}"), _scaled(g, q, ratio, f"y1_{k + 1}")
    return j if isinstance(coding, SRCCoding) else z


def _llc(g: Graph, x: str, coding: LLCCoding) -> None:
    """scores (N,C), code_norm and residual (N,): trainer.baselines.llc.local_codes; but C is taken from B_k - x itself."""
    k = coding.neighbours
    # nearest = argsort(-H)[:k]
    h = g("Gemm", [x, "Dt"], "h", transB=1)
    g("TopK", [h, g.constant("k", np.array([k], np.int64))], ["nearest_h", "nearest"], axis=1)
    # apart = B_k - x 1';  C = apart @ apart.T
    atoms = g("Gather", ["Dt", "nearest"], "B_k", axis=0)
    faces = g("Reshape", [x, g.constant("face_shape", np.array([0, 1, -1], np.int64))], "x_1")
    apart = g("Cast", [g("Sub", [atoms, faces], "apart")], "apart_double", to=TensorProto.DOUBLE)
    C = g("MatMul", [apart, g("Transpose", [apart], "apart_turned", perm=[0, 2, 1])], "C")
    # C += eye(k) * beta * maximum(trace(C), SMALLEST)
    axis_1, axes = g.constant("axis_1", np.array([1], np.int64)), g.constant("axes_1_2", np.array([1, 2], np.int64))
    trace = g("ReduceSum", [g("Mul", [C, g.constant("eye", np.eye(k))], "C_diagonal"), axes], "trace", keepdims=1)
    floored = g("Max", [trace, g.constant("smallest", np.array(SMALLEST))], "trace_floored")
    C = g("Add", [C, g("Mul", [floored, g.constant("beta_eye", coding.beta * np.eye(k))], "ridge")], "C_ridge")
    # w = solve(C, 1), by Gauss and Jordan: [C 1] becomes [I w]. C is positive definite, and needs no other pivots.
    pads = g.constant("one_column", np.array([0, 0, 0, 0, 0, 1], np.int64))
    A = g("Pad", [C, pads, g.constant("one_double", np.array(1.0))], "A_0")
    for i in range(k):
        at = g.constant(f"at_{i}", np.array([i], np.int64))
        row, column = (g("Gather", [A, at], f"{name}_{i}", axis=axis) for axis, name in ((1, "row"), (2, "column")))
        scaled = g("Div", [row, g("Gather", [row, at], f"pivot_{i}", axis=2)], f"scaled_row_{i}")
        others = g("Sub", [column, g.constant(f"e_{i}", np.eye(k)[:, [i]])], f"others_{i}")
        A = g("Sub", [A, g("Mul", [others, scaled], f"change_{i}")], f"A_{i + 1}")
    w = g("Gather", [A, g.constant("at_last", np.array([k], np.int64))], "w_unscaled", axis=2)
    w = g("Div", [w, g("ReduceSum", [w, axis_1], "w_sum", keepdims=1)], "w")
    # scores = W z
    own = g("Gather", [g("Transpose", ["W"], "Wt", perm=[1, 0]), "nearest"], "W_of_nearest", axis=0)
    narrow = g("Cast", [w], "w_float", to=TensorProto.FLOAT)
    g("ReduceSum", [g("Mul", [narrow, own], "w_W"), axis_1], "scores", keepdims=0)
    # code_norm = norm(z);  residual = norm(x - D z), which is that of apart @ w as w has the sum 1
    g("ReduceL2", [narrow], "code_norm", axes=[1, 2], keepdims=0)
    error = g("ReduceSum", [g("Mul", [w, apart], "w_apart"), axis_1], "error", keepdims=0)
    g("ReduceL2", [g("Cast", [error], "error_float", to=TensorProto.FLOAT)], "residual", axes=[1], keepdims=0)
