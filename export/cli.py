"""The `edge-export` command. Each function parses, calls the library, reports."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from edge.cli import common as console
from edge.errors import UsageError
from edge.files import write_atomically
from edge.kit import format as kits
from edge.kit.format import Kit
from edge.kit.manifest import MAX_VERSION, NO_ALIGNMENT
from export import build as building
from export import pack as writing
from export.build import Built
from export.graph import Precision
from export.measure import AGREEMENT
from export.verify import verify as verify_kit
from trainer.data import detector as detectors
from trainer.data import gallery
from trainer.model import Model

app = console.new_app("Turn a trained model into the one file that a terminal needs.")

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="A model that `trainer fit` wrote.")]
KitFile = Annotated[Path, typer.Argument(metavar="KIT", help="A kit that `build` wrote.")]
Iterations = Annotated[int | None, typer.Option(min=1, max=1000, help="Iterations of the coder (default: chosen).")]
PrecisionOption = Annotated[Precision, typer.Option(help="How the weights are stored.")]
Key = Annotated[Path | None, typer.Option("--key", help="Public key (.pub): the kit must be signed with it.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@app.command()
def build(
    model: ModelFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="The kit to write.")],
    precision: PrecisionOption = "fp32",
    iterations: Iterations = None,
    data: Annotated[Path | None, typer.Option(help="Held-out faces: a folder per person, .npz or .mat.")] = None,
    allow_loss: Annotated[bool, typer.Option("--allow-loss", help="Accept a precision that costs over 0.2 points.")] = False,
    detector: Annotated[Literal["yunet", "none"], typer.Option(help="The face detector to put in.")] = "yunet",
    sign: Annotated[Path | None, typer.Option(help="Private key to sign with.")] = None,
    kit_version: Annotated[int, typer.Option(min=1, max=MAX_VERSION, help="A device takes a kit of a higher one only.")] = 1,
    series: Annotated[str, typer.Option(help="The doors it is for: a device takes no kit of another series.")] = "",
    as_json: AsJson = False,
) -> None:
    """Choose the iterations, build the graph, check it against the trainer, and write a kit."""
    private_key = None if sign is None else console.read_bytes(sign)
    trained = Model.load(model)
    held_out = None if data is None else _gallery(data, trained.alignment, (trained.spec.height, trained.spec.width))
    yunet = detectors.yunet(console.say) if detector == "yunet" else None
    with console.progress("Building") as line:
        built = building.build(
            trained,
            precision=precision,
            iterations=iterations,
            data=held_out,
            allow_loss=allow_loss,
            detector=yunet,
            private_key=private_key,
            kit_version=kit_version,
            series=series,
            report=line,
        )
    _write(output, built.kit)
    if as_json:
        typer.echo(json.dumps(building.facts(kits.parse(built.kit)) | {"microseconds": built.timings}))
        return
    for sentence in _account(built, output, precision):
        console.say(sentence)


@app.command()
def verify(
    kit: KitFile,
    data: Annotated[Path | None, typer.Option(help="Real faces: a folder per person, .npz or .mat.")] = None,
    model: Annotated[Path | None, typer.Option(help="The model it was built from: compares on its faces, too.")] = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Check a kit: bytes, signature, operators, shapes, and that it computes what the trainer computes."""
    opened = _open(kit, key)
    faces = None if data is None else _gallery(data, opened.manifest.alignment, opened.manifest.size)
    parities = verify_kit(opened, faces, None if model is None else Model.load(model))
    if as_json:
        found = [asdict(parity) for parity in parities]
        typer.echo(json.dumps({"kit": opened.sha256, "signature": opened.signature, "parity": found}))
        return
    console.say(f"{kit}: checksums, operators and shapes are well; signature: {opened.signature}.")
    for parity in parities:
        right = "" if parity.accuracy is None else f", accuracy {parity.accuracy:.2%}"
        console.say(
            f"{parity.number} {parity.crops} crops: the same labels, scores within {parity.score_difference:.1e}{right}."
        )
    if data is None and model is None:
        console.say("No real faces were compared: pass some with --data.")


