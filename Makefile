# One command for each thing; `make` alone explains them. Needs Python >= 3.11, git and make, and no root.

VENV   := .venv
BIN    := $(VENV)/bin
PY     := $(BIN)/python
LOGS   := $(VENV)/lanes
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
            $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
ARGS   ?=
ROW    ?=
LANES  := lint types imports migrations test-sqlite test-postgres
DEV    := $(VENV)/.installed-dev
RUN    := $(VENV)/.installed-run

# What an operator has set for a real installation must not change what the tests see.
OURS   := FORGE_REQUIRE_POSTGRES FORGE_PG_BIN
CLEAN  := env $(foreach name,$(filter-out $(OURS),$(filter FORGE_% DJANGO_%,$(.VARIABLES))),-u $(name))
WORKERS ?= --numprocesses logical --maxprocesses 4

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help test $(LANES) format trace bench crash demo demo-real clean

help:
	@printf '%s\n' \
	  'Forge: graphs of work on git repositories.' \
	  '' \
	  'See it work' \
	  '  make demo           a small graph of plain commands, with a dashboard; needs nothing else' \
	  '  make demo-real      ruff and libcst at work on a real library (examples/modernize)' \
	  '' \
	  'Change it (docs/development.md)' \
	  '  make test           everything a change must pass; a line per lane at the end' \
	  '  make lint           ruff: format and rules            make format   let ruff write both' \
	  '  make types          mypy, strict' \
	  '  make imports        who may import whom' \
	  '  make migrations     the models have their migrations' \
	  '  make test-sqlite    the tests on SQLite               ARGS="tests/leases -k expired" for some of them' \
	  '  make test-postgres  the tests on PostgreSQL: $$DATABASE_URL, a server on 127.0.0.1:5432, or a throw-away one' \
	  '  make trace          requirement rows with and without tests      ROW=WG-10 for the tests of one' \
	  '  make bench          measurements, never part of the tests' \
	  '  make crash          kill the whole product at random moments of the demo; ARGS="--runs 20 --seed 1"' \
	  '' \
	  '  make clean          remove .venv, caches and .demo, nothing else' \
	  '' \
	  'The first run makes .venv. PYTHON=python3.12 chooses the interpreter, WORKERS= runs tests one after the other,' \
	  'FORGE_REQUIRE_POSTGRES=1 makes a missing PostgreSQL an error, FORGE_PG_BIN names the directory of its initdb.'

# ---- the environment ------------------------------------------------------------------------------------------------

$(PY):
	@test -n "$(PYTHON)" || { echo 'Forge needs Python 3.11 or newer; name it: make PYTHON=/path/to/python3'; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo 'No venv for $(PYTHON). On Debian: apt install python3-venv'; exit 1; }
	$(PY) -m pip install --quiet --upgrade pip

$(RUN): pyproject.toml | $(PY)
	$(PY) -m pip install --quiet --editable .
	@touch $@

$(DEV): pyproject.toml | $(PY)
	$(PY) -m pip install --quiet --editable '.[dev,postgres]'
	@touch $@ $(RUN)

# ---- the lanes ------------------------------------------------------------------------------------------------------

# Each lane runs to its end, also after another failed, and writes its log to .venv/lanes.
test: $(DEV)
	@rm -rf $(LOGS); mkdir -p $(LOGS); failed=0; \
	for lane in $(LANES); do \
	  printf '\n==== %s\n' "$$lane"; began=$$(date +%s); \
	  { $(MAKE) --no-print-directory "$$lane" 2>&1 && echo ok >$(LOGS)/$$lane.verdict; } | tee -i $(LOGS)/$$lane.log; \
	  verdict=FAILED; test -e $(LOGS)/$$lane.verdict && verdict=ok || failed=1; \
	  skipped=$$(sed -n 's/^SKIPPED [a-z]*: //p' $(LOGS)/$$lane.log); test -n "$$skipped" && verdict=SKIPPED; \
	  facts=$$(sed -n 's/^=* *\([0-9].* in [0-9].*\) =*$$/\1/p' $(LOGS)/$$lane.log | tail -n 1); \
	  printf '%-14s %-8s %4ss  %s\n' "$$lane" "$$verdict" $$(($$(date +%s) - began)) "$$skipped$$facts" >>$(LOGS)/summary; \
	done; \
	printf '\n==== summary\n'; cat $(LOGS)/summary; exit $$failed

lint: $(DEV)
	@failed=0; for rule in 'format --check' check; do echo "ruff $$rule"; $(BIN)/ruff $$rule . || failed=1; done; exit $$failed

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(DEV)
	@mkdir -p $(LOGS)
	$(CLEAN) TMPDIR=$(abspath $(LOGS)) $(BIN)/mypy .

imports: $(DEV)
	$(BIN)/lint-imports --no-logo

migrations: $(DEV)
	$(CLEAN) DATABASE_URL=sqlite://:memory: $(PY) manage.py makemigrations --check --dry-run

test-sqlite: $(DEV)
	$(CLEAN) -u DATABASE_URL $(PY) -m pytest $(WORKERS) $(ARGS)

test-postgres: $(DEV)
	$(CLEAN) $(PY) -m tests.postgres -- pytest $(WORKERS) $(ARGS)

trace: $(DEV)
	@$(CLEAN) $(PY) -m tests.trace $(ROW)

bench: $(DEV)
	$(PY) -m tests.bench $(ARGS)

crash: $(DEV)
	$(PY) -m tests.crash $(ARGS)

# ---- for everybody --------------------------------------------------------------------------------------------------

demo: $(RUN)
	$(PY) examples/calculator/demo.py $(ARGS)

demo-real: $(RUN)
	$(PY) examples/modernize/demo.py $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .demo *.egg-info build
	find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
