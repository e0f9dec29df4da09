"""Training with many people: dictionaries of shards, one Gram matrix, and sums over chunks of photos (trainer.shards.gram).

    shards        D_g by Algorithm 1, each on its own people
    factors       U, s of G = sum of D_g D_g', for the whole face and each part, or for each expert
    sums          A, M over all photos; then again without photos whose names are probably wrong
    threshold     the same with a fifth of the shards left out, five times: their people are strangers there

Shards and chunks run in processes of this machine or on a cluster, and are added in their order: both give the same bits.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from edge.errors import TrainingError
from edge.kit.manifest import ABSOLUTE, RELATIVE
from trainer.data.gallery import crop_digests
from trainer.features.spec import Spec
from trainer.method.base import COLLAPSED
from trainer.method.blocks import Basis, Block
from trainer.method.estimator import LCLRRDL
from trainer.method.experts import DOUBT_ETA, OWN_ETA, WEIGHTS, expert_rows
from trainer.method.label_noise import LEADS, Resemblance, clearest_first
from trainer.method.parts import part_rows
from trainer.parallel import each
from trainer.shards import gram
from trainer.shards.chunks import ChunkSums, Recipe, chunk_confidences, chunk_doubts, chunk_sums, learn_dictionary
from trainer.shards.gram import LeaveOneOut
from trainer.shards.samples import CHUNK, Features, Samples
from trainer.shards.work import WorkFolder, key_of
from trainer.types import Array, Stage, silent

PEOPLE = 50  # in a shard, about
# Chosen on the development half of LFW, from 200 to 821 people (docs/research/many-people.md).
MANY_WEIGHTS = (1.0, 1.0, 0.7)  # of the cosine, the network's codes, our own features
COVERED_WEIGHT = 0.5  # of all covered copies of a photo together
FOLDS = 5  # the number of shards is a multiple of it
SMALL, FEW = 2e7, 10_000  # numbers in all feature vectors, photos: below both, one process is quick, and needs half the memory


def shards_of(people: int, seed: int | None = 0, size: int = PEOPLE) -> Array:
    """Return the shard (C,) of each person: shards of about `size` people, a multiple of FOLDS of them, drawn at random."""
    shards = FOLDS * max(1, round(people / (FOLDS * size)))
    order = np.random.default_rng(seed).permutation(people)
    found = np.empty(people, np.int32)
    found[order] = np.arange(people) % shards
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Sums:
    """Sums over the codes of photos: A (r,r) in float64 and M (C,r) in float32, of each block."""

    A: list[Array]
    M: list[Array]
    A_all: list[Array]
    M_all: list[Array]
    """The same with the altered copies of the photos; the same arrays if there are none."""
    vectors: Array | None
    """Experts: the sum of the network's vectors of each person (C,k)."""
    weight: float
    """The number of photos, or the sum of their weights."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """Photos, parameters, and where to compute."""

    samples: Samples
    recipe: Recipe
    jobs: int = -1
    scheduler: str | None = None
    stage: Stage = silent
    certain: Array | None = None
    """(N,) bool, photos whose names are never doubted."""
    as_plain: bool = False
    """Learn the classifier as the plain method does, for comparison with it."""

    @classmethod
    def of(cls, samples: Samples, spec: Spec, parameters: dict[str, Any], **options: Any) -> "Training":
        """`options` are the other fields."""
        estimator = LCLRRDL(features=spec, **parameters)
        estimator.check_parameters()
        rows: Sequence[Array | None]
        rows = expert_rows(spec) if estimator.experts else [None, *part_rows(spec, estimator.parts)]
        recipe = Recipe(
            estimator=LCLRRDL(features=None, **parameters),
            features=Features.of(spec, estimator.copies, estimator.random_state),
            coding=estimator.coding_for(spec.length),
            rows=tuple(rows),
            confidence=ABSOLUTE if estimator.experts else RELATIVE,
            copies_weight=COVERED_WEIGHT if estimator.experts and not options.get("as_plain") else 1.0,
        )
        samples = replace(samples, uses_crops=samples.embeddings is None or spec.own is not None)
        photos = len(samples.people)
        if photos * spec.length < SMALL and photos < FEW and options.get("scheduler") is None:
            options["jobs"] = 1
        return cls(samples=samples, recipe=recipe, **options)

    @property
    def people(self) -> int:
        return int(self.samples.people.max()) + 1

    @cached_property
    def ranks(self) -> list[int | None]:
        """The most directions of each block: the whole face and each expert have a limit, parts of the face have none."""
        return [gram.MAX_RANK if self.recipe.experts or rows is None else None for rows in self.recipe.rows]

    # --- The steps ---

    def dictionaries(self, shards: Iterable[Array], work: WorkFolder | None = None) -> list[tuple[Array, Array]]:
        """Return D_g (d,m_g) and the people of its atoms (m_g,) for shards of people. `work` keeps finished ones."""
        of_shards = [np.flatnonzero(np.isin(self.samples.people, own)) for own in shards]
        found: list[tuple[Array, Array] | None] = [None] * len(of_shards)
        keys = [""] * len(of_shards)
        if work is not None:
            settings = [self.recipe.estimator.get_params(), self.recipe.features]
            for number, photos in enumerate(of_shards):
                crops, vectors, people = self.samples.rows(photos)
                seen = crop_digests(crops if vectors is None else vectors)
                keys[number] = key_of([settings, people.tolist()], seen)
                found[number] = work.dictionary(keys[number])
        missing = [number for number, one in enumerate(found) if one is None]
        calls = (self.samples.rows(of_shards[number]) for number in missing)
        done = len(found) - len(missing)
        self.stage("dictionaries of shards", done, len(found))
        for number, result in zip(missing, self._each(learn_dictionary, calls, (self.recipe,)), strict=True):
            found[number] = result
            if work is not None:
                work.save_dictionary(keys[number], *result)
                found[number] = work.dictionary(keys[number])  # mapped: all together may be large
            done += 1
            self.stage("dictionaries of shards", done, len(found))
        return [one for one in found if one is not None]

    def bases(self, grams: Iterable[tuple[Array, int]], count: int = 1) -> list[list[Basis]]:
        """Return the basis of each block, for `count` Gram matrices (d,d) and their numbers of atoms."""
        total, rows = count * len(self.recipe.rows), self.recipe.rows
        calls = ((gram.rows_of(G, own), atoms, rank) for G, atoms in grams for own, rank in zip(rows, self.ranks, strict=True))
        found: list[Basis] = []
        self.stage("factors", 0, total)
        for U, s in self._each(gram.factors, calls):
            if len(s) == 0 or not np.isfinite(s).all():
                raise TrainingError(COLLAPSED, "Use a larger lam or a smaller alpha.")
            found.append(Basis(rows[len(found) % len(rows)], U, s))
            self.stage("factors", len(found), total)
        return [found[start : start + len(rows)] for start in range(0, total, len(rows))]

    def sums(
        self, bases: Sequence[Basis], weights: Array | None = None, chosen: Array | None = None, stage: str = "codes of photos"
    ) -> Sums:
        """Return the sums over all photos, or over the chosen ones, with these weights (N,)."""
        used = np.ones(len(self.samples.people)) if weights is None else weights
        used = used if chosen is None else used[chosen]
        people, ranks = self.people, [len(basis.s) for basis in bases]
        A, M = [np.zeros((r, r)) for r in ranks], [np.zeros((people, r), np.float32) for r in ranks]
        A_all, M_all = list(A), list(M)
        for i in range(self.recipe.blocks_with_copies(self.samples.embeddings)):
            A_all[i], M_all[i] = np.zeros_like(A[i]), np.zeros_like(M[i])
        vectors = np.zeros((people, len(bases[0].U))) if self.recipe.experts else None
        shared = self.recipe, tuple(basis.s for basis in bases), *(basis.U for basis in bases)
        found: ChunkSums
        for found in self._each_chunk(stage, chunk_sums, chosen, (used,), shared):
            for i, block in enumerate(found.blocks):
                A[i] += block.A
                M[i][found.people] += block.M
                if block.with_copies is not None:
                    A_all[i] += block.with_copies[0]
                    M_all[i][found.people] += block.with_copies[1]
            if vectors is not None:
                vectors[found.people] += found.vectors
        return Sums(A=A, M=M, A_all=A_all, M_all=M_all, vectors=vectors, weight=float(used.sum()))

    def classifier(self, bases: Sequence[Basis], sums: Sums) -> tuple[list[Block], Array | None]:
        """Return the bases with their classifiers, and the templates of the experts."""
        estimator = self.recipe.estimator
        experts = self.recipe.experts
        etas: list[Any] = [estimator.eta, OWN_ETA] if experts else [estimator.eta] * len(bases)
        if experts and not self.as_plain:
            etas[0] = gram.vector_ridge(sums.A_all[0], bases[0].s)
        unit = experts or not self.as_plain
        pairs = zip(sums.A_all, sums.M_all, etas, strict=False)
        B = [gram.classifier(*pair, unit=unit).astype(np.float32) for pair in pairs]
        templates: Array | None = None
        if sums.vectors is not None:
            means = sums.vectors / np.linalg.norm(sums.vectors, axis=1, keepdims=True)
            # As trainer.method.experts.scaled: training photos score 1 on average for their own person.
            weights = (WEIGHTS if self.as_plain else MANY_WEIGHTS)[: 1 + len(B)]
            shares = np.array(weights) / sum(weights)
            own = [
                np.sum(one * M, dtype=np.float64) / sums.weight
                for one, M in zip([means, *B], [sums.vectors, *sums.M], strict=True)
            ]
            means, *B = (np.float32(share / mean) * one for share, mean, one in zip(shares, own, [means, *B], strict=True))
            templates = means.astype(np.float32)
        return [Block(basis.rows, basis.U, basis.s, one) for basis, one in zip(bases, B, strict=True)], templates

    def apparent_people(self, bases: Sequence[Basis], sums: Sums) -> Array:
        """Return the person (N,) that each photo looks like: its own, unless the name is probably wrong (label_noise).

        All photos are scored once. Later only those are scored again that were suspected then.
        """
        people = self.samples.people
        if not self.recipe.estimator.doubt:
            return people
        all_trusted = np.ones(len(people), bool)
        first = self._resemblance(bases, sums, all_trusted)
        suspected = np.flatnonzero(first.best - np.maximum(first.own, 0) > LEADS[-1])

        def resemblance(trusted: Array) -> Resemblance:
            if trusted.all():
                return first
            left_out = self.sums(bases, chosen=np.flatnonzero(~trusted), stage="codes of suspected photos")
            pairs = (sums.A, left_out.A), (sums.M, left_out.M)
            A, M = ([one - two for one, two in zip(*pair, strict=True)] for pair in pairs)
            again = self._resemblance(bases, replace(sums, A=A, M=M), trusted, suspected)
            now = Resemblance(first.own.copy(), first.best.copy(), first.other.copy())
            now.own[suspected], now.best[suspected], now.other[suspected] = again.own, again.best, again.other
            return now

        return clearest_first(resemblance, people, self.people, self.certain)

    def _resemblance(self, bases: Sequence[Basis], sums: Sums, trusted: Array, chosen: Array | None = None) -> Resemblance:
        eta = DOUBT_ETA if self.recipe.experts else self.recipe.estimator.eta
        ridges = [LeaveOneOut.of(A, M, eta) for A, M in zip(sums.A, sums.M, strict=True)]
        matrices = *(b.U for b in bases), *(ridge.factor for ridge in ridges), *(ridge.people for ridge in ridges)
        shared = self.recipe, tuple(basis.s for basis in bases), *matrices
        used = trusted if chosen is None else trusted[chosen]
        found = list(self._each_chunk("check of names", chunk_doubts, chosen, (used,), shared))
        return Resemblance(*(np.concatenate(one) for one in zip(*found, strict=True)))

    def confidences(
        self,
        blocks: Sequence[Block],
        templates: Array | None,
        chosen: Array | None = None,
        stage: str = "recognition of training photos",
    ) -> tuple[Array, Array]:
        """Return confidence and best person of all photos, or of the chosen ones."""
        matrices = *(block.U for block in blocks), *(block.B for block in blocks)
        shared = self.recipe, tuple(block.s for block in blocks), templates, *matrices
        found = list(self._each_chunk(stage, chunk_confidences, chosen, (), shared))
        confidence, best = (np.concatenate(one) for one in zip(*found, strict=True))
        return confidence, best

    def _each_chunk(
        self, stage: str, function: Any, chosen: Array | None, aligned: tuple[Array, ...], shared: tuple[Any, ...]
    ) -> Iterator[Any]:
        """Yield function(*chunk, *aligned, *shared) for each chunk. `aligned` arrays have an entry for each photo."""
        count = len(self.samples.people) if chosen is None else len(chosen)
        starts = range(0, count, CHUNK)
        pieces = zip(starts, self.samples.chunks(chosen), strict=True)
        calls = ((*chunk, *(array[start : start + CHUNK] for array in aligned)) for start, chunk in pieces)
        self.stage(stage, 0, len(starts))
        for done, result in enumerate(self._each(function, calls, shared), start=1):
            yield result
            self.stage(stage, done, len(starts))

    def _each(self, function: Any, calls: Iterable[tuple[Any, ...]], shared: tuple[Any, ...] = ()) -> Iterator[Any]:
        return each(function, calls, shared=shared, jobs=self.jobs, scheduler=self.scheduler)


def stranger_confidences(training: Training, dictionaries: Sequence[Array], shard_of_person: Array, trusted: Array) -> Array:
    """Return the confidence of each trusted photo in a model without its shard: neither D nor B has seen its person.

    `dictionaries` are those of the shards; `trusted` (N,) leaves out photos with suspected names.
    """
    fold_of_shard = np.arange(len(dictionaries)) % FOLDS
    fold_of_person = fold_of_shard[shard_of_person]
    bases = training.bases(_grams_without(dictionaries, fold_of_shard), FOLDS)
    found = [_confidences_of_fold(training, bases[k], fold_of_person, k, trusted) for k in range(FOLDS)]
    return np.concatenate(found)


def _grams_without(dictionaries: Sequence[Array], fold_of_shard: Array) -> Iterator[tuple[Array, int]]:
    """Yield, for each fold, the Gram matrix and the number of atoms of the shards outside it."""
    G, atoms = gram.gram(dictionaries), sum(D.shape[1] for D in dictionaries)
    for k in range(FOLDS):
        left_out = [D for D, fold in zip(dictionaries, fold_of_shard, strict=True) if fold == k]
        yield G - gram.gram(left_out), atoms - sum(D.shape[1] for D in left_out)


def _confidences_of_fold(training: Training, bases: list[Basis], fold_of_person: Array, k: int, trusted: Array) -> Array:
    """Return the confidence of the trusted photos of fold k in a model of the other people. Its large arrays end with it."""
    samples, is_known = training.samples, fold_of_person != k
    numbers = np.where(is_known, np.cumsum(is_known) - 1, -1)
    part = replace(training, samples=replace(samples, people=numbers[samples.people]))
    known = is_known[samples.people]
    step = f"threshold, fold {k + 1} of {FOLDS}"
    sums = part.sums(bases, chosen=np.flatnonzero(known & trusted), stage=step)
    blocks, templates = part.classifier(bases, sums)
    del sums  # it is large
    return part.confidences(blocks, templates, np.flatnonzero(~known & trusted), f"{step}, strangers")[0]
