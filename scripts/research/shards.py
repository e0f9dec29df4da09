"""Do shards cost accuracy? The same photos, trained with one dictionary and in shards.

AR (mixed), Yale B and ORL as in accuracy.py, with 70 % of the people enrolled and the preset tiny; LFW, 100 people with five
photos each and 1,000 strangers, as `wild` draws them, with the preset network. Per split:
- plain: one dictionary (trainer.training.fit). shards: shards of about --size people (trainer.shards), unit rows.
- rank-1, and FNIR at an FPIR of 1 %, in percent; and the differences, shards minus plain.
- one shard: all people in one shard, with the classifier of the plain method, computed in another way: the number of test
  and strangers' photos with another best person, and the largest difference of a score.
Goals: on average rank-1 at most 0.3 points lower and FNIR at most 1 point higher; one shard: all labels the same, and scores
within 1e-5.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from zipfile import ZipFile

import numpy as np
import typer
from threadpoolctl import threadpool_limits

from edge.cli import common as console
from edge.errors import UsageError
from scripts.research import accuracy, wild
from scripts.research.options import DATA, Data, Splits
from scripts.research.photo_draw import draw
from trainer import training
from trainer.data.gallery import Gallery
from trainer.features.spec import Spec
from trainer.model import Model
from trainer.presets import PRESETS
from trainer.shards import fit as sharded
from trainer.types import Array, Say

LABORATORY = ("AR mixed", "Yale B", "ORL")
LFW, ARCHIVE = "LFW", "lfw_dev.zip"
PEOPLE, PHOTOS, STRANGERS = 100, 5, 1000  # of the draw from LFW
SIZE = 14  # people in a shard: five shards for AR
LOST_RANK1, LOST_FNIR, SAME = 0.3, 1.0, 1e-5  # the goals
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Photos to train on, and how to rate a model of them."""

    name: str
    number: int
    gallery: Gallery
    spec: Spec
    parameters: dict[str, Any]
    probes: Array
    """Crops of test photos and of strangers' photos."""
    rates: Callable[[Model], tuple[float, float]]
    """Return rank-1 and FNIR at an FPIR of 1 %, in percent."""


def compared(split: Split, size: int) -> dict[str, Any]:
    """Return the rates of both ways of training, and how far one shard is from the plain method."""
    given = split.gallery, split.spec, split.parameters
    people = len(split.gallery.people)
    of_person = shards(people, size, split.number)
    plain = training.fit(*given)
    vectors: Array | None = None
    if split.spec.network is not None:  # here, in one process: the plain training has just computed them
        vectors = sharded.embedded(split.gallery.images, split.spec, split.parameters["covered"], jobs=1)
    in_shards = sharded.fit(*given, shard_of_person=of_person, embeddings=vectors)
    one = sharded.fit(*given, shard_of_person=np.zeros(people, np.int32), embeddings=vectors, as_plain=True)
    scores, same = plain.scores(split.probes), one.scores(split.probes)
    return {
        "people": people,
        "shards": int(of_person.max()) + 1,
        "plain": dict(zip(("rank1", "fnir"), split.rates(plain), strict=True)),
        "sharded": dict(zip(("rank1", "fnir"), split.rates(in_shards), strict=True)),
        "one_shard": {
            "other_labels": int(np.sum(scores.argmax(axis=1) != same.argmax(axis=1))),
            "largest_difference": float(np.abs(scores - same).max()),
            "photos": len(scores),
        },
    }


def shards(people: int, size: int, seed: int) -> Array:
    """Return the shard (people,) of each person, at random."""
    return np.random.default_rng(seed).permutation(people) % max(1, round(people / size))


# --- The splits ---


def laboratory(data: Path, splits: int, names: list[str], say: Say) -> Iterator[Split]:
    sets, labels = accuracy.faces(data, say)
    parameters = {name: value for name, value in PRESETS["tiny"].items() if name != "features"}
    for task in accuracy.tasks_of(labels, splits):
        if task.name in names:
            own = sets[task.faces]
            people = np.array([f"{label:03d}" for label in task.labels])
            gallery = Gallery(images=own.crops[task.train], labels=people, sources=tuple(map(str, task.train)))
            probes = own.crops[task.test]

            def rates(model: Model, probes: Array = probes, task: accuracy.Task = task) -> tuple[float, float]:
                rank1, fnir = accuracy.rates(accuracy.answers_of(model, probes), task.people)
                return rank1, fnir

            yield Split(
                name=task.name,
                number=task.split,
                gallery=gallery,
                spec=own.spec,
                parameters=parameters,
                probes=probes,
                rates=rates,
            )


