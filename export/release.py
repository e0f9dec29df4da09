"""Make a kit of a site: build it from a model, or pack an older kit again with a higher version; then publish it to doors.

`plan` checks everything that a person can have wrong, before the work starts. `carry_out` does the work as a job: it writes
kits/NAME.kit and a result (.json) beside it, which the console shows. A job that is cancelled or fails leaves no kit.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from edge.credentials import signing_key
from edge.errors import PrecisionLossError, UsageError
from edge.files import write_file
from edge.kit import format as kit_format
from edge.kit import selftest
from edge.kit.format import Kit
from edge.text import plural
from edge.vision.recognize import Recognizer
from export.build import BuiltKit, build_kit
from export.liveness import THRESHOLD
from export.liveness import build as build_liveness
from export.liveness import parse as parse_liveness
from export.nodes import Precision
from export.pack import repack
from trainer.data import detector as detectors
from trainer.model import Model
from trainer.parallel import sigint_ignored
from trainer.site import kits, liveness_files, models, publishing, trail
from trainer.site.folder import Site, utc_now
from trainer.site.jobs import Job
from trainer.site.kits import AGAIN_STAGES, BUILD_STAGES, KIT, PUBLISHING, RESULT, RESULT_SCHEMA, SAVING
from trainer.site.publishing import Delivery
from trainer.site.training_cache import recall_vectors

READING, PACKING, TESTING = BUILD_STAGES[0], *AGAIN_STAGES[:2]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A kit to be made. `plan` makes it, with checked values."""

    site: Site
    name: str | None = None
    """Of the kit; None: the time at the end of the work."""
    model: str = ""
    """Name of the model to build from, unless an older kit is packed again."""
    precision: Precision = "fp32"
    liveness: str | None = None
    """As in `edge-export build --liveness`; files in liveness/ of the site need no folder."""
    liveness_threshold: float = THRESHOLD
    series: str = ""
    again: str | None = None
    """Name of the kit to pack again."""
    private_key: bytes | None = field(default=None, repr=False)
    """Ed25519, PEM. It is never written."""
    doors: tuple[str, ...] = ()
    """Where to publish the kit."""

    @property
    def kind(self) -> str:
        """The kind of the job."""
        return "build" if self.again is None else "again"

    @property
    def options(self) -> dict[str, Any]:
        """What the job and the result say about the plan."""
        doors = {"publish": list(self.doors)} if self.doors else {}
        if self.again is not None:
            return {"again": self.again, **doors}
        own = {"precision": self.precision, "liveness": self.liveness, "liveness_threshold": self.liveness_threshold}
        return {"model": self.model, **own, "series": self.series, **doors}


@dataclass(frozen=True, kw_only=True)
class Released:
    """A kit that was written, and what happened at the doors."""

    name: str
    path: Path
    result: dict[str, Any]
    deliveries: tuple[Delivery, ...]

    def sentences(self) -> list[str]:
        """Describe the kit and the deliveries for people."""
        facts = self.result
        signed = "signed" if facts["signed"] else "not signed"
        size = f"{facts['bytes'] / 1e6:.2f} MB"
        people = plural(facts["people"], "person", "people")
        first = f"Kit {self.name}: version {facts['kit_version']}, {people}, {size}, {signed}."
        return [first, *map(str, self.deliveries)]


def plan(site: Site, *, model: str | None = None, publish: Sequence[str] = (), **values: Any) -> Plan:
    """Check what is asked for, as far as that is possible before the work. `model`: None is the newest."""
    found = Plan(site=site, doors=publishing.named_doors(site, publish), **values)
    if found.private_key is not None:
        signing_key(found.private_key)
    if found.name is not None:
        found = replace(found, name=kits.check_new_name(site, found.name))
    if publish:
        publishing.check_doors(site, found.doors)
    if found.again is not None:
        again = kits.get_kit(site, found.again)
        if again.signed and found.private_key is None:
            raise UsageError(f"The kit {again.name} is signed, so it must be signed again.", "Give the key that signed it.")
        return found
    if found.liveness is not None:
        parse_liveness(found.liveness, liveness_files.folder(site))
    return replace(found, model=_newest_model(site) if model is None else models.get_model(site, model).name)


def _newest_model(site: Site) -> str:
    newest = next((model.name for model in models.list_models(site) if not model.problem), None)
    if newest is None:
        raise UsageError("This site has no model.", "Train one with `trainer site train`, or on the page Train.")
    return newest


