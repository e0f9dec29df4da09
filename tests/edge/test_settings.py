"""The settings file: values, errors, secrets, the template and `edge config`."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge import paths
from edge import settings as configuration
from edge.credentials import read_secret
from edge.decision.visit import VisitRules
from edge.errors import DoorListError, ParameterError, SettingsError
from edge.settings import Settings, as_toml, parse, read_door_list, table_type, to_toml
from scripts.qa.settings_template import FILE, field_docs, template
from tests.fixtures.command import run_edge
from tests.fixtures.data import ROOT

TEMPLATE = FILE.read_text()
TABLES = {name: table_type(hint) for name, hint in get_type_hints(Settings).items()}


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as found:
        parse(text.encode(), "settings.toml")
    return found.value.problems


# Values


def test_values_of_the_file_replace_defaults(tmp_path: Path) -> None:
    assert parse(b"") == Settings()
    file = tmp_path / "settings.toml"
    file.write_text('[visits]\nneeded = 4\ngap_seconds = 1\n[door]\nlist = "door.toml"\n[mqtt]\nhost = "broker"\n')
    settings = configuration.load(file)
    assert settings.visits == VisitRules(needed=4, gap_seconds=1.0)
    assert settings.door.list == tmp_path / "door.toml", "relative to the file"
    assert settings.mqtt is not None
    assert (settings.mqtt.host, settings.mqtt.tls) == ("broker", True)
    assert settings.camera == Settings().camera


def test_byte_order_mark_is_accepted() -> None:
    assert parse(b"\xef\xbb\xbf[visits]\nneeded = 2\n").visits.needed == 2


def test_override_replaces_given_values_only() -> None:
    stored = parse(b'[visits]\nneeded = 4\n[camera]\nsource_env = "CAMERA"\nwait = true\n')
    chosen = stored.override(visits={"needed": None, "window": 9}, camera={"source": "1"})
    assert (chosen.visits.needed, chosen.visits.window) == (4, 9)
    assert (chosen.camera.address, chosen.camera.wait) == ("1", True)
    with pytest.raises(ParameterError, match="window"):
        stored.override(visits={"window": 3})


# Errors


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[camra]", "settings.toml: unknown key `camra`; did you mean `camera`?"),
        ("[visits]\nneded = 3", "settings.toml: [visits] unknown key `neded`; did you mean `needed`?"),
        ("needed = 3", "settings.toml: unknown key `needed`; it belongs to [visits]"),
        ("[visits]\nneeded = true", "settings.toml: [visits] needed must be a whole number, not True"),
        ("[visits]\nneeded = 3.0", "settings.toml: [visits] needed must be a whole number, not 3.0"),
        ('[visits]\nleave_seconds = "1"', "settings.toml: [visits] leave_seconds must be a number, not '1'"),
        ("[camera]\nwait = 1", "settings.toml: [camera] wait must be true or false, not 1"),
        ("[camera]\nsource = 0", "settings.toml: [camera] source must be text, not 0"),
        ('[door]\nlist = ""', "settings.toml: [door] list must be a path, not ''"),
        ("visits = 3", "settings.toml: visits must be a table: [visits]"),
        ("[[visits]]", "settings.toml: visits must be a table: [visits]"),
        ("[visits]\nmax_age_seconds = 2", "settings.toml: [visits] max_age_seconds must be more than 0 and at most 1, not 2"),
        ("[visits]\nneeded = 9", "settings.toml: [visits] needed must be between 2 and window, .*"),
        ("[camera]\nmax_fps = nan", "settings.toml: [camera] max_fps must be a number, not nan"),
        (
            "[camera]\nmax_fps = 4.9",
            ".*max_fps must be between 5 and 1000, not 4.9: a face that is not seen for 0.3 seconds .*",
        ),
        ("[camera]\nfrozen_seconds = 0.5", "settings.toml: [camera] frozen_seconds must be between 1 and 60, not 0.5"),
        ("[camera]\nstall_seconds = 0", "settings.toml: [camera] stall_seconds must be between 0.5 and 60, not 0"),
        ("[kit]\nthreads = 0", "settings.toml: [kit] threads must be between 1 and 64, .*"),
        ("[kit]\nthreads = 100000", "settings.toml: [kit] threads must be between 1 and 64, .*"),
        ("[events]\non_grant_seconds = 601", "settings.toml: [events] on_grant_seconds must be .*at most 600, not 601"),
        (
            "[events]\non_grant_seconds = 0",
            "settings.toml: [events] on_grant_seconds must be more than 0 and at most 600, not 0",
        ),
        ('[preview]\naddress = "nonsense"', "settings.toml: [preview] .*port.*"),
        ('[metrics]\naddress = "0.0.0.0:9109"', "settings.toml: [metrics] .*only on this machine.*"),
        ("[mqtt]\nport = 1883", "settings.toml: [mqtt] host is missing"),
        ('[mqtt]\nhost = "b"\nport = 0', "settings.toml: [mqtt] .*port.*"),
    ],
)
def test_problem_names_file_table_and_key(text: str, sentence: str) -> None:
    (problem,) = problems(text)
    assert re.fullmatch(sentence.replace("[", r"\[").replace("?", r"\?"), problem), problem


def test_all_problems_are_reported_at_once() -> None:
    found = problems("[camra]\n[visits]\nneeded = true\nwindw = 3\n[kit]\nthreads = 0\n")
    assert len(found) == 4
    assert str(SettingsError(*found)) == f"{found[0]} There are 3 more problems: see `edge config check`."


@pytest.mark.parametrize("data", [b"\xff", b"needed = ", b"[" * 100_000, b"#" * (1 << 21), b"x = 1" + b"0" * 10_000])
def test_invalid_toml_is_one_error(data: bytes) -> None:
    with pytest.raises(SettingsError, match=r"^door\.toml "):
        parse(data, "door.toml")


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        configuration.load(tmp_path / "settings.toml")


VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(), st.dates(), st.sampled_from(["0", "127.0.0.1:1", "a/b"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=4,
)
KEYS = [*sorted({item.name for kind in TABLES.values() for item in fields(kind)}), "password", "secret", "camra"]
CONTENTS = st.dictionaries(
    st.sampled_from([*TABLES, "camra"]),
    st.dictionaries(st.sampled_from(KEYS) | st.text(min_size=1), VALUES, max_size=4) | VALUES,
)


def toml(value: Any) -> str:
    """Write a TOML value inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{to_toml(key)} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return to_toml(value) if isinstance(value, bool | int | float | str) else value.isoformat()


