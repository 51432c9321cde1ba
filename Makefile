# Start with `make demo` and `make test`. Every target sets up what it needs; the second time it is quick.
#
#   PYTHON=python3.11   the interpreter for .venv
#   TORCH_BUILD=cpu     `cpu`: torch without CUDA (200 MB), from TORCH_INDEX; `cuda`: PyPI's build with its CUDA libraries (3 GB)
#   TORCH_INDEX=URL     index of the CPU build; pip's configured indexes and folders of wheels are searched too
#   JOBS=4              processes that share the tests; some always wait, so there are two more than CI's two cores

PYTHON      ?= python3.11
TORCH_BUILD ?= cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
JOBS        ?= 4

SHELL := /bin/bash
.SHELLFLAGS := -e -u -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup vllm demo docs test test-slow lint system browser clean

VENV    := .venv
BIN     := $(VENV)/bin
PIP     := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --no-build-isolation
pinned   = $(shell grep '^$(1)==' requirements.lock)
digest   = $(shell cat $(1) | sha256sum | cut -c 1-12)
# Compiles on all cores (pip would use one). Its exit status is ignored, because some packages contain files for other Python versions.
COMPILED = $(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null 2>&1 || true
RUNTIME := $(VENV)/.runtime-$(TORCH_BUILD)-$(call digest,requirements.lock)
VLLM    := $(VENV)/.vllm-$(call digest,requirements.lock requirements-vllm.lock)
TESTING := $(VENV)/.testing-$(call digest,requirements.lock requirements-test.lock)
SITE    := $(VENV)/.site-$(call digest,requirements.lock requirements-docs.lock)

# The tests look at report.html in this browser.
BROWSER := chromium
BROWSES := command -v $(BROWSER) chromium-browser google-chrome > /dev/null
SYSTEM_PACKAGES := libegl1 libopengl0 libgl1-mesa-dri libosmesa6 bubblewrap
DRAWS := $(BIN)/python -c 'from envs.offscreen import make_context; make_context(8)' 2> /dev/null
BOXES := command -v bwrap > /dev/null

# Installs system packages if it can: as root, with apt-get.
install = { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && echo "Installing $(1) ..." && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(1) > /dev/null; }

export OMP_NUM_THREADS := 1
export PIP_ROOT_USER_ACTION := ignore
# Many images set it; every process would then compile the sources that it imports.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo 'make demo       train the shipped policy on Meta-World and see it get better'
	@echo 'make test       linters, types, import rules and the tests'
	@echo 'make test-slow  the tests that take long'
	@echo 'make docs       the documentation as a site, build/site/index.html'
	@echo 'make setup      only the environment, $(VENV)'
	@echo 'make vllm       vLLM beside it, for rollout=vllm on CPUs'
	@echo 'make clean      delete what these commands made, except outputs/'

setup: $(RUNTIME)
	@:

vllm: $(VLLM)
	@:

demo: setup system
	$(BIN)/python -m siirl.train pipeline=embodied_srpo env=metaworld

docs: setup $(SITE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	@echo "Open build/site/index.html"

# The tests build the site and follow its links.
test: lint browser $(SITE) $(VLLM)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder -m 'not slow'

test-slow: setup system $(TESTING) $(SITE) $(VLLM)
	$(BIN)/python -m pytest -q -m slow

lint: setup system $(TESTING)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The file's name contains the digest of the pins: after a change of the lock or the torch build, packages are installed again.
$(RUNTIME):
	@command -v $(PYTHON) > /dev/null || { echo "$(PYTHON) is not there. Install Python 3.11 (Debian: apt-get install python3.11-venv) or name one: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "$(PYTHON) is not Python 3.11, for which requirements.lock is made. Name one: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2> /dev/null || $(call install,python3.11-venv) || { echo "$(PYTHON) cannot make an environment. Type: sudo apt-get install -y python3.11-venv   and start again." >&2; exit 1; }
	@echo "Making $(VENV) from requirements.lock (about a minute and a half, 1.7 GB) ..."
	@rm -f $(VENV)/.runtime-*
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(call pinned,pip) $(call pinned,setuptools)
ifeq ($(TORCH_BUILD),cpu)
	@$(PIP) --retries 1 --timeout 20 --extra-index-url "$(TORCH_INDEX)" "$(call pinned,torch)+cpu" || { echo "No CPU build of $(call pinned,torch) for this machine at $(TORCH_INDEX). Name another index: make setup TORCH_INDEX=URL, or take PyPI's build with CUDA: make setup TORCH_BUILD=cuda" >&2; exit 1; }
else
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(subst ==,===,$(call pinned,torch))"  # exactly: a CPU build that is there already is replaced
endif
	@$(PIP) -r requirements.lock
ifeq ($(TORCH_BUILD),cuda)
	@$(PIP) -r requirements-timm.lock
endif
	@$(PIP) --editable .
	@$(COMPILED)
	@touch $@

$(VLLM): | $(RUNTIME)
	@echo "Adding vLLM from requirements-vllm.lock (about two minutes, 0.8 GB) ..."
	@rm -f $(VENV)/.vllm-*
	@$(PIP) -r requirements-vllm.lock
	@$(COMPILED)
	@touch $@

$(TESTING): | $(RUNTIME)
	@rm -f $(VENV)/.testing-*
	@$(PIP) -r requirements-test.lock
	@touch $@

$(SITE): | $(RUNTIME)
	@rm -f $(VENV)/.site-*
	@$(PIP) -r requirements-docs.lock
	@touch $@

# MuJoCo draws in software through EGL or OSMesa; whether it can is tried, not guessed from package names. Without bubblewrap all but
# env=sandbox works, and its tests are skipped.
system: setup
	@{ $(DRAWS) && $(BOXES); } || $(call install,$(SYSTEM_PACKAGES)) || $(DRAWS) || { echo "MuJoCo cannot draw: no OpenGL here. Type: sudo apt-get install -y $(SYSTEM_PACKAGES)   and start again." >&2; exit 1; }
	@$(BOXES) || echo "Bubblewrap is not installed: env=sandbox will not start here. To have it: sudo apt-get install -y bubblewrap"
	@$(DRAWS) || { echo "MuJoCo cannot draw, although $(SYSTEM_PACKAGES) are installed; what it says:" >&2; $(subst 2> /dev/null,,$(DRAWS)); }

browser:
	@$(BROWSES) || $(call install,$(BROWSER)) || echo "No browser: the test that opens report.html is skipped. To have it: sudo apt-get install -y $(BROWSER)"

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
