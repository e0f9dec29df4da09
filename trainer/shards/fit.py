"""From a gallery of many people to a model of shards."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from edge.vision.confidence import score_confidence
from trainer.data.augment import COVERED
from trainer.data.gallery import Gallery, crop_digests
from trainer.features.spec import Spec
from trainer.method.estimator import LCLRRDL
from trainer.method.experts import expert_rows
from trainer.model import stored_parameters, versions
from trainer.parallel import each
from trainer.shards import gram
from trainer.shards.model import ShardedModel
from trainer.shards.samples import Samples, embed
from trainer.shards.training import FOLDS, Training, shards_of, stranger_confidences
from trainer.shards.work import WorkFolder
from trainer.thresholds import StrangerCalibration, stricter_threshold
from trainer.types import Array, Stage, silent

CHECKED = 2048  # training photos that are recognised to report the accuracy
NETWORK_VECTORS = "network vectors of photos"  # stage of a training
EMBEDDED = 64  # crops in one call of a network
ONE_THREAD = threadpool_limits.wrap(limits=1)  # so that the bits do not depend on the number of cores


@dataclass(frozen=True, kw_only=True, eq=False)
class Shards:
    """People in shards, and the dictionaries of the shards."""

    of_person: Array
    """(C,) the shard of each person."""
    dictionaries: tuple[Array, ...]
    """(d, m_g) float32."""
    atom_people: tuple[Array, ...]
    """(m_g,) the person of each atom."""

    @classmethod
    def learned(cls, training: Training, of_person: Array, work: WorkFolder | None = None) -> "Shards":
        """Learn the dictionaries of all shards."""
        shards = [np.flatnonzero(of_person == shard) for shard in range(of_person.max() + 1)]
        dictionaries, atoms = zip(*training.dictionaries(shards, work), strict=True)
        return cls(of_person=of_person, dictionaries=dictionaries, atom_people=atoms)

    @property
    def atoms(self) -> int:
        return sum(D.shape[1] for D in self.dictionaries)


@ONE_THREAD
def fit(
    gallery: Gallery,
    spec: Spec,
    parameters: dict[str, Any],
    *,
    fpir: float | None = None,
    strangers: Array | None = None,
    stage: Stage = silent,
    embeddings: Array | None = None,
    shard_of_person: Array | None = None,
    work: WorkFolder | None = None,
    **where: Any,
) -> ShardedModel:
    """Train a model of shards on a gallery.

    fpir : as in trainer.training.fit; `strangers` are crops.
    embeddings : the network's vectors of the crops, if they are known (Samples.embeddings).
    shard_of_person : (C,) the shard of each person, in the order of their names; drawn at random if it is not given.
    work : keeps finished steps; a run that was interrupted continues with them.
    where : `jobs` or `scheduler` (trainer.parallel.each), `as_plain` (Training).
    """
    labels, people = np.unique(gallery.labels, return_inverse=True)
    estimator = LCLRRDL(features=spec, **parameters)
    if embeddings is None and spec.network is not None:
        options = {name: where[name] for name in ("jobs", "scheduler") if name in where}
        embeddings = embedded(gallery.images, spec, estimator.covered, work, stage, **options)
    samples = Samples(crops=gallery.images, people=people.astype(np.int32), embeddings=embeddings)
    training = Training.of(samples, spec, parameters, stage=stage, certain=gallery.certain(), **where)
    of_person = shards_of(len(labels), estimator.random_state) if shard_of_person is None else shard_of_person
    shards = Shards.learned(training, of_person, work)
    model = assembled(training, spec, tuple(map(str, labels)), shards, gallery.alignment)
    model = replace(model, fingerprint=gallery.fingerprint)
    return model if fpir is None else replace(model, calibration=calibrated(model, training, fpir, strangers))


@ONE_THREAD
def assembled(training: Training, spec: Spec, labels: tuple[str, ...], shards: Shards, alignment: str) -> ShardedModel:
    """Return the model of dictionaries that are learned: factors, sums, wrong names, classifier. Without a threshold."""
    G = gram.gram(shards.dictionaries)
    bases = training.bases([(G, shards.atoms)])[0]
    sums = training.sums(bases)
    people = training.samples.people
    seen = training.apparent_people(bases, sums)
    if (seen != people).any():
        del sums  # it is large
        sums = training.sums(bases, weights=(seen == people).astype(float), stage="codes of trusted photos")
    blocks, templates = training.classifier(bases, sums)
    some = np.unique(np.linspace(0, len(people) - 1, min(CHECKED, len(people))).astype(int))
    best = training.confidences(blocks, templates, some)[1]
    estimator = training.recipe.estimator
    return ShardedModel(
        spec=spec,
        alignment=alignment,
        coding=training.recipe.coding,
        labels=labels,
        parts=estimator.parts,
        templates=templates,
        crops=training.samples.crops,
        crop_people=people,
        embeddings=training.samples.embeddings,
        parameters=stored_parameters(estimator, training.recipe.coding),
        training={
            "method": LCLRRDL.__name__,
            "accuracy": float(np.mean(best == people[some])),
            "accuracy_photos": len(some),
            "versions": versions(),
            "doubted": [[int(photo), int(seen[photo])] for photo in np.flatnonzero(seen != people)],
        },
        calibration=None,
        fingerprint="",
        of_blocks=tuple(blocks),
        dictionaries=shards.dictionaries,
        atom_people=shards.atom_people,
        shard_of_person=shards.of_person,
    )


@ONE_THREAD
def calibrated(model: ShardedModel, training: Training, fpir: float, given: Array | None = None) -> StrangerCalibration | None:
    """Return the threshold at which at most `fpir` of strangers' photos get a name: people left out, and given crops."""
    trusted = np.ones(len(model.crop_people), bool)
    trusted[[photo for photo, _ in model.training["doubted"]]] = False
    left_out = stranger_confidences(training, model.dictionaries, model.shard_of_person, trusted)
    others = np.zeros(0) if given is None else score_confidence(model.scores(given), model.confidence)
    return stricter_threshold(left_out, others, fpir, 1 - 1 / FOLDS)


def embedded(
    crops: Array, spec: Spec, covered: bool, work: WorkFolder | None = None, stage: Stage = silent, **where: Any
) -> Array:
    """Return the network's vectors of crops, and of their covered copies: Samples.embeddings. `work` keeps finished ones."""
    network = spec.network
    assert network is not None
    settings = {"mean": network.mean, "scale": network.scale, "channels": network.channels}
    width = len(expert_rows(spec)[0])
    shape = (1 + COVERED if covered else 1, width)
    file = None if work is None else work.vectors(network, covered, int(np.prod(shape)))
    known = {} if file is None else file.read()
    keys = list(crop_digests(crops))
    missing = [i for i, one in enumerate(keys) if one not in known]
    starts = range(0, len(missing), EMBEDDED)
    calls = ((np.asarray(crops[missing[start : start + EMBEDDED]]),) for start in starts)
    shared = (settings, covered, np.frombuffer(network.model, np.uint8))
    stage(NETWORK_VECTORS, len(keys) - len(missing), len(keys))
    for start, vectors in zip(starts, each(embed, calls, shared=shared, **where), strict=True):
        own = [keys[i] for i in missing[start : start + EMBEDDED]]
        flat = vectors.reshape(len(own), -1)
        known.update(zip(own, flat, strict=True))
        if file is not None:
            file.append(own, flat)
        stage(NETWORK_VECTORS, len(keys) - len(missing) + start + len(own), len(keys))
    return np.stack([known[one] for one in keys]).reshape(-1, *shape)
