#!/usr/bin/env bash
# Checks and measures lamina on a GPU, in under six minutes: the test suite on the device, NVIDIA's compute-sanitizer on a part of it, and the
# workloads beside PyTorch's on the same GPU and beside their floors (copies that move as many bytes, products at the peak rate).
#   scripts/gpu_check.sh [--python PATH] [--filter TEXT]     builds with the preset cuda (nvcc, and the packages of install_deps.sh), then runs
#   scripts/gpu_check.sh --pack DIR                          only builds, and puts programs and the libraries they need into DIR; needs no GPU
#   scripts/gpu_check.sh --from DIR ...                      runs what --pack made, on a machine that has only the driver, cuBLAS and PyTorch
# PATH is a Python that imports PyTorch 2 with CUDA (default: python3); without one the table has no peer. --filter: only these workloads.
# Exit code 1 when something failed, 2 for a wrong option.
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

pack='' from='' python=python3 filter=''
while (($#)); do
  case $1 in
    --pack) pack=${2:?--pack needs a folder}; shift ;;
    --from) from=${2:?--from needs a folder}; shift ;;
    --python) python=${2:?--python needs a path}; shift ;;
    --filter) filter=${2:?--filter needs a text}; shift ;;
    -h | --help) usage "$0"; exit 0 ;;
    *) status=2 die "unknown option '$1' (see --help)" ;;
  esac
  shift
done
suites=(cuda_tests device_tests tensor_tests ops_tests autograd_tests nn_tests optim_tests train_tests)
build=build/cuda

build_all() {
  local targets=() name
  for name in bench "${suites[@]}"; do targets+=(--target "$name"); done
  scripts/build.sh cuda "${targets[@]}"
}

# What a machine with a driver and cuBLAS cannot be expected to have: everything but the C library and NVIDIA's.
needed_libraries() { ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*|libcu[a-zA-Z]*)\.so'; }

if [[ -n $pack ]]; then
  build_all
  mkdir -p "$pack/bin" "$pack/lib"
  for name in bench "${suites[@]}"; do strip -o "$pack/bin/$name" "$build/bin/$name"; done
  needed_libraries "$build/bin/"{bench,cuda_tests,train_tests} | xargs -I{} cp -L {} "$pack/lib/"
  say "$pack: $(du -sh "$pack" | cut -f1); on the GPU's machine: scripts/gpu_check.sh --from $pack"
  exit
fi
if [[ -n $from ]]; then
  [[ -x $from/bin/bench ]] || status=2 die "--from: $from holds no programs (--pack makes it)"
  bin=$from/bin
  libraries=$(cd "$from/lib" && pwd)
  export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
else
  build_all
  bin=$build/bin
fi
export LAMINA_SOURCE_DIR=$root # where the tests find their reference values, wherever they were built

nvidia-smi --query-gpu=name,driver_version,memory.total,utilization.gpu --format=csv,noheader 2>/dev/null || die "there is no GPU here (nvidia-smi finds none)"
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
passed=0 bad=()
# run NAME SECONDS COMMAND...: one check; its output is shown when it fails.
run() {
  local name=$1 limit=$2 start=$SECONDS
  shift 2
  if timeout "$limit" "$@" >"$work/log" 2>&1; then
    passed=$((passed + 1))
    say "ok      $name ($((SECONDS - start)) s): $(tail -n 2 "$work/log" | tr -d '\n' | cut -c1-100)"
  else
    bad+=("$name")
    say "FAILED  $name ($((SECONDS - start)) s)"
    tail -n 40 "$work/log" | sed 's/^/   /'
  fi
}

for name in "${suites[@]}"; do run "$name" 60 env LAMINA_TEST_DEVICE=cuda "$bin/$name" --order rand --warn NoAssertions '~[.]~[cpu]~[large]'; done
if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    run "$tool" 60 env LAMINA_CUDA_POOL=0 compute-sanitizer --tool "$tool" --error-exitcode 1 "$bin/cuda_tests" 'cuda row norm: every kind*,cuda channel norm: all*,cuda softmax: two*,cuda reduce: two*,cuda recurrent: the same*,cuda index: one*'
  done
else
  say "skipped memcheck and racecheck: there is no compute-sanitizer on the PATH"
fi

measure=("$bin/bench" --device cuda --repeat 3 ${filter:+--filter "$filter"})
if "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available() or int(torch.__version__.split(".")[0]) < 2)' 2>/dev/null; then
  # The library path of ours must not reach PyTorch.
  env -u LD_LIBRARY_PATH "$python" scripts/peer_pytorch.py --device cuda --repeat 3 --filter "$filter" >"$work/peer" || die "scripts/peer_pytorch.py failed"
  measure+=(--compare "$work/peer")
else
  say "no peer: $python does not import a PyTorch 2 that finds the GPU (--python PATH)"
fi
timeout 180 "${measure[@]}" || bad+=(bench)

say "total ${SECONDS} s"
if ((${#bad[@]})); then die "failed: ${bad[*]}"; fi
say "$passed checks passed"
