# `make` lists the targets. The first use of one makes .venv from pyproject.toml under constraints.txt.
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.13; do $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)
# On Linux the registry's torch is the CUDA build; TORCH_INDEX=https://download.pytorch.org/whl/cpu takes the small one.
TORCH_INDEX ?=
# HASHED=1 makes .venv anew, of the files of requirements.lock alone: pip refuses one with another SHA-256.
HASHED ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready$(if $(HASHED),-hashed)
PIP = $(BIN)/python -m pip install --quiet --no-compile

# What is imported is compiled once: an environment that forbids it costs every process seconds.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo real test test-core test-all test-experiments test-real slurm attack draw-faults check table table2 tables figures results llama-server gpu docs lock clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(READY): pyproject.toml constraints.txt $(if $(HASHED),requirements.lock)
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "Python 3.11, 3.12 or 3.13 is needed; name one with PYTHON=/path/to/python3"; exit 1; }
ifdef HASHED
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) --require-hashes --requirement requirements.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $(VENV)/.ready
else
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) --constraint constraints.txt torch==2.13.0
	$(PIP) --constraint constraints.txt --editable '.[dev]'
endif
	@touch $@

demo: $(READY) ## the main job on the embedded model, with its table (half a minute once installed)
	$(BIN)/python -m skipbench

test: $(READY) ## the tests of every day, without a network
	$(BIN)/python -m pytest

test-core: $(READY) ## the tests of the core alone, in a copy without skipbench/contrib; PART=lowbit, without that part and those on it
	PART=$(PART) scripts/core_alone.sh
test-all: test ## those, then the slow ones: killed runs, the wheel, notebooks, the products of settings
	$(BIN)/python -m pytest -m slow
test-experiments: $(READY) ## every experiment of the papers with two short samples per cell (about 2 minutes on 2 cores)
	$(BIN)/python -m pytest -m experiments
test-real: $(READY) ## the methods on SmolLM2-135M, token for token (about 15 minutes on 2 cores; needs the hub or the package index)
	$(BIN)/python -m pytest -m real --dist loadgroup
slurm: $(READY) ## the tests on a Slurm of their own (root; Debian's slurmctld, slurmd, slurm-client, munge)
	$(BIN)/python -m pytest tests/launch/test_slurm.py -m slurm -n 0 -rs $(OPTIONS)

