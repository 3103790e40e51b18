# install  a virtual environment in .venv with bpfprof in it      demo   record a small training loop for 5 seconds
# test     what each change must pass: lint, and the gate's tests (root needed)    bench  run the benchmarks
# test-all every test, on every interpreter and kernel that can be had: an hour, and 3 GB of downloads
# lint     the part of `test` that runs nothing                   clean  remove what these targets made
# format   put Python and C into the shape that `lint` asks for    deb    build dist/bpfprof_VERSION_all.deb
# matrix   the kernel's tests on every row of vagrant/matrix.yaml; matrix-ci: on the oldest and newest kernel
# fuzz     damaged input to all that reads strangers' bytes, FUZZ_SECONDS=600 of CPU time each
# interpreters  record known programs on every Python there is, which takes ten minutes

SHELL         := /bin/bash
MAKEFLAGS     += --no-print-directory
.DEFAULT_GOAL := install
FUZZ_SECONDS  ?= 600
.PHONY: install demo test test-all oldest-kernel lint format bench fuzz interpreters deb clean matrix matrix-ci matrix-tools root-tools test-tools all-tools root-possible

# The system's Python, because the distribution's bcc module is built for it.
SYSTEM_PYTHON := /usr/bin/python3
VENV          := $(CURDIR)/.venv
PYTHON        := $(VENV)/bin/python
PIP           := $(PYTHON) -m pip --quiet --disable-pip-version-check
# What the tests need comes by uv, in a fifth of pip's time; by pip where uv can't have it: it doesn't read pip.conf.
WITH_UV       := $(VENV)/bin/uv pip install --quiet --compile-bytecode --python $(PYTHON)
install_tools  = $(PIP) install uv && $(WITH_UV) --editable $(1) || $(PIP) install --editable $(1)
SUDO          := $(if $(filter-out 0,$(shell id -u)),sudo)
# The package of what PyInstaller packs into a program, which is a target of the tests; nothing where it is there.
LIBPYTHON      = $(shell $(SYSTEM_PYTHON) -c 'import ctypes.util as c, sysconfig; \
	name = "python" + sysconfig.get_python_version(); c.find_library(name) or print("lib" + name)')
# As root, without asking for a password.
AS_ROOT       := $(if $(SUDO),sudo -n,env)

PYTEST         = $(AS_ROOT) env PATH="$$PATH" PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m pytest -p no:cacheprovider

INSTALLED     := $(VENV)/.installed
TEST_TOOLS    := $(VENV)/.test-tools
ALL_TOOLS     := $(VENV)/.all-tools
# Outside the checkout, for a clean one to be checked in a second.
CACHE         := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/bpfprof-tests
# Which tests `make test` runs; .ci/run asks for more.
GATE          ?= gate and not second_tier
NODE_MODULES  := $(if $(wildcard tests/browser/package.json),tests/browser/node_modules/.installed)
C_SOURCES      = $(shell find ebpf tests -path ebpf/include -prune -o -name node_modules -prune -o -name '*.[ch]' -print 2>/dev/null)

install: $(INSTALLED)

# Editable: the command runs the checkout as it is, so only a change of the metadata asks for a new install, and one of
# what the BPF programs are made of, which it compiles.
$(INSTALLED): pyproject.toml bpfprof/__init__.py bpfprof/kernel/sources.py $(wildcard ebpf/*.[ch]) | $(PYTHON)
	@echo "Installing bpfprof into .venv"
	@$(PIP) install --editable .
	@$(PYTHON) -m compileall -q bpfprof # an editable install leaves it to the first run, which may not write
	@touch $@
	@echo "Done.$(if $(filter demo,$(MAKECMDGOALS)),, Try: make demo, or: $(if $(SUDO),$(SUDO) )$(VENV)/bin/bpfprof doctor)"

$(PYTHON):
	@$(SYSTEM_PYTHON) -c 'import bcc, ensurepip' 2>/dev/null || .ci/apt-install python3-bpfcc python3-venv
	@$(SYSTEM_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9))' || \
		{ echo "bpfprof needs Python 3.9 or newer; $(SYSTEM_PYTHON) is older." >&2; exit 1; }
	@$(SYSTEM_PYTHON) -m venv --system-site-packages $(VENV)

# The program ends when its standard input closes, so it cannot outlive this recipe.
demo: install
	@mkdir -p .demo
	@coproc program { exec $(PYTHON) tests/programs/training_loop.py; }; \
	read -r ready pid <&$${program[0]} && test "$$ready" = ready || { echo "The demo program did not start." >&2; exit 1; }; \
	$(SUDO) $(VENV)/bin/bpfprof record --pid "$$pid" --duration 5 --output .demo/training_loop.svg; status=$$?; \
	eval "exec $${program[1]}>&-"; cat <&$${program[0]} >/dev/null; exit $$status

# Each file's tests run in one process, beside other files': none asks how much of a CPU anything gets.
test: root-possible test-tools lint
	@$(PYTEST) --numprocesses $$(($$(nproc) + 1)) --dist loadfile --no-loadscope-reorder --quiet -m '$(GATE)'

# It goes on after a failure, and ends with a table of its parts.
test-all: root-possible all-tools
	@$(AS_ROOT) env PATH="$$PATH" PYTHONDONTWRITEBYTECODE=1 $(PYTHON) -m tests.all

# What the test of the oldest kernel boots; made outside of its time.
oldest-kernel: root-possible matrix-tools
	@$(AS_ROOT) vagrant/run.sh --qemu --prepare bullseye-5.10

lint: test-tools
	@$(VENV)/bin/ruff check --quiet
	@$(VENV)/bin/ruff format --check --quiet || { echo "Not formatted. Run: make format" >&2; exit 1; }
	@shellcheck .ci/* $(wildcard vagrant/*.sh)
	@$(if $(C_SOURCES),{ clang-format --dry-run -Werror $(C_SOURCES) || { echo "Not formatted. Run: make format" >&2; exit 1; }; })
	@$(VENV)/bin/mypy --no-error-summary --num-workers $$(nproc) --cache-dir $(CACHE)/mypy

format: test-tools
	@$(VENV)/bin/ruff check --quiet --fix-only
	@$(VENV)/bin/ruff format --quiet
	@$(if $(C_SOURCES),clang-format -i $(C_SOURCES))

# All but soak.py, which takes an hour. What the benchmarks print goes into the tables of docs/accuracy.md, too.
bench: install
	@figures=$$(mktemp); trap 'rm -f "$$figures"' EXIT; \
	for script in tests/benchmarks/*.py; do \
		grep -q '^if __name__' "$$script" && [[ $$script != */tables.py && $$script != */soak.py ]] || continue; \
		echo "== $$script"; $(SUDO) $(PYTHON) "$$script" | tee -a "$$figures" || exit; \
	done; $(PYTHON) tests/benchmarks/tables.py docs/accuracy.md <"$$figures"

