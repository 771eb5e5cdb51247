"""Devices lent to jobs: never twice at once, in the order of asking, and back when the lease of the job is over."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from checks.spec import RunSpec
from plumbline_web.accounts.models import User
from plumbline_web.jobs.devices import (
    TooFewDevices,
    Waiting,
    add_devices,
    ask,
    give_back,
    look,
    most_devices,
    register_devices,
)
from plumbline_web.jobs.domain import Lease, LeaseLost, finish, lock, take
from plumbline_web.jobs.enums import JobState
from plumbline_web.jobs.models import Device, DeviceWish, Job
from plumbline_web.validations.domain import submit
from plumbline_web.validations.models import FrameworkRun, Validation
from plumbline_web.validations.submission import InvalidSubmission, Submission
from plumbline_web.validations.sweeping import sweep
from plumbline_web.validations.work.devices import held_devices, tell_devices
from plumbline_web.validations.work.heart import Heart
from plumbline_web.validations.work.perform import perform
from tests.web.factories import make_job, make_run, make_validation
from tests.web.test_resilience import expire

pytestmark = pytest.mark.django_db

HOST = "gpu-host"
TWO = RunSpec("plain", Path("model"), Path("data"), dp_size=2)


@pytest.fixture
def new_lease(db: None) -> Callable[[], Lease]:
    """A job that has been taken, as often as it is called."""
    validation = make_validation(state="running", runs=False)

    def make() -> Lease:
        run = make_run(validation, state="running", role=f"r{FrameworkRun.objects.count()}")
        job = make_job(run=run, state=JobState.QUEUED)
        lease = take(job.pk, worker="w", host=HOST)
        assert lease is not None
        return lease

    return make


def test_two_runs_of_two_of_three_devices_never_overlap(new_lease: Callable[[], Lease]) -> None:
    register_devices(HOST, ["0", "1", "2"])
    first, second = (ask(new_lease(), host=HOST, count=2) for _ in range(2))
    assert look(first) == ("0", "1")
    assert look(second) == Waiting(2, 3, 0)
    give_back(first)
    assert look(second) == ("0", "1")
    assert look(second) == ("0", "1")


def test_a_small_wish_does_not_overtake_a_large_one(new_lease: Callable[[], Lease]) -> None:
    register_devices(HOST, ["0", "1", "2"])
    first, large, small = (ask(new_lease(), host=HOST, count=count) for count in (1, 3, 1))
    assert look(first) == ("0",)
    assert look(small) == Waiting(1, 3, 1)
    assert look(small).describe() == "waits for 1 of 3 devices, 1 before it"  # type: ignore[union-attr]
    give_back(first)
    assert look(small) == Waiting(1, 3, 0)  # the large one has been served
    assert look(large) == ("0", "1", "2")


def test_a_crash_gives_the_devices_back_when_the_lease_runs_out(new_lease: Callable[[], Lease]) -> None:
    register_devices(HOST, ["0", "1"])
    dead, waiting = new_lease(), new_lease()
    lost, wish = ask(dead, host=HOST, count=2), ask(waiting, host=HOST, count=1)
    assert look(lost) == ("0", "1")
    job = Job.objects.get(pk=dead.job_id)
    expire(job)
    assert look(wish) == Waiting(1, 2, 0)  # what it left may run still
    expire(job, host=os.uname().nodename)
    sweep(host=os.uname().nodename)
    assert look(wish) == ("0",)
    with pytest.raises(LeaseLost):
        look(lost)
    with pytest.raises(LeaseLost):
        ask(dead, host=HOST, count=1)
    give_back(lost)  # of a late holder: takes nothing from the next one
    assert look(wish) == ("0",)


def test_the_devices_of_a_job_that_has_ended_are_free(new_lease: Callable[[], Lease]) -> None:
    register_devices(HOST, ["0"])
    lease, next_one = new_lease(), new_lease()
    look(ask(lease, host=HOST, count=1))
    with transaction.atomic():
        finish(lock(lease), JobState.DONE)
    assert look(ask(next_one, host=HOST, count=1)) == ("0",)


def test_asking_twice_under_one_lease_is_one_wish(new_lease: Callable[[], Lease]) -> None:
    register_devices(HOST, ["0"])
    lease = new_lease()
    assert ask(lease, host=HOST, count=1) == ask(lease, host=HOST, count=1)


def test_more_than_the_machine_has_is_refused_in_a_sentence(new_lease: Callable[[], Lease]) -> None:
    register_devices(HOST, ["0", "1"])
    with pytest.raises(TooFewDevices, match="the run takes 3 devices, and gpu-host has 2; choose smaller degrees"):
        ask(new_lease(), host=HOST, count=3)
    holder, wish = ask(new_lease(), host=HOST, count=1), ask(new_lease(), host=HOST, count=2)
    look(holder)
    register_devices(HOST, ["1"])
    with pytest.raises(TooFewDevices, match="gpu-host has 1"):
        look(wish)


def test_machines_lend_their_own_devices_alone(new_lease: Callable[[], Lease]) -> None:
    register_devices(HOST, ["0"])
    register_devices("other", ["0"])
    assert [look(ask(new_lease(), host=host, count=1)) for host in (HOST, "other")] == [("0",), ("0",)]


def test_a_worker_that_sees_a_part_takes_nothing_away() -> None:
    register_devices(HOST, ["0", "1"])
    add_devices(HOST, ["2"])
    assert list(Device.objects.order_by("name").values_list("name", flat=True)) == ["0", "1", "2"]
    register_devices(HOST, ["1", "0"])
    assert list(Device.objects.order_by("place").values_list("name", flat=True)) == ["1", "0"]
    assert most_devices() == 2
    Device.objects.update(seen_at="2020-01-01T00:00Z")
    assert most_devices() == 0


def test_a_worker_names_what_it_is_configured_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUMBLINE_DEVICES", "0,1")
    tell_devices(HOST, ["0", "1"])
    monkeypatch.delenv("PLUMBLINE_DEVICES")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    tell_devices(HOST, ["5"])
    assert Device.objects.count() == 3


def test_a_job_holds_its_devices_and_lets_go(new_lease: Callable[[], Lease], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUMBLINE_DEVICES", "0,1,2")
    first, second = new_lease(), new_lease()
    with held_devices(first, TWO, Heart(first), host=HOST) as devices:
        assert devices == ("0", "1")
        heart = Heart(second)
        heart.asked = True  # cancelled while it waits
        with held_devices(second, TWO, heart, host=HOST) as none:
            assert none == ()
        assert DeviceWish.objects.count() == 1
    assert not DeviceWish.objects.exists()
    monkeypatch.setenv("PLUMBLINE_DEVICES", "")
    with held_devices(first, TWO, Heart(first), host=HOST) as none:
        assert none == ()


class Pool(RuleBasedStateMachine):
    """Jobs that ask, look, end and die in any order, beside a plain account of who came when."""

    make: Callable[[], Lease]

    def __init__(self) -> None:
        super().__init__()
        DeviceWish.objects.all().delete()
        Job.objects.all().delete()
        Device.objects.all().delete()
        register_devices(HOST, ["0", "1", "2"])
        self.wishes: list[DeviceWish] = []
        """in the order of asking, those that are alive"""

    @rule(count=st.integers(1, 3))
    def come(self, count: int) -> None:
        self.wishes.append(ask(self.make(), host=HOST, count=count))

    @precondition(lambda self: self.wishes)
    @rule(data=st.data())
    def look_once(self, data: st.DataObject) -> None:
        look(data.draw(st.sampled_from(self.wishes)))

    @precondition(lambda self: self.wishes)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        wish = data.draw(st.sampled_from(self.wishes))
        give_back(wish)
        self.wishes.remove(wish)

    @precondition(lambda self: self.wishes)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        wish = data.draw(st.sampled_from(self.wishes))
        Job.objects.filter(pk=wish.job_id).update(state=JobState.QUEUED)
        self.wishes.remove(wish)

    @invariant()
    def nothing_is_lent_twice(self) -> None:
        alive = DeviceWish.objects.filter(pk__in=[wish.pk for wish in self.wishes], granted_at__isnull=False)
        lent = [name for wish in alive for name in wish.devices]
        assert len(lent) == len(set(lent)) <= 3
        assert all(len(wish.devices) == wish.count for wish in alive)

    @invariant()
    def whoever_came_first_is_served_first(self) -> None:
        if not self.wishes:
            return
        found = [look(wish) for wish in self.wishes]
        found = [look(wish) for wish in self.wishes]
        waits = [isinstance(each, Waiting) for each in found]
        assert waits == sorted(waits)  # all that have devices came before all that wait
        free = 3 - sum(len(each) for each in found if isinstance(each, tuple))
        if True in waits:
            assert self.wishes[waits.index(True)].count > free  # nothing lies idle that the first could take


def test_the_pool_is_fair_and_safe_whatever_happens(new_lease: Callable[[], Lease]) -> None:
    Pool.make = staticmethod(new_lease)
    rules = settings(
        max_examples=5, stateful_step_count=9, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    run_state_machine_as_test(Pool, settings=rules)


def test_a_run_that_no_machine_has_the_devices_for_is_refused_when_it_is_asked(owner: User) -> None:
    asked = Submission(
        framework="plain", model="tiny:qwen3", data="gsm8k_sample", queue="gpu", checks=("run.completes",),
        settings={"dp_size": 4, "sharding": "ddp"},
    )  # fmt: skip
    submit(asked, owner=owner)  # no machine has named any yet
    register_devices(HOST, ["0", "1"])
    with pytest.raises(InvalidSubmission) as refusal:
        submit(asked, owner=owner)
    assert refusal.value.errors == {
        "settings.dp_size": "the run takes 4 devices, and the largest machine here has 2; choose smaller degrees, or "
        "run it on a CPU"
    }


def test_a_job_on_a_machine_with_too_few_devices_fails_in_a_sentence(
    owner: User, transactional_db: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Any
) -> None:
    settings.DATA = tmp_path
    monkeypatch.setenv("PLUMBLINE_DEVICES", "0")
    asked = Submission(
        framework="plain", model="tiny:qwen3", data="gsm8k_sample", queue="gpu", checks=("run.completes",),
        settings={"dp_size": 2, "sharding": "ddp"},
    )  # fmt: skip
    validation, _ = submit(asked, owner=owner)
    perform(Job.objects.get().pk, worker="w", host=HOST)
    validation = Validation.objects.get(pk=validation.pk)
    assert validation.state == "failed"
    assert "the run takes 2 devices, and gpu-host has 1" in validation.error


def test_the_page_shows_who_has_what_and_who_waits(
    client: Client, owner: User, new_lease: Callable[[], Lease], django_assert_max_num_queries: Any
) -> None:
    client.force_login(owner)
    assert "No worker has named a device" in client.get("/system/").content.decode()
    register_devices(HOST, ["0", "1", "2"])
    for count in (2, 3):
        ask(new_lease(), host=HOST, count=count)
    look(DeviceWish.objects.earliest("pk"))
    number = Validation.objects.get().number
    with django_assert_max_num_queries(7):
        page = client.get("/system/").content.decode()
    assert "1 of 3 devices free, 1 run waiting" in page
    assert page.count(f">{number}</a>") == 3  # two devices, one place in the queue
    assert page.count(">free<") == 1
