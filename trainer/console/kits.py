"""Pages of kits."""

from starlette.responses import Response

from edge.errors import UsageError
from trainer.console.call import Call, Page


def show(call: Call) -> Response:
    raise UsageError("This version has no such page yet.", "Use the commands: trainer site --help.")


PAGES = (Page("/kits", show),)
