"""The command `edge-export`. Each function parses, calls the library, reports."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from edge.cli import common as console
from edge.credentials import MAX_BYTES, write_key_pair
from edge.files import read_bytes, write_file
from edge.kit import format as kits
from edge.kit.manifest import MAX_NEW_VERSION, NO_ALIGNMENT
from export import release as releases
from export.build import BuiltKit, build_graph, build_kit, facts
from export.fleet import commands as fleet
from export.fleet import watch_commands
from export.liveness import THRESHOLD
from export.liveness import build as build_liveness
from export.liveness import parse as parse_liveness
from export.measure import AGREEMENT, ANY_RESIDUAL
from export.nodes import Precision
from export.pack import repack as repack_kit
from export.verify import verify_kit
from trainer.data import detector as detectors
from trainer.data import gallery
from trainer.model import Model
from trainer.site import jobs
from trainer.site.folder import Site
from trainer.site.users import login_name

app = console.new_app("Build and check kits: the one file that a terminal needs.")
app.add_typer(fleet.app, name="fleet", help="Distribute kits, door lists and revocations to many doors.")

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A model that `trainer fit` wrote.")]
KitFile = Annotated[Path, typer.Argument(metavar="KIT", help="A kit that `build` wrote.")]
Iterations = Annotated[int | None, typer.Option(min=1, max=1000, help="Iterations of the coder (default: measured).")]
PrecisionOption = Annotated[Precision, typer.Option(help="How the weights are stored.")]
Liveness = Annotated[
    str | None, typer.Option(metavar="onnx:FILE[,FILE]", help="Networks that tell live faces from prints and screens.")
]
LivenessThreshold = Annotated[float, typer.Option(help="Score, 0.05 to 0.99, that a live face needs.")]
Series = Annotated[str, typer.Option(help="Group of doors; a device rejects other series.")]
Key = Annotated[Path | None, typer.Option("--key", help="Public key (.pub) of the required signature.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object to stdout.")]


@app.command()
def build(
    model: ModelFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="The kit to write.")],
    precision: PrecisionOption = "fp32",
    iterations: Iterations = None,
    data: Annotated[Path | None, typer.Option(help="Held-out faces: a folder for each person, .npz or .mat.")] = None,
    allow_loss: Annotated[bool, typer.Option("--allow-loss", help="Accept a loss of more than 0.2 points.")] = False,
    detector: Annotated[Literal["yunet", "none"], typer.Option(help="Face detector in the kit.")] = "yunet",
    liveness: Liveness = None,
    liveness_threshold: LivenessThreshold = THRESHOLD,
    sign: Annotated[Path | None, typer.Option(help="Private key to sign with.")] = None,
    kit_version: Annotated[int, typer.Option(min=1, max=MAX_NEW_VERSION, help="A device accepts only a higher version.")] = 1,
    series: Series = "",
    as_json: AsJson = False,
) -> None:
    """Measure, build the graph, compare it with the trainer, and write a kit."""
    private_key = None if sign is None else read_bytes(sign)
    live = None if liveness is None else build_liveness(parse_liveness(liveness), liveness_threshold)
    trained = Model.load(model)
    held_out = None if data is None else _gallery(data, trained.alignment, trained.spec.crop_shape)
    yunet = detectors.yunet(console.say) if detector == "yunet" else None
    with console.progress("Building") as line:
        built = build_kit(
            trained,
            precision=precision,
            iterations=iterations,
            data=held_out,
            allow_loss=allow_loss,
            detector=yunet,
            liveness=live,
            private_key=private_key,
            kit_version=kit_version,
            series=series,
            report=line,
        )
    write_file(output, built.kit)
    if as_json:
        typer.echo(json.dumps(facts(kits.parse(built.kit)) | {"microseconds": built.timings}))
        return
    for sentence in _report(built, output, precision):
        console.say(sentence)


@app.command()
def release(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="The folder of a site.")],
    model: Annotated[str | None, typer.Option(metavar="NAME", help="A model of the site (default: the newest).")] = None,
    precision: PrecisionOption = "fp32",
    liveness: Liveness = None,
    liveness_threshold: LivenessThreshold = THRESHOLD,
    series: Series = "",
    again: Annotated[
        str | None, typer.Option(metavar="KIT", help="Pack this kit of the site with a higher version, to go back to it.")
    ] = None,
    sign: Annotated[str | None, typer.Option(metavar="FILE", help="Private key to sign with; -: from stdin.")] = None,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the new kit (default: the time).")] = None,
    publish: Annotated[
        list[str] | None, typer.Option(metavar="DOOR[,DOOR]", help="Copy the kit to these doors, or to all doors: all.")
    ] = None,
    who: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who does this, for the trail (default: your login).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build a kit of a site, or pack an older one again, as a job; the console shows it. Its version is the time."""
    plan = releases.plan(
        Site.open(site),
        model=model,
        precision=precision,
        liveness=liveness,
        liveness_threshold=liveness_threshold,
        series=series,
        again=again,
        private_key=None if sign is None else sys.stdin.buffer.read(MAX_BYTES) if sign == "-" else read_bytes(sign, MAX_BYTES),
        name=name,
        publish=publish or (),
    )
    user = who or login_name()
    with jobs.run(plan.site, plan.kind, user, plan.options) as job:
        released = releases.carry_out(plan, job, who=user)
    if as_json:
        doors = {one.door: one.problem for one in released.deliveries}
        typer.echo(json.dumps({"kit": released.name, **released.result, "doors": doors}))
        return
    for sentence in released.sentences():
        console.say(sentence)


