"""The broker against a small model that looks at everything each time: no lost wake-up, no wrong grant, no forgotten unit.

``FORGE_BROKER_EXAMPLES`` and ``FORGE_BROKER_STEPS`` scale the search up.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import timedelta

import hypothesis.strategies as st
import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from core.errors import StaleFence
from leases import planning, selectors
from leases.fences import Fence, HeldGrant
from leases.models import Broker, Lease, Line, Request, Resource
from leases.planning import ClaimSpec, Units
from leases.states import BLOCKING, Access, LeaseState, RequestState, ResourceClass, WorkMode
from leases.steps import Bundle
from tests.leases import builders
from tests.leases.builders import NOON
from tests.leases.expected import go_together

EXAMPLES = int(os.environ.get("FORGE_BROKER_EXAMPLES", "200"))
STEPS = int(os.environ.get("FORGE_BROKER_STEPS", "30"))
PHASES = [phase for phase in Phase if os.environ.get("FORGE_BROKER_SHRINK", "1") == "1" or phase is not Phase.shrink]

KEYS = ("a", "a/b", "a/b/c", "a/d", "e")
POOLS = ("slots", "seats", "limit")

compared = st.builds(
    ClaimSpec,
    st.sampled_from([ResourceClass.LOGICAL, ResourceClass.LOGICAL, ResourceClass.INTEGRATION]),
    st.sampled_from(KEYS),
    st.sampled_from([Access.WRITE, Access.READ, Access.INTENTION_READ, Access.WRITE, Access.EXCLUSIVE]),
    st.sampled_from([WorkMode.COOPERATIVE, WorkMode.COMPETITIVE]),
    st.sampled_from([None, None, 1, 2]),
    st.booleans(),
)
counted = st.builds(builders.units, st.sampled_from(POOLS), st.sampled_from([1, 1, 1, 2, 3]))
any_number = st.integers(0, 99)


def bundle_of(claims: st.SearchStrategy[ClaimSpec], most: int) -> st.SearchStrategy[list[ClaimSpec]]:
    return st.lists(claims, min_size=1, max_size=most, unique_by=lambda claim: (claim.resource_class, claim.key))


# Half of them ask for units alone, so that lines form.
bundles = st.one_of(bundle_of(counted, 2), bundle_of(st.one_of(compared, compared, counted), 4))


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

    @initialize(slots=st.integers(1, 4), seats=st.integers(1, 3))
    def begin(self, slots: int, seats: int) -> None:
        self.atomic = transaction.atomic()  # noqa: TID251 (undone, never committed)
        setattr(self.atomic, "_from_testcase", True)  # noqa: B010 (units of work may nest in it)
        self.atomic.__enter__()
        self.world = World()
        self.now = NOON
        self.projects = [builders.project() for _ in range(3)]
        self.last_token = 0
        self.counters: dict[int, int] = {}
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

    def pick(self, n: int, state: str) -> Asked | None:
        """Rules draw a number and act on what there is, so that few of them act on nothing."""
        found = [asked for asked in self.world.asked.values() if asked.state == state]
        return found[n % len(found)] if found else None

    def changed(self, look: bool) -> None:
        """Something happened that may free somebody; half of the times a pass follows at once."""
        if look:
            self.one_pass()

    @rule(
        asks=st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 2), bundles), min_size=1, max_size=4),
        look=st.booleans(),
    )
    def file(self, asks: list[tuple[int, int, list[ClaimSpec]]], look: bool) -> None:
        self.now += timedelta(seconds=20)
        filing = [
            Bundle(self.projects[n].pk, f"attempt:{len(self.world.asked) + i + 1}", priority, tuple(claims))
            for i, (n, priority, claims) in enumerate(asks)
        ]
        ids = builders.file_bundles(bundles=filing, now=self.now)
        for pk, bundle in zip(ids, filing, strict=True):
            age = self.now.timestamp() - 60 * bundle.priority
            demand = {c.key: c.units for c in bundle.claims if c.units}
            self.world.asked[pk] = Asked(pk, bundle.project_id, bundle.holder, bundle.claims, (age, pk), demand=demand)
        self.changed(look)

    def one_pass(self) -> None:
        expected = self._plan_over_everything()
        before = self.world.eligible()
        free_before = self.world.free()
        stoppers = self._stoppers_to_be_named()

        granted = builders.one_pass(now=self.now)

        # Only a pass in which all fit gives tokens in another order: it does not look up whose turn it is.
        assert sorted(grant.request_id for grant in granted) == sorted(expected.granted)
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
        named = Request.objects.filter(pk__in=stoppers).values_list("pk", "stopped_by_id")
        assert dict(named) == stoppers
        assert selectors.lost_wakes() == []
        assert not selectors.has_work()
        assert builders.one_pass(now=self.now) == []

    @rule(n=any_number, look=st.booleans())
    def end(self, n: int, look: bool) -> None:
        if asked := self.pick(n, "granted"):
            to = LeaseState.REVOKED if asked.leases == LeaseState.ORPHANED else LeaseState.RELEASED
            builders.end(grants=[Fence(int(asked.holder.split(":")[1]), asked.pk, asked.token)], now=self.now, to=to)
            asked.state, asked.leases = "ended", to
            self.changed(look)

    @rule(n=any_number, m=any_number)
    def end_two(self, n: int, m: int) -> None:
        self.end(n, look=False)
        self.end(m, look=True)

    @rule(n=any_number, state=st.sampled_from(["granted", "waiting", "ended"]), wrong=st.integers(0, 2))
    def end_by_another(self, n: int, state: str, wrong: int) -> None:
        if asked := self.pick(n, state):
            holder = "attempt:0" if wrong == 0 else asked.holder
            token = asked.token + 1 if wrong == 1 else asked.token
            grant = asked.pk + 100_000 if wrong == 2 else asked.pk
            with pytest.raises(StaleFence):
                builders.end(grants=[HeldGrant(holder, grant, token)], now=self.now)

    @rule(n=any_number, look=st.booleans())
    def withdraw(self, n: int, look: bool) -> None:
        if asked := self.pick(n, "waiting"):
            granted = [other.pk for other in self.world.holding()]  # too late for these
            found = builders.withdraw(requests=[Request(pk=pk) for pk in (asked.pk, *granted)], now=self.now)
            assert found == [asked.pk]
            asked.state = "withdrawn"
            self.changed(look)

    @rule(n=any_number, look=st.booleans())
    def suspend_or_resume(self, n: int, look: bool) -> None:
        if asked := self.pick(n, "waiting"):
            act = builders.resume if asked.suspended else builders.suspend
            assert act(requests=[Request(pk=asked.pk)]) == [asked.pk]
            assert act(requests=[Request(pk=asked.pk)]) == []
            asked.suspended = not asked.suspended
            self.changed(look)

    @rule(pool=st.sampled_from(POOLS), count=st.integers(0, 4), look=st.booleans())
    def change_capacity(self, pool: str, count: int, look: bool) -> None:
        self.set_pool(pool, count)
        self.changed(look)

    @rule(n=any_number)
    def go_silent(self, n: int) -> None:
        """Time passes, the owner is silent, somebody classifies: whatever is found, the leases block."""
        asked = self.pick(n, "granted")
        if asked is None:
            return
        if asked.leases == LeaseState.ACTIVE:
            self.now += timedelta(minutes=1)
            for due in builders.expire(now=self.now):
                self.world.asked[due].leases = LeaseState.EXPIRED
        elif asked.leases != LeaseState.ORPHANED:
            to = LeaseState.RECOVERY_PENDING if asked.leases == LeaseState.EXPIRED else LeaseState.ORPHANED
            builders.classify(grant=HeldGrant(asked.holder, asked.pk, asked.token), to=to, now=self.now)
            asked.leases = to
        self.one_pass()

    @rule(n=any_number, mask=st.integers(1, 15), look=st.booleans())
    def hand_over(self, n: int, mask: int, look: bool) -> None:
        asked = self.pick(n, "granted")
        if asked is None or asked.leases == LeaseState.ORPHANED:
            return
        some = tuple(c for i, c in enumerate(asked.claims) if mask & 1 << i and not c.is_capacity)
        if not some:
            return
        holder = f"attempt:{len(self.world.asked) + 1}"
        heir = builders.hand_over(
            grant=HeldGrant(asked.holder, asked.pk, asked.token), holder=holder, claims=some, now=self.now
        )
        asked.state, asked.leases = "ended", LeaseState.RELEASED
        assert heir.token > self.last_token
        self.last_token = heir.token
        entry = Asked(heir.grant_id, asked.project, holder, some, asked.order, "granted", token=heir.token)
        entry.leases = LeaseState.ACTIVE
        self.world.asked[heir.grant_id] = entry
        self.changed(look)

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
            assert all(wants <= self.world.pools[keys[at]] for at, wants in planning.parse_demand(row.demand))
            assert Request.objects.filter(line=row, state=RequestState.WAITING, suspended=False).exists()
        for asked in self.world.eligible():
            assert asked.demand, f"{asked} meets nothing and was not granted"
            short = [pool for pool, wants in asked.demand.items() if free[pool] - kept.get(pool, 0) < wants]
            assert short, f"{asked} fits and was not granted"
            line = Request.objects.get(pk=asked.pk).line
            assert line is not None
            assert line.short_of is not None
            assert line.short_of.key in asked.demand

    def _stoppers_to_be_named(self) -> dict[int, int | None]:
        """For each request that the next pass looks at anew: the nearest older one in its way, else the latest grant."""
        named: dict[int, int | None] = {}
        for asked in self.world.waiting():
            if not Request.objects.get(pk=asked.pk).planned:
                older, holding = self.world.stoppers(asked)
                nearest = max(older, key=lambda a: a.order, default=None)
                latest = max(holding, key=lambda a: a.token, default=None)
                stopper = nearest or latest
                named[asked.pk] = stopper.pk if stopper else None
        return named

    def _reasons_are_true(self) -> None:
        for asked in self.world.waiting():
            row = Request.objects.get(pk=asked.pk)
            older, holding = self.world.stoppers(asked)
            if row.stopped_by_id is not None:
                assert row.line_id is None
                assert self.world.asked[row.stopped_by_id] in (*older, *holding)
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
            phases=PHASES,
        ),
    )


def test_states_of_the_model_are_those_of_the_rows() -> None:
    assert {"waiting", "granted", "withdrawn", "ended"} == {state.value for state in RequestState}
