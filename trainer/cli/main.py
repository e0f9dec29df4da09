"""The `trainer` command."""

from edge.cli import common as console
from trainer.cli import site
from trainer.cli.console import serve_console
from trainer.cli.evaluate import evaluate, show
from trainer.cli.fit import fit
from trainer.cli.liveness import liveness
from trainer.cli.research import reproduce, tables
from trainer.cli.tune import tune
from trainer.cli.update import enrol, forget

app = console.new_app("Train face recognition on a workstation: learn dictionary D and classifier W from photos.")
for command in (fit, enrol, forget, tune, show, evaluate, liveness, reproduce, tables):
    app.command()(command)
app.command("console")(serve_console)
app.add_typer(site.app, name="site", help="What the console does, as commands.")


def main() -> None:
    console.run(app)
