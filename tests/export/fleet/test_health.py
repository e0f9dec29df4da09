"""When a rollout goes on to more doors, and when it stops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import FleetError, ParameterError
from edge.fleet.documents import Rollout, fraction
from export.fleet.broker import Report
from export.fleet.health import Decision, Memory, check_steps, decide, takes

NEW, OLD = "ab" * 6, "cd" * 6
DOORS = tuple(f"d{number}" for number in range(20))
STEPS = (0.01, 0.1, 1.0)
ROLLOUT = Rollout(id="5eed", kit=f"north/kits/{'ab' * 32}.kit", kit_version=2, share=0.1)
FIRST = min(DOORS, key=lambda door: fraction(ROLLOUT.id, door))


def report(door: str, **facts: Any) -> Report:
    usual: dict[str, Any] = {"terminal": door, "online": True, "kit": OLD, "state": "fresh"}
    return Report(group="north", door=door, **usual | facts)


def reports(rollout: Rollout, **facts: Any) -> dict[str, Report]:
    """The doors do what the rollout says."""
    return {door: report(door, kit=NEW if takes(rollout, door) else OLD, **facts) for door in DOORS}


def decided(
    rollout: Rollout, found: dict[str, Report], memory: Memory | None = None, now: float = 1000.0, **more: Any
) -> tuple[Decision, Memory]:
    options: dict[str, Any] = {"steps": STEPS, "after": 60.0, "failures": {}} | more
    return decide(rollout, found, options.pop("failures"), memory or Memory(), now, **options)


def run(rollout: Rollout, *found: dict[str, Report], seconds: float = 60.0, **more: Any) -> list[Decision]:
    """Decide about each of the reports in turn, with `seconds` between them. The share follows."""
    memory, decisions = Memory(), []
    for number, one in enumerate(found):
        decision, memory = decided(rollout, one, memory, 1000.0 + seconds * number, **more)
        memory = Memory.from_bytes(memory.to_bytes())
        rollout = replace(rollout, share=decision.share, stopped=decision.action == "stop")
        decisions.append(decision)
    return decisions


def test_first_step_has_at_least_one_door() -> None:
    decision, _ = decided(replace(ROLLOUT, share=0.0), reports(replace(ROLLOUT, share=0.0)))
    assert decision.action == "advance"
    assert [door for door in DOORS if takes(replace(ROLLOUT, share=decision.share), door)] == [FIRST]


def test_share_is_raised_when_doors_have_worked_long_enough() -> None:
    first = replace(ROLLOUT, share=0.02)
    assert takes(first, FIRST)
    assert [one.action for one in run(first, *[reports(first)] * 2, seconds=59)] == ["wait", "wait"]
    assert [(one.action, one.share) for one in run(first, *[reports(first)] * 2)][1] == ("advance", 0.1)


def test_rollout_is_complete_and_stays_so() -> None:
    last = replace(ROLLOUT, share=1.0)
    later = reports(last, online=False)
    assert [one.action for one in run(last, reports(last), reports(last), later, later, later)] == ["wait", *["done"] * 4]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"kit": OLD}, "does not have the kit"),
        ({"online": False}, "is offline"),
        ({"state": "failed", "error": "data are false"}, "data are false"),
        ({"state": "stale"}, "stale"),
        ({"state": ""}, "has not reported"),
    ],
)
def test_door_with_a_problem_blocks(facts: dict[str, Any], words: str) -> None:
    last = replace(ROLLOUT, share=1.0)
    found = reports(last)
    found["d3"] = replace(found["d3"], **facts)
    decision, memory = decided(last, found, Memory(rollout=last.id, share=1.0, healthy_since=0.0))
    assert (decision.action, memory.healthy_since) == ("wait", None)
    assert decision.reasons[0].startswith("d3 ")
    assert words in decision.reasons[0]


def test_named_door_that_never_reports_blocks() -> None:
    named = replace(ROLLOUT, share=1.0, doors=("d1", "d2", "cellar"))
    decisions = run(named, *[reports(named)] * 3)
    assert [one.reasons for one in decisions] == [("cellar has not reported",)] * 3


def test_door_that_disappears_blocks() -> None:
    last = replace(ROLLOUT, share=1.0)
    found = reports(last)
    without = {door: one for door, one in found.items() if door != "d3"}
    assert run(last, {**found, "d3": report("d3")}, without, without)[-1].reasons == ("d3 has not reported",)


def test_no_door_is_no_success() -> None:
    assert [one.action for one in run(ROLLOUT, {}, {}, {})] == ["wait"] * 3


def test_rejected_kit_stops_even_if_the_door_is_not_in_the_share() -> None:
    decision, memory = decided(ROLLOUT, reports(ROLLOUT), failures={"d3": "rejected the kit"})
    assert (decision.action, decision.reasons) == ("stop", ("d3 rejected the kit",))
    stopped = replace(ROLLOUT, stopped=True)
    assert decided(stopped, reports(ROLLOUT), memory)[0].reasons == ("d3 rejected the kit",), "it is remembered"


def test_door_that_leaves_the_kit_stops() -> None:
    first = replace(ROLLOUT, share=1.0)
    found = reports(first)
    assert [one.action for one in run(first, found, {**found, "d3": report("d3")})] == ["wait", "stop"]


def test_door_that_stays_offline_with_the_kit_stops() -> None:
    first = replace(ROLLOUT, share=1.0)
    found = reports(first)
    gone = {**found, "d3": replace(found["d3"], online=False)}
    assert [one.action for one in run(first, found, gone, gone)] == ["wait", "wait", "stop"]
    assert [one.action for one in run(first, found, gone, found, gone)] == ["wait"] * 4, "it came back"


def test_resumed_rollout_begins_anew() -> None:
    _, memory = decided(ROLLOUT, reports(ROLLOUT), failures={"d3": "rejected the kit"})
    _, memory = decided(replace(ROLLOUT, stopped=True), reports(ROLLOUT), memory)
    assert decided(ROLLOUT, reports(ROLLOUT), memory)[0].action != "stop"


def test_other_rollout_begins_anew() -> None:
    _, memory = decided(ROLLOUT, reports(ROLLOUT), failures={"d3": "rejected the kit"})
    other = replace(ROLLOUT, id="0123")
    assert decided(other, reports(other), memory)[0].action != "stop"


def test_clock_that_is_set_back_waits_again() -> None:
    last = replace(ROLLOUT, share=1.0)
    _, memory = decided(last, reports(last), now=5000.0)
    decision, memory = decided(last, reports(last), memory, now=10.0)
    assert (decision.action, memory.healthy_since) == ("wait", 10.0)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Rollout, dict[str, Report], dict[str, str]]:
    rollout = replace(ROLLOUT, share=draw(st.sampled_from([0.0, 0.01, 0.07, 0.1, 0.5, 1.0])), stopped=draw(st.booleans()))
    rollout = replace(rollout, doors=draw(st.sampled_from([None, ("d1", "d2"), ("missing",)])))
    found = {}
    for door in draw(st.lists(st.sampled_from(DOORS), unique=True)):
        facts = st.fixed_dictionaries(
            {"kit": st.sampled_from([NEW, NEW, OLD, ""]), "online": st.sampled_from([True, True, False])}
            | {"state": st.sampled_from(["fresh", "fresh", "offline", "failed", "stale", ""])}
        )
        found[door] = report(door, **draw(facts))
    failures = draw(st.dictionaries(st.sampled_from(DOORS), st.just("rejected the kit"), max_size=1))
    return rollout, found, failures


@given(st.lists(situations(), min_size=1, max_size=6), st.floats(0, 100))
def test_share_is_raised_only_over_healthy_doors(
    history: list[tuple[Rollout, dict[str, Report], dict[str, str]]], after: float
) -> None:
    memory = Memory()
    for number, (rollout, found, failures) in enumerate(history):
        decision, memory = decided(rollout, found, memory, 30.0 * number, failures=failures, after=after)
        assert Memory.from_bytes(memory.to_bytes()).to_bytes() == memory.to_bytes()
        assert decision.share >= rollout.share
        assert (decision.share > rollout.share) == (decision.action == "advance")
        if failures and not memory.done:
            assert decision.action == "stop"
        if decision.action == "advance":
            assert not rollout.stopped
            for door in {*found, *(rollout.doors or ())}:
                if takes(rollout, door):
                    assert (found[door].kit, found[door].online) == (NEW, True)
                    assert found[door].state in ("fresh", "offline")
            known = {*memory.doors, *(rollout.doors or ())}
            assert any(takes(replace(rollout, share=decision.share), door) for door in known)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"schema":2}', b'{"schema":1,"share":"x"}', b'{"schema":1,"more":1}'])
def test_damaged_notes_are_an_error(data: bytes) -> None:
    with pytest.raises(FleetError, match="damaged"):
        Memory.from_bytes(data)


@pytest.mark.parametrize("steps", [[], [0.0, 1.0], [0.5, 0.1], [0.1, 0.1], [0.1, 2.0], [float("nan")]])
def test_steps_must_ascend(steps: list[float]) -> None:
    with pytest.raises(ParameterError, match="ascending"):
        check_steps(steps)