def settings_or_problems(data: bytes) -> Settings | tuple[str, ...]:
    try:
        return parse(data, "settings.toml", Path("/etc"))
    except SettingsError as error:
        return error.problems


@hypothesis.settings(max_examples=50)
@given(CONTENTS)
def test_any_toml_gives_settings_or_a_settings_error(contents: dict[str, Any]) -> None:
    text = "".join(f"{key} = {toml(value)}\n" for key, value in contents.items())
    try:
        tomllib.loads(text)
    except ValueError:
        return  # a lone surrogate
    found = settings_or_problems(text.encode())
    assert isinstance(found, Settings) or all(
        problem.startswith("settings.toml") and problem.isprintable() for problem in found
    )


@given(st.binary(max_size=200))
def test_any_bytes_give_settings_or_a_settings_error(data: bytes) -> None:
    assert settings_or_problems(data)


# Secrets


@pytest.mark.parametrize(
    "text",
    [
        '[mqtt]\nhost = "b"\npassword = "hunter2"',
        '[webhook]\nurl = "https://b/"\nsecret = "hunter2"\nsecret_env = "S"',
        '[camera]\nsource = "rtsp://admin:hunter2@camera/1"',
        '[camera]\nsource = "http://camera/video?user=admin&password=hunter2"',
        '[webhook]\nurl = "https://b/door?token=hunter2"\nsecret_env = "S"',
    ],
)
def test_secret_in_the_file_is_rejected_and_not_repeated(text: str) -> None:
    (problem,) = problems(text)
    assert re.search(r"not allowed here|must not contain a password", problem)
    assert "hunter2" not in problem
    if "url" not in problem:
        assert re.search(r"use \w+_file or \w+_env$", problem)


@pytest.mark.parametrize(
    "source", ["rtsp://camera/live?channel=1&subtype=0", "http://camera:8080/stream", "/dev/video0", "a:b@c"]
)
def test_address_without_a_password_is_accepted(source: str) -> None:
    assert parse(f'[camera]\nsource = "{source}"'.encode()).camera.address == source


