"""Pages of doors."""

from starlette.responses import Response

from trainer.console.call import Call, Page


def show(call: Call) -> Response:
    raise NotImplementedError


PAGES = (Page("/doors", show),)