def photographs(data: Path, splits: int, say: Say) -> Iterator[Split]:
    with tempfile.TemporaryDirectory(prefix="lclrr-shards-") as place:
        with ZipFile(data / ARCHIVE) as packed:
            packed.extractall(Path(place) / "photos")
        (folder,) = (Path(place) / "photos").iterdir()
        for seed in range(splits):
            drawn = draw(folder, people=PEOPLE, photos=PHOTOS, strangers=STRANGERS, seed=seed, prefix=None, say=say)
            work = Path(place) / str(seed)
            presets = wild.Presets(drawn, work, say)
            plan = presets.plan("network")
            others = presets.read("others", plan.gallery.crop_shape, plan.gallery.alignment)

            def rates(
                model: Model, plan: training.TrainingPlan = plan, presets: wild.Presets = presets
            ) -> tuple[float, float]:
                found = wild.result(presets.drawn, presets.answers_of(model, plan.gallery, "network"))["bare"]
                return found["rank1"], found["fnir_0.01"]

            yield Split(
                name=LFW,
                number=seed,
                gallery=plan.gallery,
                spec=plan.spec,
                parameters=plan.parameters,
                probes=others.images,
                rates=rates,
            )


# --- The command ---


def summary(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the means over the splits of each set, the differences of each split, and the largest ones of one shard."""
    found = {}
    for name, splits in results.items():
        means = {
            way: {rate: float(np.mean([split[way][rate] for split in splits])) for rate in ("rank1", "fnir")}
            for way in ("plain", "sharded")
        }
        differences = {
            rate: [round(split["sharded"][rate] - split["plain"][rate], 3) for split in splits] for rate in ("rank1", "fnir")
        }
        one = [split["one_shard"] for split in splits]
        found[name] = {
            "people": splits[0]["people"],
            "shards": splits[0]["shards"],
            **means,
            "differences": differences,
            "mean_difference": {rate: float(np.mean(values)) for rate, values in differences.items()},
            "one_shard": {
                "other_labels": sum(split["other_labels"] for split in one),
                "largest_difference": max(split["largest_difference"] for split in one),
                "photos": sum(split["photos"] for split in one),
            },
        }
    return found


def table(means: dict[str, Any]) -> str:
    """Format the means, with the differences of each split. A figure that misses its goal is bold."""
    lines = [
        "| rank-1 / FNIR at FPIR 1 %, % | people, shards | plain | shards | rank-1: difference (splits) |"
        " FNIR: difference (splits) | one shard: other labels | largest difference of a score |",
        "|---" * 8 + "|",
    ]
    for name, own in means.items():
        both = (f"{own[way]['rank1']:.2f} / {own[way]['fnir']:.2f}" for way in ("plain", "sharded"))
        mean, one = own["mean_difference"], own["one_shard"]
        rank1, fnir = (
            f"{_marked(f'{mean[rate]:+.2f}', is_met)} ({', '.join(f'{value:+.2f}' for value in own['differences'][rate])})"
            for rate, is_met in (("rank1", mean["rank1"] >= -LOST_RANK1), ("fnir", mean["fnir"] <= LOST_FNIR))
        )
        labels = _marked(f"{one['other_labels']} of {one['photos']}", one["other_labels"] == 0)
        largest = _marked(f"{one['largest_difference']:.1e}", one["largest_difference"] <= SAME)
        cells = name, f"{own['people']}, {own['shards']}", *both, rank1, fnir, labels, largest
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _marked(text: str, is_met: bool) -> str:
    return text if is_met else f"**{text}**"


@app.command()
def main(
    splits: Splits = 5,
    size: Annotated[int, typer.Option(min=1, help="People in a shard, about.")] = SIZE,
    only: Annotated[str, typer.Option(help="Measure only the sets with this in their name: AR, Yale B, ORL, LFW.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    data: Data = DATA,
) -> None:
    """Compare training in shards with training of one dictionary, on the same photos."""
    names = [name for name in (*LABORATORY, LFW) if only in name]
    if not names:
        raise UsageError(f"--only {only} is in no name of a set.", f"Choose from {', '.join((*LABORATORY, LFW))}.")
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in names}

    def measure(of: Iterator[Split]) -> None:
        for split in of:
            with threadpool_limits(1):  # small problems: more threads only wait for each other on a busy machine
                results[split.name].append(compared(split, size))
            console.say(f"{split.name}, split {split.number}: {json.dumps(results[split.name][-1])}")

    if set(names) & set(LABORATORY):
        measure(laboratory(data, splits, names, console.say))
    if LFW in names:
        measure(photographs(data, splits, console.say))
    means = summary(results)
    typer.echo(json.dumps({"size": size, "sets": means, "splits": results}) if as_json else table(means))


if __name__ == "__main__":
    console.run(app)
