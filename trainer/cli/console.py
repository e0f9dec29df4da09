"""`trainer console`: the pages for a site, in a browser."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from edge.cli import common as console
from edge.credentials import MAX_BYTES
from edge.errors import UsageError
from edge.files import read_bytes, write_file

ADDRESS = "127.0.0.1:8765"
START_PAGE = "start.html"
START = '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={url}"><a href="{url}">Console</a>\n'
"""A private file that sends the browser to the one-time link: arguments of programs can be read by all users."""
PACKAGES = {"starlette", "uvicorn", "jinja2", "python_multipart", "argon2", "anyio", "h11"}


def serve_console(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="The folder of the site. It is made if it is missing.")],
    address: Annotated[
        str, typer.Option(help="Address and port. Port 0: any free one. Beyond loopback: with --cert, --key and users.")
    ] = ADDRESS,
    cert: Annotated[Path | None, typer.Option(metavar="FILE", help="TLS certificate, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Private key of the certificate, PEM.")] = None,
    picture_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key of sealed pictures: the console shows them.")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Open the console of a site: people, training, kits, doors and visits in a browser."""
    try:
        from trainer.console import server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in PACKAGES:
            raise
        raise UsageError(f"The console needs the package {error.name}.", "Run: pip install 'lclrr-edge[console]'") from None
    from trainer.site.folder import Site

    found = Site.create(site)
    pictures = None if picture_key is None else read_bytes(picture_key, MAX_BYTES)

    start_page = found.path / START_PAGE

    def ready(url: str) -> None:
        console.say(f"Console of {found.path}: {url}")
        if browser:
            write_file(start_page, START.format(url=url).encode())
            webbrowser.open(start_page.as_uri())

    listener = server.listen(found, address, cert=cert, key=key)
    try:
        with console.log_to_stderr():
            server.serve(found, listener, picture_key=pictures, ready=ready)
    finally:
        start_page.unlink(missing_ok=True)
