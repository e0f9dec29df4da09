"""Write edge/settings.template.toml and docs/reference/settings.md: python -m scripts.qa.settings_template

Both come from the settings classes: the text below a field describes its key. A test compares the three.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, Field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

from edge import settings as configuration
from edge.settings import table_type, to_toml

FILE = Path(configuration.__file__).with_name("settings.template.toml")
PAGE = Path("docs/reference/settings.md")


def template() -> str:
    """Return a file that changes nothing: each key with its meaning and default, as a comment."""
    lines = []
    for name, hint in get_type_hints(configuration.Settings).items():
        kind = table_type(hint)
        is_off = getattr(configuration.Settings(), name) is None
        lines += [f"# {(inspect.getdoc(kind) or '').partition(chr(10))[0]}", f"# [{name}]" if is_off else f"[{name}]"]
        docs, hints = field_docs(kind), get_type_hints(kind)
        for item in fields(kind):
            value = default(item)
            unset = '"..."' if str in _kinds(hints[item.name]) or Path in _kinds(hints[item.name]) else "..."
            lines.append(f"# {item.name} = {to_toml(value) if value not in (None, MISSING) else unset}")
            lines += textwrap.wrap(docs[item.name], 110, initial_indent="#     ", subsequent_indent="#     ")
        lines.append("")
    return "\n".join(lines)


def field_docs(kind: type[Any]) -> dict[str, str]:
    """Return the text below each field of a dataclass, which Python does not keep."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for pair in pairwise(body.body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs


def default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _kinds(hint: Any) -> tuple[Any, ...]:
    return (hint, *getattr(hint, "__args__", ()))


if __name__ == "__main__":
    FILE.write_text(template())
    before, _, after = PAGE.read_text().partition("```toml\n")
    PAGE.write_text(f"{before}```toml\n{template()}```{after.partition('```')[2]}")
