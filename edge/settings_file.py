"""Read dataclasses from TOML tables, and write them as TOML: the fields and their types define the format.

`scripts/qa/settings_template.py` makes settings.template.toml from the same fields.
"""

import json
import re
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from edge.camera.base import display_name
from edge.errors import EdgeError
from edge.text import printable

_PASSWORD = re.compile(r"://([^/]*:[^/]*@|.*(pass|pwd|token|secret|auth|key)\w*=)", re.IGNORECASE)
_EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", Path: "a path", str: "text"}


def holds_password(text: str) -> bool:
    """Return whether the text seems to be an address with a password."""
    return _PASSWORD.search(text) is not None


class TableReader:
    """Builds a `root` dataclass, whose fields are tables, and collects all problems. Relative paths start from `folder`."""

    def __init__(self, root: type[Any], folder: Path) -> None:
        self.root, self.folder = root, folder
        self.problems: list[str] = []

    def read(self, kind: type[Any], table: dict[str, Any], where: str) -> Any:
        """Return a dataclass from a table, or None if there are problems. `where` begins each problem."""
        known, count = get_type_hints(kind), len(self.problems)
        values = {}
        for key, value in table.items():
            if key not in known:
                self.problems.append(f"{where}{self._unknown(key, list(known))}")
            elif nested := table_type(known[key]):
                if isinstance(value, dict):
                    values[key] = self.read(nested, value, f"{where}[{key}] ")
                else:
                    self.problems.append(f"{where}{key} must be a table: [{key}]")
            elif isinstance(value, str) and holds_password(value):
                self.problems.append(f"{where}{key} must not contain a password{_instead(key, list(known))}")
            else:
                try:
                    values[key] = self._value(known[key], value)
                except ValueError as expected:
                    self.problems.append(f"{where}{key} must be {expected}, not {_shown(value)}")
        required = [item.name for item in fields(kind) if item.default is item.default_factory is MISSING]
        self.problems += [f"{where}{name} is missing" for name in required if name not in table]
        if len(self.problems) > count:
            return None
        try:
            return kind(**values)
        except EdgeError as error:
            self.problems.append(f"{where}{error}")
            return None

    def _unknown(self, key: str, known: list[str]) -> str:
        shown = f"`{printable(key[:40])}`"
        if instead := _instead(key, known):
            return f"{shown} is not allowed here{instead}"
        if near := get_close_matches(key, known, n=1):
            return f"unknown key {shown}; did you mean `{near[0]}`?"
        tables = {name: get_type_hints(table_type(hint)) for name, hint in get_type_hints(self.root).items()}
        homes = [name for name, keys in tables.items() if key in keys]
        return f"unknown key {shown}; " + (f"it belongs to [{homes[0]}]" if homes else f"known keys: {', '.join(known)}")

    def _value(self, hint: Any, value: Any) -> Any:
        """Return the value in its field's type, or raise ValueError(expected type). A bool is not a number."""
        hint = _without_none(hint)
        if hint is float and type(value) in (int, float) and abs(value) <= 1e300:
            return float(value)
        if hint is Path and type(value) is str and value and "\0" not in value:
            return self.folder / value
        if hint in (bool, int, str) and type(value) is hint and not _is_huge(value):
            return value
        raise ValueError(_EXPECTED[hint])


def _instead(key: str, known: list[str]) -> str:
    names = [name for name in known if name in (f"{key}_file", f"{key}_env")]
    return f": use {' or '.join(names)}" if names else ""


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    return hint


def table_type(hint: Any) -> Any:
    """Return the dataclass that a type hint allows, or None."""
    kind = _without_none(hint)
    return kind if is_dataclass(kind) else None


def _shown(value: Any) -> str:
    kinds: dict[type, str] = {dict: "a table", list: "a list"}
    return kinds.get(type(value)) or ("such a large number" if _is_huge(value) else printable(repr(value)[:40]))


def _is_huge(value: Any) -> bool:
    """Return whether a number exceeds TOML's 64 bits. Python raises if it prints thousands of digits."""
    return type(value) is int and not -(1 << 63) <= value < 1 << 63


def as_toml(settings: Any) -> str:
    """Return a file with all values that are set. Passwords in addresses are masked."""
    lines = []
    for name, table in vars(settings).items():
        if table is not None:
            values = {key: value for key, value in vars(table).items() if value is not None}
            lines += [f"[{name}]", *(f"{key} = {to_toml(_masked(value))}" for key, value in values.items()), ""]
    return "\n".join(lines)


def _masked(value: Any) -> Any:
    try:
        return display_name(value) if isinstance(value, str) and "://" in value else value
    except ValueError:
        return "***"


def to_toml(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
