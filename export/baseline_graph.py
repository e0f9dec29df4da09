"""The baselines' coders as nodes: features x (N,d) in, scores (N,C), code_norm and residual (N,) out.

The arithmetic is that of trainer.baselines.coders. The comment above some nodes is the NumPy line that they compute. Faces are
rows here. The runtime folds results of constants when it loads the graph.
"""

from dataclasses import dataclass, replace

import numpy as np

from edge.kit.manifest import RELATIVE
from export.nodes import TINY, Graph, Precision, stored_constants
from trainer.baselines.coders import BaselineCoder, BaselineCoding
from trainer.baselines.src import ERROR_STEP, RELAXATION, STEP, SRCCoding
from trainer.types import Array


@dataclass(frozen=True, kw_only=True, eq=False)
class BaselineFactors(BaselineCoder):
    """The part of a baseline's model that the device needs, in the precision in which it is stored."""

    @classmethod
    def stored_in(cls, graph: bytes, coding: BaselineCoding) -> "BaselineFactors":
        """Read the factors back from a graph, widened as the runtime does."""
        stored = stored_constants(graph)
        return cls(coding=coding, constants={name: stored[name] for name in ("Dt", "W", "K", "M")})

    confidence = RELATIVE

    def with_iterations(self, iterations: int) -> "BaselineFactors":
        return replace(self, coding=replace(self.coding, iterations=iterations))

    def converged_scores(self, X: Array) -> Array:
        """Return scores (C,n) of X (d,n) with the code that solves the problem almost to the end."""
        return replace(self, coding=self.coding.converged()).scores(X)

    def results(self, X: Array) -> tuple[Array, Array, Array]:
        """Return scores (C,n), code_norm and residual (n,) of X (d,n): in NumPy, what the graph computes."""
        Z = self.code(X)
        return self.scores(X, Z), np.linalg.norm(Z, axis=0), np.linalg.norm(X - self.constants["Dt"].T @ Z, axis=0)

    def steps(self, X: Array) -> list[Array]:
        """Return the scores after 1, 2, 3... iterations."""
        scores: list[Array] = []
        self.code(X, lambda _, Z: scores.append(self.scores(X, Z)))
        return scores

    def write(self, g: Graph, x: str, precision: Precision) -> int:
        """Write the nodes of scores, code_norm and residual. Return the number of people."""
        coding = self.coding
        for name, value in self.constants.items():
            g.weight(name, value, precision)
        z = _coded(g, x, coding, length=self.constants["Dt"].shape[1])
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
        return len(self.constants["W"])


def _explained(g: Graph, x: str, z: str, error: str, coding: SRCCoding) -> None:
    """Write scores (N,C): trainer.baselines.src.scores."""
    seen = x
    if coding.occlusion:
        # x - soft_threshold(x - D z, lam)
        covered = _soft(g, error, coding.lam, "covered")[0]
        seen = g("Sub", [x, covered], "seen")
    # own = D'D, with zeros for atoms of different people
    same = g("Gemm", ["W", "W"], "same_person", transA=1)
    own = g("Mul", [g("Gemm", ["Dt", "Dt"], "G", transB=1), same], "G_own")
    # z_c'(2 D_c'x - G_cc z_c) / maximum(|x|^2, tiny)
    b = g("Gemm", [seen, "Dt"], "b", transB=1)
    both = g("Sub", [g("Add", [b, b], "two_b"), g("MatMul", [z, own], "G_own_z")], "two_b_G_own_z")
    of_people = g("Gemm", [g("Mul", [z, both], "of_atoms"), "W"], "of_people", transB=1)
    length = g("Max", [g.sum_squares(seen, "seen_squared"), g.scalar("tiny", TINY)], "seen_length_squared")
    g("Div", [of_people, length], "scores")


def _soft(g: Graph, rows: str, bound: float, name: str) -> tuple[str, str]:
    """Return S_bound(rows), named `name`, and the removed part: clip(rows, -bound, bound)."""
    bounds = [g.scalar(f"{name}_{side}", sign * bound) for side, sign in (("least", -1), ("most", 1))]
    removed = g("Clip", [rows, *bounds], f"{name}_taken")
    return g("Sub", [rows, removed], name), removed