check: $(READY) ## ruff and mypy, and no mark of a merge is left
	@! git grep -nE '^(<<<<<<<|>>>>>>>) ' -- .
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# make table2 PAPER=swift PROFILE=embedded MODELS=llama2-13b; PROFILE is a scale: paper where a CUDA device is, else embedded; or laptop.
PAPER ?=
N ?= 2
PROFILE ?=
MODELS ?=
OPTIONS ?=
# LAUNCHER=slurm HARDWARE=slurm-a100 submits what is missing; OPTIONS=--plan prints the hours, OPTIONS=limit=20 takes so many prompts,
# OPTIONS=--yes more than 100 GPU-hours. HARDWARE=slurm-a100 alone then writes the tables from what is there.
LAUNCHER ?=
HARDWARE ?= $(if $(filter slurm,$(LAUNCHER)),slurm-a100)
TABLE = $(BIN)/python -m skipbench $(if $(filter slurm,$(LAUNCHER)),submit,table)
CHOSEN = $(if $(PROFILE),scale=$(PROFILE)) $(if $(MODELS),models=$(MODELS)) $(if $(HARDWARE),hardware=$(HARDWARE) $(if $(filter slurm,$(LAUNCHER)),,--render-only)) $(OPTIONS)
TABLE2 := swift-table2 self-sd-table2 clasp-table1 knapspec-table2
TABLES = swift-table1 knapspec-table1 $(basename $(notdir $(wildcard conf/experiment/*-table*.yaml conf/experiment/*-section*.yaml)))

table2: $(READY) ## every paper's main table, measured beside published; PAPER=, PROFILE=embedded|laptop|paper, MODELS=, LAUNCHER=slurm
	$(TABLE) $(if $(PAPER),$(or $(filter $(PAPER)-%,$(TABLE2)),$(PAPER)-table2),$(TABLE2)) $(CHOSEN)

table: $(READY) ## one table, PAPER=swift N=8; without PAPER the embedded model over its datasets
	$(TABLE) $(if $(PAPER),$(PAPER)-table$(N),tiny) $(if $(PAPER)$(LAUNCHER)$(HARDWARE),$(CHOSEN),$(OPTIONS))
tables: $(READY) ## every table of the papers; PAPER=, PROFILE=, MODELS=
	$(TABLE) $(if $(PAPER),$(filter $(PAPER)-%,$(TABLES)),$(TABLES)) $(CHOSEN)

FIGURES = $(filter-out clasp-figure3b,$(basename $(notdir $(wildcard conf/experiment/*-figure*.yaml))))
FIGURE = failed=0; for f in $(FIGURES); do $(BIN)/python -m skipbench figure $$f

figures: $(READY) ## every figure that has runs (not clasp-figure3b): results/figures/; PROFILE=
	@$(FIGURE) $(CHOSEN) || failed=1; done; exit $$failed
real: $(READY) ## seven methods on SmolLM2-135M, ranked (downloads 90 MB; 10 prompts on one core)
	$(BIN)/python -m skipbench data smollm2-135m-q4_1
	$(BIN)/python -m skipbench table real $(OPTIONS)

LAPTOP = scale=laptop results=results/laptop
STRICT = limit=20 engine.strict=true
# QUESTIONS=FILE has Spec-Bench's rows, for head to head without a network
QUESTIONS ?=
EMBEDDED := clasp-table1 self-sd-table10 self-sd-table11 swift-table12 swift-table3
results: FIGURES = clasp-figure5 knapspec-figure3 swift-figure2a clasp-figure4a
results: $(READY) ## committed results: SmolLM2-135M on its tables and the papers' with 20 prompts, a planted model, the embedded one (two hours on one core)
	$(BIN)/python -m skipbench data smollm2-135m-q4_1
	$(BIN)/python -m skipbench table real planted $(STRICT) results=results/laptop
	$(BIN)/python -m skipbench table head-to-head limit=24 engine.strict=true $(if $(QUESTIONS),dataset.path=$(QUESTIONS)) results=results/laptop
	$(BIN)/python -m skipbench search method=self-sd model=smollm2-135m-q4_1 dataset=humaneval limit=20 search.iterations=16 \
		search.prompts=2 search.max_new_tokens=24 results=results/laptop # for Self-SD's Table 2, whose cells search no set of their own
	$(BIN)/python -m skipbench table swift-table1 knapspec-table1 $(TABLE2) $(LAPTOP) $(STRICT)
	$(BIN)/python -m skipbench score all results=results/laptop
	$(BIN)/python -m skipbench table $(TABLE2) $(LAPTOP) $(STRICT) --render-only
	$(BIN)/python -m skipbench table $(EMBEDDED) scale=embedded results=results/embedded
	@$(FIGURE) $(LAPTOP) || failed=1; done; exit $$failed
	$(BIN)/python -m skipbench figure head-to-head results=results/laptop
	for run in results/laptop/runs/planted-*/swift_*; do $(BIN)/python -m skipbench figure $$run && \
		cp $$run/figures/map.svg results/laptop/figures/planted-swift-map.svg; done
	$(BIN)/python scripts/pack_records.py results/laptop results/laptop/tables/*.json
	$(BIN)/python scripts/readme_figures.py

lock: $(READY) ## requirements.lock, every dependency with its hashes, and constraints.txt, the same without them
	$(PIP) --target build/uv uv==0.13.9
	build/uv/bin/uv pip compile pyproject.toml --extra dev --extra big --extra quant --constraint constraints.txt --universal --python-version 3.11 \
		--generate-hashes --no-annotate --quiet --custom-compile-command 'make lock' --output-file requirements.lock
	sed -nE 's/^([a-z][^ ]*==.*) \\$$/\1/p' requirements.lock >constraints.txt

ATTACKS := contrib/cpu/test_library.py lm/test_families.py decode/test_contract.py scoring/test_humaneval.py \
	runs/test_bad_records.py project/test_malformed.py launch/test_two_processes.py contrib/serve/test_serve.py
attack: $(READY) ## kernels under sanitizers, all families and methods, exact tests of sampling, generated programs, faults in pairs (an hour or more)
	$(BIN)/python -m pytest -m slow $(addprefix tests/,$(ATTACKS))

# again with the same FOLDER it goes on; OPTIONS='--faults LIST.json' runs a list that was drawn before
draw-faults: $(READY) ## 200 faults drawn by SEED, each against the tests of its line (hours); FOLDER=build/faults, OPTIONS=
	$(PIP) --target build/coverage --upgrade coverage==7.17.5
	PYTHONPATH=build/coverage $(BIN)/python -m scripts.draw_faults $(or $(FOLDER),build/faults) --seed $(or $(SEED),1) $(OPTIONS)

docs: $(READY) ## the site build/site (installs mkdocs-material)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python -m mkdocs build --strict

LLAMA := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/skipbench/llama-server
llama-server: $(LLAMA) ## llama.cpp's server for `bench` and its slow tests: ~/.cache/skipbench/llama-server (10 minutes; needs cmake and a C++ compiler)
$(LLAMA): | $(READY)
	scripts/llama_server.sh $(BIN)/python $@

gpu: $(READY) ## what a GPU shows, in 25 minutes, with a verdict on engine=cuda_graphs: results/gpu/report; OPTIONS='--budget 9m --out FOLDER', or --rehearse on a CPU
	$(BIN)/python scripts/gpu_report.py $(OPTIONS)

clean: ## remove the environment and caches; results stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist *.egg-info
