"""Who may use the console, and what the pages of other sites, other users and large requests cannot do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edge.errors import ListenError, UsageError
from tests.fixtures.command import environment
from tests.fixtures.console import PASSWORD, PATIENCE, Client, Console, add_user
from tests.fixtures.site import orl_file
from trainer.console import app, login, people, server, visits
from trainer.console.attempts import Attempts
from trainer.console.guard import HEADERS, MAX_PATH
from trainer.console.sessions import SessionStore
from trainer.site import jobs, users
from trainer.site.folder import Site

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A console of a site without users."""
    with Console(tmp_path_factory.mktemp("own") / "site") as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """A console of a site with one user of each role."""
    folder = tmp_path_factory.mktemp("shared") / "site"
    add_user(folder, "ada", "administrator")
    add_user(folder, "otto", "operator")
    add_user(folder, "vera", "viewer")
    with Console(folder) as running:
        yield running


def log_in(console: Console, user: str, password: str = PASSWORD) -> tuple[Client, httpx.Response]:
    client = Client(console.url)
    return client, client.post("/login", data={"user": user, "password": password})


@contextlib.contextmanager
def raw(console: Console, data: bytes) -> Iterator[socket.socket]:
    host, _, port = console.address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE / 1000) as connection:
        connection.sendall(data)
        yield connection


def answer(connection: socket.socket) -> bytes:
    """The first line of the response; empty if the connection was closed."""
    connection.settimeout(PATIENCE / 1000)
    try:
        return connection.recv(1 << 16).split(b"\r\n")[0]
    except ConnectionResetError:
        return b""


# The one-time link


def test_link_works_once_and_other_local_users_do_not_get_in(tmp_path: Path) -> None:
    with Console(tmp_path / "site") as running, Client(running.url) as owner, Client(running.url) as other:
        assert other.get("/people").headers["location"] == "/login"
        assert "/token?token=" not in other.get("/login").text
        assert other.head(running.start_url).status_code == 403, "HEAD does not use it up"
        assert other.get(running.start_url, headers={"Sec-Purpose": "prefetch;prerender"}).status_code == 403
        assert owner.get(running.start_url).status_code == 200
        assert owner.get("/settings").status_code == 200
        assert other.get(running.start_url).headers["location"] == "/login"
        assert other.get("/settings").headers["location"] == "/login"
        assert other.get("/token?token=").headers["location"] == "/login"
        link = owner.submit("/settings/link").text.partition("/token?token=")[2].partition('"')[0]
        assert other.get(f"/token?token={link}").status_code == 200
        assert users.login_name() in other.get("/settings").text


def test_link_and_sessions_without_login_end_with_the_first_user(tmp_path: Path) -> None:
    with Console(tmp_path / "site") as running, running.client() as owner, Client(running.url) as other:
        new = {"name": "ada", "password": PASSWORD, "again": PASSWORD}
        refused = owner.submit("/users/add", new | {"role": "viewer"})
        assert (refused.status_code, "must be an administrator" in refused.text) == (400, True)
        assert owner.submit("/users/add", new | {"role": "administrator"}).headers["location"] == "/login"
        assert owner.get("/settings").headers["location"] == "/login"
        assert other.get(running.start_url).headers["location"] == "/login"
        assert other.get("/settings").headers["location"] == "/login"


def test_session_survives_a_restart(tmp_path: Path) -> None:
    with Console(tmp_path / "site") as first, first.client() as client:
        assert client.get("/settings").status_code == 200
        cookies = dict(client.cookies)
    with Console(tmp_path / "site") as second, Client(second.url, cookies) as client:
        assert client.get("/settings").status_code == 200


# Passwords and roles


def test_login_by_password_and_logout(shared: Console) -> None:
    assert "token" not in shared.start_url
    client, entered = log_in(shared, "ada")
    with contextlib.closing(client):
        assert (entered.status_code, entered.headers["location"]) == (303, "/people")
        cookie = entered.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/"))
        assert client.get("/users").status_code == 200
        kept = dict(client.cookies)
        client.submit("/logout")
        with Client(shared.url, kept) as thief:
            assert thief.get("/users").headers["location"] == "/login", "the session ended on the server"


def test_wrong_password_and_unknown_user_get_the_same_answer(shared: Console) -> None:
    texts = []
    for name in ("vera", "nobody"):
        client, refused = log_in(shared, name, "wrong password")
        client.close()
        assert refused.status_code == 403
        assert "set-cookie" not in refused.headers
        texts.append(refused.text.replace(name, "NAME"))
    assert texts[0] == texts[1]


