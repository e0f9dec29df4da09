"""A trained model as one ONNX graph: crops in, scores out, a fixed number of iterations in between.

    crops (N,H,W) uint8 -> features x (N,d) -> code w (N,r) -> scores (N,C), label, confidence, margin, code_norm, residual

Features are in export.feature_graph; the arithmetic here is that of trainer.method.coding. The comment above some nodes is
the NumPy line that they compute. Faces are rows, so a product reads U in its stored order. Folded before: D = U diag(s) V',
V into the classifier (B = WV), and the penalty schedule. A network takes BGR crops (N,H,W,3) unless it is a grey one. A
baseline's model replaces the coder (export.baseline_graph), and so does int8 with the coding l21 (export.integer_graph).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from threadpoolctl import threadpool_limits

from edge.errors import UsageError
from edge.kit.manifest import ABSOLUTE, RELATIVE
from edge.vision.confidence import BLANK
from export.baseline_graph import BaselineFactors
from export.feature_graph import feature_nodes, network_nodes
from export.integer_graph import IntegerFactors
from export.nodes import EPS, TINY, Graph, Precision, stored_constants
from trainer.baselines.coders import AnyCoding, BaselineCoder
from trainer.features.network import EMBEDDING
from trainer.features.spec import Spec
from trainer.method.blocks import Block
from trainer.method.coding import ROUNDING, Coding, code_by_factors, code_projected, project
from trainer.method.parts import FAINT, fuse, unit_part
from trainer.model import Model
from trainer.types import Array

CONTRAST = 8.0  # grey levels between the darkest and the brightest pixel; every face has more, in any light


@dataclass(frozen=True, kw_only=True, eq=False)
class Factors:
    """The part of D and W that the device needs, in the precision in which it is stored, and the coding."""

    coding: Coding
    U: Array
    """(d, r) float32."""
    s: Array
    """(r,) float32. They rise: sums from small to large lose the fewest digits."""
    B: Array
    """(C, r) float32, W V."""
    rows: Array | None = None
    """(d,) entries of the features that belong to a part of the face or to an expert. None: the whole face."""
    parts: "tuple[Factors, ...]" = ()
    """The factors of the parts (trainer.method.parts), or of our own features beside a network (trainer.method.experts)."""
    templates: Array | None = None
    """(C, k) float32, the cosine beside a network. None: there are no experts."""

    @classmethod
    def of(cls, model: Model) -> "Factors":
        """Return the factors of a model."""
        assert isinstance(model.coding, Coding)
        return cls.of_blocks(model.blocks, model.coding, model.templates)

    @classmethod
    def of_blocks(cls, blocks: Sequence[Block], coding: Coding, templates: Array | None = None) -> "Factors":
        """Return factors of the whole face or the network, and then of the parts or our own features."""
        whole, *parts = (cls(coding=coding, U=block.U, s=block.s, B=block.B, rows=block.rows) for block in blocks)
        return replace(whole, parts=tuple(parts), templates=templates)

    @classmethod
    def stored_in(cls, stored: Mapping[str, Array], coding: Coding) -> "Factors":
        """Read the factors back from the constants of a graph that `build` made, widened as the runtime does."""

        def read(prefix: str, **more: Any) -> "Factors":
            U, s, B = (stored[prefix + name] for name in "UsB")
            return cls(coding=coding, U=U, s=s.ravel(), B=B, **more)

        prefixes = [name.removesuffix("rows") for name in stored if name.endswith("/rows")]
        parts = tuple(read(prefix, rows=stored[f"{prefix}rows"]) for prefix in prefixes)
        return read("", rows=stored.get("rows"), parts=parts, templates=stored.get("templates"))

    def with_iterations(self, iterations: int) -> "Factors":
        return replace(self, coding=replace(self.coding, iterations=iterations))

    def scores(self, X: Array) -> Array:
        """Return scores (C,n) of X (d,n): in NumPy, what the graph computes."""
        return self.results(X)[0]

    def converged_scores(self, X: Array) -> Array:
        """Return scores (C,n) of X (d,n) with the code that solves the problem almost to the end."""
        if self.coding.kind != "l21":
            return replace(self, coding=self.coding.converged()).scores(X)
        scores = []
        for part in (self, *self.parts):
            c, outside = project(part.U, part.s, part._own(X))
            scores.append(part.B @ code_projected(c, outside, part.s, self.coding.converged(), settle=True))
        return self._combined(scores, X)

    @property
    def confidence(self) -> str:
        """The kind of confidence that the scores have (edge.vision.confidence)."""
        return RELATIVE if self.templates is None else ABSOLUTE

    def results(self, X: Array) -> tuple[Array, Array, Array]:
        """Return scores (C,n), code_norm and residual (n,) of X (d,n): in NumPy, what the graph computes."""
        own = self._own(X)
        w = code_by_factors(self.U, self.s, own, self.coding)
        c, outside = project(self.U, self.s, own)
        error = c - self.s[:, None] * w
        residual = np.sqrt(outside + np.sum(error * error, axis=0))
        parts = [part.B @ code_by_factors(part.U, part.s, part._own(X), self.coding) for part in self.parts]
        return self._combined([self.B @ w, *parts], X), np.linalg.norm(w, axis=0), residual

    def steps(self, X: Array) -> list[Array]:
        """Return the scores after 1, 2, 3... iterations."""
        scores: list[list[Array]] = [[] for _ in range(self.coding.iterations)]
        for part in (self, *self.parts):

            def collect(k: int, w: Array, B: Array = part.B) -> None:
                scores[k - 1].append(B @ w)

            code_by_factors(part.U, part.s, part._own(X), self.coding, collect)
        return [self._combined(of_faces, X) for of_faces in scores]

    def _combined(self, scores: list[Array], X: Array) -> Array:
        """Return the scores (C,n) of all parts or experts together, from those of each one."""
        return fuse(scores) if self.templates is None else np.sum([self.templates @ self._own(X), *scores], axis=0)

    def _own(self, X: Array) -> Array:
        """Return the part's rows of X (d,n), as unit columns."""
        return X if self.rows is None else unit_part(X, self.rows)

    def write(self, g: Graph, x: str, precision: Precision) -> int:
        """Write the nodes of scores (N,C), code_norm and residual (N,). Return C.

        int8 with l21 multiplies integers. l1 reads U twice per iteration with float32 vectors that change: there, int8 only
        makes the file smaller, as in the convolutions of a network.
        """
        if precision == "int8" and self.coding.kind == "l21":
            blocks = [Block(part.rows, part.U, part.s, part.B) for part in (self, *self.parts)]
            return IntegerFactors.of(self.coding, blocks, self.templates).write(g, x)
        return self.write_widened(g, x, precision)

    def write_widened(self, g: Graph, x: str, precision: Precision) -> int:
        """Write the nodes with weights that are widened to float32 when the graph is loaded. Return C."""
        whole = _own(g, x, self.rows)
        c, outside, w = _coded(g, whole, self, self.coding, precision)

        # error = c - s * w;  residual = sqrt(outside + sum(error**2))
        error = g("Sub", [c, g("Mul", ["s", w], "s_w")], "error")
        g("Sqrt", [g("Add", [outside, g.sum_squares(error, "error_squared")], "residual_squared")], "residual_column")
        g("Reshape", ["residual_column", g.constant("flat", np.array([-1], np.int64))], "residual")
        # code_norm = norm(w), the norm of z = V w
        g("ReduceL2", [w], "code_norm", axes=[1], keepdims=0)

        if self.templates is not None:
            # scores = x @ templates.T + w @ B.T + ...
            g.weight("templates", self.templates, precision)
            cosines = g("Gemm", [whole, "templates"], "cosines", transB=1)
            of_parts = _part_scores(g, x, self, precision)
            network = g("Gemm", [w, "B", cosines], "network_scores" if of_parts else "scores", transB=1)
            for part in of_parts:
                g("Add", [network, part], "scores")
        elif self.parts:
            # scores = fuse([w @ B.T, ...])
            _fused(g, [g("Gemm", [w, "B"], "whole_scores", transB=1), *_part_scores(g, x, self, precision)])
        else:
            g("Gemm", [w, "B"], "scores", transB=1)
        return len(self.B)


