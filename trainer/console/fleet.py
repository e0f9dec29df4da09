"""The page of a fleet: what its doors report, what is published for them, and changes of a rollout.

Only sites with fleet.toml have it.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from edge.errors import UsageError
from edge.fleet.documents import kit_sha256
from edge.kit.format import kit_id
from trainer.console.call import Call, Page
from trainer.console.kits import MAX_FORM, read_key
from trainer.console.text import Language
from trainer.console.train import local_time, percent
from trainer.site import fleet, jobs, kits

SHARES = (0.0, 0.01, 0.1, 0.5, 1.0)
FIRST_SHARE = 0.01
KITS = 20  # that the form offers
UNKNOWN = "-"
CHANGES = {"stop": "--stop", "resume": "--resume"}


def show(call: Call) -> Response:
    """What the doors report and what is published; as JSON for the page's script."""
    if not fleet.exists(call.site):
        raise HTTPException(HTTPStatus.NOT_FOUND, call.text("fleet.none"))
    settings = fleet.load(call.site)
    found = fleet.watch(call.site.path).facts()
    doors = [_words(call.text, door) for door in found.doors]
    summary = _summary(call.text, doors, is_known=found.is_known)
    if call.wants_json:
        return JSONResponse({"doors": doors, "summary": summary})
    known = [kit for kit in kits.list_kits(call.site, KITS) if not kit.problem]
    names = {kit.version: kit.name for kit in known}
    groups = {name: _rollout(call.text, group["rollout"], names) for name, group in found.groups.items()}
    values: dict[str, Any] = {"settings": settings, "found": found, "doors": doors, "summary": summary, "groups": groups}
    values |= {"shares": [(share, percent(call.text, share, 0)) for share in SHARES], "first_share": FIRST_SHARE}
    return call.render("fleet.html", **values, kits=known)


def _words(text: Language, door: Mapping[str, Any]) -> dict[str, str]:
    """Return what the page shows of a door."""
    state = "online" if door["online"] else "offline" if door["reports"] else "missing"
    version = "" if door["kit_version"] is None else text("fleet.version", version=door["kit_version"])
    per_hour = door["decisions_per_hour"]
    return {
        "door": f"{door['group']}/{door['door']}",
        "state": "online" if door["online"] else "offline",
        "state_text": text(f"fleet.state_{state}"),
        "kit": " · ".join(filter(None, (version, door["kit"]))) or UNKNOWN,
        "list": door["list"] or UNKNOWN,
        "data": text(f"fleet.data_{door['state']}") if door["state"] else UNKNOWN,
        "verified": local_time(door["verified"]) if door["verified"] else UNKNOWN,
        "decisions": UNKNOWN if per_hour is None else str(per_hour),
        "problems": text.said(door["problem"] or door["error"] or UNKNOWN),
        "failing": "yes" if door["problem"] else "",
    }


def _summary(text: Language, doors: list[dict[str, str]], *, is_known: bool) -> str:
    """Return how many doors need attention."""
    if not is_known:
        return text("fleet.asking")
    failing = sum(door["failing"] == "yes" for door in doors)
    key = "fleet.summary" if failing else "fleet.summary_good"
    return text(key, doors=len(doors), failing=failing) if doors else ""


def _rollout(text: Language, rollout: dict[str, Any] | None, names: dict[int, str]) -> dict[str, Any]:
    """Return what is published for a group, in words."""
    if rollout is None:
        return {"sentence": text("fleet.no_kit"), "is_stopped": None, "kit": ""}
    name = names.get(rollout["kit_version"], "")
    facts = {"kit": name or kit_id(kit_sha256(rollout["kit"])), "version": rollout["kit_version"]}
    sentence = text("fleet.published", **facts, share=percent(text, rollout["share"], 0))
    named = rollout["doors"] or []
    parts = [sentence, text("fleet.only_doors", doors=", ".join(named)) if named else ""]
    parts.append(text("fleet.is_stopped") if rollout["stopped"] else "")
    return {"sentence": " ".join(filter(None, parts)), "is_stopped": rollout["stopped"], "kit": name}


def publish(call: Call) -> Response:
    """Start to publish a kit for a share of the doors, and show the job."""
    kit = kits.get_kit(call.site, call.value("kit"))
    if call.value("share") not in map(str, SHARES):
        raise UsageError(call.text("fleet.no_share"))
    return _start(call, f"--kit={kit.name}", f"--share={call.value('share')}")


def change(call: Call) -> Response:
    """Start to stop or resume a rollout, and show the job."""
    option = CHANGES.get(call.value("change"))
    if option is None:
        raise UsageError(call.text("fleet.no_change"))
    return _start(call, option)


def _start(call: Call, *words: str) -> Response:
    """Start `edge-export release-fleet`. The key goes to the job by its standard input, and is stored nowhere."""
    key = read_key(call)
    command = ["release-fleet", f"--who={call.session.user}", f"--group={call.value('group')}", *words]
    command += ["--key=-"] if key else []
    return call.redirect(f"/jobs/{jobs.start(call.site, 'export', [*command, '--', str(call.site.path)], secret=key)}")


PAGES = (
    Page("/fleet", show),
    Page("/fleet/publish", publish, "operator", "POST", MAX_FORM),
    Page("/fleet/change", change, "operator", "POST", MAX_FORM),
)