def test_camera_source_is_read_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "camera").write_text("rtsp://admin:hunter2@camera/1\r\nmore\n")
    stored = parse(b'[camera]\nsource_file = "camera"', folder=tmp_path)
    assert stored.camera.address == "rtsp://admin:hunter2@camera/1"
    monkeypatch.setenv("CAMERA", "picamera2:0")
    assert parse(b'[camera]\nsource_env = "CAMERA"').camera.address == "picamera2:0"
    assert "cannot both" in problems('[camera]\nsource_env = "A"\nsource_file = "b"')[0]


def test_missing_secret_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    assert read_secret("password", None, None) is None
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xff\n")
    for file in ("missing", "empty", "binary"):
        with pytest.raises(SettingsError, match=file):
            read_secret("password", tmp_path / file, None)
    with pytest.raises(SettingsError, match="NOWHERE"):
        read_secret("password", None, "NOWHERE")


# Output


def test_every_key_has_a_description() -> None:
    for name, kind in TABLES.items():
        docs = field_docs(kind)
        assert [item.name for item in fields(kind) if not docs.get(item.name)] == [], name


@st.composite
def any_settings(draw: st.DrawFn) -> Settings:
    text = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: "://" not in text)
    number = st.floats(0.5, 1)
    return Settings().override(
        kit={"path": draw(st.none() | text.filter(lambda name: "\0" not in name).map(lambda name: Path("/etc", name)))},
        camera={"source": draw(text), "wait": draw(st.booleans()), "stall_seconds": draw(number)},
        visits={"max_age_seconds": draw(number), "window": draw(st.integers(3, 100)), "max_looks": 100},
        events={"on_grant": draw(st.none() | text), "json_lines": draw(st.none() | st.booleans())},
        metrics={"address": draw(st.sampled_from([None, "127.0.0.1:9109", "[::1]:0"]))},
    )


@hypothesis.settings(max_examples=25)
@given(any_settings())
def test_shown_settings_are_equal_when_read_again(settings: Settings) -> None:
    assert parse(as_toml(settings).encode()) == settings


def test_shown_settings_hide_passwords() -> None:
    shown = as_toml(Settings().override(camera={"source": "rtsp://admin:hunter2@camera/1"}))
    assert 'source = "rtsp://***@camera/1"' in shown
    assert "hunter2" not in shown
    assert '"***"' in as_toml(Settings().override(camera={"source": "http://["}))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[gpio]\npin = 5\n[inputs]\ncontact_pin = 5", "[inputs] and [gpio] cannot use the same pin"),
        ("[inputs]\nexit_pin = 5\nexit_opens = true", "[inputs] exit_opens needs the relay of [gpio]"),
        ("[inputs]", "contact_pin, exit_pin or tamper_pin must be set"),
        ("[inputs]\ncontact_pin = 2\npull = 'high'", "pull must be one of up, down, none, not 'high'"),
    ],
)
def test_inputs_that_cannot_work_are_problems(text: str, sentence: str) -> None:
    assert [sentence in problem for problem in problems(text)] == [True]


def test_template_changes_nothing_and_has_every_key() -> None:
    assert parse(TEMPLATE.encode()) == Settings()
    keys = re.findall(r"^# (\w+) = ", TEMPLATE, re.MULTILINE)
    assert keys == [item.name for kind in TABLES.values() for item in fields(kind)]
    assert re.findall(r"^(?:# )?\[(\w+)\]", TEMPLATE, re.MULTILINE) == list(TABLES)
    assert all(is_dataclass(kind) for kind in TABLES.values())


def test_template_shows_the_defaults() -> None:
    uncommented = re.sub(r'^# (\w+ = (?!\.\.\.|"\.\.\.").*)', r"\1", TEMPLATE, flags=re.MULTILINE)
    assert "\nneeded = 3\n" in uncommented
    active_tables = re.split(r"^# \[", uncommented, flags=re.MULTILINE)[0]
    assert parse(active_tables.encode()) == Settings()


def test_documentation_is_the_template() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert template() == TEMPLATE, "run python -m scripts.qa.settings_template"
    assert block == TEMPLATE, "run python -m scripts.qa.settings_template"


