"""Whatever a page does, a command does: each change of the site by a form has its command."""

from __future__ import annotations

import pytest
import typer

import export.cli
import trainer.cli.site
from trainer.console.app import PAGES

COMMANDS = {
    "/people-import": "import",
    "/people/{name}/photos": "add",
    "/people/{name}/photos/{file}/delete": "delete-photo",
    "/people/{name}/photos/{file}/move": "move-photo",
    "/people/{name}/photos/{file}/face": "choose-face",
    "/people/{name}/rename": "rename",
    "/people/{name}/merge": "merge",
    "/people/{name}/consent": "consent",
    "/people/{name}/delete": "forget",
    "/people/{name}/export": "export-person",
    "/train": "train",
    "/train/{model}/photos": "keep-photo",
    "/train/{model}/delete": "delete-model",
    "/kits": "edge-export release",
    "/kits/{kit}/again": "edge-export release",
    "/kits-liveness": "add-liveness",
    "/kits-key": "edge-export keygen",
    "/kits/{kit}/publish": "publish-kit",
    "/kits/{kit}/delete": "delete-kit",
    "/doors": "add-door",
    "/doors/{door}/change": "change-door",
    "/doors/{door}/remove": "remove-door",
    "/doors/{door}/secret": "door-secret",
    "/doors/{door}/list": "door-list",
    "/doors/{door}/list/text": "door-list",
    "/doors/{door}/list/remove": "door-list",
    "/fleet/publish": "edge-export release-fleet",
    "/fleet/change": "edge-export release-fleet",
    "/visits/import": "import-visits",
    "/visits/keep": "prune-visits",
    "/visits/prune": "prune-visits",
    "/visits/{number:int}/judge": "judge-visit",
    "/visits/{number:int}/undo": "judge-visit",
    "/jobs/{number:int}/cancel": "cancel",
    "/settings/password": "set-password",
    "/users/add": "add-user",
    "/users/{name}/role": "set-role",
    "/users/{name}/password": "set-password",
    "/users/{name}/remove": "remove-user",
}
"""The command for each form; `trainer site`, if the name of the program is missing."""
OF_THE_BROWSER = {
    "/people",  # goes to the page of a name
    "/people/{name}/capture/begin",  # the camera of the browser; `edge capture` has the one of the device
    "/people/{name}/capture/frame",
    "/settings/language",
    "/settings/link",
    "/logout",
}
"""Forms that change no file of the site by themselves."""


def names(app: typer.Typer) -> set[str]:
    group = typer.main.get_command(app)
    return set(getattr(group, "commands", {}))


def test_every_form_has_a_command() -> None:
    forms = {page.path for page in PAGES if page.method == "POST"}
    assert sorted(forms ^ (COMMANDS.keys() | OF_THE_BROWSER)) == []


@pytest.mark.parametrize("name", sorted(set(COMMANDS.values())))
def test_command_exists(name: str) -> None:
    program, _, own = name.rpartition(" ")
    assert own in names(export.cli.app if program else trainer.cli.site.app)
