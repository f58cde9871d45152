#!/usr/bin/env bash
# Configures and builds one preset; quiet on success.
#   scripts/build.sh [release|ci|debug|cuda] [--target NAME]...
# release lies in build/release (programs in build/release/bin). ci is the same folder with warnings as errors, and stays so for later builds there.
# debug has ASan and UBSan, cuda the kernels for GPUs (needs nvcc, no GPU; warnings are errors). The log is build/<folder>/build.log.
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

preset=release targets=()
while (($#)); do
  case $1 in
    --target) targets+=(--target "${2:?--target needs a name}"); shift ;;
    -h | --help) usage "$0"; exit 0 ;;
    -*) status=2 die "unknown option '$1' (see --help)" ;;
    *) preset=$1 ;;
  esac
  shift
done
[[ $preset =~ ^(release|ci|debug|cuda)$ ]] || status=2 die "unknown preset '$preset'; expected release, ci, debug or cuda"
folder=build/$preset
[[ $preset == ci ]] && folder=build/release
for tool in cmake ninja c++; do
  command -v $tool >/dev/null || die "$tool is missing; run scripts/install_deps.sh"
done

if [[ $preset == cuda ]] && ! nvcc=$(nvcc_path); then die "nvcc is missing; it comes with NVIDIA's CUDA Toolkit, 12.4 or later"; fi

mkdir -p "$folder"
log=$folder/build.log
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
[[ $preset == cuda ]] && launcher+=(-DCMAKE_CUDA_COMPILER="$nvcc" "${launcher[@]/CXX/CUDA}")
# What one clone has compiled, another finds in the cache.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1

failed() {
  say "--- $log" >&2
  # Ninja's first failure (without its long command line), or the end of the log.
  if grep -q '^FAILED:' "$log"; then
    awk '/^FAILED:/ {show = NR} show && /^\[[0-9]+\/[0-9]+\]/ {exit} show && NR != show + 1' "$log" | head -n 40 | cut -c1-400 >&2
  else
    grep -A12 'CMake Error' "$log" >&2 || tail -n 25 "$log" >&2
  fi
  die "$1 of preset $preset failed; the whole log is $root/$log"
}
# On a terminal, ninja's "[12/80] ..." lines become one counter; the log gets everything.
run_build() {
  if [[ -t 1 ]]; then
    "$@" 2>&1 | tee -a "$log" | awk -v p="$preset" 'match($0, /^\[[0-9]+\/[0-9]+\]/) {printf "\rbuilding %s %s ", p, substr($0, 1, RLENGTH); fflush()} END {printf "\r\033[K"}'
  else
    "$@" >>"$log" 2>&1
  fi
}

start=$SECONDS
cmake --preset "$preset" "${launcher[@]}" >"$log" 2>&1 || failed configuration
grep -A3 -E 'CMake Warning' "$log" >&2 || true
run_build cmake --build "$folder" --parallel "$(build_jobs)" "${targets[@]}" || failed "build"
if grep -q 'ninja: no work to do' "$log"; then
  say "$folder is up to date"
else
  say "built $folder in $((SECONDS - start)) s"
fi
