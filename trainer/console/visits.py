"""Pages of visits."""

from starlette.responses import Response
from starlette.routing import Route

from edge.errors import UsageError
from trainer.console.call import Call, Page
from trainer.site.folder import Site


def show(call: Call) -> Response:
    raise UsageError("This version has no such page yet.", "Use the commands: trainer site --help.")


PAGES = (Page("/visits", show),)


def open_routes(site: Site) -> list[Route]:
    return []