AnyFactors = Factors | BaselineFactors


def has_network(graph: bytes) -> bool:
    if EMBEDDING.encode() not in graph:  # a large graph is not parsed for this
        return False
    return any(EMBEDDING in node.output for node in onnx.load_model_from_string(graph).graph.node)


def front(graph: bytes) -> bytes:
    """Return the part of a graph that turns crops into vectors of a network."""
    model = onnx.load_model_from_string(graph)
    last = next(i for i, node in enumerate(model.graph.node) if EMBEDDING in node.output)
    del model.graph.node[last + 1 :]
    used = {name for node in model.graph.node for name in node.input}
    constants = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.output[:], model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    model.graph.output.append(helper.make_tensor_value_info(EMBEDDING, TensorProto.FLOAT, None))
    return bytes(model.SerializeToString(deterministic=True))


def head(graph: bytes) -> bytes:
    """Return the rest of a graph with a network: crops and the network's vectors (N,d) in, outputs as before."""
    model = onnx.load_model_from_string(graph)
    needed, nodes = {output.name for output in model.graph.output}, []
    for node in reversed(model.graph.node):
        if EMBEDDING not in node.output and needed.intersection(node.output):
            nodes.append(node)
            needed.update(node.input)
    inputs = [*model.graph.input, helper.make_tensor_value_info(EMBEDDING, TensorProto.FLOAT, ["N", "d"])]
    constants = [tensor for tensor in model.graph.initializer if tensor.name in needed]
    rest = helper.make_graph(nodes[::-1], model.graph.name, inputs, model.graph.output, constants)
    model.graph.CopyFrom(rest)
    return bytes(model.SerializeToString(deterministic=True))