@app.command()
def inspect(
    kit: KitFile,
    as_json: AsJson = False,
    graph: Annotated[Path | None, typer.Option(help="Draw the graph into this .png or .svg.")] = None,
    key: Key = None,
) -> None:
    """Show what a kit is."""
    opened = _open(kit, key)
    if graph is not None:
        from export.draw import draw  # matplotlib is slow to load

        draw(opened.recognizer, graph)
    found = building.facts(opened)
    typer.echo(json.dumps(found) if as_json else _table(found))


@app.command("onnx")
def bare(
    model: ModelFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="The ONNX file to write.")],
    precision: PrecisionOption = "fp32",
    iterations: Iterations = None,
) -> None:
    """Write the bare graph, with the model's own number of iterations unless told otherwise."""
    _write(output, building.bare(Model.load(model), precision, iterations))


@app.command("detector")
def bare_detector(
    output: Annotated[Path, typer.Option("-o", "--output", help="The ONNX file to write.")] = Path("detector.onnx"),
) -> None:
    """Write the face detector alone, for `edge capture` where there is no kit yet."""
    _write(output, detectors.yunet(console.say))


@app.command()
def keygen(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The private key to write; the public one goes beside it.")
    ] = Path("kit-key.pem"),
) -> None:
    """Make a key pair to sign kits with."""
    public = writing.write_keys(output)
    console.say(f"{output} signs kits: keep it on the workstation. {public} goes to the devices, which then accept no others.")


def _account(built: Built, output: Path, precision: str) -> list[str]:
    """The build in sentences and a table, for people."""
    choice, kit = built.choice, kits.parse(built.kit)
    lines = [f"{'iterations':>10}  {'agreement':>9}  {'accuracy':>8}  {'microseconds':>12}"]
    for k, taken in built.timings.items():
        row = choice.rows[k - 1]
        mark = "  <- chosen" if k == choice.coding.iterations else ""
        lines.append(f"{k:>10}  {row.agreement:>9.2%}  {row.accuracy:>8.2%}  {taken:>12.0f}{mark}")
    lines.append(f"{'converged':>10}  {1:>9.2%}  {choice.converged_accuracy:>8.2%}")
    if choice.row.agreement < AGREEMENT:
        lines.append(f"The trainer's own coder has the label of the converged one on {choice.row.agreement:.2%} only.")
    lines.append(f"\n{'precision':>10}  {'graph MB':>9}  {'accuracy':>8}  {'microseconds':>12}  on {built.judged_on}")
    for name, value in built.accuracies.items():
        mark = "  <- chosen" if name == precision else ""
        size, taken = built.graph_bytes[name] / 1e6, built.precision_timings[name]
        lines.append(f"{name:>10}  {size:>9.2f}  {value:>8.2%}  {taken:>12.0f}{mark}")
    lines.append("")
    largest = max(parity.score_difference for parity in built.parities)
    faces = sum(parity.number for parity in built.parities)
    lines.append(f"Graph and NumPy: the same labels on {faces} crops, scores within {largest:.1e}.")
    lines.append(
        f"{built.thresholds.sentence} Of a face at most {built.thresholds.residual:g} may stay unexplained. "
        f"{built.passed['faces_passed']:.1%} of the calibration faces pass, none of {built.passed['non_faces']} noises."
    )
    signed = {"none": "not signed", "unchecked": "signed"}[kit.signature]
    lines.append(f"{output}: {kit.length / 1e6:.2f} MB, {len(kit.manifest.labels)} people, {precision}, {signed}.")
    return lines


def _table(found: dict[str, Any]) -> str:
    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        if isinstance(value, dict):
            rows += [
                (f"{name}.{key}", json.dumps(item) if isinstance(item, dict) else str(item)) for key, item in value.items()
            ]
        else:
            rows.append((name, str(value)))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _open(kit: Path, key: Path | None) -> Kit:
    return kits.read(kit, None if key is None else console.read_bytes(key))


def _gallery(path: Path, alignment: str, size: tuple[int, int]) -> gallery.Gallery:
    """Faces that are cropped as the training photos were."""
    cropped = alignment == NO_ALIGNMENT
    faces = gallery.load(path, cropped=cropped, size=None if cropped else size, say=console.say, alignment=alignment)
    for note in faces.notes:
        console.say(note)
    return faces


def _write(path: Path, data: bytes) -> None:
    try:
        write_atomically(path, data)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}).", "Choose another place with -o.") from None


def main() -> None:
    console.run(app)


if __name__ == "__main__":
    main()
