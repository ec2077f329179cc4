# Each target sets up .venv with pinned versions first, where it is missing or the pins
# have changed.  Needs Python 3.11 or later, pip and make: `make test PYTHON=python3.12`.

PYTHON ?= python3
# Test processes.
JOBS ?= 2
# How long `make fuzz` attacks.
SECONDS ?= 60

VENV := .venv
PIP := $(PYTHON) -m pip --python $(VENV)/bin/python --disable-pip-version-check
PINS := requirements-torch.txt requirements.txt requirements-dev.txt
READY := $(VENV)/ready-$(shell cat $(PINS) pyproject.toml | cksum | cut -d ' ' -f 1)
RUN := $(VENV)/bin/python

.PHONY: demo test thorough check fuzz gpu compiled golden bench-gpu bench-search venv clean
.DEFAULT_GOAL := test

demo: $(READY)
	$(RUN) examples/demo.py

test: $(READY)
	$(RUN) -m pytest -n $(JOBS) --dist loadscope

# All cases of all tests: some 25 minutes on two cores.
thorough: $(READY)
	$(RUN) -m pytest -n $(JOBS) --dist loadscope --thorough

check: $(READY)
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m pyright
	$(RUN) -m mirage_dsl fmt --check examples

# Random attacks; each fault comes with the seed that shows it again.
fuzz: $(READY)
	$(RUN) -m tests.fuzz --seconds $(SECONDS) --jobs $(JOBS)

# Rewrites the expected outputs of the golden tests; review the difference.
golden: $(READY)
	$(RUN) -m pytest -n $(JOBS) --dist loadscope -m golden --thorough --update-golden

bench-search: $(READY)
	$(RUN) -m benchmarks.search

# Everything that needs a GPU; writes the commit to benchmarks/results/gpu_seen.txt.
gpu: $(READY)
	$(RUN) -m benchmarks.gpu_seen --jobs $(JOBS) $(if $(COMMIT),--commit $(COMMIT))

# Every kernel that the tests emit, compiled for each architecture; needs no GPU.
compiled: $(READY)
	rm -rf .pytest_cache/emitted
	$(RUN) -m pytest -q -n $(JOBS) --dist loadscope --thorough --emitted=.pytest_cache/emitted tests
	$(RUN) -m tests.emitted .pytest_cache/emitted $(JOBS)

# Goes on where it stopped; needs a GPU.
bench-gpu: $(READY)
	$(RUN) -m benchmarks.gpu --json results.json
	$(RUN) -m benchmarks.gpu --rows 512 4096 --json results.json

venv: $(READY)

# The stamp's name holds the checksum of the pins.
$(READY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "mirage_dsl needs Python 3.11 or later, found %d.%d: set PYTHON" % sys.version_info[:2])'
	test -x $(RUN) || $(PYTHON) -m venv --without-pip $(VENV)
	$(PIP) install --quiet -r requirements-torch.txt
	$(PIP) install --quiet -r requirements.txt -r requirements-dev.txt
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	rm -f $(VENV)/ready-*
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
