"""Pieces of the report page. Sentences are in report_text.toml; text from outside passes through `text`."""

import tomllib
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from edge.text import percent as plain_percent
from edge.text import printable
from trainer.evaluation import figures
from trainer.evaluation.measures import Share
from trainer.types import Array

PAGE = Template(Path(__file__).with_name("report.html").read_text())
TEXT = tomllib.loads(Path(__file__).with_name("report_text.toml").read_text())


def sentence(name: str, **values: Any) -> str:
    """Return a text of the page with its values, which must be safe HTML."""
    return str(TEXT["text"][name].format(**values))


def paragraph(name: str, kind: str = "", **values: Any) -> str:
    return f'<p class="{kind}">{sentence(name, **values)}</p>\n'


def text(value: str) -> str:
    return escape(printable(value))


def percent(share: float | None, digits: int = 1) -> str:
    """Return a percentage with a space at which no line breaks."""
    return plain_percent(share, digits).replace(" ", "\N{NO-BREAK SPACE}")


def interval(share: Share, digits: int = 1) -> str:
    if share.interval is None:
        return "no photos"
    low, high = (percent(end, digits) for end in share.interval)
    return f"{low} to {high}"


def rate(share: Share | None, digits: int = 1) -> str:
    """Return a share with its counts and its interval below."""
    if share is None or share.interval is None:
        return "-"
    low, high = (f"{100 * end:.{digits}f}" for end in share.interval)
    return f"{percent(share.value, digits)} <small>{share.count:,}/{share.of:,}, {low} to {high}</small>"


def section(name: str, *parts: str) -> str:
    return f'<section id="{name}">\n<h2>{TEXT["titles"][name]}</h2>\n{"".join(parts)}</section>'


def side_by_side(*parts: str) -> str:
    return f'<div class="pair">\n{"".join(parts)}</div>\n'


def details(title: str, content: str) -> str:
    return f"<details>\n<summary>{title}</summary>\n{content}</details>\n"


def table(heads: Iterable[str], rows: Iterable[list[str]]) -> str:
    top = "".join(f'<th scope="col">{head}</th>' for head in heads)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>' + "".join(f"<td>{cell}</td>" for cell in row[1:]) + "</tr>\n" for row in rows
    )
    return f'<div class="scroll"><table>\n<thead><tr>{top}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>\n'


def cards(items: Iterable[str], kind: str = "") -> str:
    return f'<ul class="cards {kind}">{"".join(f"<li>{item}</li>" for item in items)}</ul>\n'


def figure(name: str, content: str, **values: Any) -> str:
    """Return a figure whose caption is the text of the same name."""
    return f'<figure id="{name}">\n{content}<figcaption>{sentence(name, **values)}</figcaption>\n</figure>\n'


def plot(name: str, paint: Callable[..., figures.Legend], *args: Any, kind: str = "curve", **values: Any) -> str:
    """Return a figure that a function of `figures` paints."""
    uri, legend = figures.draw(paint, *args)
    names = "".join(f'<li><i style="background:{colour}"></i>{text(label)}</li>' for label, colour in legend)
    image = f'<img src="{uri}" alt="{escape(sentence(name, **values))}" />'
    below = f'<ul class="legend">{names}</ul>' if names else ""
    return figure(name, f'<div class="plot {kind}">{image}{below}</div>\n', **values)


def image(values: Array, alt: str, colours: str = "gray", low: float = 0, high: float = 255) -> str:
    return f'<img class="face" src="{figures.pixels(values, colours, low, high)}" alt="{text(alt)}" />'
