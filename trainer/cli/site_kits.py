"""`trainer site kits` and its family: the kits of a site, and which door has which. `edge-export release` makes them."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from edge.cli import common as console
from edge.errors import KitError
from edge.files import read_bytes
from edge.kit.manifest import MAX_LIVENESS_BYTES, Liveness
from edge.text import plural
from trainer.cli.site_train import Json, SiteFolder, Who
from trainer.site import kits, liveness_files, publishing
from trainer.site.folder import Site
from trainer.site.kits import KitInfo
from trainer.site.users import login_name

KitName = Annotated[str, typer.Argument(metavar="KIT", help="A name that `trainer site kits` prints.")]


def list_kits(site: SiteFolder, as_json: Json = False) -> None:
    """List the kits of a site, newest first, and the doors to which each was published."""
    opened = Site.open(site)
    published = publishing.at_doors(opened)
    for kit in kits.list_kits(opened):
        doors = publishing.doors_with(kit, published)
        typer.echo(json.dumps(_facts(kit) | {"doors": doors}) if as_json else _line(kit, doors))


def _facts(kit: KitInfo) -> dict[str, Any]:
    values = {name: value for name, value in asdict(kit).items() if name != "path"}
    return values | {"file": str(kit.path), "model": kit.model}


def _line(kit: KitInfo, doors: list[str]) -> str:
    if kit.problem:
        return f"{kit.name}  {kit.problem}"
    facts = [f"version {kit.version}", plural(kit.people, "person", "people"), f"{kit.bytes / 1e6:.2f} MB"]
    facts += [f"threshold {kit.threshold:g}", kit.precision, "signed" if kit.signed else "not signed"]
    facts += ["liveness" if kit.liveness else "no liveness", *([f"at {', '.join(doors)}"] if doors else [])]
    return f"{kit.name}  {', '.join(facts)}"


def compare_kits(
    site: SiteFolder, older: KitName, newer: Annotated[str, typer.Argument(metavar="NEWER", help="The other kit.")]
) -> None:
    """Show the differences between two kits of a site. One JSON object: people, and [old, new] of what differs."""
    opened = Site.open(site)
    found = kits.compare(kits.get_kit(opened, older), kits.get_kit(opened, newer))
    changes = {
        name: [asdict(value) if isinstance(value, Liveness) else value for value in pair]
        for name, pair in found.changes.items()
    }
    typer.echo(json.dumps({"added": found.added, "removed": found.removed, **changes}))


def delete_kit(site: SiteFolder, name: KitName, who: Who = None) -> None:
    """Delete a kit of a site. Doors that have it keep it."""
    kits.delete_kit(Site.open(site), name, who=who or login_name())
    console.say(f"Deleted {name}.")


def publish_kit(
    site: SiteFolder,
    name: KitName,
    doors: Annotated[list[str], typer.Argument(metavar="DOORS...", help="Names of doors, or all.")],
    who: Who = None,
) -> None:
    """Copy a kit to the files that the terminals of these doors watch. Nothing is written if one of them cannot get it."""
    opened = Site.open(site)
    deliveries = publishing.publish(opened, name, publishing.named_doors(opened, doors), who=who or login_name())
    for delivery in deliveries:
        console.say(str(delivery))
    if any(delivery.problem for delivery in deliveries):
        raise KitError("Not every door got the kit.", "Correct the problem, and publish it again.")


def add_liveness(
    site: SiteFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A published liveness model (ONNX).")],
    who: Who = None,
) -> None:
    """Copy a liveness model to liveness/ of a site. `edge-export release --liveness onnx:NAME` puts it into a kit."""
    data = read_bytes(file, MAX_LIVENESS_BYTES + 1)
    name = liveness_files.add(Site.open(site), file.name, data, who=who or login_name())
    console.say(f"Use it with: edge-export release {site} --liveness onnx:{name}")


COMMANDS = {
    "kits": list_kits,
    "compare-kits": compare_kits,
    "delete-kit": delete_kit,
    "publish-kit": publish_kit,
    "add-liveness": add_liveness,
}