def carry_out(plan: Plan, job: Job, *, who: str) -> Released:
    """Make the kit, publish it, and finish the job."""
    started = time.monotonic()
    version = publishing.next_version(plan.site)
    data, facts = _built(plan, job, version) if plan.again is None else _packed_again(plan, job, version)
    kit = kit_format.parse(data)
    seconds = round(time.monotonic() - started, 1)
    result = facts | _facts(kit) | {"schema": RESULT_SCHEMA, "options": plan.options, "who": who, "seconds": seconds}
    result["created"] = utc_now()
    with sigint_ignored():  # what is published cannot be taken back
        job.stage(SAVING)
        name = _write(plan, data, result, who)
        deliveries: list[Delivery] = []
        if plan.doors:
            job.stage(PUBLISHING)
            deliveries = publishing.publish(plan.site, name, plan.doors, who=who)
        path = plan.site.kits / f"{name}{KIT}"
        released = Released(name=name, path=path, result=result, deliveries=tuple(deliveries))
        job.finish(" ".join(released.sentences()), kit=name)
    return released


def _built(plan: Plan, job: Job, version: int) -> tuple[bytes, dict[str, Any]]:
    """Build a kit from a model, with all checks of `edge-export build`."""
    job.stage(READING)
    live = None
    if plan.liveness is not None:
        networks = parse_liveness(plan.liveness, liveness_files.folder(plan.site))
        live = build_liveness(networks, plan.liveness_threshold)
    model = Model.load(models.get_model(plan.site, plan.model).path)
    recall_vectors(plan.site, model)
    try:
        built = build_kit(
            model,
            precision=plan.precision,
            detector=detectors.yunet(job.say),
            liveness=live,
            private_key=plan.private_key,
            kit_version=version,
            series=plan.series,
            compared=False,
            report=job.stage,
        )
    except PrecisionLossError as error:
        raise PrecisionLossError(error.message, "Build a larger kit: fp16 or fp32.") from None
    return built.kit, {"model": plan.model, "again": None, **_measurements(built, plan.precision)}


def _measurements(built: BuiltKit, precision: Precision) -> dict[str, Any]:
    """Return what a build measured."""
    return {
        "accuracy": built.accuracies[precision],
        "accuracy_exact": built.accuracies["fp32"],
        "judged_on": built.judged_on,
        "iterations": built.choice.coding.iterations,
        "microseconds": round(built.precision_timings[precision]),
        "compared_faces": sum(parity.number for parity in built.parities),
        "score_difference": max(parity.score_difference for parity in built.parities),
    }


def _packed_again(plan: Plan, job: Job, version: int) -> tuple[bytes, dict[str, Any]]:
    """Pack a kit with a higher version, and check that it still computes its results."""
    assert plan.again is not None
    job.stage(PACKING)
    older = kits.get_kit(plan.site, plan.again)
    data = repack(kit_format.read_kit_bytes(older.path), kit_version=version, private_key=plan.private_key)
    job.stage(TESTING)
    selftest.check(Recognizer(kit_format.parse(data)))
    return data, {**(older.result or {}), "again": plan.again}


def _facts(kit: Kit) -> dict[str, Any]:
    """Return what the kit says about itself, without the names of people."""
    manifest, live = kit.manifest, kit.manifest.liveness
    return {
        "kit_version": manifest.kit_version,
        "sha256": kit.sha256,
        "bytes": kit.length,
        "people": len(manifest.labels),
        "threshold": manifest.thresholds.confidence,
        "precision": manifest.precision,
        "signed": kit.signature != "none",
        "liveness": None if live is None else list(live.names),
    }


def _write(plan: Plan, data: bytes, result: Mapping[str, Any], who: str) -> str:
    """Write a kit and the result beside it, both or none. Return the name."""
    site = plan.site
    for file in site.kits.glob(f"*{RESULT}"):
        if kits.OWN_NAME.fullmatch(file.stem) and not file.with_suffix(KIT).exists():
            file.unlink()  # of a job that was killed while it wrote
    name = _new_name(site) if plan.name is None else kits.check_new_name(site, plan.name)
    path = site.kits / f"{name}{KIT}"
    beside = path.with_name(f"{name}{RESULT}")
    try:
        write_file(beside, json.dumps(result, ensure_ascii=False).encode())
        write_file(path, data)  # last: a kit that is there is complete
        with site.database() as database:
            details = f"model {plan.model}" if plan.again is None else f"again: {plan.again}"
            trail.record(database, who, "build kit", name, f"{details}, version {result['kit_version']}")
    except BaseException:
        for file in (path, beside):
            file.unlink(missing_ok=True)
        raise
    return name


def _new_name(site: Site) -> str:
    """Return a name by the time that no kit has."""
    while (site.kits / f"{(name := f'{datetime.now():%Y%m%d-%H%M%S}')}{KIT}").exists():
        time.sleep(0.1)
    return name
