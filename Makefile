# Every target sets itself up: a fresh machine needs Python 3.11 to 3.14 with venv, g++, bash and make, nothing else.
#   make demo    the main job: compile real models, compare eager, torch.compile and smelt
#   make test    all tests            make lint    ruff, mypy, clang-format
#   make test-avx2 all tests, with kernels for AVX2 where the machine has AVX-512
#   make check   lint, types and the fastest tests that touch every folder: under a minute, for every save
#   make frameworks one program of each framework: results, saved files and class names are eager's
#   make bench   the benchmark tables make sweep   long sweeps (operators, programs, models, CPython's tests)
#   make gpu     everything that needs a GPU, in parts of under 9 minutes each: docs/gpu.md
#   make page     the page of the HTML report, smelt/report/page.html, from page/: needs Node, which nothing else does
#   make curves  train examples/train_gpt.py eager and compiled, plot both loss curves
#   make docs    the guides and docs/ as pages to open in a browser: build/site/index.html
#   make wheel   a source distribution and, built from it, a wheel for this Python and this torch, in dist/
#   make newest  the wheel for the newest torch, installed into an environment of its own, and `make check` with it
SHELL := bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
# Installed where the Python above has no torch of its own, or another is asked for. TORCH_ARGS may name an index with CPU builds.
TORCH ?= torch==2.13.0
TORCH_ARGS ?=
NEWEST ?= -r requirements/newest.txt
TRITON ?= triton==3.6.0
VENV ?= .venv
# Processes that run tests.
JOBS ?= $(shell nproc)
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
STEP := requirements/step.sh
NATIVE := $(shell find smelt/native -name '*.cpp' -o -name '*.h')

.PHONY: demo test test-avx2 check frameworks bench sweep gpu gpu-tests gpu-catalogue gpu-models gpu-training gpu-bandwidth gpu-products gpu-operators \
  gpu-gradients gpu-programs gpu-here curves docs page wheel newest check-wheel lint format clean
.DELETE_ON_ERROR:

$(VENV)/.torch:
	@if [ "$(origin TORCH)" = file ] && $(PYTHON) -c 'import torch' 2>/dev/null; then \
	  $(STEP) "virtual environment with the torch that is installed" $(PYTHON) -m venv --system-site-packages $(VENV); \
	else \
	  $(STEP) "virtual environment and $(TORCH): about a minute after the download (200 MB, 3 GB with CUDA)" \
	    sh -c '$(PYTHON) -m venv $(VENV) && $(PIP) install -q $(TORCH) $(TORCH_ARGS)'; \
	fi
	$(PIP) install -q 'setuptools>=77' wheel ninja
	touch $@

# Each build writes `_built.py`: where another environment has built since, this one builds again.
smelt/_built.py:
# pip hides the output of a build. So the first command compiles and shows ninja's [n/m] and the file, without the command
# line; pip's own build then links only.
$(VENV)/.native: $(VENV)/.torch $(NATIVE) setup.py pyproject.toml smelt/_built.py
	@$(STEP) "smelt and its native extension: five units, a minute and a half on 2 cores" bash -o pipefail -c \
	  '$(PY) setup.py -q build_ext --inplace | sed -uE "s:^(\[[0-9]+/[0-9]+\]) .* -c .*/([^ /]+\.cpp) -o .*:\1 \2:"'
	$(PIP) install -q --no-build-isolation -e .
	touch $@

$(VENV)/.test: $(VENV)/.torch requirements/test.txt requirements/install_torchvision.py
	@$(STEP) "torchvision: half a minute" $(PY) requirements/install_torchvision.py $(TORCH_ARGS)
	@$(STEP) "what tests, demo and benchmarks use: about a minute" $(PIP) install -q -r requirements/test.txt "torch==$$($(PY) -c 'from importlib.metadata import version; print(version("torch"))')"
	$(PY) -c 'import torchvision, timm'
	$(PIP) show -q triton 2>/dev/null || $(PIP) install -q $(TRITON)  # CUDA builds of torch bring their own
	touch $@

$(VENV)/.examples: $(VENV)/.torch requirements/examples.txt
	$(PIP) install -q -r requirements/examples.txt
	touch $@

$(VENV)/.libraries: $(VENV)/.test requirements/libraries.txt
	@$(STEP) "third-party libraries whose programs are compiled: about a minute" $(PIP) install -q --no-deps -r requirements/libraries.txt
	touch $@

$(VENV)/.lint: $(VENV)/.torch requirements/lint.txt
	$(PIP) install -q -r requirements/lint.txt
	touch $@

$(VENV)/.docs: $(VENV)/.torch requirements/docs.txt
	$(PIP) install -q -r requirements/docs.txt
	touch $@

$(VENV)/.wheel: $(VENV)/.torch requirements/wheel.txt
	$(PIP) install -q -r requirements/wheel.txt
	touch $@

