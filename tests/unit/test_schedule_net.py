"""The Petri net: what fires when, in which order, and what a failure does; and the thread that steps it."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.clock import ManualClock, SystemClock
from millstream.schedule.net import RETRY_AFTER, Firing, Net
from millstream.schedule.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 30.0
MINUTE = timedelta(minutes=1)


class Recorder:
    """Actions that remember what they were given."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def __call__(self, name: str) -> Callable[[int], None]:
        return lambda tokens: self.calls.append((name, tokens))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def net(clock: ManualClock) -> Net:
    return Net(clock)


def test_a_transition_fires_at_its_number_of_tokens_and_takes_them_all(net: Net, recorder: Recorder) -> None:
    net.transition("t", "p", Firing(tokens=3), recorder("t"))
    net.put("p", 2)
    assert net.step() == []
    net.put("p", 2)
    assert net.step() == ["t"]
    assert recorder.calls == [("t", 4)]
    assert net.place("p").tokens == 0
    assert net.step() == []


def test_a_transition_fires_when_its_oldest_token_is_old_enough(
    net: Net, recorder: Recorder, clock: ManualClock
) -> None:
    net.transition("t", "p", Firing(age=MINUTE), recorder("t"))
    assert net.next_due() is None
    net.put("p")
    due = clock.now() + MINUTE
    assert net.next_due() == due
    clock.advance(MINUTE / 2)
    net.put("p")
    assert net.next_due() == due, "the oldest token counts"
    assert net.step() == []
    clock.advance(MINUTE / 2)
    assert net.step() == ["t"]
    assert recorder.calls == [("t", 2)]
    assert net.next_due() is None


def test_tokens_and_age_are_either_of_them_enough(net: Net, recorder: Recorder, clock: ManualClock) -> None:
    net.transition("t", "p", Firing(tokens=2, age=MINUTE), recorder("t"))
    net.put("p", 2)
    assert net.step() == ["t"]
    net.put("p")
    assert net.step() == []
    clock.advance(MINUTE)
    assert net.step() == ["t"]


def test_a_demand_fires_once_if_there_is_anything(net: Net, recorder: Recorder) -> None:
    transition = net.transition("t", "p", Firing(tokens=100), recorder("t"))
    net.demand("t")
    assert net.step() == [], "nothing to do"
    net.put("p")
    assert net.step() == [], "the demand was for then"
    net.demand("t")
    assert net.step() == ["t"]
    assert transition.fired == 1


def test_nothing_and_less_than_nothing_are_no_tokens(net: Net) -> None:
    net.put("p", 0)
    net.put("p", -1)
    assert net.place("p").tokens == 0
    assert net.place("p").since is None


def test_transitions_fire_in_the_order_of_declaration_and_feed_each_other(net: Net, recorder: Recorder) -> None:
    def pass_on(tokens: int) -> None:
        recorder.calls.append(("second", tokens))
        net.put("a", 1)

    net.transition("first", "a", Firing(tokens=1), recorder("first"))
    net.transition("second", "b", Firing(tokens=1), pass_on)
    net.transition("third", "b", Firing(tokens=1), recorder("third"))
    net.put("b", 2)
    assert net.step() == ["second"]
    assert net.step() == ["first"]
    net.put("b")
    net.put("a")
    assert net.run_until_idle() == ["first", "second", "first"]


@settings(derandomize=True, deadline=None, database=None, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["a", "b", "step", "minute"]), st.integers(1, 3)), max_size=20))
def test_no_token_is_lost_or_doubled_and_two_runs_are_alike(script: list[tuple[str, int]]) -> None:
    def run() -> tuple[list[tuple[str, int]], int]:
        clock, recorder = ManualClock(), Recorder()
        net = Net(clock)
        net.transition("x", "a", Firing(tokens=4, age=MINUTE), recorder("x"))
        net.transition("y", "b", Firing(age=3 * MINUTE), recorder("y"))
        for what, number in script:
            if what == "step":
                net.step()
            elif what == "minute":
                clock.advance(number * MINUTE)
            else:
                net.put(what, number)
        return recorder.calls, net.place("a").tokens + net.place("b").tokens

    calls, left = run()
    assert sum(n for _, n in calls) + left == sum(n for what, n in script if what in "ab")
    assert run() == (calls, left)


