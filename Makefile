# The two commands of a fresh machine are `make run` and `make test`; `make` alone lists all of them.

.DEFAULT_GOAL := help
.PHONY: help run test coverage check check-django bench soak stop reset clean
MAKEFLAGS += --no-print-directory

# The first Python that is new enough; another one: make run PYTHON=/path/to/python3
VERSION_OK := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(or $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c '$(VERSION_OK)' 2>/dev/null && echo $$python && break; done),python3)

PY := .venv/bin/python
TEST := DJANGO_SETTINGS_MODULE=tests.settings $(PY)
# Two makes at once install one after the other.
INSTALL = @$(PYTHON) -c 'import fcntl, subprocess, sys; lock = open(".venv.lock", "w"); \
	fcntl.flock(lock, fcntl.LOCK_EX); sys.exit(subprocess.call(sys.argv[1:]))' $(MAKE) --silent
PIP := $(PY) -m pip install -qq --disable-pip-version-check

help:
	@echo 'make run       serve on http://127.0.0.1:8000 (PORT=…), with a demo; starts what it needs'
	@echo 'make test      run all tests on a real PostgreSQL; ARGS="-k name" for some of them'
	@echo 'make check     lint, format, types, migrations, settings of production'
	@echo 'make bench     run the benchmarks, print their table'
	@echo 'make soak      run the long tests: minutes of load and kills'
	@echo 'make coverage  run the tests, report which branches they take'
	@echo 'make stop      end the embedded PostgreSQL that `make run` leaves running'
	@echo 'make reset     end it and delete its data: the demo begins anew'
	@echo 'make clean     delete what make and the tools made, but no data'

run:
	$(INSTALL) .venv/runtime
	@test -e .env || (umask 077 && cp .env.example .env)
	@exec $(PY) -m project.start

test:
	$(INSTALL) .venv/tests
	@$(TEST) -m project.embedded run $(PY) -m pytest $(ARGS)

soak:
	$(INSTALL) .venv/tests
	@$(TEST) -m project.embedded run $(PY) -m pytest -m soak $(ARGS)

coverage:
	$(INSTALL) .venv/tests
	@$(TEST) -m project.embedded run $(PY) -m pytest --cov --cov-report=term $(ARGS)

bench:
	$(INSTALL) .venv/tests
	@$(TEST) -m project.embedded run $(PY) -m benchmarks $(ARGS)

check:
	$(INSTALL) .venv/tests
	@$(PY) -m ruff check --quiet .
	@$(PY) -m ruff format --quiet --check .
	@$(PY) -m mypy --no-error-summary
	@$(TEST) -m project.embedded run $(MAKE) check-django
	@echo 'check: all well'

# The part of `make check` that needs a database. The first two migrations make the tables and are read as one; later
# ones meet tables that are in use.
check-django:
	@$(TEST) manage.py makemigrations --check --dry-run --verbosity 1
	@DEBUG=0 $(TEST) manage.py check --deploy --fail-level WARNING
	@rm -rf .venv/sql && mkdir .venv/sql
	@for migration in payments/migrations/0*.py; do \
		name=$$(basename "$$migration" .py); \
		$(TEST) manage.py sqlmigrate payments $$name >.venv/sql/$$name.sql || exit 1; \
	done
	@cd .venv/sql && sed '/^COMMIT;$$/d; 2,$${/^BEGIN;$$/d;}' 0001_*.sql 0002_*.sql >first.sql \
		&& echo 'COMMIT;' >>first.sql && rm 0001_*.sql 0002_*.sql
	@.venv/bin/squawk --config payments/migrations/squawk.toml .venv/sql/*.sql

stop reset:
	@if test -x $(PY); then $(PY) -m project.embedded $(subst reset,remove,$@); fi

clean:
	@if test -x $(PY); then $(TEST) -m project.embedded remove; fi
	@rm -rf .venv .venv.lock .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What is installed, each a file that is newer than its list. The first one is made last, so a .venv that was
# killed half-way is made anew.
.venv/made:
	@$(PYTHON) -c '$(VERSION_OK)' || { \
		echo 'Sekali needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3'; exit 1; }
	@rm -rf .venv
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/runtime: requirements.txt | .venv/made
	@echo 'Installing what the server needs'
	@$(PIP) -r requirements.txt
	@touch $@

.venv/tests: tests/requirements.txt requirements.txt | .venv/made
	@echo 'Installing what tests need'
	@$(PIP) -r tests/requirements.txt
	@touch $@ .venv/runtime