def _scaled(g: Graph, rows: str, factor: float, name: str) -> str:
    return rows if factor == 1 else g("Mul", [rows, g.scalar(f"{name}_scale", factor)], name)


def _relaxed(g: Graph, new: str, before: tuple[str, str] | None, a: float, name: str) -> str:
    """Return a new + (1 - a) old + dual, named `name`. (old, dual) are zero in the first iteration."""
    if before is None:
        return g("Mul", [new, g.scalar("a", a)], name)
    old, dual = before
    rest = g("Add", [g("Mul", [old, g.scalar("one_minus_a", 1 - a)], f"{name}_of_old"), dual], f"{name}_rest")
    return g("Add", [g("Mul", [new, g.scalar("a", a)], f"{name}_of_new"), rest], name)


def _coded(g: Graph, x: str, coding: BaselineCoding, length: int) -> str:
    """Return z (N,m): trainer.baselines.lrrs.code_sparsely (with its letters) and src.code, without error if not occlusion."""
    if isinstance(coding, SRCCoding):
        a, ratio, share = float(RELAXATION), 1.0, float(1 / (1 + coding.lam / ERROR_STEP))
        bounds = [(float(ERROR_STEP), float(STEP), 0.0)] * coding.iterations
    else:
        a, ratio, share = coding.relaxation, 1 / coding.rho, 1.0
        steps = [(mu, 1 / (coding.kappa * mu)) for mu in coding.penalties(length).tolist()]
        bounds = [(coding.lam / mu, coding.beta * t, t) for mu, t in steps]
    of_error = of_code = None
    for k, (error_bound, code_bound, t) in enumerate(bounds):
        if of_code is None:
            z = g("Gemm", [x, "K"], "z_0", transB=1)
        elif of_error is None:
            # z = K x + M (j - y2)
            z = g("Gemm", [g("Sub", of_code, f"j_y2_{k}"), "M", "z_0"], f"z_{k}", transB=1)
        else:
            # z = K (x - e + y1) + M (j - y2)
            seen = g("Add", [g("Sub", [x, of_error[0]], f"x_e_{k}"), of_error[1]], f"x_e_y1_{k}")
            pulled = g("Gemm", [g("Sub", of_code, f"j_y2_{k}"), "M"], f"M_j_y2_{k}", transB=1)
            z = g("Gemm", [seen, "K", pulled], f"z_{k}", transB=1)
        # g = a z + (1 - a) j + y2;  j = B_t(S_{beta t}(g));  y2 = (g - j)/rho
        whole = _relaxed(g, z, of_code, a, f"g_{k}")
        j, removed = _soft(g, whole, code_bound, f"S_g_{k}")
        if t:
            # s * (1 - t / maximum(norm(s), t))
            norm = g("Max", [g("ReduceL2", [j], f"S_g_{k}_norm", axes=[1], keepdims=1), g.scalar(f"t_{k}", t)], f"bounded_{k}")
            factor = g("Sub", [g.scalar("one", 1.0), g("Div", [f"t_{k}", norm], f"lost_{k}")], f"kept_{k}")
            j = g("Mul", [j, factor], f"j_{k + 1}")
            removed = g("Sub", [whole, j], f"g_j_{k}")
        if k + 1 == len(bounds):
            break
        of_code = j, _scaled(g, removed, ratio, f"y2_{k + 1}")
        if isinstance(coding, SRCCoding) and not coding.occlusion:
            continue
        # f = a (x - D z) + (1 - a) e + y1;  q = clip(share * f, -bound, bound);  e = f - q;  y1 = q/rho
        f = _relaxed(g, g("Sub", [x, g("MatMul", [z, "Dt"], f"Dz_{k}")], f"x_Dz_{k}"), of_error, a, f"F_{k}")
        q = _soft(g, _scaled(g, f, share, f"share_F_{k}"), error_bound, f"e_of_share_{k}")[1]
        of_error = g("Sub", [f, q], f"e_{k + 1}"), _scaled(g, q, ratio, f"y1_{k + 1}")
    return j if isinstance(coding, SRCCoding) else z
