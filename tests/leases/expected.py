"""The table of compatibility as the requirements say it, written out by hand and shared by no product code.

Six kinds of claim cover mode and access: look (read intention), read, write (cooperative), open (competitive, not isolated),
rival (competitive, isolated), exclusive (any mode).
"""

from __future__ import annotations

from leases.planning import ClaimSpec
from leases.states import Access, ResourceClass, WorkMode

KINDS = ("look", "read", "write", "open", "rival", "exclusive")

# Two claims on one resource. o: go together, -: exclude each other.
SAME = {
    #             look read write open rival exclusive
    "look":      "o    o    -     -    -     -",
    "read":      "o    o    -     -    -     -",
    "write":     "-    -    -     -    -     -",
    "open":      "-    -    -     -    -     -",
    "rival":     "-    -    -     -    o     -",
    "exclusive": "-    -    -     -    -     -",
}  # fmt: skip

# The row's claim is on the whole, the column's on a part of it.
WHOLE_AND_PART = {
    #             look read write open rival exclusive
    "look":      "o    o    o     o    o     o",
    "read":      "o    o    -     -    -     -",
    "write":     "-    -    -     -    -     -",
    "open":      "-    -    -     -    -     -",
    "rival":     "-    -    -     -    o     -",
    "exclusive": "-    -    -     -    -     -",
}  # fmt: skip


def cell(table: dict[str, str], row: str, column: str) -> bool:
    return table[row].split()[KINDS.index(column)] == "o"


def kind_of(claim: ClaimSpec) -> str:
    if claim.access is Access.WRITE and claim.mode is WorkMode.COMPETITIVE:
        return "rival" if claim.isolated else "open"
    return {"intention_read": "look", "read": "read", "write": "write", "exclusive": "exclusive"}[claim.access]


def of_kind(kind: str, key: str, version: int | None = None, resource_class: str = "logical") -> list[ClaimSpec]:
    """Every claim of a kind: all modes in which it can be made."""
    access = {"look": "intention_read", "read": "read", "exclusive": "exclusive"}.get(kind, "write")
    modes = {
        "write": [("cooperative", False)],
        "open": [("competitive", False)],
        "rival": [("competitive", True)],
    }.get(kind, [(mode.value, isolated) for mode in WorkMode for isolated in (False, True)])
    return [
        ClaimSpec(ResourceClass(resource_class), key, Access(access), WorkMode(mode), version, isolated)
        for mode, isolated in modes
    ]


def go_together(a: ClaimSpec, b: ClaimSpec) -> bool:
    """The whole rule for two claims, independent of the product's."""
    if a.resource_class != b.resource_class or "capacity" in (a.access, b.access):
        return True
    mine, other = a.key.split("/"), b.key.split("/")
    if mine == other:
        for one, two in ((a, b), (b, a)):
            if one.access == "read" and two.access == "write" and None not in (one.version, two.version):
                return two.version - one.version == 1  # type: ignore[operator]
        return cell(SAME, kind_of(a), kind_of(b))
    if mine == other[: len(mine)]:
        return cell(WHOLE_AND_PART, kind_of(a), kind_of(b))
    if other == mine[: len(other)]:
        return cell(WHOLE_AND_PART, kind_of(b), kind_of(a))
    return True