def test_roles(shared: Console) -> None:
    for page in app.PAGES:
        if "{" in page.path:
            continue
        for role, user in zip(users.ROLES, ("vera", "otto", "ada"), strict=True):
            allowed = users.ROLES.index(role) >= users.ROLES.index(page.role)
            with shared.client(role, user=user) as client:
                if page.method == "GET":
                    assert (client.get(page.path).status_code != 403) == allowed, (page.path, user)
                elif not allowed:
                    assert client.submit(page.path).status_code == 403, (page.path, user)


def test_no_page_opens_without_a_session(shared: Console) -> None:
    with Client(shared.url) as client:
        for page in app.PAGES:
            path = page.path.replace("{number:int}", "1").replace("{", "").replace("}", "").replace(":path", "")
            if page.method == "GET":
                response = client.get(path)
                assert (response.status_code, response.headers.get("location")) == (303, "/login"), path
            else:
                assert client.post(path).status_code == 401, path


def test_role_is_the_present_one(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    add_user(folder, "ada", "administrator")
    add_user(folder, "bob", "administrator")
    with Console(folder) as running:
        client, _ = log_in(running, "bob")
        with contextlib.closing(client), running.site.database() as database:
            assert client.get("/users").status_code == 200
            database.execute("UPDATE users SET role = 'viewer' WHERE name = 'bob'")  # not by the console
            assert client.get("/users").status_code == 403
            users.set_password(database, "bob", "another password", who="test")
            assert client.get("/settings").headers["location"] == "/login"


def test_guessing_gets_slower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(login, "Attempts", lambda: Attempts(clock=lambda: now))
    add_user(tmp_path / "site", "ada", "administrator")
    site = Site.open(tmp_path / "site")
    transport = httpx.ASGITransport(app.make_app(site, SessionStore(site)))

    async def codes(*passwords: str) -> list[int]:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return [
                (await client.post("/login", data={"user": "ada", "password": password})).status_code for password in passwords
            ]

    assert asyncio.run(codes(*["wrong password"] * 7)) == [403] * 5 + [429] * 2
    assert asyncio.run(codes(PASSWORD)) == [429], "the right password must wait, too"
    now = 2.0
    assert asyncio.run(codes("wrong password", "wrong password")) == [403, 429]
    now = 3.5
    assert asyncio.run(codes(PASSWORD)) == [429], "longer than before"
    now = 60.0
    assert asyncio.run(codes(PASSWORD)) == [303]


def test_login_flood_leaves_the_pages_usable(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    add_user(folder, "ada", "administrator")
    with Console(folder) as running, running.client("administrator", user="ada") as client:
        body = b"user=ada&password=wrong"
        head = f"POST /login HTTP/1.1\r\nHost: {running.address}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
        with contextlib.ExitStack() as stack:
            flood = [stack.enter_context(raw(running, request)) for _ in range(40)]
            assert client.get("/settings").status_code == 200
            codes = [answer(connection).split()[1] for connection in flood]
        # Each failure after the fifth needs twice the wait of the one before: a busy computer takes seconds for a few more.
        assert codes.count(b"403") <= 10, "attempts at the same time are counted before they are checked"
        assert set(codes) <= {b"403", b"429", b"503"}
        status = Path(f"/proc/{running.process.pid}/status").read_text()
        peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        assert peak < 900 << 10, "kB"


# Other sites and other hosts


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 303),
        ("localhost:1", 303),
        ("LOCALHOST", 303),
        ("[::1]:8765", 303),
        ("127.9.9.9", 303),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("10.0.0.1", 403),
        ("[::1", 403),
        ("[fe80::1]", 403),
        ("127.0.0.1@evil.example", 403),
        ("", 403),
    ],
)
def test_host(console: Console, host: str, status: int) -> None:
    with Client(console.url) as client:
        assert client.get("/people", headers={"Host": host}).status_code == status


def test_missing_or_double_host(console: Console) -> None:
    for head in (
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: a\r\n\r\n",
    ):
        with raw(console, head) as connection:
            assert answer(connection).split()[1] in (b"400", b"403"), head


