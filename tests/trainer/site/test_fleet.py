"""fleet.toml of a site, and the command whose answers the console shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.errors import UsageError
from tests.fixtures.waiting import until
from trainer.site import fleet
from trainer.site.folder import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site.create(tmp_path / "site")


def write(site: Site, text: str) -> None:
    (site.path / "fleet.toml").write_text(text)


def test_paths_are_relative_to_the_site(site: Site) -> None:
    write(site, 'repo = "repo"\nbroker = "mqtts://b"\nuser = "u"\npassword_file = "/secret"\n')
    assert fleet.exists(site)
    found = fleet.load(site)
    assert (found.repo, found.password_file, found.ca_file) == (site.path / "repo", Path("/secret"), None)
    options = ["--broker=mqtts://b", "--user=u", "--password-file=/secret", "--follow", "--"]
    assert found.status_arguments() == ["fleet", "status", *options, str(site.path / "repo")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs repo and broker"),
        ("x", "not valid TOML"),
        ('repo = "r"\nbroker = 5\n', "as text"),
        ('repo = "r"\nbroker = "b"\nport = "1"\n', "not a known key"),
    ],
)
def test_bad_file_is_an_error(site: Site, text: str, words: str) -> None:
    write(site, text)
    with pytest.raises(UsageError, match=words):
        fleet.load(site)


def test_site_without_the_file_has_no_fleet(site: Site) -> None:
    assert not fleet.exists(site)
    with pytest.raises(UsageError, match="has no fleet"):
        fleet.load(site)


@pytest.mark.slow
def test_problem_of_the_command_is_shown(site: Site) -> None:
    write(site, 'repo = "missing"\nbroker = "mqtts://127.0.0.1:1"\n')
    watch = fleet.Watch(site)
    found = until(lambda: (facts := watch.facts()).problem and facts)
    assert "broker 127.0.0.1 cannot be read" in found.problem
    assert not found.is_known
