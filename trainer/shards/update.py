"""Enrol or forget a person in a model of shards: only their shard is learned again, and all sums.

The dictionaries of the other shards never saw the person. Factors, sums and classifier are computed again from all
dictionaries and the photos that are left, so a forgotten person is in no array: the result is what a training without them,
with the same shards, would give.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from trainer.data.gallery import Gallery
from trainer.shards.fit import ONE_THREAD, Shards, assembled, calibrated, embedded
from trainer.shards.model import ShardedModel
from trainer.shards.samples import Samples
from trainer.shards.training import Training
from trainer.thresholds import FPIR
from trainer.types import Array, Stage, silent


def enrol(model: ShardedModel, photos: Gallery, *, calibrate: bool = False, stage: Stage = silent) -> ShardedModel:
    """Add people to a model, or photos to people who are in it. `photos` are not in the model yet."""
    labels = model.labels + tuple(person for person in photos.people if person not in model.labels)
    number = {label: i for i, label in enumerate(labels)}
    people = np.array([number[label] for label in photos.labels], np.int32)
    of_person, sizes = list(model.shard_of_person), np.bincount(model.shard_of_person)
    for _ in labels[len(model.labels) :]:
        smallest = int(sizes.argmin())
        of_person.append(smallest)
        sizes[smallest] += 1
    vectors = None
    if model.embeddings is not None:
        vectors = embedded(photos.images, model.spec, model.embeddings.shape[1] > 1, stage=stage, jobs=1)
        vectors = np.concatenate([model.embeddings, vectors])
    samples = Samples(
        crops=np.concatenate([model.crops, photos.images]),
        people=np.concatenate([model.crop_people, people]),
        embeddings=vectors,
    )
    shards = _shards(model, np.array(of_person, np.int32))
    return _learned_again(model, samples, labels, shards, set(shards.of_person[people].tolist()), calibrate, stage)


def forget(model: ShardedModel, name: str, *, calibrate: bool = False, stage: Stage = silent) -> ShardedModel:
    """Remove a person from a model: photos, atoms, sums, and their influence on the atoms of others."""
    person = model.labels.index(name)
    shard = int(model.shard_of_person[person])
    kept = model.crop_people != person
    numbers = np.arange(len(model.labels), dtype=np.int32)
    numbers[person + 1 :] -= 1  # of the people after the one who leaves
    samples = Samples(
        crops=model.crops[kept],
        people=numbers[model.crop_people[kept]],
        embeddings=None if model.embeddings is None else model.embeddings[kept],
    )
    shards = _shards(model, np.delete(model.shard_of_person, person), numbers)
    changed = {shard}
    if shard not in shards.of_person:  # it was their own
        others = [i for i in range(len(model.dictionaries)) if i != shard]
        shards = Shards(
            of_person=shards.of_person - (shards.of_person > shard),
            dictionaries=tuple(shards.dictionaries[i] for i in others),
            atom_people=tuple(shards.atom_people[i] for i in others),
        )
        changed = set()
    labels = model.labels[:person] + model.labels[person + 1 :]
    return _learned_again(model, samples, labels, shards, changed, calibrate, stage)


def _shards(model: ShardedModel, of_person: Array, numbers: Array | None = None) -> Shards:
    """Return the shards of a model with other people. `numbers` are the new indices of the people."""
    atoms = model.atom_people if numbers is None else tuple(numbers[own] for own in model.atom_people)
    return Shards(of_person=of_person, dictionaries=model.dictionaries, atom_people=atoms)


@ONE_THREAD
def _learned_again(
    model: ShardedModel,
    samples: Samples,
    labels: tuple[str, ...],
    shards: Shards,
    changed: set[int],
    calibrate: bool,
    stage: Stage,
) -> ShardedModel:
    """Return the model of these photos; the dictionaries of the shards in `changed` are learned again."""
    parameters: dict[str, Any] = model.parameters | {"coding": model.coding, "parts": model.parts}
    training = Training.of(samples, model.spec, parameters, stage=stage)
    order = sorted(changed)
    learned = training.dictionaries([np.flatnonzero(shards.of_person == shard) for shard in order])
    dictionaries, atoms = list(shards.dictionaries), list(shards.atom_people)
    for shard, (dictionary, own) in zip(order, learned, strict=True):
        dictionaries[shard], atoms[shard] = dictionary, own
    shards = replace(shards, dictionaries=tuple(dictionaries), atom_people=tuple(atoms))
    new = assembled(training, model.spec, labels, shards, model.alignment)
    new = replace(new, parameters=model.parameters, calibration=model.calibration)
    new = replace(new, fingerprint=new.gallery().fingerprint)
    if not calibrate:
        return new
    return replace(new, calibration=calibrated(new, training, model.calibration.target if model.calibration else FPIR))
