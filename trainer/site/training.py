"""Train the model of a site: photos/ and strangers/ to models/NAME.npz, with a result (.json) and a report (.html) beside it.

This is `trainer fit` on the folders of a site, then a cross-validation. Crops and vectors of earlier trainings are used again
(trainer.site.training_cache). A training that is cancelled or fails leaves no model.
"""

import hashlib
import json
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from edge.camera.photo import SUFFIXES
from edge.errors import UsageError
from edge.files import write_file
from edge.text import percent, plural
from trainer import training
from trainer.baselines.registry import method_of
from trainer.data.gallery import Gallery, crop_digests
from trainer.evaluation.cross_validation import CrossValidation, cross_validate
from trainer.evaluation.measures import Share
from trainer.method.solver import Step
from trainer.model import Model
from trainer.presets import Preset
from trainer.shards.fit import NETWORK_VECTORS
from trainer.site import trail
from trainer.site.advice import weakest
from trainer.site.folder import Site, transaction, utc_now
from trainer.site.models import MODEL, REPORT, RESULT, RESULT_SCHEMA
from trainer.site.photo_index import photo_file, photo_files
from trainer.site.training_cache import TrainingCache, training_cache
from trainer.thresholds import FPIR
from trainer.types import Say, Stage, silent

READING, VECTORS, TRAINING, THRESHOLD, CHECKING, SAVING = STAGES = (
    "reading photos",
    "network vectors",
    "training",
    "threshold",
    "cross-validation",
    "saving",
)
"""The stages of a training, in their order. A preset without a network has no network vectors."""
FEW_PHOTOS = 1000  # more threads gain nothing below, and take five times as long if other programs use the cores
MAX_SUSPECTED = 200  # photos with a suspected wrong name that the result lists
OWN_NAME = re.compile(r"\d{8}-\d{6}")
STILL_THERE = "Photos were deleted or moved during the training, so the model was not saved."


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The model that a training wrote."""

    name: str
    path: Path
    result: dict[str, Any]


def train(
    site: Site, *, preset: Preset | None = None, who: str, threads: int | None = None, stage: Stage = silent, say: Say = silent
) -> Trained:
    """Train a model on the photos of a site. `stage` receives STAGES, `say` notes for the user.

    `threads` are those of BLAS; without it, one for at most FEW_PHOTOS photos, else one for each core.
    """
    started = time.monotonic()
    with training_cache(site) as cache, threadpool_limits(threads or (1 if _photos(site) <= FEW_PHOTOS else None)):
        plan = _plan(site, preset, cache, stage, say)
        model = _model(plan, cache, stage)
        found = cross_validate(model, plan.gallery, training.retrained(model, plan.gallery), progress=partial(stage, CHECKING))
        for note in training.result_notes(plan, model, calibrated=True, options=False):
            say(note)
        stage(SAVING, 0, 0)
        _check_photos_exist(site, plan.gallery)
        result = _result(site, plan, model, found) | {"who": who, "preset": preset, "created": utc_now()}
        result["seconds"] = round(time.monotonic() - started, 1)
        name = _new_name(site)
        with _written_together(site, name) as path:
            if found is not None:
                write_file(path.with_suffix(REPORT), _report(model, found, path.name).encode())
            write_file(path.with_suffix(RESULT), json.dumps(result, ensure_ascii=False).encode())
            model.save(path)  # last: a model that is there is complete
            with site.database() as database:
                trail.record(database, who, "train", name, f"{len(model.labels)} people, {len(model.crops)} photos")
        others = () if plan.strangers is None else crop_digests(plan.strangers.images)
        cache.keep_only({*crop_digests(plan.gallery.images), *others})
    return Trained(name=name, path=path, result=result)


def _photos(site: Site) -> int:
    """Return the number of photo files of people."""
    return sum(len(photo_files(folder)) for folder in site.photos.iterdir() if folder.is_dir())


def _plan(site: Site, preset: str | None, cache: TrainingCache, stage: Stage, say: Say) -> training.TrainingPlan:
    """Read the photos, as `trainer fit` does."""
    stage(READING, 0, 0)
    options: dict[str, Any] = {"progress": partial(stage, READING), "say": say, "cache": cache.crops}
    plan = training.prepare(
        training.photo_loader(site.photos, spool=cache.work.crops_file, **options),
        site.strangers if has_strangers(site) else None,
        method=method_of("lclrrdl"),
        preset=preset,
        config=None,
        options={},
        **options,
    )
    for note in plan.notes:
        say(note)
    with site.database() as database:
        kept = {(row["sha256"], row["person"]) for row in database.execute("SELECT sha256, person FROM kept_photos")}
    pairs = zip(plan.gallery.files, plan.gallery.labels.tolist(), strict=True)
    confirmed = frozenset(i for i, pair in enumerate(pairs) if pair in kept)
    return replace(plan, gallery=replace(plan.gallery, confirmed=confirmed))


def has_strangers(site: Site) -> bool:
    """Whether the folder of strangers has photos."""
    return any(path.suffix.lower() in SUFFIXES for path in site.strangers.rglob("*") if not path.name.startswith("."))


def _model(plan: training.TrainingPlan, cache: TrainingCache, stage: Stage) -> Model:
    in_shards = training.needs_shards(len(plan.gallery.people), plan.method.estimator, plan.parameters)

    def show(step: Step) -> None:
        stage(TRAINING, step.iteration, 0)

    def named(name: str, done: int, total: int) -> None:
        fold = re.match(r"threshold, fold(?: (\d+) of (\d+))?", name)
        if name.startswith(NETWORK_VECTORS):
            stage(VECTORS, done, total)
        elif fold is None:
            stage(name, done, total)  # the steps of many people have their own names
        else:
            stage(THRESHOLD, *((int(fold[1]) - 1, int(fold[2])) if fold[1] else (done, total)))

    how: dict[str, Any] = {"method": plan.method.estimator, "fpir": FPIR, "strangers": plan.strangers, "stage": named}
    return training.train(plan.gallery, plan.spec, plan.parameters, None if in_shards else show, work=cache.work, **how)


def _check_photos_exist(site: Site, gallery: Gallery) -> None:
    """A person who was deleted meanwhile must not be in a new model."""
    if not all((site.photos / source).exists() for source in gallery.sources):
        raise UsageError(STILL_THERE, "Train again.")


def _new_name(site: Site) -> str:
    """Return a name by the time that no model has."""
    while (site.models / f"{(name := f'{datetime.now():%Y%m%d-%H%M%S}')}{MODEL}").exists():
        time.sleep(0.1)
    return name


@contextmanager
def _written_together(site: Site, name: str) -> Iterator[Path]:
    """Give the path for a model and the files beside it. If the block fails or is cancelled, none of them stays."""
    for file in (*site.models.glob(f"*{RESULT}"), *site.models.glob(f"*{REPORT}")):
        if OWN_NAME.fullmatch(file.stem) and not file.with_suffix(MODEL).exists():
            file.unlink()  # of a training that was killed while it wrote
    path = site.models / f"{name}{MODEL}"
    try:
        yield path
    except BaseException:
        for file in (path, path.with_suffix(REPORT), path.with_suffix(RESULT)):
            file.unlink(missing_ok=True)
        raise


def _report(model: Model, found: CrossValidation, file: str) -> str:
    """Return the page of `trainer evaluate --report`, of the cross-validation."""
    from trainer.evaluation.evaluate import measure
    from trainer.evaluation.report import page  # matplotlib is slow to load
    from trainer.evaluation.trials import system_of_model

    note = f"Cross-validation with {plural(found.folds, 'fold')}: each photo is scored by a model that was trained without it."
    return page(measure(system_of_model(model, file), found.trials, (note,)), date.today())


# --- The result ---


def share_facts(share: Share | None) -> dict[str, Any] | None:
    """Return a share for JSON; None if nothing was counted."""
    if share is None or share.interval is None:
        return None
    low, high = share.interval
    return {"count": share.count, "of": share.of, "share": share.value, "low": low, "high": high}


def _result(site: Site, plan: training.TrainingPlan, model: Model, found: CrossValidation | None) -> dict[str, Any]:
    """Return what NAME.json stores, except who and when."""
    suspected = list(_suspected(plan.gallery, model))
    people = () if found is None else found.people
    own = None if found is None else found.own
    calibration = model.calibration
    false_accepts = None
    if calibration is not None:
        low, high = calibration.interval
        counts = {"count": calibration.passed, "of": calibration.trials}
        false_accepts = counts | {"share": calibration.rate, "low": low, "high": high, "given_strangers": calibration.public}
        false_accepts |= {"target": calibration.target, "stated": calibration.stated_rate}
    doubts = [photo["person"] for photo in suspected]
    return {
        "schema": RESULT_SCHEMA,
        "people": len(model.labels),
        "photos": len(model.crops),
        "threshold": None if calibration is None else calibration.confidence,
        "folds": 0 if found is None else found.folds,
        "recognised": share_facts(None if found is None else found.recognised),
        "missed": share_facts(None if own is None else own.fnir),
        "wrong": None if own is None else own.wrong,
        "false_accepts": false_accepts,
        "single": sum(person.photos < 2 for person in people),
        "weakest": weakest(people, doubts, partial(_files_of, site)),
        "suspected": suspected[:MAX_SUSPECTED],
        "suspected_photos": len(suspected),
        "rejected": [{"source": photo.source, "reason": photo.reason} for photo in plan.gallery.rejected[:MAX_SUSPECTED]],
        "notes": list(plan.notes),
        "each": [vars(person) for person in people],
    }


def _files_of(site: Site, person: str) -> list[Path]:
    return [Path(entry.path) for entry in photo_files(site.photos / person)]


def _suspected(gallery: Gallery, model: Model) -> Iterator[dict[str, Any]]:
    """Yield the photos with a suspected wrong name, and the person that they look like."""
    for photo, person in model.training.get("doubted", ()):
        folder, _, file = gallery.sources[photo].partition("/")
        yield {"person": folder, "file": file, "looks_like": model.labels[person], "sha256": gallery.files[photo]}


def keep_photo(site: Site, database: sqlite3.Connection, person: str, file: str, *, who: str) -> None:
    """Confirm that a photo shows its person: the next trainings use it, and do not suspect its name."""
    digest = hashlib.sha256(photo_file(site, person, file).read_bytes()).hexdigest()
    with transaction(database):
        database.execute("INSERT OR IGNORE INTO kept_photos VALUES (?, ?)", (digest, person))
        trail.record(database, who, "keep photo", person, file)


def summary(result: dict[str, Any]) -> list[str]:
    """Describe a result in sentences, for the terminal and the log."""

    def shown(share: dict[str, Any], digits: int = 1) -> str:
        low, high = (percent(share[end], digits) for end in ("low", "high"))
        return f"{percent(share['share'], digits)} ({share['count']} of {share['of']}; 95 % interval {low} to {high})"

    lines = [f"{plural(result['people'], 'person', 'people')}, {plural(result['photos'], 'photo')}."]
    if result["recognised"] is None:
        lines.append("No cross-validation: it needs a person with two photos.")
    else:
        lines.append(f"Recognised in cross-validation: {shown(result['recognised'])}.")
    if result["missed"] is not None:
        lines.append(f"Expected misses at the threshold {result['threshold']:g}: {shown(result['missed'])}.")
    if result["false_accepts"] is not None:
        lines.append(f"Strangers who get a name: {shown(result['false_accepts'], 2)}.")
    lines += [f"Suspected name: {one['person']}/{one['file']} looks like {one['looks_like']}." for one in result["suspected"]]
    return lines
