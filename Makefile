# `make help` lists the targets. On a fresh machine `make demo` and `make test` do everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# More than there are cores: many tests wait for disks, servers and killed processes.
WORKERS ?= 3

# Compiled tests are kept for the next run and for the processes that tests start.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-all setup compiled lint check bench soak coverage format viewer docs release-check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## install, and run `warp demo`
	$(BIN)/warp demo

test: setup lint compiled ## every check and every test; what CI calls
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests bench

setup: $(VENV)/.installed-test $(VENV)/.installed-ray $(VENV)/.installed-typescript $(VENV)/.installed-go ## create .venv with everything that the tests need

check: lint ## format, lint, types, import rules, docs
	$(BIN)/python -m pytest -n $(WORKERS) tests/docs tests/architecture

# As an installed package is: otherwise every process of tests and benchmarks compiles it again where Python may not write.
compiled: $(VENV)/.installed-test
	$(BIN)/python -m compileall -q src tests bench

lint: $(VENV)/.installed-test ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The wheel on every Python that is here, and once with the oldest libraries it claims.
test-all: ## the built wheel on every Python found, and with the oldest libraries
	$(PYTHON) -m tools.test_all

# Judges the bars: writes bench/results and prints what slipped against the committed ones. QUICK=1 only runs it all.
bench: setup compiled $(VENV)/.installed-bench ## install the peers, run every benchmark, judge the bars
	$(BIN)/python -m bench.run $(if $(QUICK),--quick)

# Too long for every day: whole sweeps, many examples, thousands of kills.
soak: setup compiled ## whole sweeps, many examples, thousands of kills
	WARPDATA_SOAK=1 HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -n $(WORKERS) --timeout 7200 -m "soak or hypothesis" tests
	$(BIN)/python -m bench.soak_writers
	$(BIN)/python -m bench.soak_kill
	$(BIN)/python -m bench.soak_recording

# These tests notice the tracer: its files among the system calls, and its lock at Ctrl-C and after a fork.
UNTRACED := --deselect tests/catalog/test_faults.py::test_after_a_fork_a_store_without_keys_says_what_to_do \
	--deselect tests/catalog/test_faults.py::test_remote_mode_opens_no_file_for_writing \
	--deselect tests/episodes/test_recording.py::test_interrupted_recordings_lose_nothing

coverage: $(VENV)/.installed-test ## branches that the tests take; report in build/coverage/html
	rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/python -m coverage run -m pytest -n $(WORKERS) --dist worksteal $(UNTRACED) tests
	$(BIN)/python -m coverage combine -q
	$(BIN)/python -m coverage report
	$(BIN)/python -m coverage html -q -d build/coverage/html

# The page of the viewer is built into the package and committed.
viewer: ## build the page of the viewer into the package
	npm ci --silent --no-fund --no-audit --prefix viewer-ui
	npm run --silent build --prefix viewer-ui

docs: $(VENV)/.installed-docs ## build the documentation site into build/site
	PYTHONPATH=src:. $(BIN)/python -m tools.docs_site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	PYTHONPATH=src:. $(BIN)/python -m tools.docs_site --copy-markdown build/site

release-check: $(VENV)/.installed ## build wheel and sdist, install and try them in clean environments
	$(BIN)/python -m tools.release_check

format: $(VENV)/.installed-test ## format, and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV) || (apt-get update && apt-get install -y --no-install-recommends python3-venv && $(PYTHON) -m venv --clear $(VENV))
	touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[video,image,index,serve]'
	touch $@

$(VENV)/.installed-test: $(VENV)/.installed pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[test]'
	@command -v strace >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends strace) \
		|| echo "strace is missing: two tests that watch system calls will skip"
	@command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium) \
		|| echo "chromium is missing: the tests of the viewer in a browser will skip"
	@npm ci --silent --no-fund --no-audit --prefix viewer-ui \
		|| echo "the tools of the viewer's page cannot be installed: its tests in a browser and of its bundle will skip"
	@npm install --silent --no-fund --no-audit --prefix $(VENV)/node azurite@3.35.0 \
		|| echo "azurite cannot be installed: the store contract on Azure will skip"
	touch $@

# Some 240 MB for the tests on a cluster; not an extra of the tests, because not every machine has a Ray.
$(VENV)/.installed-ray: $(VENV)/.installed-test
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[ray]' 'ray[train]' \
		|| echo "Ray cannot be installed: the tests on a cluster will skip"
	touch $@

# The libraries that the benchmarks compare with; hnswlib is compiled here. Peers that cannot run beside ours have
# virtualenvs of their own (bench/environments.py).
$(VENV)/.installed-bench: $(VENV)/.installed-test
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[bench]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[docs]'
	touch $@

# The readers in other languages; if one cannot be installed, its tests skip with a reason.
$(VENV)/.installed-typescript: $(VENV)/.created packages/wshard/package-lock.json
	@(cd packages/wshard && npm ci --silent --no-fund --no-audit) \
		|| echo "npm cannot install what packages/wshard needs: its tests will skip"
	touch $@

$(VENV)/.installed-go: $(VENV)/.created packages/wshard-go/go.mod packages/wshard-go/install.sh
	@packages/wshard-go/install.sh $(abspath $(VENV)) \
		|| echo "Go or its one module cannot be installed: the tests of packages/wshard-go will skip"
	touch $@

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) packages/wshard/node_modules packages/wshard/dist packages/wshard-go/vendor .mypy_cache .ruff_cache .pytest_cache warp-demo*