demo: $(VENV)/.native $(VENV)/.test
	$(PY) -m benchmarks.demo

# Processes side by side: threads of OpenMP that spin while they wait would take each other's processors. A file's tests stay
# together, as some share a process of their own.
test test-avx2 check check-wheel: export OMP_WAIT_POLICY = PASSIVE
test test-avx2 check check-wheel: export GOMP_SPINCOUNT = 0
# Empty counts as unset. Without bytecode files, each of hundreds of test processes compiles smelt's sources for a second.
test test-avx2 check check-wheel: export PYTHONDONTWRITEBYTECODE =
test test-avx2: $(VENV)/.native $(VENV)/.test
	# Apart: Triton brings an LLVM of its own into the process.
	@if $(PY) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
	  $(PY) -m pytest tests/gpu -q -n $(JOBS) --dist loadfile; else echo "tests/gpu: left out, there is no GPU"; fi
	$(PY) -m pytest tests -q --durations=10 --ignore tests/gpu -n $(JOBS) --dist loadfile

# torch's kernels and smelt's as on a machine with AVX2 alone, which every x86-64 machine that runs the tests has.
ifeq ($(shell uname -m),x86_64)
test-avx2 check: export ATEN_CPU_CAPABILITY = avx2
test-avx2 check: export SMELT_CPU = x86-64-v3
endif

# The fastest tests of each folder; tests/test_layout.py sees that none is left out.
QUICK := tests/test_docstrings.py tests/test_layers.py tests/test_layout.py tests/test_architecture.py tests/test_api.py \
  tests/autograd/test_recompute_classes.py tests/autograd/test_max_flow.py tests/backends/test_backends.py \
  tests/capture/test_reconstruction.py tests/capture/test_store_replay.py tests/catalogue/test_harness.py tests/cli/test_commands.py \
  tests/codegen/test_modules.py tests/exported/test_refusals.py tests/fx/test_symbolic_trace.py tests/graph \
  tests/guards/test_tree_layout.py tests/guards/test_evaluate.py \
  tests/loops/test_kernel_verify.py tests/loops/test_kernel_printer.py tests/native/test_guard_tree.py \
  tests/ops/test_registry.py tests/plan/test_build.py tests/plan/test_executor.py \
  tests/programs/test_found.py tests/report/test_reasons.py tests/report/test_kernels_report.py tests/runtime \
  tests/rewrites/test_chunked_gemm.py tests/schedule/test_schedule_verify.py tests/shapes tests/targets/test_costs.py tests/tracing/test_record.py tests/verify/test_verify.py \
  tests/warm/test_entry_store.py

check: lint $(VENV)/.test
	$(PY) -m pytest -q -n $(JOBS) --dist loadfile $(QUICK)

# One program of each framework, and the forms that docs/frameworks.md shows.
frameworks: $(VENV)/.native $(VENV)/.test $(VENV)/.libraries
	$(PY) -m benchmarks.sweep_frameworks --short
	$(PY) -m pytest -q tests/test_frameworks_page.py

bench: $(VENV)/.native $(VENV)/.test
	$(PY) -m benchmarks.run
	$(PY) -m benchmarks.training
	$(PY) -m benchmarks.optimizers
	$(PY) -m benchmarks.guard_cost

sweep: $(VENV)/.native $(VENV)/.test $(VENV)/.libraries
	$(PY) -m benchmarks.sweep_ops
	$(PY) -m benchmarks.sweep_ops --gradients
	$(PY) -m benchmarks.sweep_ops --dynamic
	$(PY) -m benchmarks.sweep_ops --dynamic --gradients
	-SMELT_SIMULATED=1 $(PY) -m benchmarks.sweep_ops --device cuda --dtype float32 --out build/simulated
	-SMELT_SIMULATED=1 $(PY) -m benchmarks.sweep_ops --device cuda --gradients --out build/simulated
	$(PY) -m benchmarks.sweep_edges
	$(PY) -m benchmarks.sweep_programs
	$(PY) -m benchmarks.sweep_programs --gradients
	$(PY) -m benchmarks.sweep_sized_programs
	$(PY) -m benchmarks.sweep_sizes models --sets 30 --out benchmarks/results
	$(PY) -m benchmarks.sweep_sizes transformers --out benchmarks/results
	$(PY) -m benchmarks.sweep_sizes timm --out benchmarks/results
	$(PY) -m benchmarks.sweep_models transformers
	$(PY) -m benchmarks.sweep_models transformers-training
	$(PY) -m benchmarks.sweep_models timm
	$(PY) -m benchmarks.sweep_models libraries
	$(PY) -m benchmarks.sweep_frameworks
	$(PY) -m benchmarks.sweep_plans
	$(PY) -m benchmarks.sweep_program_files
	$(PY) -m benchmarks.sweep_exports --out benchmarks/results
	$(PY) -m benchmarks.sweep_cpython
	SMELT_STRESS_SECONDS=60 $(PY) -m pytest -q tests/native/test_threads.py
	$(PY) -m benchmarks.server
	$(PY) -m benchmarks.loops
	$(PY) -m benchmarks.accuracy

