"""What the solvers of a dictionary and its codes return."""

from dataclasses import dataclass

from trainer.types import Array


@dataclass(frozen=True)
class SolverResult:
    """What a solver found: Z (m,n), D (d,m), E (d,n), and statistics."""

    Z: Array
    D: Array
    E: Array
    residuals: Array
    """(iterations, 3), as in solver.Step; largest entries for the other methods."""
    rank: int
    """Rank of J, the low-rank copy of Z, after the last iteration."""
    converged: bool

    @property
    def iterations(self) -> int:
        return len(self.residuals)