# What breaks a bound is kept, and its path is printed, with the seed.
fuzz: test-tools
	@$(PYTHON) -m tests.fuzz --seconds $(FUZZ_SECONDS)

# Its table goes into docs/interpreters.md.
interpreters: root-possible all-tools
	@.ci/apt-install /usr/bin/python3.11-dbg=python3.11-dbg /usr/bin/pypy3=pypy3
	@$(AS_ROOT) env PATH="$$PATH" $(PYTHON) -m tests.oracles interpreters

# With the pip of .venv: the system's Python may have none.
deb: install
	@PYTHON=$(PYTHON) .ci/build-deb

clean:
	rm -rf .venv .demo bpfprof/kernel/ready_made .mypy_cache .pytest_cache .ruff_cache build dist tests/browser/node_modules
	find bpfprof tests -name __pycache__ -prune -exec rm -rf {} +

# Its tables go into docs/kernels.md.
matrix: root-possible matrix-tools
	@$(AS_ROOT) vagrant/run.sh --qemu --table

matrix-ci: root-possible matrix-tools
	@$(AS_ROOT) vagrant/run.sh --qemu --ci

matrix-tools: $(TEST_TOOLS) root-tools
	@.ci/apt-install cpio=cpio mke2fs=e2fsprogs

root-tools:
	@.ci/apt-install mmdebstrap=mmdebstrap debian-archive-keyring

root-possible:
	@$(AS_ROOT) true 2>/dev/null || { echo "The tests load BPF programs: run make test as root." >&2; exit 1; }

test-tools: $(TEST_TOOLS)
	@.ci/apt-install gcc=gcc g++=g++ clang-format=clang-format strace=strace sudo=sudo readelf=binutils \
		eu-stack=elfutils shellcheck=shellcheck

# Without a mirror of Debian the tests of sid's and of free-threaded Pythons are skipped.
all-tools: test-tools $(ALL_TOOLS) $(NODE_MODULES) matrix-tools
	@.ci/apt-install vagrant=vagrant-libvirt pypy3=pypy3 zsh=zsh fish=fish callgrind_annotate=valgrind \
		java=default-jre-headless $(LIBPYTHON)
	@$(AS_ROOT) $(PYTHON) -m tests.sid || echo "Debian sid's Pythons could not be had." >&2
	@$(AS_ROOT) $(PYTHON) -m tests.free_threaded || echo "A free-threaded Python could not be had." >&2

# With bpfprof itself, which they need too.
$(TEST_TOOLS): pyproject.toml bpfprof/__init__.py | $(PYTHON)
	@echo "Installing bpfprof and what the tests need into .venv"
	@$(call install_tools,'.[test]')
	@$(PYTHON) -m compileall -q bpfprof
	@touch $(INSTALLED) $@

$(ALL_TOOLS): pyproject.toml bpfprof/__init__.py | $(PYTHON)
	@echo "Installing bpfprof and what all tests need into .venv"
	@$(call install_tools,'.[test-all]')
	@$(PYTHON) -m compileall -q bpfprof
	@touch $(INSTALLED) $(TEST_TOOLS) $@

tests/browser/node_modules/.installed: $(wildcard tests/browser/package*.json)
	@.ci/apt-install node=nodejs npm=npm chromium,chromium-browser,google-chrome=chromium
	@npm install --no-audit --no-fund --silent --prefix tests/browser
	@touch $@
