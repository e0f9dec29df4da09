"""The methods that `trainer` offers, by name: class, fixed parameters and the values that tuning tries.

The grids have about the same size, so that tuning gives every method the same chance. eta is swept over the codes of one
training and costs nothing. The published results of the methods are in trainer/paper/published.toml. A method of one's own
is named module:Class instead (docs/research/examples/own_method.py).
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Literal, cast

from edge.errors import UsageError
from trainer.method.base import FaceClassifier
from trainer.presets import ETAS, PRESETS

SRC_LAMS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
AS_PRINTED = "/as printed"
"""After the name of a method: the method as its authors print it."""
Parameters = dict[str, Any]
DeviceMethod = Literal["lclrrdl", "lrrs", "srw", "srs", "src", "rbds", "lrr"]
"""Methods that code one face at a time in a fixed number of steps: a kit can hold their models."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method and how it is tuned."""

    title: str  # its name in the tables
    location: str  # module:class, imported on first use
    atoms: bool = True  # whether it has the parameter atoms_per_class
    fixed: Parameters = field(default_factory=dict)  # parameters that are not tuned
    grid: dict[str, tuple[Any, ...]]  # values that tuning tries
    photo_grid: dict[str, tuple[Any, ...]] | None = None
    """Values that `trainer tune` tries on a user's photos, if not those of `grid`."""
    published: Parameters = field(default_factory=dict)  # parameters of its paper that differ from the defaults of its class
    printed: Parameters | None = None
    """Parameters of the row NAME/as printed, the form of its authors (sources: docs/research/results.md). Empty: the usual row
    is as printed already. None: its authors print no classifier."""
    printed_grid: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # the same for weights that they do not print

    @property
    def estimator(self) -> type[FaceClassifier]:
        module, _, name = self.location.partition(":")
        return cast(type[FaceClassifier], getattr(import_module(module), name))

    @property
    def usual(self) -> Parameters:
        """Parameters before tuning, which changes them only for a significant gain."""
        known = signature(self.estimator).parameters
        return {name: known[name].default for name in self.grid} | self.published

    def for_device(self, given: Parameters) -> Parameters:
        """Return all parameters of a model for a device; reject `given` ones that the method does not have."""
        unknown = sorted(given.keys() - signature(self.estimator).parameters.keys())
        if unknown:
            raise UsageError(f"{self.title} has no {', '.join(unknown)}.", "Leave it out, or use the method lclrrdl.")
        return self.settings(5, self.usual | given)

    @property
    def as_printed(self) -> "Method":
        """The method as its authors print it: nothing is tuned but what they leave open."""
        return replace(self, fixed=self.fixed | (self.printed or {}), grid=self.printed_grid, published={})

    def settings(self, atoms: int, given: Parameters | None = None) -> Parameters:
        """Return the parameters that are not tuned, with this number of atoms per class."""
        return ({"atoms_per_class": atoms} if self.atoms else {}) | self.fixed | (given or {})


def _baseline(
    title: str,
    location: str,
    *,
    atoms: bool = True,
    fixed: Parameters | None = None,
    printed: Parameters | None = None,
    printed_grid: dict[str, tuple[Any, ...]] | None = None,
    **grid: Any,
) -> Method:
    more: dict[str, Any] = {"fixed": fixed or {}, "printed": printed, "printed_grid": printed_grid or {}}
    return Method(title=title, location=f"trainer.baselines.{location}", atoms=atoms, grid=grid, **more)