def test_change_needs_our_origin(console: Console) -> None:
    with console.client() as client:
        good = {"csrf": client.csrf(), "language": "de"}
        refused = [
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": console.url.replace("http:", "https:")},
            {"Origin": "http://127.0.0.1:1"},
            {"Origin": f"{console.url}.evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ]
        for headers in refused:
            assert client.post("/settings/language", data=good, headers=headers).status_code == 403, headers
        for headers in ({"Origin": console.url}, {"Origin": console.url, "Sec-Fetch-Site": "same-origin"}, {}):
            assert client.post("/settings/language", data=good, headers=headers).status_code == 303, headers


def test_change_needs_the_csrf_value(console: Console) -> None:
    with console.client() as client, console.client() as other:
        path, fields = "/settings/language", {"language": "de"}
        assert client.post(path, data=fields).status_code == 403
        assert client.post(path, data=fields | {"csrf": ""}).status_code == 403
        assert client.post(path, data=fields | {"csrf": other.csrf()}).status_code == 403
        assert client.post(path, data=fields, headers={"X-CSRF": "wrong"}).status_code == 403
        assert client.post(f"{path}?csrf={client.csrf()}", data=fields).status_code == 403
        assert client.post(path, files={"csrf": ("csrf", client.csrf())}).status_code == 403
        assert client.post(path, data=fields, headers={"X-CSRF": client.csrf()}).status_code == 303
        assert client.submit(path, fields).status_code == 303


def test_only_post_changes(console: Console) -> None:
    with console.client() as client:
        csrf = client.csrf()
        for page in app.PAGES:
            if page.method == "POST" and "{" not in page.path:
                others = [other for other in app.PAGES if other.path == page.path and other.method == "GET"]
                code = client.get(page.path, params={"csrf": csrf}).status_code
                assert others or code in (404, 405), page.path
        for method in ("PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"):
            assert client.request(method, "/settings", headers={"X-CSRF": csrf}).status_code == 403
        override = {"X-HTTP-Method-Override": "POST", "X-CSRF": csrf}
        assert client.get("/settings/language", headers=override).status_code == 405
        assert client.post("/settings", data={"_method": "GET", "csrf": csrf}).status_code == 405


def test_every_answer_has_the_headers(console: Console) -> None:
    with console.client() as client, Client(console.url) as nobody:
        answers = [
            client.get("/settings"),
            client.head("/settings"),
            client.get("/static/style.css"),
            client.get("/nothing"),
            nobody.get("/people"),
            nobody.get("/login"),
            nobody.get("/login", headers={"Host": "evil.example"}),
            client.post("/settings/language"),
        ]
        for response in answers:
            for name, value in HEADERS.items():
                assert response.headers.get_list(name) == [value], (response.url, name)
        assert [response.headers["cache-control"] for response in answers[:3]] == ["no-store", "no-store", "no-cache"]
        assert client.head("/settings").content == b""
        assert "server" not in answers[0].headers


def test_policy_allows_no_inline_code_and_no_other_host() -> None:
    policy = dict(part.strip().split(" ", 1) for part in HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert not any(word in HEADERS["Content-Security-Policy"] for word in ("unsafe", "http:", "https:", "*"))


def test_error_page_links_only_to_our_pages(console: Console) -> None:
    with console.client() as client:
        bad = {"csrf": client.csrf(), "language": "xx"}
        for referer in ("http://evil.example/x", "javascript:alert(1)", f"{console.url}//evil.example", "http://[", ""):
            page = client.post("/settings/language", data=bad, headers={"Referer": referer})
            assert page.status_code == 400
            assert '<p><a href="/">' in page.text, referer
        page = client.post("/settings/language", data=bad, headers={"Referer": f"{console.url}/trail?q=%22%3E"})
        assert '<p><a href="/trail?q=%22%3E">' in page.text


def test_notice_and_language_of_a_foreign_cookie_do_no_harm(console: Console) -> None:
    with console.client() as client:
        client.cookies.update({"notice": "%3Cscript%3Ealert(1)%3C/script%3E" + "x" * 5000, "language": "../../../etc"})
        page = client.get("/settings")
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert len(page.text) < 8000


def test_paths_outside_the_static_folder_are_not_served(console: Console) -> None:
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static//etc/passwd", "/static/"):
        with raw(console, f"GET {path} HTTP/1.1\r\nHost: {console.address}\r\n\r\n".encode()) as connection:
            assert answer(connection).split()[1] == b"404", path


# Sizes and slow clients


def test_large_form_is_refused_with_a_sentence(console: Console) -> None:
    with console.client() as client:
        csrf = client.csrf()
        response = client.post("/settings/language", data={"csrf": csrf, "language": "x" * (8 << 20)})
        assert response.status_code == 413
        assert "More than 1 MB" in response.text

        def chunks() -> Iterator[bytes]:
            yield f"csrf={csrf}&language=".encode()
            for _ in range(80):
                yield b"x" * 100_000

        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        assert client.post("/settings/language", content=chunks(), headers=kind).status_code == 413, "without a length"
    with Client(console.url) as nobody:
        assert nobody.post("/login", data={"user": "x" * 10_000, "password": ""}).status_code == 413


def test_many_parts_and_malformed_forms_are_refused(console: Console) -> None:
    with console.client() as client:
        csrf = {"X-CSRF": client.csrf()}
        many = {f"file{number}": (f"{number}.jpg", b"") for number in range(app.MAX_FILES + 1)}
        assert client.post("/settings/language", files=many, headers=csrf).status_code == 400
        fields = "&".join(f"a{number}=1" for number in range(app.MAX_FIELDS + 1))
        kind = csrf | {"Content-Type": "application/x-www-form-urlencoded"}
        assert client.post("/settings/language", content=fields, headers=kind).status_code == 400
        for content in (b"--x\r\n", b"--x\r\nContent-Disposition: form-data\r\n\r\na\r\n--x--", b"\0" * 1000, b""):
            kind = csrf | {"Content-Type": "multipart/form-data; boundary=x"}
            assert client.post("/settings/language", content=content, headers=kind).status_code == 400, content
        assert (
            client.post("/settings/language", content=b"{}", headers=csrf | {"Content-Type": "application/json"}).status_code
            == 400
        )


def test_numbers_and_paths_that_are_too_large_are_refused(console: Console) -> None:
    many, most = "9" * 5000, "9" * 19  # int() refuses many, SQLite refuses most
    with console.client() as client:
        for path in ("/jobs/{}", "/visits/{}", "/visits/{}/picture.jpg"):
            assert client.get(path.format(most)).status_code == 404, path
            assert client.get(path.format(many)).status_code == 403, path
        for path in ("/people?page={}", "/trail?before={}"):
            assert [client.get(path.format(number)).status_code for number in (most, many)] == [200, 200], path
        assert client.submit(f"/jobs/{most}/cancel").status_code == 400
        assert client.get(f"/people/{'x' * MAX_PATH}").status_code == 403
        assert client.get(f"/people/{quote('ß' * 100)}").status_code == 200


# Disks and files


def test_file_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with Console(tmp_path / "site") as running, running.client() as client:
        (running.site.photos / "Anna").write_bytes(b"")  # a file where a folder must be
        photo = {"photos": ("1.pgm", orl_file(1, 1))}
        page = client.submit("/people/Anna/photos", files=photo)
        assert (page.status_code, "cannot be read or written" in page.text, "<nav" in page.text) == (500, True, True)
        answer = client.submit("/people/Anna/photos", files=photo, headers={"Accept": "application/json"}).json()
        assert answer["hint"] == "Check free space and permissions."


def test_damaged_database_is_a_sentence(tmp_path: Path) -> None:
    with Console(tmp_path / "site") as running, running.client() as client:
        for end in ("-wal", "-shm"):
            running.site.database_file.with_name(f"console.db{end}").unlink(missing_ok=True)
        running.site.database_file.write_bytes(b"no database" * 1000)
        page = client.get("/people")
        assert (page.status_code, "cannot be used" in page.text, "from a copy" in page.text) == (503, True, True)
        headers = {"Accept": "application/json", "Accept-Language": "de"}
        assert "kann nicht benutzt werden" in client.get("/people", headers=headers).json()["problem"]


def test_large_head_is_refused(console: Console) -> None:
    with raw(console, b"GET /login HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * (1 << 20)) as connection:
        assert answer(connection).split()[1:2] in ([b"400"], [])


def test_one_address_cannot_take_all_connections(console: Console) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(raw(console, b"GET / HTTP/1.1\r\n")) for _ in range(server.PER_ADDRESS + 10)]
        assert sum(answer(connection) == b"" for connection in slow[-5:]) == 5, "the last ones are closed at once"
    with Client(console.url) as client:
        assert client.get("/login").status_code == 200


# Addresses, TLS and the command


def write_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name), x509.DNSName("*.doors.example")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key_file.write_bytes(key.private_bytes(*pem))
    return cert_file, key_file


def test_other_addresses_need_tls_and_an_administrator(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")
    cert, key = write_certificate(tmp_path, "console.example")
    with pytest.raises(UsageError, match="needs TLS"):
        server.listen(site, "0.0.0.0:0")
    with pytest.raises(UsageError, match=r"add-user .* --role administrator"):
        server.listen(site, "0.0.0.0:0", cert=cert, key=key)
    with pytest.raises(UsageError, match="belong together"):
        server.listen(site, "127.0.0.1:0", cert=cert)
    add_user(site.path, "ada", "administrator")
    with pytest.raises(UsageError, match="PEM"):
        server.listen(site, "0.0.0.0:0", cert=cert, key=cert)
    with pytest.raises(UsageError, match="cannot be read"):
        server.listen(site, "0.0.0.0:0", cert=tmp_path / "missing", key=key)
    taken = server.listen(site, "0.0.0.0:0", cert=cert, key=key)
    with taken.socket as own, pytest.raises(ListenError, match="cannot be served"):
        server.listen(site, f"0.0.0.0:{own.getsockname()[1]}", cert=cert, key=key)


def test_tls_with_login(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path, "console.example")
    add_user(tmp_path / "site", "ada", "administrator")
    with Console(tmp_path / "site", "--cert", cert, "--key", key, address="0.0.0.0:0") as running:
        url = f"https://127.0.0.1:{running.address.rpartition(':')[2]}"
        trusted = ssl.create_default_context(cafile=cert)
        trusted.check_hostname = False
        with Client(url, verify=trusted) as client:
            for host, status in (("console.example", 303), ("a.doors.example:8765", 303), ("a.b.doors.example", 403)):
                assert client.get("/people", headers={"Host": host}).status_code == status, host
            assert client.get("/people", headers={"Host": "evil.example"}).status_code == 403
            entered = client.post("/login", data={"user": "ada", "password": PASSWORD})
            assert entered.headers["set-cookie"].startswith("__Host-session_")
            assert "Secure" in entered.headers["set-cookie"]
            assert "max-age" in client.get("/users").headers["strict-transport-security"]
            assert client.get("/token?token=").headers["location"] == "/login"
        with pytest.raises(httpx.HTTPError):
            httpx.get(url.replace("https:", "http:"), trust_env=False)


def run_trainer(*arguments: object, text: str = "") -> tuple[int, str, str]:
    command = [sys.executable, "-m", "trainer", *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=environment())
    return done.returncode, done.stdout, done.stderr


def test_command_stops_at_signals_and_reports_problems(tmp_path: Path) -> None:
    with Console(tmp_path / "site") as first:
        code, _, message = run_trainer("console", tmp_path / "site", "--address", first.address, "--no-browser")
        assert (code, message.count("\n")) == (ListenError.exit_code, 1)
        with contextlib.closing(first.client()) as open_connection:
            assert open_connection.get("/settings").status_code == 200
            assert first.stop(signal.SIGINT) == 130, "a connection that stays open does not hold it"
        assert first.messages() == "interrupted\n"
    with Console(tmp_path / "site") as second:
        assert second.stop(signal.SIGTERM) == -signal.SIGTERM
        assert second.messages() == ""
    code, _, message = run_trainer("console", tmp_path / "site", "--address", "0.0.0.0:0", "--no-browser")
    assert (code, message.count("\n"), "--cert" in message) == (2, 1, True)


def test_start_removes_uploads_that_were_left(tmp_path: Path) -> None:
    site = Site.create(tmp_path / "site")

    def leave() -> list[Path]:
        (site.path / f"{people.UPLOAD}-1.zip").write_bytes(b"PK")
        (site.path / f"{visits.UPLOAD}1").mkdir(exist_ok=True)
        (site.path / f"{visits.UPLOAD}1" / "upload").write_bytes(b"a log")
        return sorted(path for path in site.path.iterdir() if path.name.startswith((people.UPLOAD, visits.UPLOAD)))

    left = leave()
    with Console(site.path):
        assert not any(path.exists() for path in left)
    with jobs.run(site, "import", "test"):
        left = leave()
        with Console(site.path):
            assert all(path.exists() for path in left), "the job may be reading them"


def test_missing_packages_give_a_sentence(tmp_path: Path) -> None:
    script = (
        "import sys\nsys.modules['uvicorn'] = None\nsys.argv = ['trainer', 'console', sys.argv[1]]\n"
        "from trainer.cli.main import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "site"], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "pip install 'lclrr-edge[console]'" in done.stderr


def test_users_by_command(tmp_path: Path) -> None:
    site = tmp_path / "site"
    code, _, message = run_trainer("site", "add-user", site, "ada", "--role", "administrator", text="short\n")
    assert (code, "10" in message) == (2, True)
    assert run_trainer("site", "add-user", site, "ada", "--role", "administrator", text=f"{PASSWORD}\n")[0] == 0
    assert run_trainer("site", "add-user", site, "vera", text=f"{PASSWORD}\n")[0] == 0
    assert [line.split()[:2] for line in run_trainer("site", "users", site)[1].splitlines()] == [
        ["ada", "administrator"],
        ["vera", "viewer"],
    ]
    assert run_trainer("site", "remove-user", site, "ada")[0] == 2, "the last administrator stays"
    lines = run_trainer("site", "trail", site, "--json", "--search", "vera")[1].splitlines()
    assert [(entry["action"], entry["subject"]) for entry in map(json.loads, lines)] == [("add user", "vera")]
