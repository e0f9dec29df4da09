"""The commands `edge-export publish` and `edge-export fleet`: files, messages, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from edge.credentials import write_key_pair
from edge.kit import format as kits
from export import cli
from tests.fixtures.command import environment, run_main
from tests.fixtures.fleet import LIST, Terminal, served, versioned_kit
from tests.fixtures.kits import digest, kit

pytestmark = pytest.mark.slow


class Publisher:
    """Runs commands with files in a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys, self._patch = folder, capsys, monkeypatch
        self.out = self.err = ""
        monkeypatch.chdir(folder)

    def __call__(self, command: str) -> int:
        code = run_main(self._patch, cli.main, *command.split())
        self.out, self.err = self._capsys.readouterr()
        return code

    def show(self) -> dict[str, object]:
        assert self("fleet show repo --json") == 0
        found: dict[str, object] = json.loads(self.out)
        return found


@pytest.fixture
def publisher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Publisher:
    """A publisher with the group `north`, kits door-1.kit and door-2.kit, and list.toml."""
    (tmp_path / "list.toml").write_bytes(LIST)
    for version in (1, 2):
        (tmp_path / f"door-{version}.kit").write_bytes(versioned_kit(version))
    made = Publisher(tmp_path, monkeypatch, capsys)
    assert made("fleet init repo --keys keys") == 0
    assert "Copy" in made.err
    assert "1.root.json" in made.err
    assert made("fleet add-group repo north") == 0
    return made


def test_publish_to_a_group_and_to_doors(publisher: Publisher) -> None:
    assert publisher("publish door-1.kit --repo repo --doors group:north --share 0.01 --list list.toml --revoke ben") == 0
    assert "for 1 % of all doors" in publisher.err
    assert "not signed" in publisher.err
    assert publisher("publish door-1.kit --repo repo --doors a,b --share 1") == 0
    assert "for 100 % of a, b" in publisher.err
    assert publisher("publish door-1.kit --repo repo --doors a,b") == 0
    assert "no change" in publisher.err
    with served(publisher.folder) as address:
        terminal = Terminal(publisher.folder / "t", f"{address}/repo", publisher.folder / "repo/metadata/1.root.json")
        assert terminal.kit() == versioned_kit(1)
        assert terminal.rollout()["doors"] == ["a", "b"]
        found, revoked = terminal.poll("north/list.toml", "north/revoked.json")
    assert found == LIST
    assert b'"ben"' in (revoked or b"")


def test_older_kit_is_published_with_a_higher_version(publisher: Publisher) -> None:
    """Stop, and go back by publishing."""
    for command in (
        "publish door-1.kit --repo repo --doors group:north",
        "publish door-2.kit --repo repo --doors group:north --share 0.5",
        "fleet rollout repo --group north --stop",
    ):
        assert publisher(command) == 0
    assert publisher("publish door-1.kit --repo repo --doors group:north") == 44
    assert "--kit-version 3" in publisher.err
    assert publisher("repack door-1.kit -o again.kit --kit-version 3") == 0
    assert publisher("publish again.kit --repo repo --doors group:north") == 0
    assert "version 3, for 100 % of all doors" in publisher.err
    with served(publisher.folder) as address:
        terminal = Terminal(publisher.folder / "t", f"{address}/repo", publisher.folder / "repo/metadata/1.root.json")
        assert terminal.kit() == versioned_kit(3)


def test_signed_kit_is_packed_again_with_its_key(publisher: Publisher) -> None:
    public = write_key_pair(publisher.folder / "key.pem", Ed25519PrivateKey.generate())
    private = (publisher.folder / "key.pem").read_bytes()
    (publisher.folder / "signed.kit").write_bytes(kit(private_key=private))
    assert publisher("repack signed.kit -o again.kit --kit-version 7") == 2
    assert "--sign" in publisher.err
    assert not (publisher.folder / "again.kit").exists()
    assert publisher("repack signed.kit -o again.kit --kit-version 7 --sign key.pem") == 0
    again = kits.parse((publisher.folder / "again.kit").read_bytes(), public.read_bytes())
    assert again.manifest.kit_version == 7


def test_publish_to_all_groups(publisher: Publisher) -> None:
    assert publisher("fleet add-group repo south") == 0
    assert publisher("publish door-1.kit --repo repo --doors group:all") == 0
    groups = publisher.show()["groups"]
    assert isinstance(groups, dict)
    assert {(name, *found["kits"]) for name, found in groups.items()} == {
        (name, digest(versioned_kit(1))) for name in ("north", "south")
    }


