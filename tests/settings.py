"""The product's settings on a database and a home of this test run alone."""

import os
import tempfile
from pathlib import Path

_root = os.environ.get("FORGE_TEST_ROOT") or tempfile.mkdtemp(prefix="forge-test-")
os.environ["FORGE_TEST_ROOT"] = _root
os.environ.setdefault("FORGE_SECRET_KEY", "tests")
os.environ["FORGE_HOME"] = str(Path(_root) / "home")

from forge_site.settings import *  # noqa: E402, F403
from forge_site.settings import DATABASES  # noqa: E402

if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    # A file, never memory: processes and threads of a test must meet in one database.
    DATABASES["default"]["NAME"] = str(Path(_root) / "db.sqlite3")
    DATABASES["default"]["TEST"] = {"NAME": str(Path(_root) / f"test-{os.getpid()}.sqlite3")}
else:
    DATABASES["default"]["TEST"] = {"NAME": f"test_forge_{os.getpid()}"}

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
