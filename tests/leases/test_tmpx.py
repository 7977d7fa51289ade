import pytest, os
from tests.leases import test_plans as tp
from tests.leases.builders import *
from django.db import connection


@pytest.mark.django_db
def test_x():
    of = project()
    tp.CROWD = int(os.environ.get("CROWD", "4000"))
    tp.crowd(of)
    capacity(key="one", count=1)
    with tp.statements() as seen:
        file_one(of, look("host/work", **tp.PHYSICAL), write("k/new/deep"), units("one"), now=at(3))
        one_pass(now=at(3))
    import time

    for sql, params in seen:
        if sql.startswith("WITH"):
            with connection.cursor() as c:
                c.execute("EXPLAIN (ANALYZE) " + sql, params)
                print("\n".join(r[0] for r in c.fetchall()))
    assert 0
