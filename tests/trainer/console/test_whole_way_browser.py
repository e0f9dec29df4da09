"""The whole way in Chromium, on one site: from nothing to a signed kit at a door."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest
from playwright.sync_api import FilePayload, expect, sync_playwright

from edge.kit import format as kits
from tests.fixtures.console import Console, Visitor, chromium
from tests.fixtures.site import orl_file

pytestmark = pytest.mark.slow
PEOPLE = {"Anna": 1, "Ben": 2, "Carla": 3, "David": 4, "Eva": 5, "Farid": 6}


def photos_of(number: int) -> list[FilePayload]:
    return [{"name": f"{k}.pgm", "mimeType": "image/x-portable-graymap", "buffer": orl_file(number, k)} for k in range(1, 5)]


def test_from_an_empty_folder_to_a_signed_kit_at_a_door(tmp_path: Path) -> None:
    drop = tmp_path / "terminal" / "door.kit"
    drop.parent.mkdir()
    with Console(tmp_path / "site") as console, sync_playwright() as playwright, chromium(playwright) as browser:
        visitor = Visitor(browser, console, accept_downloads=True)
        page = visitor.page
        page.goto(console.start_url)
        page.wait_for_url("**/people")
        expect(page.get_by_role("heading", name="No people yet")).to_be_visible()

        for name, number in PEOPLE.items():
            page.goto("/people")
            page.get_by_label("Name", exact=True).fill(name)
            page.get_by_role("button", name="Continue").click()
            page.get_by_label("Choose photos").set_input_files(photos_of(number))
            expect(page.locator("#photos > li")).to_have_count(4)

        visitor.visit("/train").get_by_text("More options").click()
        page.get_by_label("Method").select_option("minimal")
        page.get_by_role("button", name="Train", exact=True).click()
        page.wait_for_url("**/train/*")
        expect(page.get_by_text("6 people, 24 photos")).to_be_visible()

        visitor.visit("/doors").get_by_label("Name of the door").fill("Front door")
        page.get_by_label("Kit file of the terminal").fill(str(drop))
        page.get_by_role("button", name="Add the door").click()
        expect(page.get_by_role("status").first).to_contain_text("Front door is added.")

        visitor.visit("/kits")
        with page.expect_download() as download:
            page.get_by_role("button", name="Make a key pair").click()
        with ZipFile(download.value.path()) as archive:
            private, public = (archive.read(f"kit-key/kit-key.pem{end}") for end in ("", ".pub"))
        page.get_by_label("Private key").set_input_files(
            {"name": "kit-key.pem", "mimeType": "application/x-pem-file", "buffer": private}
        )
        page.get_by_label("Front door").check()
        page.get_by_role("button", name="Build the kit").click()
        page.wait_for_url("**/kits/*")
        expect(page.get_by_text("Published to Front door")).to_be_visible()
        visitor.close()
    kit = kits.read(drop, public)
    assert (set(kit.manifest.labels), kit.signature) == (set(PEOPLE), "valid")
