"""Write docs/reference/api.md and the pages below docs/reference/api/: python -m scripts.qa.api_reference

The pages come from signatures and docstrings; a test compares them. Signatures are read from the source, because Python prints
types in another way in each version.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Any

from scripts.qa.settings_template import field_docs

FOLDER = Path("docs/reference")
PACKAGES = ("edge", "trainer", "export")
WIDTH = 110

INDEX = """# Python API

The names that each package exports, and the building blocks of the method. `import edge` loads neither OpenCV nor onnxruntime:
its names load when they are first used. Other modules may change between versions.
[In your own program](../guide/python.md) and the [research examples](../research/examples/README.md) show how to use them.

`python -m scripts.qa.api_reference` writes these pages from the docstrings.
"""


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page: what is said first, and the names of each module."""

    title: str
    about: str
    modules: dict[str, tuple[str, ...]]
    """The names to describe by module; none: those that it exports."""
    file: str = ""


PAGES = (
    Page(title="edge", about="For the device.", modules={"edge": ()}),
    Page(title="trainer", about="For the workstation.", modules={"trainer": ()}),
    Page(title="export", about="From a model to a kit.", modules={"export": ()}),
    Page(
        title="The method",
        file="method",
        about="For research: the estimators of the paper's tables beside `LCLRRDL`, and the functions below them. Matrices "
        "have samples as columns; estimators take samples as rows. These names may change between versions.",
        modules={
            "trainer.method.base": ("FaceClassifier", "CodeClassifier"),
            "trainer.method.solver": ("solve", "Schedule", "Step"),
            "trainer.method.result": ("SolverResult",),
            "trainer.method.prox": ("soft_threshold", "column_shrink", "svt"),
            "trainer.method.locality": ("locality_weights",),
            "trainer.method.coding": ("Coding", "Coder"),
            "trainer.method.classifier": ("one_hot", "ridge"),
            "trainer.baselines.lrr": ("LRR", "represent"),
            "trainer.baselines.lclrr": ("LCLRR",),
            "trainer.baselines.lrrs": ("LRRS", "RBDS"),
            "trainer.baselines.slrr": ("SLRR",),
            "trainer.baselines.rpca": ("RPCA", "LRSI"),
            "trainer.baselines.src": ("SRC",),
            "trainer.baselines.llc": ("LLC", "local_codes"),
            "trainer.baselines.registry": ("method_of",),
            "trainer.thresholds": ("stranger_confidences", "stricter_threshold"),
            "trainer.training": ("to_model",),
        },
    ),
)


def pages() -> dict[Path, str]:
    """Return the text of every page by its file."""
    index, found = [INDEX], {}
    for page in PAGES:
        file = f"{page.file or page.title}.md"
        lines = [f"## {page.title}", page.about, "| name | what it is |\n|---|---|"]
        parts = [f"# Python API: {page.title}", f"{page.about} [All pages](../api.md)."]
        described = {name for names in page.modules.values() for name in names}
        for module, given in page.modules.items():
            names = given or tuple(import_module(module).__all__)
            if given:
                parts += [f"## {module}", as_markdown(import_module(module).__doc__ or "")]
            for name in names:
                thing = getattr(import_module(module), name)
                summary = escaped((inspect.getdoc(thing) or "").partition("\n")[0]).replace("|", r"\|")
                lines[-1] += f"\n| [`{name}`](api/{file}#{name.lower()}) | {summary} |"
                parts += describe(name, thing, level=3 if given else 2, described=described)
        index.append("\n\n".join(lines) + "\n")
        found[FOLDER / "api" / file] = "\n\n".join(filter(None, parts)) + "\n"
    return {FOLDER / "api.md": "\n".join(index)} | found


def describe(name: str, thing: Any, *, level: int, described: set[str]) -> list[str]:
    """Return the parts of the text about a class or function. `described`: names whose members the page has already."""
    parts = [f"{'#' * level} {name}"]
    if not inspect.isclass(thing):
        return [*parts, code(name, definition(thing)), as_markdown(inspect.getdoc(thing) or "")]
    made_by = vars(thing).get("__init__")
    if made_by is None or is_dataclass(thing) or getattr(thing, "_is_protocol", False):
        parts.append(as_markdown(inspect.getdoc(thing) or ""))
    else:
        parts += [code(name, definition(made_by), returns=False)]
        parts += [as_markdown(inspect.getdoc(thing) or ""), as_markdown(made_by.__doc__ or "")]
    bases = [f"`{base.__name__}`" for base in thing.__bases__ if is_ours(base)]
    parts += [f"Derives from {', '.join(bases)}."] if bases else []
    members = public_members(thing, described - {name})
    lines = field_lines(thing) if is_dataclass(thing) else []
    parts.append("\n".join([*lines, *(property_line(*item) for item in members.items() if isinstance(item[1], property))]))
    for key, member in members.items():
        if not isinstance(member, property):
            parts += [f"{'#' * (level + 1)} {name}.{key}", code(f"{name}.{key}", definition(member))]
            parts.append(as_markdown(inspect.getdoc(member) or ""))
    return parts


