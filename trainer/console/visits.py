"""Pages of visits."""

from starlette.responses import Response
from starlette.routing import Route

from trainer.console.call import Call, Page
from trainer.site.folder import Site


def show(call: Call) -> Response:
    raise NotImplementedError


PAGES = (Page("/visits", show),)


def open_routes(site: Site) -> list[Route]:
    return []
