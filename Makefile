# The targets set themselves up: a Python 3.12 or newer, a virtual environment, the packages, then their job.

VENV := .venv
EXTRA := $(if $(filter Linux,$(shell uname -s)),cuda13,cpu)
CANDIDATES := $(PYTHON) python3.12 python3 python3.13 python3.14 $(sort $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.1[2-9]*/bin/python))

.PHONY: crosscheck test reading clean

crosscheck: $(VENV)/ready
	@$(VENV)/bin/python -m crosscheck

test: $(VENV)/ready
	@$(VENV)/bin/python -m pytest -n auto --dist worksteal

reading: $(VENV)/ready
	@$(VENV)/bin/python -m reading

clean:
	rm -rf $(VENV)

$(VENV)/ready: pyproject.toml constraints.txt Makefile
	@for python in $(CANDIDATES); do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "set-up: no Python 3.12 or newer on PATH or under pyenv; install one or say make PYTHON=/path/to/python" >&2; exit 1; \
	fi; \
	if ! $$found -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "set-up: $$found cannot make virtual environments; on Debian and Ubuntu install its package python3-venv" >&2; exit 1; \
	fi; \
	echo "set-up: packages of [$(EXTRA),test,plot,reading] for $$($$found --version) into $(VENV), some minutes and GB the first time" >&2; \
	$$found -m venv $(VENV) && \
	$(VENV)/bin/python -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; e = p["optional-dependencies"]; print(*p["dependencies"], *e[sys.argv[1]], *e["test"], *e["plot"], *e["reading"], sep="\n")' $(EXTRA) > $(VENV)/requirements.txt && \
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $(VENV)/requirements.txt --constraint constraints.txt || \
	{ echo "set-up: the packages could not be installed; pip's words are above" >&2; exit 1; }
	@touch $@
