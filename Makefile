# Two commands do everything: `make demo` and `make test`. CUDA=OFF: the package without GPU code.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc)
CXX_FILES = $(shell git ls-files '*.hpp' '*.cpp' '*.cu' '*.cuh')
PY_DIRS := python tests bench

.PHONY: demo test test-sanitize bench lint native-tests gtest clean

# Debian keeps both apart from python3.
$(BIN)/python:
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) makes no virtual environments; as root: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sysconfig as s; exit(not os.path.exists(s.get_path("include") + "/Python.h"))' || \
	  { echo "$(PYTHON) has no Python.h; as root: apt-get install python3-dev" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Rebuilt when anything that goes into the package changed.
$(VENV)/.installed: $(BIN)/python pyproject.toml CMakeLists.txt $(shell find native python -type f -not -name '*.pyc')
	@echo "building the package: minutes, some more with nvcc (CUDA=OFF leaves it out)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  $(if $(CUDA),--config-settings=cmake.define.CIERA_CUDA=$(CUDA)) .
	touch $@

$(VENV)/.tools: $(BIN)/python tests/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
	touch $@

demo: $(VENV)/.installed
	$(BIN)/ciera replay tests/data/sample_trace.npz --world-size 4 --reuse all

test: lint native-tests
	$(BIN)/python -m pytest
	$(BIN)/python bench/sizes.py --check

lint: $(VENV)/.installed $(VENV)/.tools
	$(BIN)/ruff check $(PY_DIRS)
	$(BIN)/ruff format --check $(PY_DIRS)
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/mypy

# GoogleTest and zlib come from Debian; everything else from the virtual environment.
gtest:
	@if test -e /usr/include/gtest/gtest.h -a -e /usr/include/zlib.h; then :; \
	elif test "$$(id -u)" = 0; then apt-get update -qq && apt-get install -y -qq libgtest-dev zlib1g-dev; \
	else echo "the native tests need GoogleTest and zlib; as root: apt-get install libgtest-dev zlib1g-dev" >&2; exit 1; fi

# The path leads CMake to the MPI of the virtual environment. One GPU architecture is enough to see
# that the CUDA code compiles, where nvcc is; CUDA_ARCHITECTURES=... builds for another GPU.
CUDA_ARCHITECTURES ?= 90-real
native-tests: gtest $(VENV)/.tools
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cmake -S . -B build/tests -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DCIERA_TESTS=ON -DCIERA_PYTHON=OFF -DCIERA_WERROR=ON -DCIERA_MPI=ON \
	  -DCMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)
	$(BIN)/cmake --build build/tests -j $(JOBS)
	$(BIN)/ctest --timeout 300 --test-dir build/tests --output-on-failure -j $(JOBS)

# The native tests under AddressSanitizer and UndefinedBehaviorSanitizer.
test-sanitize: gtest $(VENV)/.tools
	$(BIN)/cmake -S . -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	  -DCIERA_TESTS=ON -DCIERA_PYTHON=OFF -DCIERA_MPI=OFF -DCIERA_CUDA=OFF -DCIERA_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo
	$(BIN)/cmake --build build/sanitize -j $(JOBS)
	$(BIN)/ctest --timeout 300 --test-dir build/sanitize --output-on-failure -j $(JOBS)

bench: $(VENV)/.installed native-tests
	$(BIN)/python bench/codec_bench.py tests/data/sample_trace.npz --shard expert_ffn

clean:
	rm -rf build $(VENV)
