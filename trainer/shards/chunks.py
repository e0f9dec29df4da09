"""What one process computes for many people: the dictionary of a shard, and sums or scores of a chunk of photos.

Everything here runs on one core, in any process or on any machine of a cluster, and gives the same bits there.
"""

from dataclasses import dataclass

import numpy as np

from edge.vision.confidence import score_confidence
from trainer.method.blocks import Basis, Block
from trainer.method.coding import Coding
from trainer.method.estimator import LCLRRDL
from trainer.shards import gram
from trainer.shards.gram import LeaveOneOut
from trainer.shards.samples import Features
from trainer.types import Array

Chunk = tuple[Array, Array | None, Array]
"""Crops, embeddings and people (trainer.shards.samples.Samples)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Recipe:
    """How to learn from photos: everything except large arrays."""

    estimator: LCLRRDL
    """The parameters, without features."""
    features: Features
    coding: Coding
    rows: tuple[Array | None, ...]
    """The feature rows of each block: of the whole face and its parts, or of the experts."""
    confidence: str
    """The kind of confidence that the scores have (edge.vision.confidence)."""
    copies_weight: float = 1.0
    """What all copies of a photo together weigh, compared with the photo."""

    @property
    def experts(self) -> bool:
        return self.estimator.experts

    def blocks_with_copies(self, embeddings: Array | None) -> int:
        """Return how many blocks, from the first on, learn from altered copies, too."""
        if self.experts:  # only the network: covered copies
            return int(embeddings is not None and embeddings.shape[1] > 1)
        return len(self.rows) if self.features.copies else 0


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockSums:
    """Sums over the codes of photos (trainer.shards.gram) in one block."""

    A: Array
    M: Array
    """Of the photos themselves."""
    with_copies: tuple[Array, Array] | None = None
    """A and M with the altered copies of the photos (Recipe.copies_weight). None: there are none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ChunkSums:
    """Sums over a chunk of photos."""

    people: Array
    """(p,) the person of each row of M, rising."""
    blocks: list[BlockSums]
    vectors: Array | None
    """Experts: the sum of the network's vectors of each person, (p,k)."""


def learn_dictionary(crops: Array, embeddings: Array | None, people: Array, recipe: Recipe) -> tuple[Array, Array]:
    """Return the dictionary D (d,m) of a shard in float32, and the person of each atom (m,)."""
    X = recipe.features.columns(crops, embeddings).astype(np.float64)
    inside = np.unique(people, return_inverse=True)[1]
    rows = [own for own in recipe.rows if own is not None] if recipe.experts else None
    results, atoms = recipe.estimator.learn_dictionary(X, inside, rows)
    return np.vstack([result.D for result in results]).astype(np.float32), np.unique(people)[atoms].astype(np.int32)


def chunk_sums(
    crops: Array, embeddings: Array | None, people: Array, weights: Array, recipe: Recipe, s: tuple[Array, ...], *U: Array
) -> ChunkSums:
    """Return the sums of a chunk of photos with these weights (n,). s and U are those of each block."""
    X = recipe.features.columns(crops, embeddings)
    copies = recipe.features.copied(crops, embeddings, int(people[0]))
    found, vectors, copied = [], None, recipe.blocks_with_copies(embeddings)
    for number, basis in enumerate(map(Basis, recipe.rows, U, s)):
        A, M = gram.sums(basis.code(X, recipe.coding), people, weights)
        if number == 0 and recipe.experts:
            vectors = gram.sums(basis.own(X), people, weights)[1]
        if copies is None or number >= copied:
            found.append(BlockSums(A=A, M=M))
            continue
        # The copies of a network are columns of its rows alone.
        own = Basis(None, basis.U, basis.s) if recipe.experts else basis
        repeats = copies.shape[1] // len(people)
        w = own.code(copies, recipe.coding).reshape(len(basis.s), repeats, len(people))
        of_copies = [gram.sums(w[:, k], people, weights * (recipe.copies_weight / repeats)) for k in range(repeats)]
        found.append(BlockSums(A=A, M=M, with_copies=(A + sum(A for A, _ in of_copies), M + sum(M for _, M in of_copies))))
    return ChunkSums(people=np.unique(people), blocks=found, vectors=vectors)


def chunk_confidences(
    crops: Array,
    embeddings: Array | None,
    people: Array,
    recipe: Recipe,
    s: tuple[Array, ...],
    templates: Array | None,
    *U_and_B: Array,
) -> tuple[Array, Array]:
    """Return the confidence (n,) of each photo, and the person with the highest score (n,)."""
    half = len(U_and_B) // 2
    blocks = list(map(Block, recipe.rows, U_and_B[:half], s, U_and_B[half:]))
    X = recipe.features.columns(crops, embeddings)
    found = []
    for some in gram.in_columns(len(people), len(blocks[0].B)):
        scores = gram.scores(blocks, templates, X[:, some], recipe.coding).T
        found.append((score_confidence(scores, recipe.confidence), scores.argmax(axis=1)))
    confidence, best = map(np.concatenate, zip(*found, strict=True))
    return confidence, best


def chunk_doubts(
    crops: Array,
    embeddings: Array | None,
    people: Array,
    trusted: Array,
    recipe: Recipe,
    s: tuple[Array, ...],
    *matrices: Array,
) -> tuple[Array, Array, Array]:
    """Return what label_noise needs of each photo (n,): the score of its own person, the highest other score, and whose it is.

    The scores are those of a ridge without the photo, fused and of unit length. `matrices` are U, then the factors and the
    people of LeaveOneOut, of each block.
    """
    third = len(matrices) // 3
    bases = list(map(Basis, recipe.rows, matrices[:third], s))
    ridges = list(map(LeaveOneOut, matrices[third : 2 * third], matrices[2 * third :]))
    X = recipe.features.columns(crops, embeddings)
    codes = [basis.code(X, recipe.coding) for basis in bases]
    found = []
    for some in gram.in_columns(len(people), len(ridges[0].people)):
        own_people = people[some]
        of_blocks = (ridge.scores(w[:, some], own_people, trusted[some]) for ridge, w in zip(ridges, codes, strict=True))
        scores = gram.fused(of_blocks) if len(ridges) > 1 else next(of_blocks)
        scores /= np.maximum(np.linalg.norm(scores, axis=0), np.finfo(np.float32).tiny)
        photos = np.arange(len(own_people))
        own = scores[own_people, photos].copy()
        scores[own_people, photos] = -np.inf
        found.append((own, scores.max(axis=0), scores.argmax(axis=0)))
    own, best, other = map(np.concatenate, zip(*found, strict=True))
    return own, best, other
