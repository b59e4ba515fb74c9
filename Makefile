# Two commands: `make book` and `make test`. Python 3.11 or newer and pip are all they need. Whatever stops them (Ctrl-C,
# a killed process, a full disk), the same command goes on: no file counts as made before it is whole.
PYTHON ?= python3
CHAPTER ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MATHJAX := static/mathjax/tex-chtml-full.js

# One thread a process: chapters run side by side, and results do not depend on the number of cores.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help book html refresh words student notebook colab experiments corpus lint workflows javascript format check readers floor ceiling test mutants clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'
	@echo "  A variable names another Python: make book PYTHON=python3.12"

book: $(INSTALLED) $(MATHJAX) corpus  ## run every chapter that is not up to date, build _build/html/index.html
	@$(BIN)/python -m tools.make_book

html: $(INSTALLED) $(MATHJAX)  ## build _build/html/index.html from the outputs that are stored in the notebooks
	@$(BIN)/python -m tools.make_book --stored

refresh: $(INSTALLED) corpus  ## run every chapter, or CHAPTER=book/3_2_attention.py, and store its outputs in git's copy
	$(BIN)/python -m tools.notebooks refresh $(CHAPTER)
	$(BIN)/python -m tools.plain

words: $(INSTALLED)  ## where only words and tags of chapters have changed: store them, keep the outputs
	$(BIN)/python -m tools.notebooks words $(CHAPTER)
	$(BIN)/python -m tools.plain

student: $(INSTALLED)  ## a chapter without its solutions, make student CHAPTER=book/3_2_attention.py, into student/
	@$(BIN)/python -m tools.plain --student $(or $(CHAPTER),$(error name it: make student CHAPTER=book/3_2_attention.py))

notebook: $(INSTALLED) corpus  ## open the chapters in JupyterLab, in this environment
	@$(BIN)/python -c 'import jupyterlab' 2>/dev/null || $(BIN)/python -m pip install --quiet jupyterlab
	$(BIN)/jupyter lab notebooks

colab: $(INSTALLED)  ## run every chapter, or CHAPTER=book/x.py, under Colab's versions (Linux, root; some 5 GB)
	$(BIN)/python -m tools.colab_rehearsal $(CHAPTER)

experiments: $(INSTALLED) corpus  ## run the paper's experiments into book/results (hours; goes on where it stopped)
	cd book && ../$(BIN)/python -m lab.experiments --jobs 2

corpus: $(INSTALLED)  ## fetch the default corpus, unless it is there
	$(BIN)/annotated-transformer prepare tatoeba-en-de

lint: $(INSTALLED) workflows javascript  ## ruff, mypy, eslint and prettier, and the files of .github against their schemas
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

SCHEMA := $(BIN)/check-jsonschema --builtin-schema
FORMS = $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
workflows: $(INSTALLED)
	$(SCHEMA) vendor.github-workflows .github/workflows/*.yml
	$(SCHEMA) custom.github-workflows-require-timeout .github/workflows/*.yml
	$(SCHEMA) vendor.dependabot .github/dependabot.yml
	$(SCHEMA) vendor.github-issue-forms $(FORMS)
	$(SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA) vendor.citation-file-format CITATION.cff

# Where there is no npm, or it reaches nothing, the JavaScript is not checked, and that is said.
JS := .javascript
SCRIPTS := 'annotated_transformer/**/*.js' 'book/lab/**/*.js' static/site.js 'tests/**/*.{js,cjs}' 'tools/*.js'
PRETTIER = $(JS)/node_modules/.bin/prettier --config $(JS)/package.json --log-level warn
$(JS)/.installed: $(wildcard tools/javascript/*)
	@mkdir -p $(JS) && cp $^ $(JS)
	@if command -v npm >/dev/null && npm ci --prefix $(JS) --ignore-scripts --no-audit --no-fund --silent; then touch $@; \
	  else echo "lint: npm is missing or offline, so the JavaScript is NOT checked"; fi
javascript: $(JS)/.installed
	@if [ -e $< ]; then $(JS)/node_modules/.bin/eslint --config $(JS)/eslint.config.mjs $(SCRIPTS); fi
	@if [ -e $< ]; then $(PRETTIER) --check $(SCRIPTS); fi

format: $(INSTALLED) $(JS)/.installed  ## set Python and JavaScript anew
	$(BIN)/ruff format .
	$(PRETTIER) --write $(SCRIPTS)

check: lint corpus  ## before a commit: lint, and the tests that are quick
	$(BIN)/python -m pytest -n 2 -q -m "not slow" --durations 5 tests

readers: $(INSTALLED) .readers/.installed .readers/node/.installed corpus  ## other programs (transformers, ...) read the exports; in .readers
	$(BIN)/python -m pytest -n 2 --dist loadscope -q -rs tests/readers

floor: $(INSTALLED) corpus  ## the tests on the oldest versions that pyproject.toml allows
	$(BIN)/python -m tools.floor

ceiling: $(INSTALLED) corpus  ## the same on the newest torch, numpy and Python that can be had, once per release
	$(BIN)/python -m tools.floor --ceiling

test: lint corpus  ## lint, every test but the mutants, and every chapter against its stored outputs
	$(BIN)/python -m pytest --nbval -n 2 --dist loadscope --no-loadscope-reorder -q -rs --ignore tests/test_mutants.py --ignore tests/readers

mutants: $(INSTALLED) corpus  ## each departure of one line in tests/mutants.txt is noticed by the tests beside it
	$(BIN)/python -m pytest -n 2 -q -rs tests/test_mutants.py

clean:  ## remove what was built, but not the environment
	rm -rf _build build dist *.egg-info static/mathjax .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

$(INSTALLED): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: Python 3.11 or newer is needed, $(PYTHON) is `$(PYTHON) --version 2>&1`; try make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) tools/install.py $(VENV) -- -r requirements.txt -- --no-deps -e .
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' | sed 's|$$|/lab_of_the_book.pth|' | xargs -I FILE sh -c 'echo "$(CURDIR)/book" > "FILE"'

OLDER := requirements-transformers-4.txt
.readers/.installed: requirements-readers.txt $(OLDER)
	@$(PYTHON) tools/install.py .readers -- -r $< -- --no-deps --target .readers/transformers_4 -r $(OLDER)

# Where there is no npm, or it reaches nothing, the tests of transformers.js are skipped and say so.
LOCKED := tests/readers/node/package.json tests/readers/node/package-lock.json
.readers/node/.installed: $(LOCKED) .readers/.installed
	@mkdir -p .readers/node && cp $(LOCKED) .readers/node
	@if command -v npm >/dev/null && npm ci --prefix .readers/node --ignore-scripts --no-audit --no-fund; then touch $@; fi

$(MATHJAX): $(INSTALLED) tools/vendor_mathjax.py
	$(BIN)/python -m tools.vendor_mathjax static/mathjax