def factors_of(model: Model) -> AnyFactors:
    """Return the factors of a model that a device can use. One thread: the same model gives the same bits on one machine."""
    if model.coding.kind == "batch":
        raise UsageError("A device codes one face at a time, so it cannot use the coding batch.", "Train with l1 or l21.")
    with threadpool_limits(1):
        plain = model.plain
        if plain is not None and isinstance(plain.coder, BaselineCoder):
            return BaselineFactors(coding=plain.coder.coding, constants=plain.coder.constants)
        return Factors.of(model)


def stored_in(graph: bytes, coding: AnyCoding) -> AnyFactors | IntegerFactors:
    """Read the factors back from a graph that `build` made for this coding. int8 kits before 0.4 have widened weights."""
    if not isinstance(coding, Coding):
        return BaselineFactors.stored_in(graph, coding)
    stored = stored_constants(graph)
    return IntegerFactors.stored_in(stored, coding) if "U_levels" in stored else Factors.stored_in(stored, coding)


def build(factors: AnyFactors, spec: Spec, precision: Precision = "fp32") -> bytes:
    """Return the serialised graph. The same arguments give the same bytes."""
    g = Graph()
    images = g("Cast", ["crops"], "crops_float", to=TensorProto.FLOAT)
    if spec.colour:
        g("Transpose", [images], "images", perm=[0, 3, 1, 2])
    else:
        g("Reshape", [images, g.constant("image_shape", np.array([-1, 1, spec.height, spec.width], np.int64))], "images")
    # x = spec.vectors(crops)
    if spec.network is not None:
        x = network_nodes(g, spec.network, precision)
    else:
        assert spec.own is not None
        x = feature_nodes(g, spec.own)
    people = factors.write(g, x, precision)

    # top, second = two largest of scores;  label = argmax(scores)
    g("TopK", ["scores", g.constant("two", np.array([2], np.int64))], ["top_scores", "top_labels"], axis=1)
    first, second = (g.constant(name, np.array(i, np.int64)) for i, name in enumerate(("first", "second")))
    g("Gather", ["top_labels", first], "label", axis=1)
    top, runner_up = (g("Gather", ["top_scores", i], f"{i}_score", axis=1) for i in (first, second))
    # As in edge/vision/confidence.py:
    # certainty = visible / maximum(norm(scores), BLANK);  confidence = top * certainty;  margin = (top - second) * certainty
    # If the confidence is absolute: certainty = visible;  confidence = minimum(top * certainty, 1)
    certainty = _visible(g, "images", colour=spec.colour)
    if factors.confidence == RELATIVE:
        norm = g("Max", [g("ReduceL2", ["scores"], "scores_norm", axes=[1], keepdims=0), g.scalar("blank", BLANK)], "norm")
        certainty = g("Div", [certainty, norm], "certainty")
        g("Mul", [top, certainty], "confidence")
    else:
        limits = g.scalar("minus_one", -1.0), g.scalar("plus_one", 1.0)
        g("Clip", [g("Mul", [top, certainty], "visible_top"), *limits], "confidence")
    g("Mul", [g("Sub", [top, runner_up], "lead"), certainty], "margin")
    return g.model(spec, people)


