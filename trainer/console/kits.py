"""Pages of kits: build, history, one kit with its comparison, publish to doors, go back, download, delete, keys."""

import io
import sqlite3
import zipfile
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Literal, get_args
from urllib.parse import quote

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response

from edge.credentials import key_pair_pem, signing_key
from edge.errors import UsageError
from edge.kit.manifest import LIVE_THRESHOLDS, MAX_LIVENESS_BYTES, MAX_LIVENESS_NETWORKS
from trainer.console.call import Call, Page
from trainer.console.text import Language
from trainer.console.train import local_time, number, percent
from trainer.site import doors, jobs, kits, liveness_files, models, publishing
from trainer.site.kits import Comparison, KitInfo

Precision = Literal["fp32", "fp16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
THRESHOLD = 0.5  # of a liveness model, as in `edge-export build`
HISTORY = 50  # kits that the page lists
NAMES = 12  # people that a comparison names
MAX_FORM = 64 << 10
"""Small enough that an uploaded key stays in memory: the server writes only larger files to a temporary one."""
KEY_NAME = "kit-key.pem"


def show(call: Call) -> Response:
    """The form to build a kit, and all kits."""
    published = publishing.at_doors(call.site)
    return call.render(
        "kits.html",
        kits=kits.list_kits(call.site, HISTORY),
        models=[model for model in models.list_models(call.site, HISTORY) if not model.problem],
        doors=doors.load(call.site),
        doors_with=lambda kit: publishing.doors_with(kit, published),
        precisions=PRECISIONS,
        liveness_files=liveness_files.names(call.site),
        threshold=THRESHOLD,
        thresholds=LIVE_THRESHOLDS,
        failed=_failed_job(call.database),
        **_helpers(call.text),
    )


def _helpers(text: Language) -> dict[str, Any]:
    """Return what the templates of this topic call."""
    return {
        "local_time": local_time,
        "number": lambda value, digits=4: number(text, value, digits),
        "percent": lambda share, digits=1: percent(text, share, digits),
        "size": lambda length: f"{number(text, length / 1e6, 2)}\N{NO-BREAK SPACE}MB",
    }


def _failed_job(database: sqlite3.Connection) -> jobs.JobState | None:
    """Return the last job that made kits, if it failed."""
    last = [job for kind in ("build", "again") for job in jobs.latest(database, kind=kind, most=1)]
    newest = max(last, key=lambda job: job.id, default=None)
    return newest if newest is not None and newest.state == jobs.FAILED else None


def build(call: Call) -> Response:
    """Start to build a kit, and show its job."""
    words = [f"--model={models.get_model(call.site, call.value('model')).name}"]
    if call.value("precision") not in PRECISIONS:
        raise UsageError("There is no such precision.", f"Choose one of {', '.join(PRECISIONS)}.")
    words += [f"--precision={call.value('precision')}", *_liveness(call)]
    if call.value("name").strip():
        words.append(f"--name={kits.check_new_name(call.site, call.value('name').strip())}")
    return _start(call, words, read_key(call))


def again(call: Call) -> Response:
    """Start to pack a kit again with a higher version, and show its job."""
    kit, key = _kit(call), read_key(call)
    if kit.signed and not key:
        raise UsageError(call.text("kits.key_missing"), call.text("kits.key_missing_hint"))
    return _start(call, [f"--again={kit.name}"], key)


def _start(call: Call, words: Sequence[str], key: bytes) -> Response:
    """Start `edge-export release`. The key goes to the job by its standard input, and is stored nowhere."""
    chosen = _chosen_doors(call)
    if chosen:
        publishing.check_doors(call.site, chosen)
    command = ["release", f"--who={call.session.user}", *words, *(f"--publish={door}" for door in chosen)]
    command += ["--sign=-"] if key else []
    return call.redirect(f"/jobs/{jobs.start(call.site, 'export', [*command, '--', str(call.site.path)], secret=key)}")


def _chosen_doors(call: Call) -> list[str]:
    return [door for door in call.form.getlist("door") if isinstance(door, str)]


def read_key(call: Call) -> bytes:
    """Return the private key of the form; empty if none was chosen."""
    sent = call.form.get("key")
    if not isinstance(sent, UploadFile) or not sent.filename:
        return b""
    data = sent.file.read(jobs.MAX_SECRET + 1)
    if len(data) > jobs.MAX_SECRET:
        raise UsageError(call.text("kits.key_wrong"), call.text("kits.key_hint"))
    signing_key(data)
    return data


def _liveness(call: Call) -> list[str]:
    """Return the options for the chosen liveness models."""
    chosen = [name for name in liveness_files.names(call.site) if name in call.form.getlist("liveness")]
    if not chosen:
        return []
    if len(chosen) > MAX_LIVENESS_NETWORKS:
        raise UsageError(call.text("kits.liveness_many", most=MAX_LIVENESS_NETWORKS))
    parts = []
    for name in chosen:
        given = call.value(f"settings {name}").replace(" ", "")
        if not liveness_files.SETTINGS.fullmatch(given):
            raise UsageError(call.text("kits.settings_wrong", name=name), call.text("kits.settings_help"))
        parts += [name, *([given] if given else [])]
    return [f"--liveness=onnx:{','.join(parts)}", f"--liveness-threshold={_threshold(call)}"]


def _threshold(call: Call) -> float:
    low, high = LIVE_THRESHOLDS
    try:
        found = float(call.value("threshold", str(THRESHOLD)).replace(",", "."))
    except ValueError:
        found = -1.0
    if not low <= found <= high:
        raise UsageError(call.text("kits.threshold_wrong", low=low, high=high))
    return found


def show_kit(call: Call) -> Response:
    """One kit: facts, comparison, and what can be done with it."""
    kit = _kit(call)
    listed = kits.list_kits(call.site, HISTORY)
    published = publishing.at_doors(call.site)
    newer = publishing.doors_with_newer(kit, published)
    known = doors.load(call.site)
    return call.render(
        "kit.html",
        kit=kit,
        result=kit.result or {},
        known_models={model.name for model in models.list_models(call.site)},
        comparison=_comparison(call, kit, listed),
        others=[other.name for other in listed if other.name != kit.name and not other.problem],
        names=NAMES,
        doors=known,
        published=published,
        has_it=publishing.doors_with(kit, published),
        newer=newer,
        publishable=[door for door in known if door.drop is not None and door.name not in newer],
        is_older=bool(newer) or any(other.version > kit.version for other in listed),
        **_helpers(call.text),
    )


def _kit(call: Call) -> KitInfo:
    try:
        return kits.get_kit(call.site, call.request.path_params["kit"])
    except UsageError as error:
        raise HTTPException(HTTPStatus.NOT_FOUND, str(error)) from None


def _comparison(call: Call, kit: KitInfo, listed: Sequence[KitInfo]) -> Comparison | None:
    """Compare with the kit that the page asks for, else with the one before."""
    if kit.problem:
        return None
    against = call.query("against")
    if against:
        return kits.compare(kits.get_kit(call.site, against), kit)
    before = max((other for other in listed if other.version < kit.version and not other.problem), key=_version, default=None)
    return None if before is None else kits.compare(before, kit)


def _version(kit: KitInfo) -> int:
    return kit.version


def download(call: Call) -> Response:
    """The file of a kit."""
    kit = _kit(call)
    return FileResponse(kit.path, media_type="application/octet-stream", filename=kit.path.name)


def publish(call: Call) -> Response:
    """Copy a kit to the chosen doors."""
    kit = _kit(call)
    deliveries = publishing.publish(call.site, kit.name, _chosen_doors(call), who=call.session.user)
    done = [one.door for one in deliveries if not one.problem]
    sentences = [call.text("kits.published", doors=", ".join(done))] if done else []
    sentences += [f"{one.door}: {call.text.said(one.problem)}" for one in deliveries if one.problem]
    return call.redirect(path_of(kit), " ".join(sentences))


def delete(call: Call) -> Response:
    kit = _kit(call)
    kits.delete_kit(call.site, kit.name, who=call.session.user)
    return call.redirect("/kits", call.text("kits.deleted", name=kit.name))


def upload_liveness(call: Call) -> Response:
    """Add a liveness model to the site."""
    sent = call.form.get("file")
    if not isinstance(sent, UploadFile) or not sent.filename:
        raise UsageError(call.text("kits.no_file"))
    name = liveness_files.add(call.site, sent.filename, sent.file.read(MAX_LIVENESS_BYTES + 1), who=call.session.user)
    return call.redirect("/kits", call.text("kits.liveness_added", name=name))


def make_key_pair(call: Call) -> Response:
    """A new key pair as a ZIP file. Neither key is stored here."""
    private, public = key_pair_pem(Ed25519PrivateKey.generate())
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data, mode in ((KEY_NAME, private, 0o100600), (f"{KEY_NAME}.pub", public, 0o100644)):
            entry = zipfile.ZipInfo(f"kit-key/{name}")
            entry.external_attr = mode << 16
            archive.writestr(entry, data)
    call.record("make key pair", KEY_NAME)
    headers = {"Content-Disposition": 'attachment; filename="kit-key.zip"'}
    return Response(file.getvalue(), media_type="application/zip", headers=headers)


def path_of(kit: KitInfo) -> str:
    """Return the path of a kit's page."""
    return f"/kits/{quote(kit.name, safe='')}"


PAGES = (
    Page("/kits", show),
    Page("/kits", build, "operator", "POST", MAX_FORM),
    Page("/kits-liveness", upload_liveness, "operator", "POST", MAX_LIVENESS_BYTES + MAX_FORM),
    Page("/kits-key", make_key_pair, "operator", "POST"),
    Page("/kits/{kit}", show_kit),
    Page("/kits/{kit}/file", download, "operator"),
    Page("/kits/{kit}/publish", publish, "operator", "POST"),
    Page("/kits/{kit}/again", again, "operator", "POST", MAX_FORM),
    Page("/kits/{kit}/delete", delete, "operator", "POST"),
)