# The command


def test_check_lists_all_problems_and_exits_with_38(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[camra]\n[visits]\nneeded = true\n")
    assert run_edge(monkeypatch, "config", "check", file) == 38
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert err == f"error: {file} cannot be used: 2 problems. See docs/reference/settings.md.\n"
    file.write_text("[visits]\nneeded = 4\n")
    assert run_edge(monkeypatch, "config", "check", file) == 0
    assert capsys.readouterr() == ("", f"{file}: OK\n")


def test_check_opens_the_named_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.toml"
    (tmp_path / "list.toml").write_text("allow = 3")
    file.write_text(
        '[kit]\npath = "no.kit"\n[door]\nlist = "list.toml"\n[camera]\nsource_file = "no.txt"\n'
        '[mqtt]\nhost = "b"\nuser = "u"\npassword_file = "no.password"\n'
    )
    assert run_edge(monkeypatch, "config", "check", file) == 38
    out = capsys.readouterr().out
    for word in ("no.kit", "list.toml", "no.txt", "no.password"):
        assert len(re.findall(re.escape(word), out)) == 1, out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[mqtt]\nhost = "b"\nuser = "u"\npassword_env = "NOWHERE"', "NOWHERE"),
        ('[mqtt]\nhost = "b"\nca_file = "settings.toml"', "certificates for MQTT"),
        ('[webhook]\nurl = "https://b/"\nsecret_env = "NOWHERE"', "NOWHERE"),
        ('[webhook]\nurl = "https://b/"\nsecret_file = "short"', "16 characters"),
        ('[audit]\npath = "audit.db"\npicture_key = "no.pem"', "no.pem"),
        ('[audit]\npath = "audit.db"\npicture_key = "short"', "X25519"),
        ('[audit]\npath = "audit.db"\nhead_key_file = "short"', "16 characters"),
        ('[events]\non_grant = "no-such-program-here"', "no-such-program-here"),
    ],
)
def test_check_finds_problems_that_stop_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, says: str) -> None:
    monkeypatch.delenv("NOWHERE", raising=False)
    (tmp_path / "short").write_text("hunter2\n")
    (tmp_path / "settings.toml").write_text(text)
    (problem,) = configuration.problems(tmp_path / "settings.toml")
    assert says in problem
    assert "hunter2" not in problem


def test_show_prints_the_active_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[visits]\nneeded = 4\n[kit]\npath = "door.kit"\n')
    monkeypatch.setenv("EDGE_SETTINGS", str(file))
    monkeypatch.delenv("EDGE_KIT", raising=False)
    assert run_edge(monkeypatch, "config", "show") == 0
    assert parse(capsys.readouterr().out.encode()) == configuration.load(file)
    monkeypatch.setenv("EDGE_KIT", "/other.kit")
    assert run_edge(monkeypatch, "config", "show") == 0
    assert parse(capsys.readouterr().out.encode()).kit.path == Path("/other.kit")
    assert run_edge(monkeypatch, "config", "template") == 0
    assert capsys.readouterr().out == TEMPLATE


def test_defaults_are_used_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EDGE_SETTINGS", raising=False)
    monkeypatch.delenv("EDGE_KIT", raising=False)
    monkeypatch.setattr(paths, "SETTINGS", tmp_path / "settings.toml")
    assert run_edge(monkeypatch, "config", "check") == 0
    assert "defaults are used" in capsys.readouterr().err
    (tmp_path / "settings.toml").write_text("[visits]\nneeded = 5\n")
    assert run_edge(monkeypatch, "config", "show") == 0
    assert parse(capsys.readouterr().out.encode()).visits.needed == 5


def test_door_list_file_is_read_or_rejected(tmp_path: Path) -> None:
    file = tmp_path / "door.toml"
    file.write_text('[[allow]]\npeople = ["anna"]')
    assert read_door_list(file).people_not_in([]) == ["anna"]
    file.write_text("[[allow]]")
    with pytest.raises(DoorListError, match=str(file)):
        read_door_list(file)
    for path in (tmp_path / "none.toml", tmp_path, "nul\0byte"):
        with pytest.raises(DoorListError, match="cannot be read"):
            read_door_list(path)