_RBDS_CODE: Parameters = {"together": True, "classifier_codes": "training", "beta": 0.01, "eta": PRESETS["paper"]["eta"]}
"""What the public code of RBDS does: it codes test faces by LRRS. reproduce.toml has what it sets for AR only."""
METHODS: dict[str, Method] = {
    "lclrrdl": Method(
        title="LCLRRDL",
        location="trainer.method.estimator:LCLRRDL",
        # doubt: the labels of these data are correct, and the other methods trust them.
        fixed={"coding": "l1", "schedule": "fast", "parts": None, "doubt": False},
        # of the l1 coder on pixels
        grid={"label_weight": (0.1, 0.3), "alpha": (0.5, 2.0), "gamma": (0.05, 0.5), "code_lam": (0.35, 0.5), "eta": ETAS},
        photo_grid={"lam": (5.0, 25.0), "alpha": (0.1, 0.5), "gamma": (0.05, 0.5, 5.0), "eta": ETAS[3:7]},
        published={"label_weight": 0.1, "code_lam": 0.35, "eta": PRESETS["paper"]["eta"]},
        printed={name: value for name, value in PRESETS["paper"].items() if name != "features"}
        | {"coding": "batch", "code_lam": None, "lam": 25.0, "alpha": 0.5, "gamma": 0.05, "label_weight": 0.0},
    ),
    "lrrs": _baseline(
        "LRSR",
        "lrrs:LRRS",
        printed=_RBDS_CODE,
        printed_grid={"lam": (4.0, 8.0, 16.0, 32.0, 64.0, 128.0)},
        lam=(1.0, 2.0, 4.0, 8.0),
        beta=(0.003, 0.01, 0.03, 0.1),
        eta=ETAS,
    ),
    "slrr": _baseline(
        "SLRR",
        "slrr:SLRR",
        printed={"together": True, "rounds": 3, "beta": 0.1, "eta": PRESETS["paper"]["eta"]},
        printed_grid={"lam": (15.0, 30.0, 60.0), "alpha": (0.01, 0.03)},
        lam=(5.0, 10.0, 30.0, 60.0),
        code_lam=(4.0, 7.0, 11.0, 16.0),
        eta=ETAS,
    ),
    "lrsi": _baseline(
        "LRSI",
        "rpca:LRSI",
        atoms=False,
        printed={"lam": 1.0},
        printed_grid={"incoherence": (1e-4, 3e-4, 1e-3, 1e-2)},
        lam=(1.5, 3.0, 6.0),
        incoherence=(1e-4, 3e-4, 1e-3),
    ),
    "rpca": _baseline(
        "RPCA", "rpca:RPCA", atoms=False, printed={"lam": 1.0, "src_lam": 1e-3}, lam=(1.0, 1.5, 2.0, 3.0), src_lam=(1e-3, 1e-2)
    ),
    "srw": _baseline("SRW", "src:SRC", atoms=False, printed={}, lam=SRC_LAMS),
    "srs": _baseline("SRS", "src:SRC", printed={}, lam=SRC_LAMS),
    "llc": _baseline(
        "LLC",
        "llc:LLC",
        atoms=False,
        printed={"neighbours": 5, "beta": 1e-4},
        printed_grid={"eta": ETAS},
        neighbours=(5, 15, 30, 70),
        beta=(1e-4, 1e-2),
        eta=ETAS,
    ),
    "rbds": _baseline(
        "RBDS (2020)",
        "lrrs:RBDS",
        printed=_RBDS_CODE | {"alpha": 0.01, "gamma": 0.05},
        printed_grid={"lam": (2.0, 4.0, 8.0, 16.0)},
        lam=(4.0, 8.0),
        beta=(0.1, 0.3),
        gamma=(0.2, 1.0),
        eta=ETAS,
    ),
    "lclrr": _baseline("LCLRR", "lclrr:LCLRR", lam=(1.0, 2.0, 4.0, 8.0), alpha=(5e-3, 0.02), eta=ETAS),
    "lrr": _baseline("LRR", "lrr:LRR", lam=(0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0), eta=ETAS),
    "ksvd": _baseline("LRR, atoms of K-SVD", "ksvd:KSVD", lam=(0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0), eta=ETAS),
    "src": _baseline("SRC, [D, I]", "src:SRC", atoms=False, fixed={"occlusion": True}, printed={}, lam=SRC_LAMS),
}


def method_of(name: str) -> Method:
    """Return a registered method, with AS_PRINTED in the form of its authors; or with module:Class one of the user's own."""
    if ":" in name:
        return own_method(name)
    base = name.removesuffix(AS_PRINTED)
    if base not in METHODS or (name != base and not METHODS[base].printed):
        raise UsageError(
            f"There is no method {name}.", f"Choose one of {', '.join(METHODS)}, or name one of your own as module:Class."
        )
    return METHODS[base] if name == base else METHODS[base].as_printed


def with_printed(names: Iterable[str]) -> tuple[str, ...]:
    """Return these methods, each followed by its form as printed if it has another one."""
    return tuple(form for name in names for form in (name, name + AS_PRINTED) if form == name or method_of(name).printed)


@cache
def own_method(location: str) -> Method:
    """Return the method module:Class: a FaceClassifier in an installed module or in a file of the working directory.

    `trainer tables --tune` tries the values of its class variable `grid`, a tuple for each parameter, if it has one.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    module, _, name = location.partition(":")
    try:
        found = getattr(import_module(module), name)
    except Exception as error:  # an import runs the code of the user
        raise UsageError(
            f"{location} cannot be imported ({type(error).__name__}: {error}).",
            "Name it as module:Class, of an installed module or a file in the working directory.",
        ) from error
    if not (isinstance(found, type) and issubclass(found, FaceClassifier)):
        raise UsageError(
            f"{location} is not a method.", "Derive it from FaceClassifier or CodeClassifier of trainer.method.base."
        )
    parameters, grid = signature(found).parameters, getattr(found, "grid", {})
    if unknown := sorted(grid.keys() - parameters.keys()):
        raise UsageError(f"{location} has no {', '.join(unknown)}, but its grid has.", "Correct its class variable grid.")
    return Method(title=name, location=location, atoms="atoms_per_class" in parameters, grid=grid)