def _coded(g: Graph, x: str, factors: Factors, coding: Coding, precision: Precision) -> tuple[str, str, str]:
    """Return c (N,r), outside (N,1) and w (N,r): trainer.method.coding.code_by_factors."""
    g.weight("U", factors.U, precision)
    g.weight("B", factors.B, precision)
    s = g.constant("s", factors.s[None])
    c, outside = _project(g, x, factors)
    w = _l21(g, c, outside, s, factors, coding) if coding.kind == "l21" else _l1(g, x, c, s, factors, coding)
    return c, outside, w


def _own(g: Graph, x: str, rows: Array | None) -> str:
    """Return (N,k), trainer.method.parts.unit_part of x (N,d)."""
    if rows is None:
        return x
    own = g("Gather", [x, g.constant("rows", rows.astype(np.int64))], "own", axis=1)
    return g("Mul", [own, g.unit_scale(own)[0]], "own_x")


def _part_scores(g: Graph, x: str, factors: Factors, precision: Precision) -> list[str]:
    """Return the scores (N,C) of each part."""
    scores = []
    for number, part in enumerate(factors.parts, start=1):
        g.prefix = f"part_{number}/"
        _, _, w = _coded(g, _own(g, x, part.rows), part, factors.coding, precision)
        scores.append(g("Gemm", [w, "B"], "scores", transB=1))
    g.prefix = ""
    return scores


def _fused(g: Graph, scores: list[str]) -> None:
    """Write scores (N,C): trainer.method.parts.fuse of the scores of the whole face and of each part."""
    weighted = []
    for number, own in enumerate(scores):
        # unit = own / maximum(norm(own), FAINT);  unit * unit.max()
        norm = g("ReduceL2", [own], f"norm_{number}", axes=[1], keepdims=1)
        unit = g("Div", [own, g("Max", [norm, g.scalar("faint", FAINT)], f"divisor_{number}")], f"unit_{number}")
        best = g("ReduceMax", [unit], f"best_{number}", axes=[1], keepdims=1)
        weighted.append(g("Mul", [unit, best], f"weighted_{number}"))
    g("Mean", weighted, "scores")


def _visible(g: Graph, images: str, *, colour: bool) -> str:
    """Return (N,), 1 if a channel of a crop has contrast, else 0. Without this, an even crop would have a confidence too."""
    # visible = (images.max(axis=(2, 3)) - images.min(axis=(2, 3))).max(axis=1) > CONTRAST
    axes, name = ([2, 3], "channel_contrast") if colour else ([1, 2, 3], "contrast")
    brightest, darkest = (
        g(f"Reduce{most}", [images], f"{most.lower()}_grey", axes=axes, keepdims=0) for most in ("Max", "Min")
    )
    contrast = g("Sub", [brightest, darkest], name)
    if colour:
        contrast = g("ReduceMax", [contrast], "contrast", axes=[1], keepdims=0)
    visible = g("Greater", [contrast, g.scalar("least_contrast", CONTRAST)], "is_visible")
    return g("Cast", [visible], "visible", to=TensorProto.FLOAT)


