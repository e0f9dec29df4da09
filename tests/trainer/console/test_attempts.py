"""The limit of login attempts."""

from __future__ import annotations

from trainer.console.attempts import FORGET_SECONDS, FREE, MAX_ENTRIES, MOST_SECONDS, Attempts


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def attempt(attempts: Attempts, address: str, user: str, *, succeeded: bool = False) -> float:
    """Make an attempt, and return the seconds that it must wait."""
    with attempts.begin(address, user) as begun:
        begun.succeeded = succeeded and begun.wait <= 0
        return begun.wait


def test_each_failure_costs_more_time() -> None:
    clock = Clock()
    attempts = Attempts(clock=clock)
    waits = []
    for _ in range(20):
        while (wait := attempt(attempts, "10.0.0.1", "ada")) > 0:
            clock.now += wait
            waits.append(wait)
    assert waits == sorted(waits)
    assert waits[-1] > 100 * waits[0]
    assert max(waits) <= MOST_SECONDS["address"]


def test_some_mistakes_are_free() -> None:
    attempts = Attempts(clock=Clock())
    assert [attempt(attempts, "10.0.0.1", "ada") for _ in range(FREE)] == [0.0] * FREE
    assert attempt(attempts, "10.0.0.1", "ada") > 0


def test_user_is_protected_against_many_addresses() -> None:
    attempts = Attempts(clock=Clock())
    allowed = [number for number in range(100) if attempt(attempts, f"10.0.0.{number}", "ada") <= 0]
    assert len(allowed) == FREE
    assert attempt(attempts, "10.0.1.1", "bob") <= 0


def test_address_cannot_try_many_users() -> None:
    attempts = Attempts(clock=Clock())
    assert len([number for number in range(100) if attempt(attempts, "10.0.0.1", f"user{number}") <= 0]) == FREE
    assert attempt(attempts, "10.0.0.2", "bob") <= 0


def test_computer_with_many_ipv6_addresses_counts_as_one() -> None:
    attempts = Attempts(clock=Clock())
    assert len([number for number in range(100) if attempt(attempts, f"2001:db8::{number:x}", f"u{number}") <= 0]) == FREE
    assert attempt(attempts, "2001:db8:0:1::1", "bob") <= 0
    assert attempt(attempts, "::ffff:10.0.0.1", "bob") <= 0


def test_success_forgives_the_user_but_not_other_failures_of_the_address() -> None:
    attempts = Attempts(clock=Clock())
    for _ in range(FREE - 1):
        attempt(attempts, "10.0.0.1", "ada")
    assert attempt(attempts, "10.0.0.1", "vera", succeeded=True) <= 0
    assert attempt(attempts, "10.0.0.1", "ada") <= 0
    assert attempt(attempts, "10.0.0.1", "ada") > 0, "an account of one's own does not help to guess another"


def test_failures_are_forgotten() -> None:
    clock = Clock()
    attempts = Attempts(clock=clock)
    for _ in range(FREE + 1):
        attempt(attempts, "10.0.0.1", "ada")
    clock.now += FORGET_SECONDS + 1
    assert [attempt(attempts, "10.0.0.1", "ada") <= 0 for _ in range(FREE)] == [True] * FREE


def test_memory_is_limited() -> None:
    attempts = Attempts(clock=Clock())
    for number in range(2 * MAX_ENTRIES):
        attempt(attempts, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", f"user{number}")
    assert len(attempts._failures) <= MAX_ENTRIES