def test_error_in_one_group_changes_no_group(publisher: Publisher) -> None:
    assert publisher("fleet add-group repo south") == 0
    assert publisher("publish door-2.kit --repo repo --doors group:south") == 0
    before = publisher.show()
    assert publisher("publish door-1.kit --repo repo --doors group:all") == 44
    assert publisher("fleet refresh repo") == 0
    assert publisher.show() == before


def test_doors_need_a_group_if_there_are_several(publisher: Publisher) -> None:
    assert publisher("fleet add-group repo south") == 0
    assert publisher("publish door-1.kit --repo repo --doors a,b") == 2
    assert "--group" in publisher.err
    assert publisher("publish door-1.kit --repo repo --doors a,b --group south") == 0


def test_lists_revocations_and_rollouts(publisher: Publisher) -> None:
    assert publisher("publish door-1.kit --repo repo --doors group:north --share 0.5") == 0
    for command in (
        "fleet lists repo --group north list.toml",
        "fleet lists repo --group north --door main list.toml",
        "fleet lists repo --group north --remove",
        "fleet revoke repo --group all --person anna --person ben",
        "fleet unrevoke repo --group north --person ben",
        "fleet rollout repo --group north --stop",
        "fleet rollout repo --group north --resume --share 0.25",
    ):
        assert publisher(command) == 0
        assert "no change" not in publisher.err, command
    assert publisher("fleet rollout repo --group north --stop") == 0
    groups = publisher.show()["groups"]
    assert isinstance(groups, dict)
    north = groups["north"]
    assert (north["rollout"]["share"], north["rollout"]["stopped"]) == (0.25, True)
    assert north["lists"] == ["north/main/list.toml"]
    assert list(north["revoked_people"]) == ["anna"]


def test_new_group_begins_with_what_all_others_have_revoked(publisher: Publisher) -> None:
    sha256 = digest(versioned_kit(1))
    for command in (
        "fleet add-group repo south",
        "fleet revoke repo --group all --person anna",
        "fleet revoke repo --group north --person ben",
        f"fleet revoke repo --group all --kit {sha256}",
        "fleet add-group repo east",
    ):
        assert publisher(command) == 0
    assert "1 person and 1 kit are revoked" in publisher.err
    assert "anna" not in publisher.err
    groups = publisher.show()["groups"]
    assert isinstance(groups, dict)
    assert (list(groups["east"]["revoked_people"]), groups["east"]["revoked_kits"]) == (["anna"], [sha256])
    with served(publisher.folder) as address:
        terminal = Terminal(publisher.folder / "t", f"{address}/repo", publisher.folder / "repo/metadata/1.root.json")
        (revoked,) = terminal.poll("east/revoked.json")
    assert b'"anna"' in (revoked or b"")


def test_misspelt_person_gets_a_warning(publisher: Publisher) -> None:
    assert publisher("publish door-1.kit --repo repo --doors group:north") == 0
    assert publisher("fleet revoke repo --group north --person ana") == 0
    assert "no published kit of north knows ana" in publisher.err


def test_kit_is_revoked_by_its_first_digits(publisher: Publisher) -> None:
    assert publisher("publish door-1.kit --repo repo --doors group:north") == 0
    sha256 = digest(versioned_kit(1))
    assert publisher(f"fleet revoke repo --group all --kit {sha256[:12]}") == 0
    assert publisher("publish door-1.kit --repo repo --doors group:north") == 2
    assert publisher(f"fleet unrevoke repo --group all --kit {sha256[:12]}") == 0
    assert publisher("publish door-1.kit --repo repo --doors group:north") == 0


def test_show_for_people_has_no_names(publisher: Publisher) -> None:
    assert publisher("publish door-1.kit --repo repo --doors group:north --revoke anna") == 0
    assert publisher("fleet show repo") == 0
    for words in ("root", "timestamp", "group north", "revoked: 1 person, 0 kits", "1.root.json"):
        assert words in publisher.out
    assert "anna" not in publisher.out