@app.command()
def repack(
    kit: KitFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="The kit to write.")],
    kit_version: Annotated[int, typer.Option(min=1, max=MAX_NEW_VERSION, help="Higher than that of the kit in use.")],
    sign: Annotated[Path | None, typer.Option(metavar="FILE", help="The private key that signed the kit.")] = None,
) -> None:
    """Write a kit again with a higher version, to go back to it."""
    private_key = None if sign is None else read_bytes(sign, MAX_BYTES)
    write_file(output, repack_kit(kits.read_kit_bytes(kit), kit_version=kit_version, private_key=private_key))
    console.say(f"{output} has version {kit_version}.")


@app.command()
def verify(
    kit: KitFile,
    data: Annotated[Path | None, typer.Option(help="Faces to compare on: a folder for each person, .npz or .mat.")] = None,
    model: Annotated[Path | None, typer.Option(help="The model of the kit: compares on its faces too.")] = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Check a kit: checksums, signature, operators, shapes, self-test, and parity with the trainer."""
    opened = kits.read(kit, None if key is None else read_bytes(key))
    faces = None if data is None else _gallery(data, opened.manifest.alignment, opened.manifest.crop_shape)
    parities = verify_kit(opened, faces, None if model is None else Model.load(model))
    if as_json:
        found = [asdict(parity) for parity in parities]
        typer.echo(json.dumps({"kit": opened.sha256, "signature": opened.signature, "parity": found}))
        return
    console.say(f"{kit}: checksums, operators, shapes, self-test: OK; signature: {opened.signature}.")
    for parity in parities:
        right = "" if parity.accuracy is None else f", accuracy {parity.accuracy:.2%}"
        console.say(
            f"Parity on {parity.number} {parity.crops} crops: same labels, scores within {parity.score_difference:.1e}{right}."
        )
    if data is None and model is None:
        console.say("No real faces were compared. Pass some with --data.")


@app.command()
def inspect(kit: KitFile, as_json: AsJson = False, key: Key = None) -> None:
    """Describe a kit: version, people, settings, thresholds, signature."""
    found = facts(kits.read(kit, None if key is None else read_bytes(key)))
    typer.echo(json.dumps(found) if as_json else _table(found))


@app.command()
def onnx(
    model: ModelFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="The ONNX file to write.")],
    precision: PrecisionOption = "fp32",
    iterations: Iterations = None,
) -> None:
    """Write only the graph, with the model's number of iterations by default."""
    write_file(output, build_graph(Model.load(model), precision, iterations))


@app.command("detector")
def write_detector(
    output: Annotated[Path, typer.Option("-o", "--output", help="The ONNX file to write.")] = Path("detector.onnx"),
) -> None:
    """Write only the face detector, for `edge capture` before there is a kit."""
    write_file(output, detectors.yunet(console.say))


@app.command()
def keygen(
    output: Annotated[Path, typer.Option("-o", "--output", help="Private key to write, beside FILE.pub.")] = Path(
        "kit-key.pem"
    ),
) -> None:
    """Make a key pair to sign kits with."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = write_key_pair(output, Ed25519PrivateKey.generate())
    console.say(
        f"{output} signs kits: keep it on this computer. Copy {public} to the devices: they then accept no other kits."
    )


@app.command("release-fleet")
def release_fleet(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="The folder of a site that has fleet.toml.")],
    group: Annotated[str, typer.Option(metavar="GROUP", help="Group of doors.")],
    kit: Annotated[str, typer.Option(metavar="NAME", help="A kit of the site.")] = "",
    share: fleet.Share = None,
    stop: Annotated[bool, typer.Option("--stop", help="No more doors take the kit.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue after --stop.")] = False,
    key: Annotated[str | None, typer.Option(metavar="FILE", help="Private key of the group; -: from stdin.")] = None,
    who: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who does this, for the trail (default: your login).")
    ] = None,
) -> None:
    """Publish a kit of a site to the doors of its fleet, or change the rollout, as a job; the console shows it."""
    fleet.check_packages()
    from export import site_fleet

    user, opened = who or login_name(), Site.open(site)
    change = site_fleet.Change(
        site=opened,
        group=group,
        kit=kit,
        share=share,
        stopped=stop if stop != resume else None,
        private_key=None if key is None else sys.stdin.buffer.read(MAX_BYTES) if key == "-" else read_bytes(key, MAX_BYTES),
    )
    with jobs.run(opened, site_fleet.KIND, user, change.options) as job:
        console.say(site_fleet.carry_out(change, job, who=user))


app.command()(fleet.publish)
fleet.app.command()(watch_commands.status)
fleet.app.command()(watch_commands.advance)


def _report(built: BuiltKit, output: Path, precision: str) -> list[str]:
    """Return the lines that describe a build."""
    choice, kit = built.choice, kits.parse(built.kit)
    lines = [f"{'iterations':>10}  {'agreement':>9}  {'accuracy':>8}  {'microseconds':>12}"]
    chosen, last = choice.coding.iterations, len(choice.rows)
    for k in sorted({k for k in (1, 2, 4, 8, 12, 20, chosen - 1, chosen, chosen + 1, last) if 1 <= k <= last}):
        row, microseconds = choice.rows[k - 1], f"{built.timings[k]:.0f}" if k in built.timings else ""
        mark = "  <- chosen" if k == chosen else ""
        lines.append(f"{k:>10}  {row.agreement:>9.2%}  {row.accuracy:>8.2%}  {microseconds:>12}{mark}")
    lines.append(f"{'converged':>10}  {1:>9.2%}  {choice.converged_accuracy:>8.2%}")
    if choice.row.agreement < AGREEMENT:
        lines.append(f"Only {choice.row.agreement:.2%} of the faces have the label of the converged coder.")
    lines.append(f"\n{'precision':>10}  {'graph MB':>9}  {'accuracy':>8}  {'microseconds':>12}  on {built.judged_on}")
    for name, size in built.graph_bytes.items():
        mark = "  <- chosen" if name == precision else "  too large for a kit" if size > kits.MAX_BYTES else ""
        accuracy = f"{built.accuracies[name]:.2%}" if name in built.accuracies else ""
        lines.append(f"{name:>10}  {size / 1e6:>9.2f}  {accuracy:>8}  {built.precision_timings[name]:>12.0f}{mark}")
    lines.append("")
    largest = max(parity.score_difference for parity in built.parities)
    faces = sum(parity.number for parity in built.parities)
    lines.append(f"Parity of graph and NumPy: same labels on {faces} crops, scores within {largest:.1e}.")
    limits, measured = kit.manifest.thresholds, kit.manifest.calibration
    residual = f" The residual of a face must be at most {limits.residual:g}." if limits.residual < ANY_RESIDUAL else ""
    lines.append(
        f"{limits.sentence}{residual} "
        f"{measured['faces_passed']:.1%} of the calibration faces pass; "
        f"no false match on {measured['non_faces']} blank or noise images."
    )
    lines.append(kit.manifest.liveness_sentence)
    signed = {"none": "not signed", "unchecked": "signed"}[kit.signature]
    lines.append(f"{output}: {kit.length / 1e6:.2f} MB, {len(kit.manifest.labels)} people, {precision}, {signed}.")
    return lines


def _table(found: dict[str, Any]) -> str:
    """Return one line for each fact."""
    rows: dict[str, Any] = {}
    for name, value in found.items():
        rows |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {json.dumps(v) if isinstance(v, dict) else v}" for name, v in rows.items())


def _gallery(path: Path, alignment: str, crop_shape: tuple[int, ...]) -> gallery.Gallery:
    """Load faces, cropped like the training photos."""
    cropped, (height, width, *channels) = alignment == NO_ALIGNMENT, crop_shape
    faces = gallery.load_gallery(
        path,
        cropped=cropped,
        size=None if cropped else (height, width),
        say=console.say,
        alignment=alignment,
        colour=bool(channels),
    )
    for note in faces.notes:
        console.say(note)
    return faces


def main() -> None:
    console.run(app)
