"""Every method of the paper's tables, and some beside them, under the names by which `trainer` knows them.

Tuning tries `grid`, about as many choices for each method; eta, where a method has it, is swept over the codes of one
training and costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from typing import Any, Literal, cast

from edge.errors import UsageError
from trainer.method.base import FaceClassifier
from trainer.presets import PRESETS

COLUMNS = (
    *("yaleb-8-8", "yaleb-8-4", "yaleb-8-2", "yaleb-32-8", "yaleb-32-4", "yaleb-32-2"),
    *("ar-sunglasses", "ar-scarf", "ar-mixed"),
)
"""The cells of Tables 1 and 2, in their order."""
ETAS = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
SRC_LAMS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
Parameters = dict[str, Any]
DeviceMethod = Literal["lclrrdl", "lrrs", "srw", "srs", "src", "llc", "rbds", "lrr"]
"""Those that code one face at a time, in a fixed number of steps: a kit can hold their models."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A row of the tables."""

    title: str
    """As the paper writes it."""
    place: str
    """module:class in `trainer`; loaded when it is asked for, as `trainer fit` needs but one."""
    atoms: bool = True
    """Whether it takes atoms_per_class, as many as the cell has."""
    fixed: Parameters = field(default_factory=dict)
    """What makes it this method, or is not tuned."""
    grid: dict[str, tuple[Any, ...]]
    """What tuning tries."""
    published: Parameters = field(default_factory=dict)
    """Parameters of its paper that are not the defaults of its class."""
    printed: dict[str, float] = field(default_factory=dict)
    """The published accuracy in percent, by cell."""
    printed_seconds: float | None = None
    """The published training time, AR with sunglasses (MATLAB, 2019)."""
    timed: dict[str, Parameters] = field(default_factory=lambda: {"": {}})
    """What is given beside the tuned parameters where training is timed, by what the row says of it."""
    of_the_paper: bool = True
    """Whether it stands in the paper's own tables."""

    @property
    def estimator(self) -> type[FaceClassifier]:
        """Its class."""
        module, _, name = self.place.partition(":")
        return cast(type[FaceClassifier], getattr(import_module(f"trainer.{module}"), name))

    @property
    def usual(self) -> Parameters:
        """Tuning leaves these only for a gain that can be told from luck."""
        known = signature(self.estimator).parameters
        return {name: known[name].default for name in self.grid} | self.published

    def for_device(self, given: Parameters) -> Parameters:
        """Its parameters where it trains a model for a device; `given` ones that it does not have are refused."""
        unknown = sorted(given.keys() - signature(self.estimator).parameters.keys())
        if unknown:
            raise UsageError(f"{self.title} has no {', '.join(unknown)}.", "Leave that out, or use the method lclrrdl.")
        return self.settings(5, self.usual | given)

    def settings(self, atoms: int, given: Parameters | None = None) -> Parameters:
        """All parameters that are not tuned, for a cell of so many atoms a class."""
        return ({"atoms_per_class": atoms} if self.atoms else {}) | self.fixed | (given or {})


def _printed(*percent: float) -> dict[str, float]:
    return dict(zip(COLUMNS, percent, strict=True))