def test_a_failure_is_told_and_its_tokens_are_tried_again_after_a_pause(net: Net, clock: ManualClock) -> None:
    fails = [True]
    seen: list[int] = []

    def action(tokens: int) -> None:
        seen.append(tokens)
        if fails:
            raise OSError("no room")

    transition = net.transition("t", "p", Firing(tokens=2, age=10 * MINUTE), action)
    net.put("p", 2)
    assert net.step() == []
    assert str(transition.failure) == "no room"
    assert net.place("p").tokens == 2
    assert net.step() == [], "not at once"
    assert net.run_until_idle() == []
    assert seen == [2]
    assert net.next_due() == clock.now() + RETRY_AFTER
    clock.advance(RETRY_AFTER)
    fails.clear()
    assert net.step() == ["t"]
    assert transition.failure is None
    assert (seen, transition.fired) == ([2, 2], 1)


def test_a_failure_after_waiting_is_tried_again_after_the_pause_and_not_after_the_whole_age(
    net: Net, clock: ManualClock
) -> None:
    attempts: list[int] = []

    def action(tokens: int) -> None:
        attempts.append(tokens)
        raise OSError

    net.transition("t", "p", Firing(age=10 * MINUTE), action)
    net.put("p")
    clock.advance(10 * MINUTE)
    net.step()
    clock.advance(RETRY_AFTER)
    net.step()
    assert attempts == [1, 1]


def test_what_is_broken_off_has_its_tokens_again_at_once(net: Net) -> None:
    taken: list[int] = []

    def action(tokens: int) -> None:
        if not taken:
            taken.append(tokens)
            raise KeyboardInterrupt
        taken.append(tokens)

    net.transition("t", "p", Firing(tokens=1), action)
    net.put("p", 3)
    with pytest.raises(KeyboardInterrupt):
        net.step()
    assert net.step() == ["t"]
    assert taken == [3, 3]


def test_one_failure_does_not_keep_others_from_firing(net: Net, recorder: Recorder) -> None:
    def fail(_: int) -> None:
        raise ValueError

    net.transition("bad", "p", Firing(tokens=1), fail)
    net.transition("good", "q", Firing(tokens=1), recorder("good"))
    net.put("p")
    net.put("q")
    assert net.step() == ["good"]


def test_the_runner_is_woken_by_tokens(net: Net, clock: ManualClock) -> None:
    fired = threading.Event()
    net.transition("t", "p", Firing(tokens=2), lambda _: fired.set())
    runner = Runner(net, clock)
    net.put("p")
    assert not fired.is_set()
    net.put("p")
    assert fired.wait(PATIENCE)
    runner.stop()


def test_the_runner_is_woken_by_a_demand(net: Net, clock: ManualClock) -> None:
    fired = threading.Event()
    net.transition("t", "p", Firing(tokens=100), lambda _: fired.set())
    runner = Runner(net, clock)
    net.put("p")
    net.demand("t")
    assert fired.wait(PATIENCE)
    runner.stop()


def test_the_runner_wakes_by_itself_when_something_becomes_due() -> None:
    clock = SystemClock()
    net = Net(clock)
    fired = threading.Event()
    net.transition("t", "p", Firing(age=timedelta(milliseconds=20)), lambda _: fired.set())
    runner = Runner(net, clock)
    net.put("p")
    assert fired.wait(PATIENCE)
    runner.stop()


def test_the_runner_stops_after_the_action_in_progress_and_fires_no_more(net: Net, clock: ManualClock) -> None:
    entered, leave = threading.Event(), threading.Event()
    ended: list[int] = []

    def action(_: int) -> None:
        entered.set()
        assert leave.wait(PATIENCE)
        ended.append(1)

    net.transition("t", "p", Firing(tokens=1), action)
    runner = Runner(net, clock)
    net.put("p")
    assert entered.wait(PATIENCE)
    stopper = threading.Thread(target=runner.stop)
    stopper.start()
    assert ended == []
    leave.set()
    stopper.join(PATIENCE)
    assert not stopper.is_alive()
    assert ended == [1]
    assert not runner._thread.is_alive()
    net.put("p")
    assert ended == [1]


def test_a_failing_action_does_not_end_the_runner(net: Net, clock: ManualClock) -> None:
    fired = threading.Event()

    def fail(_: int) -> None:
        raise ValueError

    net.transition("bad", "p", Firing(tokens=1), fail)
    net.transition("good", "q", Firing(tokens=1), lambda _: fired.set())
    runner = Runner(net, clock)
    net.put("p")
    net.put("q")
    assert fired.wait(PATIENCE)
    runner.stop()