def test_keys_are_exchanged_and_change_is_signed_by_commands(publisher: Publisher) -> None:
    away = publisher.folder / "away"
    (publisher.folder / "keys" / "targets").rename(away)
    assert publisher("fleet add-group repo south") == 0
    assert "waits for 1 signature" in publisher.err
    (key,) = away.glob("*.pem")
    assert publisher(f"fleet sign repo --role targets --key {key}") == 0
    assert "waits" not in publisher.err
    assert publisher(f"fleet rotate repo --role targets --revoke {key.stem}") == 0
    assert publisher("fleet add-group repo west") == 0
    assert "waits" not in publisher.err
    assert publisher("fleet discard repo --role targets") == 2
    assert publisher("fleet remove-group repo west") == 0
    assert publisher("fleet prune repo --keep 2") == 0
    assert "Removed" in publisher.err
    groups = publisher.show()["groups"]
    assert isinstance(groups, dict)
    assert set(groups) == {"north", "south"}


def test_refresh_warns_about_roles_that_expire(publisher: Publisher) -> None:
    (publisher.folder / "keys" / "targets").rename(publisher.folder / "away")
    assert publisher("fleet refresh repo --targets-days 2000") == 0
    assert "warning: targets expires at" in publisher.err
    assert publisher("fleet refresh repo --role targets") == 0
    assert "waits for 1 signature" in publisher.err


def test_password_is_read_from_the_environment(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LCLRR_KEY_PASSWORD", "secret words")
    assert publisher("fleet init other --keys other-keys --password") == 0
    assert publisher("fleet add-group other north") == 0
    assert "waits for 1 signature" in publisher.err
    assert publisher("fleet add-group other south --password") == 0
    assert "waits" not in publisher.err


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("fleet show missing", 50, "not a complete repository"),
        ("fleet init repo --keys more", 2, "not empty"),
        ("fleet init more --keys keys", 2, "another repository"),
        ("fleet init more --keys more-keys --root-keys 2 --root-threshold 3", 2, "threshold"),
        ("fleet add-group repo north", 2, "already"),
        ("fleet add-group repo ../north", 2, "not a valid name"),
        ("fleet add-group repo all", 2, "not a valid name"),
        ("fleet remove-group repo south", 2, "no group south"),
        ("publish missing.kit --repo repo --doors group:north", 20, "cannot be opened"),
        ("publish list.toml --repo repo --doors group:north", 20, "not a kit"),
        ("publish door-1.kit --repo repo --doors group:south", 2, "no group south"),
        ("publish door-1.kit --repo repo --doors ../a", 2, "not a valid name"),
        ("publish door-1.kit --repo repo --doors a,", 2, "not a valid name"),
        ("publish door-1.kit --repo repo --doors group:north --group north", 2, "--group"),
        ("publish door-1.kit --repo repo --doors group:north --share 2", 2, "share"),
        ("publish door-1.kit --repo repo --doors group:north --list door-1.kit", 33, "TOML"),
        ("fleet lists repo --group north door-1.kit", 33, "TOML"),
        ("fleet lists repo --group north", 2, "--remove"),
        ("fleet lists repo --group north --remove", 2, "no list"),
        ("fleet lists repo --group north --door ../a list.toml", 2, "not a valid name"),
        ("fleet revoke repo --group north", 2, "--person"),
        ("fleet revoke repo --group north --kit 12345678", 2, "not one of the kits"),
        ("fleet rollout repo --group north --stop", 2, "no rollout"),
        ("fleet rollout repo --group north", 2, "--share"),
        ("fleet rotate repo --role other", 2, "no role"),
        ("fleet rotate repo --role root --revoke 00000000", 2, "no single key"),
        ("fleet sign repo --role root --key missing.pem", 2, "cannot be read"),
        ("fleet sign repo --role root --key list.toml", 2, "not an Ed25519 private key"),
        ("fleet refresh repo --keys missing --role timestamp", 50, "key of timestamp is missing"),
        ("fleet refresh repo --timestamp-days 0", 2, "lifetime"),
        ("fleet prune repo --keep 1", 2, "at least 2"),
    ],
)
def test_each_failure_has_its_message_and_exit_code(publisher: Publisher, command: str, code: int, message: str) -> None:
    assert publisher(command) == code
    assert message in publisher.err
    assert "Traceback" not in publisher.err
    assert not list(publisher.folder.rglob("*.kit"))[2:], "nothing was published"


def test_missing_package_is_named(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['tuf'] = None; sys.argv = ['x', 'fleet', 'show', 'repo']; from export import cli; cli.main()"
    )
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert run.returncode == 2
    assert "lclrr-edge[fleet]" in run.stderr


def test_other_commands_do_not_load_tuf(tmp_path: Path) -> None:
    script = "import sys; from export import cli; sys.exit(' '.join({'tuf', 'securesystemslib'} & set(sys.modules)) or 0)"
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