METHODS: dict[str, Method] = {
    "lclrrdl": Method(
        title="LCLRRDL",
        place="method.estimator:LCLRRDL",
        # Nobody's name is wrong in these data, and the other methods trust theirs.
        fixed={"coding": "l1", "schedule": "fast", "parts": None, "doubt": False},
        grid={"alpha": (0.1, 0.5), "gamma": (0.05, 0.5), "code_lam": (0.35, 0.5), "eta": ETAS},
        published={"code_lam": 0.35, "eta": PRESETS["paper"]["eta"]},
        timed={"": {}, "schedule paper": {"schedule": "paper"}},
        printed=_printed(80.1, 84.6, 85.0, 97.8, 99.0, 99.8, 92.3, 90.4, 90.0),
        printed_seconds=38.7,
    ),
    "lrrs": Method(
        title="LRSR",
        place="baselines.lrrs:LRRS",
        grid={"lam": (1.0, 2.0, 4.0, 8.0), "beta": (0.01, 0.03), "eta": ETAS},
        # W is learned on codes of one image at a time, so the low-rank problem of all images need not be solved: see `timed`.
        timed={"": {}, "all training images together": {"classifier_codes": "training"}},
        printed=_printed(75.3, 78.6, 79.5, 96.8, 96.9, 97.7, 89.2, 85.2, 85.6),
        printed_seconds=323.2,
    ),
    "slrr": Method(
        title="SLRR",
        place="baselines.slrr:SLRR",
        grid={"lam": (10.0, 30.0), "code_lam": (4.0, 7.0, 11.0, 16.0), "eta": ETAS},
        printed=_printed(76.6, 83.7, 83.8, 89.9, 93.6, 95.7, 87.3, 83.4, 82.4),
        printed_seconds=98.2,
    ),
    "lrsi": Method(
        title="LRSI",
        place="baselines.lrsi:LRSI",
        atoms=False,
        grid={"lam": (1.5, 3.0, 6.0), "incoherence": (1e-4, 3e-4, 1e-3)},
        printed=_printed(73.3, 80.9, 80.8, 89.5, 93.5, 94.5, 84.9, 76.4, 80.3),
        printed_seconds=2.1,
    ),
    "rpca": Method(
        title="RPCA",
        place="baselines.rpca:RPCA",
        atoms=False,
        grid={"lam": (1.0, 1.5, 2.0, 3.0), "src_lam": (1e-3, 1e-2)},
        printed=_printed(74.6, 78.3, 80.2, 85.6, 90.7, 94.1, 83.2, 75.8, 78.9),
        printed_seconds=7.4,
    ),
    "srw": Method(
        title="SRW",
        place="baselines.src:SRC",
        atoms=False,
        grid={"lam": SRC_LAMS},
        printed=_printed(79.3, 83.0, 83.8, 87.2, 89.5, 90.7, 86.8, 83.2, 79.2),
    ),
    "srs": Method(
        title="SRS",
        place="baselines.src:SRC",
        grid={"lam": SRC_LAMS},
        printed=_printed(75.3, 78.9, 80.1, 84.4, 85.7, 85.9, 82.1, 72.6, 65.5),
    ),
    "llc": Method(
        title="LLC",
        place="baselines.llc:LLC",
        atoms=False,
        grid={"neighbours": (5, 15, 30, 70), "beta": (1e-4, 1e-2), "eta": ETAS},
        printed=_printed(65.7, 70.6, 76.1, 76.4, 80.0, 85.6, 65.3, 59.2, 59.9),
    ),
    "rbds": Method(
        title="RBDS (2020)",
        place="baselines.rbds:RBDS",
        grid={"lam": (4.0, 8.0), "beta": (0.1, 0.3), "gamma": (0.2, 1.0), "eta": ETAS},
        printed=_printed(80.3, 82.8, 83.3, 97.2, 98.7, 98.9, 95.5, 93.3, 93.7),
        of_the_paper=False,
    ),
    "lclrr": Method(
        title="LCLRR",
        place="baselines.lclrr:LCLRR",
        grid={"lam": (1.0, 2.0, 4.0, 8.0), "alpha": (5e-3, 0.02), "eta": ETAS},
        of_the_paper=False,
    ),
    "lrr": Method(
        title="LRR",
        place="baselines.lrr:LRR",
        grid={"lam": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0), "eta": ETAS},
        of_the_paper=False,
    ),
    "src": Method(
        title="SRC, [D, I]",
        place="baselines.src:SRC",
        atoms=False,
        fixed={"occlusion": True},
        grid={"lam": SRC_LAMS},
        of_the_paper=False,
    ),
}


def method_of(name: str) -> Method:
    if name not in METHODS:
        raise UsageError(f"There is no method {name}.", f"Choose of {', '.join(METHODS)}.")
    return METHODS[name]