def _project(g: Graph, x: str, factors: Factors) -> tuple[str, str]:
    """Return c (N,r) and outside (N,1): trainer.method.coding.project."""
    # u = U[:, argmax(s)]
    column = g.constant("leading", np.array([np.argmax(factors.s)], np.int64))
    u = g("Gather", ["U", column], "u", axis=1)
    u_row = g("Reshape", [u, g.constant("row", np.array([1, -1], np.int64))], "u_row")
    # share = x @ u;  rest = x - outer(share, u);  c = rest @ U
    share = g("MatMul", [x, u], "share")
    rest = g("Sub", [x, g("Mul", [share, u_row], "share_u")], "rest")
    c = g("MatMul", [rest, "U"], "c_of_rest")
    # outside = maximum(sum(rest**2) - sum(c**2), ROUNDING * eps)
    difference = g("Sub", [g.sum_squares(rest, "rest_squared"), g.sum_squares(c, "c_squared")], "difference")
    outside = g("Max", [difference, g.scalar("rounding", ROUNDING * EPS)], "outside")
    # c += outer(share, u @ U); u @ U is constant
    return g("Add", [c, g("Mul", [share, g("MatMul", [u_row, "U"], "Uu")], "share_Uu")], "c"), outside


def _l21(g: Graph, c: str, outside: str, s: str, factors: Factors, coding: Coding) -> str:
    """Return w (N,r): trainer.method.coding._l21."""
    s2 = factors.s[None] ** 2
    s_squared = g.constant("s_squared", s2)
    s_c = g("Mul", [s, c], "s_c")
    first_tau = np.float32(1e-2)
    for k in range(coding.iterations):
        # w = s * c / (s * s + tau);  error = c - s * w.  The first tau is a constant and folds.
        if k == 0:
            w = g("Mul", [c, g.constant("ridge_0", factors.s[None] / (s2 + first_tau))], "w_0")
            error = g("Mul", [c, g.constant("error_0_share", first_tau / (s2 + first_tau))], "error_0")
        else:
            w = g("Div", [s_c, g("Add", [s_squared, f"tau_{k}"], f"ridge_{k}")], f"w_{k}")
            error = g("Sub", [c, g("Mul", [s, w], f"s_w_{k}")], f"error_{k}")
        # tau = sqrt(outside + sum(error**2)) / maximum(lam * norm(w), tiny)
        total = g("Add", [outside, g.sum_squares(error, f"error_{k}_squared")], f"residual_{k}_squared")
        norm = g("ReduceL2", [w], f"w_{k}_norm", axes=[1], keepdims=1)
        weight = g("Max", [g("Mul", [norm, g.scalar("lam", coding.lam)], f"lam_w_{k}"), g.scalar("tiny", TINY)], f"weight_{k}")
        g("Div", [g("Sqrt", [total], f"residual_{k}"), weight], f"tau_{k + 1}")
    # return s * c / (s * s + tau)
    return g("Div", [s_c, g("Add", [s_squared, f"tau_{coding.iterations}"], "ridge")], "w")


