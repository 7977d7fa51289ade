"""The broker against a small model that looks at everything each time: no lost wake-up, no wrong grant, no forgotten unit.

``FORGE_BROKER_EXAMPLES`` and ``FORGE_BROKER_STEPS`` scale the search up.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from core.errors import StaleFence
from leases import planning, selectors
from leases.fences import Fence, HeldGrant
from leases.models import Broker, Lease, Line, Request, Resource
from leases.planning import ClaimSpec, Units
from leases.states import BLOCKING, Access, LeaseState, RequestState, ResourceClass, WorkMode
from tests.leases import builders
from tests.leases.builders import NOON
from tests.leases.expected import go_together

EXAMPLES = int(os.environ.get("FORGE_BROKER_EXAMPLES", "200"))
STEPS = int(os.environ.get("FORGE_BROKER_STEPS", "30"))

KEYS = ("a", "a/b", "a/b/c", "a/d", "e")
POOLS = ("slots", "seats", "limit")

compared = st.builds(
    ClaimSpec,
    st.sampled_from([ResourceClass.LOGICAL, ResourceClass.LOGICAL, ResourceClass.INTEGRATION]),
    st.sampled_from(KEYS),
    st.sampled_from([Access.INTENTION_READ, Access.READ, Access.WRITE, Access.WRITE, Access.EXCLUSIVE]),
    st.sampled_from([WorkMode.COOPERATIVE, WorkMode.COMPETITIVE]),
    st.sampled_from([None, None, 1, 2]),
    st.booleans(),
)
counted = st.builds(builders.units, st.sampled_from(POOLS), st.sampled_from([1, 1, 1, 2, 3]))
bundles = st.lists(
    st.one_of(compared, compared, counted), min_size=1, max_size=4, unique_by=lambda c: (c.resource_class, c.key)
)


@dataclass
class Asked:
    """A request as the model knows it."""

    pk: int
    project: int
    holder: str
    claims: tuple[ClaimSpec, ...]
    order: tuple[float, int]
    state: str = "waiting"
    suspended: bool = False
    token: int = 0
    leases: str = ""
    demand: dict[str, int] = field(default_factory=dict)

    def meets(self, other: Asked) -> bool:
        return not all(go_together(mine, theirs) for mine in self.claims for theirs in other.claims)


class World:
    """Everything that was asked for, and the pools of units. Every question is answered by looking at all of it."""

    def __init__(self) -> None:
        self.asked: dict[int, Asked] = {}
        self.pools: dict[str, int] = dict.fromkeys(POOLS, 0)

    def waiting(self) -> list[Asked]:
        found = [a for a in self.asked.values() if a.state == "waiting" and not a.suspended]
        return sorted(found, key=lambda a: a.order)

    def holding(self) -> list[Asked]:
        return [a for a in self.asked.values() if a.state == "granted"]

    def stoppers(self, of: Asked) -> tuple[list[Asked], list[Asked]]:
        """Older waiting requests and grants that conflict."""
        older = [a for a in self.waiting() if a.order < of.order and a.meets(of)]
        return older, [a for a in self.holding() if a.meets(of)]

    def eligible(self) -> list[Asked]:
        return [a for a in self.waiting() if self.stoppers(a) == ([], [])]

    def free(self) -> dict[str, int]:
        free = dict(self.pools)
        for asked in self.holding():
            for pool, wants in asked.demand.items():
                free[pool] -= wants
        return free


class BrokerMachine(RuleBasedStateMachine):
    """One example: a transaction that is undone at its end."""

    filed = Bundle("filed")

    @initialize(slots=st.integers(0, 4), seats=st.integers(0, 3))
    def begin(self, slots: int, seats: int) -> None:
        self.atomic = transaction.atomic()  # noqa: TID251 (undone, never committed)
        setattr(self.atomic, "_from_testcase", True)  # noqa: B010 (units of work may nest in it)
        self.atomic.__enter__()
        self.world = World()
        self.now = NOON
        self.projects = [builders.project() for _ in range(3)]
        self.last_token = 0
        self.counters: dict[int, int] = {}
        self.pass_is_due = True
        for pool, count in (("slots", slots), ("seats", seats), ("limit", 2)):
            self.set_pool(pool, count)

    def teardown(self) -> None:
        if hasattr(self, "atomic"):
            transaction.set_rollback(True)
            self.atomic.__exit__(None, None, None)

    # --- what happens

    def set_pool(self, pool: str, count: int) -> None:
        builders.capacity(key=pool, count=count)
        self.world.pools[pool] = count
        self.pass_is_due = True

    @rule(
        target=filed, asks=st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 2), bundles), min_size=1, max_size=3)
    )
    def file(self, asks: list[tuple[int, int, list[ClaimSpec]]]) -> Any:
        from leases.steps import Bundle as Filed

        self.now += timedelta(seconds=20)
        filing = [
            Filed(self.projects[n].pk, f"attempt:{len(self.world.asked) + i + 1}", priority, tuple(claims))
            for i, (n, priority, claims) in enumerate(asks)
        ]
        ids = builders.file_bundles(bundles=filing, now=self.now)
        for pk, bundle in zip(ids, filing, strict=True):
            age = self.now.timestamp() - 60 * bundle.priority
            demand = {c.key: c.units for c in bundle.claims if c.units}
            self.world.asked[pk] = Asked(pk, bundle.project_id, bundle.holder, bundle.claims, (age, pk), demand=demand)
        self.pass_is_due = True
        return multiple(*ids)

    @rule()
    def one_pass(self) -> None:
        expected = self._plan_over_everything()
        before = self.world.eligible()
        free_before = self.world.free()

        granted = builders.one_pass(now=self.now)

        assert [grant.request_id for grant in granted] == list(expected.granted)
        allowed = {asked.pk for asked in before}
        for grant in granted:
            asked = self.world.asked[grant.request_id]
            assert asked.pk in allowed
            assert grant.token > self.last_token
            self.last_token = grant.token
            asked.state, asked.token, asked.leases = "granted", grant.token, LeaseState.ACTIVE
        for pool, left in self.world.free().items():
            assert left >= min(0, free_before[pool]), f"{pool} was handed out twice"
        self._nothing_is_left_to_grant()
        self._reasons_are_true()
        assert selectors.lost_wakes() == []
        self.pass_is_due = False
        assert not selectors.has_work()
        assert builders.one_pass(now=self.now) == []

    @rule(pk=filed)
    def end(self, pk: int) -> None:
        asked = self.world.asked[pk]
        if asked.state == "granted":
            to = LeaseState.REVOKED if asked.leases == LeaseState.ORPHANED else LeaseState.RELEASED
            builders.end(grants=[Fence(int(asked.holder.split(":")[1]), pk, asked.token)], now=self.now, to=to)
            asked.state, asked.leases = "ended", to
            self.pass_is_due = True

    @rule(pk=filed, wrong=st.sampled_from(["holder", "token", "request"]))
    def end_by_another(self, pk: int, wrong: str) -> None:
        asked = self.world.asked[pk]
        holder = "attempt:0" if wrong == "holder" else asked.holder
        token = asked.token + 1 if wrong == "token" else asked.token
        grant = pk + 100_000 if wrong == "request" else pk
        with pytest.raises(StaleFence):
            builders.end(grants=[HeldGrant(holder, grant, token)], now=self.now)

    @rule(pk=filed)
    def withdraw(self, pk: int) -> None:
        asked = self.world.asked[pk]
        withdrawn = builders.withdraw(requests=[Request(pk=pk)], now=self.now)
        assert withdrawn == ([pk] if asked.state == "waiting" else [])
        if withdrawn:
            asked.state = "withdrawn"
            self.pass_is_due = True

    @rule(pk=filed)
    def suspend(self, pk: int) -> None:
        asked = self.world.asked[pk]
        changed = builders.suspend(requests=[Request(pk=pk)])
        assert changed == ([pk] if asked.state == "waiting" and not asked.suspended else [])
        if changed:
            asked.suspended = self.pass_is_due = True

    @rule(pk=filed)
    def resume(self, pk: int) -> None:
        asked = self.world.asked[pk]
        if builders.resume(requests=[Request(pk=pk)]):
            asked.suspended, self.pass_is_due = False, True

    @rule(pool=st.sampled_from(POOLS), count=st.integers(0, 4))
    def change_capacity(self, pool: str, count: int) -> None:
        self.set_pool(pool, count)

    @rule(pk=filed, to=st.sampled_from([LeaseState.EXPIRED, LeaseState.RECOVERY_PENDING, LeaseState.ORPHANED]))
    def go_silent(self, pk: int, to: LeaseState) -> None:
        """Time passes, the owner is silent, somebody classifies: whatever is found, the leases block."""
        asked = self.world.asked[pk]
        arrows = {
            LeaseState.EXPIRED: LeaseState.ACTIVE,
            LeaseState.RECOVERY_PENDING: LeaseState.EXPIRED,
            LeaseState.ORPHANED: LeaseState.RECOVERY_PENDING,
        }
        if asked.state != "granted" or asked.leases != arrows[to]:
            return
        if to is LeaseState.EXPIRED:
            self.now += timedelta(minutes=1)
            for due in builders.expire(now=self.now):
                self.world.asked[due].leases = to
        else:
            builders.classify(grant=HeldGrant(asked.holder, pk, asked.token), to=to, now=self.now)
            asked.leases = to

    @rule(pk=filed, data=st.data())
    def hand_over(self, pk: int, data: st.DataObject) -> None:
        asked = self.world.asked[pk]
        kept = [claim for claim in asked.claims if not claim.is_capacity]
        if asked.state != "granted" or asked.leases == LeaseState.ORPHANED or not kept:
            return
        some = tuple(data.draw(st.lists(st.sampled_from(kept), min_size=1, unique=True)))
        holder = f"attempt:{len(self.world.asked) + 1}"
        heir = builders.hand_over(
            grant=HeldGrant(asked.holder, pk, asked.token), holder=holder, claims=some, now=self.now
        )
        asked.state, asked.leases = "ended", LeaseState.RELEASED
        assert heir.token > self.last_token
        self.last_token = heir.token
        entry = Asked(heir.grant_id, asked.project, holder, some, asked.order, "granted", token=heir.token)
        entry.leases = LeaseState.ACTIVE
        self.world.asked[heir.grant_id] = entry
        self.pass_is_due = True

    # --- what must hold

    @invariant()
    def rows_agree_with_the_world(self) -> None:
        if not hasattr(self, "world"):
            return
        states = dict(Request.objects.values_list("pk", "state"))
        assert states == {pk: asked.state for pk, asked in self.world.asked.items()}
        leases: dict[int, list[tuple[str, str]]] = defaultdict(list)
        for request_id, key, state in Lease.objects.values_list("request_id", "resource__key", "state"):
            leases[request_id].append((key, state))
        for pk, asked in self.world.asked.items():
            whole = [(claim.key, asked.leases) for claim in asked.claims] if asked.leases else []
            assert sorted(leases[pk]) == sorted(whole), "a bundle is leased whole or not at all"
        holding = self.world.holding()
        for n, one in enumerate(holding):
            assert not any(one.meets(two) for two in holding[n + 1 :]), "two grants exclude each other"
        for pk, counter in Resource.objects.values_list("pk", "last_token"):
            assert counter >= self.counters.get(pk, 0)
            self.counters[pk] = counter

    def _plan_over_everything(self) -> planning.Plan:
        """The pure planner with all there is before it: what the pass finds by index must be enough to decide the same."""
        waiting = selectors.all_waiting()
        units = Units(
            dict(Resource.objects.values_list("pk", "capacity")),
            self._units_by_project(),
        )
        turns = {(line.project_id, planning.parse_demand(line.demand)): line.last_token for line in Line.objects.all()}
        row = Broker.objects.select_related("reserving").get().reserving
        reserving = (row.project_id, planning.parse_demand(row.demand)) if row else None
        met = planning.standing_conflicts(waiting, selectors.all_blocking())
        plan = planning.plan_grants(waiting, met, units, turns=turns, reserving=reserving)
        if reserving and plan.reserving == reserving and reserving not in plan.short:  # nobody eligible is left in it
            plan = planning.plan_grants(waiting, met, units, turns=turns)
        return plan

    def _units_by_project(self) -> dict[int, dict[int, int]]:
        used: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for lease in Lease.objects.filter(state__in=BLOCKING, access=Access.CAPACITY):
            used[lease.resource_id][lease.project_id] += lease.units
        return used

    def _nothing_is_left_to_grant(self) -> None:
        row = Broker.objects.select_related("reserving").get().reserving
        kept: dict[str, int] = {}
        free = self.world.free()
        keys = dict(Resource.objects.values_list("pk", "key"))
        if row:
            for at, wants in sorted(
                planning.parse_demand(row.demand), key=lambda part: (self.world.pools[keys[part[0]]], part[0])
            ):
                kept[keys[at]] = max(0, min(wants, free[keys[at]]))
                if free[keys[at]] < wants:
                    break
        for asked in self.world.eligible():
            assert asked.demand, f"{asked} meets nothing and was not granted"
            short = [pool for pool, wants in asked.demand.items() if free[pool] - kept.get(pool, 0) < wants]
            assert short, f"{asked} fits and was not granted"
            line = Request.objects.get(pk=asked.pk).line
            assert line is not None
            assert line.short_of is not None
            assert line.short_of.key in asked.demand

    def _reasons_are_true(self) -> None:
        for asked in self.world.waiting():
            row = Request.objects.get(pk=asked.pk)
            older, holding = self.world.stoppers(asked)
            if row.stopped_by_id is not None:
                assert row.line_id is None
                stopper = self.world.asked[row.stopped_by_id]
                assert stopper in older or stopper in holding
            elif row.planned and (older or holding):
                # Out of a line nobody looks before units come free; then it is compared again.
                assert row.line is not None
                assert row.line.short_of is not None


@pytest.mark.django_db
@pytest.mark.timeout(1800)
@pytest.mark.req("RB-01", "RB-02", "RB-05", "RB-07", "RB-08", "RB-10", "RB-11", "RB-12", "LF-02", "LF-03")
def test_the_broker_agrees_with_a_model_that_looks_at_everything() -> None:
    run_state_machine_as_test(
        BrokerMachine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
            deadline=None,
        ),
    )


def test_states_of_the_model_are_those_of_the_rows() -> None:
    assert {"waiting", "granted", "withdrawn", "ended"} == {state.value for state in RequestState}
