"""The pure half: which claims go together, who goes first, who gets the units."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest

from core.errors import InvalidInput
from leases import planning
from leases.planning import (
    TABLE,
    ClaimSpec,
    Relation,
    Standing,
    Units,
    Wanted,
    ancestors,
    below,
    compatible,
    conflicts,
    merge,
    plan_grants,
    probes,
    rank,
    related,
    stance,
)
from leases.states import Access, ResourceClass, WorkMode
from tests.leases.builders import NOON, claim, exclusive, look, read, rival, units, write
from tests.leases.expected import KINDS, SAME, WHOLE_AND_PART, cell, go_together, of_kind

A_MINUTE = timedelta(minutes=1)


def every_claim(key: str) -> list[ClaimSpec]:
    return [spec for kind in KINDS for version in (None, 1, 2, 3) for spec in of_kind(kind, key, version)]


# --- the table


@pytest.mark.req("RB-03", "RB-07", "RB-08", "RB-09")
@pytest.mark.parametrize(("one", "two"), [*product(KINDS, KINDS)])
def test_two_claims_on_one_resource_go_together_as_the_table_says(one: str, two: str) -> None:
    for a, b in product(of_kind(one, "x"), of_kind(two, "x")):
        assert compatible(a, b) is cell(SAME, one, two)
        assert conflicts(a, b) is not cell(SAME, one, two)


@pytest.mark.req("RB-03")
@pytest.mark.parametrize(("whole", "part"), [*product(KINDS, KINDS)])
def test_a_claim_on_a_whole_meets_claims_on_its_parts(whole: str, part: str) -> None:
    for a, b in product(of_kind(whole, "x"), of_kind(part, "x/y/z")):
        assert conflicts(a, b) is not cell(WHOLE_AND_PART, whole, part)
        assert conflicts(b, a) is not cell(WHOLE_AND_PART, whole, part)


@pytest.mark.req("RB-03", "RB-04")
@pytest.mark.parametrize(("one", "two"), [*product(ResourceClass, ResourceClass)])
def test_a_claim_meets_only_its_own_class(one: ResourceClass, two: ResourceClass) -> None:
    for a, b in product(KINDS, KINDS):
        mine, other = of_kind(a, "x", resource_class=one)[0], of_kind(b, "x", resource_class=two)[0]
        assert conflicts(mine, other) is (one == two and not cell(SAME, a, b))


@pytest.mark.req("RB-06")
def test_a_read_of_a_version_goes_with_the_write_that_creates_the_next() -> None:
    assert compatible(read("x", 1), read("x", 1))
    assert compatible(read("x", 1), read("x", 2))
    assert compatible(read("x", 1), write("x", 2))
    assert compatible(write("x", 2), read("x", 1))
    assert not compatible(read("x", 2), write("x", 2))
    assert not compatible(read("x", 1), write("x", 3))
    assert not compatible(read("x", 1), write("x"))
    assert not compatible(read("x"), write("x", 2))
    assert not compatible(read("x", 1), exclusive("x", version=2))
    assert not compatible(look("x", version=1), write("x", 2))
    assert not compatible(write("x", 1), write("x", 2))


def test_versions_of_a_whole_and_its_part_do_not_compare() -> None:
    assert conflicts(read("x", 1), write("x/y", 2))
    assert conflicts(write("x", 2), read("x/y", 1))


@pytest.mark.req("RB-05")
def test_claims_on_disjoint_domains_never_meet() -> None:
    for a, b in product(every_claim("x/a"), every_claim("x/ab")):
        assert not conflicts(a, b)


def test_the_rule_is_symmetric_and_equal_to_the_one_written_out() -> None:
    for key in ("x", "x/y", "x/y/z", "w"):
        for a, b in product(every_claim("x/y"), every_claim(key)):
            assert conflicts(a, b) is conflicts(b, a) is not go_together(a, b)


def test_probes_meet_exactly_what_conflicts() -> None:
    for key in ("x", "x/y", "x/y/z", "w"):
        for a, b in product(every_claim("x/y"), every_claim(key)):
            met = any(p.relation is related(a.key, b.key) and p.meets(b) for p in probes(stance(a)))
            assert met is conflicts(a, b)


def test_capacity_is_counted_and_never_compared() -> None:
    for other in every_claim("x"):
        counted = ClaimSpec(other.resource_class, "x", Access.CAPACITY, units=1)
        assert compatible(counted, other)
        assert not conflicts(counted, other)


def test_the_table_is_symmetric() -> None:
    for a, b in product(TABLE, TABLE):
        assert TABLE[a][b] is TABLE[b][a]


# --- keys


def test_relation_of_keys_goes_by_whole_segments() -> None:
    assert related("a/b", "a/b") is Relation.SAME
    assert related("a/b", "a") is Relation.ANCESTOR
    assert related("a", "a/b/c") is Relation.DESCENDANT
    assert related("a/b", "a/bc") is Relation.APART
    assert related("a/b", "a/b.c") is Relation.APART


def test_the_range_below_a_key_holds_its_descendants_alone() -> None:
    low, high = below("a/b")
    inside = ["a/b/c", "a/b/\U0010ffff", "a/b/!"]
    outside = ["a/b", "a/b!", "a/b.c", "a/b0", "a/bc", "a/c"]
    assert all(low.encode() <= key.encode() < high.encode() for key in inside)
    assert not any(low.encode() <= key.encode() < high.encode() for key in outside)
    assert ancestors("a/b/c") == ["a/b", "a"]


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a\0b", "a" * 1025, "\ud800"])
def test_a_malformed_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput):
        write(key)


def test_claims_that_nothing_can_be_are_refused() -> None:
    for wrong in (
        {"access": "capacity"},
        {"access": "read", "units": 1},
        {"access": "capacity", "units": -1},
        {"access": "intention_write"},
        {"access": "write", "mode": "read-only"},
        {"access": "read", "version": -1},
        {"access": "scribble"},
    ):
        with pytest.raises(InvalidInput):
            ClaimSpec(**{"resource_class": "logical", "key": "x", **wrong})  # type: ignore[arg-type]


# --- one claim per resource


def test_merged_claims_meet_whatever_either_of_them_meets() -> None:
    others = [spec for key in ("x", "x/y", "x/y/z") for spec in every_claim(key)]
    meets = {spec: {other for other in others if conflicts(spec, other)} for spec in every_claim("x/y")}
    for a, b in product(meets, meets):
        (both,) = merge([a, b])
        assert meets[a] | meets[b] <= {other for other in others if conflicts(both, other)}


def test_a_claim_alone_or_twice_stays_as_it_is() -> None:
    for spec in every_claim("x"):
        assert merge([spec, spec]) == (spec,)
    assert merge([units("u", 1), units("u", 3), units("v")]) == (units("u", 3), units("v"))


def test_who_reads_what_it_replaces_still_goes_with_readers_of_the_old_version() -> None:
    (both,) = merge([read("x", 1), write("x", 2)])
    assert compatible(both, read("x", 1))


def test_a_resource_is_counted_or_compared_in_one_bundle() -> None:
    with pytest.raises(InvalidInput):
        merge([units("x"), claim("x", Access.READ, resource_class=ResourceClass.PHYSICAL)])


# --- order


@pytest.mark.req("RB-10")
def test_a_step_of_priority_is_worth_a_minute_of_age() -> None:
    assert rank(NOON, 1) == rank(NOON - A_MINUTE, 0)
    assert rank(NOON, 0) < rank(NOON + timedelta(milliseconds=1), 0)
    assert rank(NOON, -1) > rank(NOON + timedelta(seconds=59), 0)


@pytest.mark.req("RB-10")
def test_equal_ranks_go_by_id_whatever_the_order_of_looking() -> None:
    waiting = [Wanted(n, 1, 7, (write("x"),)) for n in (3, 1, 2)]
    for order in (waiting, waiting[::-1]):
        plan = plan_grants(order, planning.standing_conflicts(order, []), Units())
        assert plan.granted == (1,)
        assert plan.stopped == {2: 1, 3: 2}


# --- stage one


def lease(request_id: int, token: int, spec: ClaimSpec) -> Standing:
    return Standing(request_id, 0, token, spec)


@pytest.mark.req("RB-11")
def test_an_older_blocked_bundle_keeps_its_parts_from_younger_ones() -> None:
    older, younger = Wanted(1, 1, 1, (write("a"), write("b"))), Wanted(2, 2, 2, (write("b"),))
    waiting = [older, younger]

    plan = plan_grants(waiting, planning.standing_conflicts(waiting, [lease(9, 5, write("a"))]), Units())

    assert plan.granted == ()
    assert plan.stopped == {1: 9, 2: 1}


def test_a_request_names_the_nearest_older_one_else_the_latest_grant() -> None:
    waiting = [Wanted(n, 1, n, (write("a"),)) for n in (1, 2, 3)]
    blocking = [lease(8, 4, read("a")), lease(9, 6, read("a"))]

    plan = plan_grants(waiting, planning.standing_conflicts(waiting, blocking), Units())

    assert plan.stopped == {1: 9, 2: 1, 3: 2}


# --- stage two

SLOTS, SEATS, LIMIT = 1, 2, 3


def wants(request_id: int, project: int, *demand: tuple[int, int], at: int = 0) -> Wanted:
    return Wanted(request_id, project, at or request_id, demand=demand)


def free(**counts: int) -> Units:
    return Units({{"slots": SLOTS, "seats": SEATS, "limit": LIMIT}[name]: count for name, count in counts.items()})


@pytest.mark.req("RB-17")
def test_units_go_round_over_projects_and_by_rank_inside_one() -> None:
    waiting = [wants(n, 1, (SLOTS, 1)) for n in range(1, 51)] + [wants(60, 2, (SLOTS, 1))]

    plan = plan_grants(waiting, {}, free(slots=3))

    assert plan.granted == (1, 60, 2)


@pytest.mark.req("RB-17")
def test_the_project_served_longest_ago_goes_first() -> None:
    waiting = [wants(1, 1, (SLOTS, 1)), wants(2, 2, (SLOTS, 1)), wants(3, 3, (SLOTS, 1))]
    turns = {waiting[0].line: 8, waiting[1].line: 5, waiting[2].line: 6}

    assert plan_grants(waiting, {}, free(slots=2), turns=turns).granted == (2, 3)


def test_a_request_takes_all_its_units_in_one_step_or_none() -> None:
    waiting = [wants(1, 1, (SLOTS, 2), (SEATS, 1)), wants(2, 2, (SLOTS, 1))]

    plan = plan_grants(waiting, {}, free(slots=2, seats=0))

    assert plan.granted == (2,)
    assert plan.short == {(1, ((SLOTS, 2), (SEATS, 1))): SEATS}


def test_capacity_alone_keeps_nobody_from_passing() -> None:
    waiting = [wants(1, 1, (SLOTS, 3)), wants(2, 2, (SLOTS, 1)), wants(3, 3, (SEATS, 1))]

    assert plan_grants(waiting, {}, free(slots=2, seats=1)).granted == (2, 3)


def used(capacity: dict[int, int], **by: dict[int, int]) -> Units:
    return Units(capacity, {{"slots": SLOTS, "seats": SEATS, "limit": LIMIT}[k]: v for k, v in by.items()})


def test_units_that_free_are_kept_for_the_one_request_that_reserves() -> None:
    large, small = wants(1, 1, (SLOTS, 3)), wants(2, 2, (SLOTS, 1))
    crowded = used({SLOTS: 4}, slots={2: 3})

    first = plan_grants([large], {}, crowded)
    assert first.granted == ()
    assert first.reserving == large.line
    assert first.open == {SLOTS: 0}

    second = plan_grants([large, small], {}, used({SLOTS: 4}, slots={2: 2}), reserving=first.reserving)
    assert second.granted == ()
    assert second.short == {large.line: SLOTS, small.line: SLOTS}

    third = plan_grants([large, small], {}, used({SLOTS: 4}, slots={2: 1}), reserving=first.reserving)
    assert third.granted == (1,)
    assert third.reserving == small.line


def test_only_one_request_reserves() -> None:
    waiting = [wants(n, n, (SLOTS, 2)) for n in (1, 2, 3)]

    plan = plan_grants(waiting, {}, used({SLOTS: 4}, slots={9: 3}))

    assert plan.reserving == waiting[0].line
    assert plan.open == {SLOTS: 0}


def test_a_project_at_its_own_limit_reserves_nothing() -> None:
    waiting = [wants(1, 1, (SLOTS, 1), (LIMIT, 1)), wants(2, 2, (SLOTS, 1))]
    at_limit = used({SLOTS: 2, LIMIT: 1}, slots={1: 1}, limit={1: 1})

    plan = plan_grants(waiting, {}, at_limit)

    assert plan.granted == (2,)
    assert plan.reserving is None


def test_what_can_never_be_had_reserves_nothing() -> None:
    plan = plan_grants([wants(1, 1, (SLOTS, 5)), wants(2, 2, (SLOTS, 4))], {}, used({SLOTS: 4}, slots={9: 1}))

    assert plan.reserving == (2, ((SLOTS, 4),))


def test_the_scarcest_is_kept_first_so_that_what_is_shared_idles_shortest() -> None:
    both = wants(1, 1, (SLOTS, 1), (SEATS, 1))
    seats_taken = used({SLOTS: 10, SEATS: 2}, slots={2: 9}, seats={2: 2})

    plan = plan_grants([both, wants(2, 3, (SLOTS, 1))], {}, seats_taken, reserving=both.line)

    assert plan.granted == (2,)


def test_a_turn_at_one_shortage_leaves_the_place_at_another() -> None:
    seat, slot, rival_seat = wants(1, 1, (SEATS, 1)), wants(2, 1, (SLOTS, 1)), wants(3, 2, (SEATS, 1))

    assert not planning.took_turn(SEATS, slot.demand)
    assert planning.took_turn(SLOTS, slot.demand)
    assert plan_grants([seat, slot, rival_seat], {}, free(slots=1, seats=1)).granted == (1, 2)


def test_demand_survives_its_row() -> None:
    assert planning.parse_demand(planning.demand_text(((3, 1), (17, 2)))) == ((3, 1), (17, 2))


def test_modes_are_words_of_the_plan_contract() -> None:
    assert {mode.value for mode in WorkMode} == {"cooperative", "competitive", "read-only"}
    assert rival("x").is_rival
    assert not rival("x", isolated=False).is_rival