def is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in PACKAGES


def public_members(thing: type, described: set[str]) -> dict[str, Any]:
    """Return methods (as functions) and properties of a class, and of its bases that are not described themselves.

    A method that replaces one of a base without a docstring of its own does what that one says.
    """
    found: dict[str, Any] = {}
    for base in (base for base in reversed(thing.__mro__) if is_ours(base) and base.__name__ not in described):
        for key, value in vars(base).items():
            member = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if isinstance(value, cached_property):
                member = property(value.func)
            replaces = any(key in vars(other) for other in base.__mro__[1:] if is_ours(other))
            is_member = inspect.isfunction(member) or isinstance(member, property)
            if is_member and not key.startswith("_") and (member.__doc__ or not replaces):
                found[key] = member
    return found


def property_line(name: str, value: property) -> str:
    node = definition(value.fget)
    kind = f": `{type_text(node.returns)}`" if node.returns else ""
    return f"- `{name}`{kind} (read only). {as_markdown(inspect.getdoc(value) or '')}".rstrip()


def field_lines(kind: type) -> list[str]:
    """Return a line for each field of a dataclass, with its type, default and description."""
    docs: dict[str, str] = {}
    nodes: dict[str, ast.AnnAssign] = {}
    for base in reversed(kind.__mro__):
        if is_ours(base) and is_dataclass(base):
            docs |= field_docs(base)
            nodes |= {
                node.target.id: node
                for node in class_body(base)
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            }
    lines = []
    for item in fields(kind):
        node = nodes[item.name]
        text = f"- `{item.name}`: `{type_text(node.annotation)}`"
        if item.default_factory is not MISSING:
            text += " = `...`"
        elif type(item.default) in (bool, int, float, str, tuple, NoneType):
            text += f" = `{item.default!r}`"
        elif node.value is not None:
            text += f" = `{ast.unparse(node.value)}`"
        lines.append(f"{text}. {escaped(docs.get(item.name, ''))}".rstrip())
    return lines


@cache
def class_body(kind: type) -> list[ast.stmt]:
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    return body.body


def definition(function: Any) -> ast.FunctionDef:
    """Return the source of a function or method, without self or cls."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
    assert isinstance(node, ast.FunctionDef)
    node.args.args = [argument for argument in node.args.args if argument.arg not in ("self", "cls")]
    return node


def code(name: str, node: ast.FunctionDef, *, returns: bool = True) -> str:
    """Return a signature as a block of code, with a line for each parameter if it is long."""
    end, given = f" -> {type_text(node.returns)}" if returns and node.returns else "", parameters(node.args)
    line = f"{name}({', '.join(given)}){end}"
    if len(line) > WIDTH:
        line = "\n".join([f"{name}(", *(f"    {text}," for text in given), f"){end}"])
    return f"```python\n{line}\n```"


def parameters(arguments: ast.arguments) -> list[str]:
    """Return each parameter as text, with the stars between them."""
    given = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(given) - len(arguments.defaults)) + list(arguments.defaults)
    texts = [with_default(*pair) for pair in zip(given, defaults, strict=True)]
    if arguments.vararg:
        texts.append(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs:
        texts.append("*")
    texts += [with_default(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return texts + ([f"**{ast.unparse(arguments.kwarg)}"] if arguments.kwarg else [])


def with_default(argument: ast.arg, default: ast.expr | None) -> str:
    text = argument.arg if argument.annotation is None else f"{argument.arg}: {type_text(argument.annotation)}"
    return text if default is None else f"{text} = {ast.unparse(default)}"


def type_text(node: ast.expr) -> str:
    """Return a type as text; those in quotes too."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)


def as_markdown(doc: str) -> str:
    """Return a docstring as Markdown: formulas and columns become blocks of code, `name : text` becomes a list."""
    return "\n\n".join(map(_paragraph, re.split(r"\n\s*\n", inspect.cleandoc(doc))))


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    if lines[0].startswith("    ") or any(re.search(r"\S {3,}\S", line) for line in lines):
        return textwrap.indent(textwrap.dedent(text), "    ")
    if re.match(r"\w+ : ", text):
        text = re.sub(r"\n +", " ", text)
        return "\n".join("- `{}`: {}".format(*escaped(line).split(" : ", 1)) for line in text.split("\n"))
    return escaped(text)


def escaped(text: str) -> str:
    """Return text for Markdown: learned attributes (D_) as code, stars and angle brackets as they are."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        part = re.sub(r"[*<]", r"\\\g<0>", parts[i])
        parts[i] = re.sub(r"(?<![\w\\])[A-Za-z]\w*_(?![\w+{])", r"`\g<0>`", part)
    return "`".join(parts)


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