def _l1(g: Graph, x: str, c: str, s: str, factors: Factors, coding: Coding) -> str:
    """Return w (N,r): trainer.method.coding._l1. w, y2 and g start at zero; after the last iteration only w is needed."""
    a, ratio, last = coding.relaxation, 1 / coding.rho, coding.iterations - 1
    scale_array = 1 / (factors.s[None] ** 2 + 1)
    scale, s_scale = g.constant("scale", scale_array), g.constant("s_scale", factors.s[None] * scale_array)
    a_s, minus_a_s = (g.constant(name, sign * a * factors.s[None]) for name, sign in (("a_s", 1), ("minus_a_s", -1)))
    one, inverse_rho, a_ = g.scalar("one", 1.0), g.scalar("inverse_rho", ratio), g.scalar("a", a)
    rest, share = g.scalar("one_minus_a", 1 - a), g.scalar("ratio_minus_one_plus_a", ratio - 1 + a)
    a_x, a_c = g("Mul", [x, a_], "a_x"), g("Mul", [c, a_], "a_UX")
    for k in range(coding.iterations):
        mu = coding.mu0 * coding.rho**k
        inverse_mu = g.scalar(f"inverse_mu_{k}", 1 / mu)
        w = f"w_{k + 1}" if k < last else "w"
        if k == 0:
            # w_next = s * UX * scale;  J = 0
            g("Mul", [c, s_scale], w)
        else:
            # J = (w + y2) * (1 - 1/mu / maximum(norm(w + y2), 1/mu))
            v = g("Add", [f"w_{k}", f"y2_{k}"], f"v_{k}")
            norm = g("Max", [g("ReduceL2", [v], f"v_{k}_norm", axes=[1], keepdims=1), inverse_mu], f"v_{k}_bounded")
            factor = g("Sub", [one, g("Div", [inverse_mu, norm], f"lost_{k}")], f"kept_{k}")
            J = g("Mul", [v, factor], f"J_{k}")
            # w_next = (s * c + J - y2) * scale
            pulled = g("Mul", [g("Sub", [J, f"y2_{k}"], f"J_y2_{k}"), scale], f"pulled_{k}")
            g("Add", [g("Mul", [f"c_{k}", s_scale], f"s_c_{k}"), pulled], w)
        if k == last:
            break
        # F = a * (X - (s * w_next) @ U.T) + g; s has the sign, because a Gemm that scales is slower
        target = g("Add", [a_x, f"g_{k}"], f"a_x_g_{k}") if k else a_x
        F = g("Gemm", [g("Mul", [minus_a_s, w], f"minus_a_s_w_{k + 1}"), "U", target], f"F_{k + 1}", transB=1)
        # UF = a * (UX - s * w_next) + Ug
        UF = g("Sub", [a_c, g("Mul", [a_s, w], f"a_s_w_{k + 1}")], f"UF_{k + 1}" if k == 0 else f"UF_Ug_{k + 1}")
        if k:
            UF = g("Add", [UF, f"Ug_{k}"], f"UF_{k + 1}")
        # q = clip(F, -lam/mu, lam/mu);  Uq = q @ U
        bounds = [g.scalar(f"{sign}lam_over_mu_{k}", value * coding.lam / mu) for sign, value in (("minus_", -1), ("", 1))]
        q = g("Clip", [F, *bounds], f"q_{k + 1}")
        Uq = g("MatMul", [q, "U"], f"Uq_{k + 1}")
        # c = UX - UF + (1 + 1/rho) * Uq
        grown = g("Mul", [Uq, g.scalar("one_plus_ratio", 1 + ratio)], f"Uq_grown_{k + 1}")
        g("Add", [g("Sub", [c, UF], f"UX_UF_{k + 1}"), grown], f"c_{k + 1}")
        # y2 = (y2 + w_next - J) / rho
        gained = g("Sub", [g("Add", [w, f"y2_{k}"], f"w_y2_{k + 1}"), J], f"rho_y2_{k + 1}") if k else w
        g("Mul", [gained, inverse_rho], f"y2_{k + 1}")
        if k + 1 == last:
            continue
        # g = (1 - a) * F + (1/rho - 1 + a) * q;  Ug = (1 - a) * UF + (1/rho - 1 + a) * Uq
        for name, whole, clipped in ((f"g_{k + 1}", F, q), (f"Ug_{k + 1}", UF, Uq)):
            parts = [g("Mul", [whole, rest], f"{name}_of_rest"), g("Mul", [clipped, share], f"{name}_of_clipped")]
            g("Add", parts, name)
    return w