# Each part is a command usable alone. They go on where a part fails: what it found is in its output and its results.
gpu:
	-for part in tests catalogue bandwidth products models training operators gradients programs; do $(MAKE) gpu-$$part; done

# Without a network, `make gpu PY=python3 GPU_READY=gpu-here` takes what that Python has.
GPU_READY ?= $(VENV)/.native $(VENV)/.test

gpu-here:
	$(PY) setup.py -q build_ext --inplace

GPU_JOBS ?= 15
GPU_OUT := benchmarks/results/gpu
ON_GPU := SMELT_DEVICE=cuda OMP_NUM_THREADS=1

gpu-tests: $(GPU_READY)
	-$(PY) -m pytest -q --durations=5 tests/gpu/test_triton_gpu.py
	$(PY) -m pytest -q --durations=5 tests/gpu --ignore tests/gpu/test_triton_gpu.py

gpu-catalogue: $(GPU_READY)
	$(ON_GPU) $(PY) -m pytest -q -n $(GPU_JOBS) tests/catalogue tests/parity

gpu-bandwidth: $(GPU_READY)
	$(PY) -m benchmarks.gpu.overhead
	$(PY) -m benchmarks.gpu.bandwidth

gpu-products: $(GPU_READY)
	$(PY) -m benchmarks.gpu.products

gpu-models: $(GPU_READY)
	$(PY) -m benchmarks.gpu.run --resume

gpu-training: $(GPU_READY)
	$(PY) -m benchmarks.gpu.run --training --resume

gpu-operators: $(GPU_READY)
	for dtype in float32 bfloat16 int64; do \
	  $(PY) -m benchmarks.sweep_ops --device cuda --dtype $$dtype --samples 20 --jobs $(GPU_JOBS) --out $(GPU_OUT); \
	done

gpu-gradients: $(GPU_READY)
	$(PY) -m benchmarks.sweep_ops --device cuda --gradients --samples 12 --jobs $(GPU_JOBS) --out $(GPU_OUT)

gpu-programs: $(GPU_READY)
	$(ON_GPU) $(PY) -m benchmarks.sweep_programs --programs 1000 --kernels --jobs $(GPU_JOBS) --out $(GPU_OUT)
	$(ON_GPU) $(PY) -m benchmarks.sweep_programs --programs 1000 --kernels --gradients --jobs $(GPU_JOBS) --out $(GPU_OUT)

curves: $(VENV)/.native $(VENV)/.examples
	$(PY) examples/compare_curves.py

page/node_modules/.package-lock.json: page/package.json page/package-lock.json
	cd page && npm ci --no-audit --no-fund

page: page/node_modules/.package-lock.json
	cd page && npm run --silent build

# Nothing is fetched for it: fonts, scripts and styles are in the package.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict -q

# The wheel is made of what the source distribution holds; torch's own libraries stay torch's.
wheel: $(VENV)/.wheel
	rm -rf build/wheel
	SMELT_NAME_TORCH=1 $(PY) -m build --no-isolation --outdir build/wheel .
	PATH=$(CURDIR)/$(VENV)/bin:$$PATH $(PY) -m auditwheel repair --exclude 'libtorch*' --exclude 'libc10*' \
	  -w build/wheel/repaired build/wheel/*.whl
	mkdir -p dist && cp build/wheel/*.tar.gz build/wheel/repaired/*.whl dist/

newest:
	$(MAKE) check-wheel VENV=.venv-newest TORCH='$(NEWEST)'

# Not the checkout's smelt, whose extension is another environment's, but the installed one: PYTHONSAFEPATH and `append`.
check-wheel: wheel $(VENV)/.test
	$(PIP) install -q --force-reinstall --no-deps build/wheel/repaired/*.whl && $(PIP) install -q build/wheel/repaired/*.whl
	$(PY) -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("purelib"), "checkout.pth").write_text("$(CURDIR)")'
	cd build && PYTHONSAFEPATH=1 ../$(PY) -m smelt.doctor
	PYTHONSAFEPATH=1 $(PY) -m pytest -q -n $(JOBS) --dist loadfile --import-mode=append -o pythonpath= $(QUICK)

lint: $(VENV)/.native $(VENV)/.lint
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/clang-format --dry-run --Werror $(NATIVE)

format: $(VENV)/.lint
	$(PY) -m ruff check --fix -q . ; $(PY) -m ruff format -q .
	$(VENV)/bin/clang-format -i $(NATIVE)

clean:
	rm -rf build dist *.egg-info smelt/*.so smelt/_built.py
