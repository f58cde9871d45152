# Sourced by the other scripts: strict mode, the repository's root as the working directory, and what they share.
# shellcheck shell=bash
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit "${status:-1}"; }
# The comment at the top of a script is its help.
usage() { sed -n '2,/^[^#]/{/^# shellcheck/d;/^#/s/^# \{0,1\}//p}' "$1"; }

# Cores that this process may use: affinity, then the cgroup's quota.
cores() {
  local n quota period
  n=$(nproc)
  if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then
    quota=$(((quota + period - 1) / period))
    ((quota < n)) && n=$quota
  fi
  echo $((n > 0 ? n : 1))
}

# Compilers to run at once: the cores, but no more than one for each GB of memory.
build_jobs() {
  local n gigabytes
  n=$(cores)
  gigabytes=$(awk '/^MemTotal/ {print int($2 / 1000000)}' /proc/meminfo)
  ((gigabytes < n)) && n=$gigabytes
  echo $((n > 0 ? n : 1))
}

# Where nvcc is: on the PATH, or where NVIDIA's packages put it.
nvcc_path() { command -v nvcc || { [[ -x /usr/local/cuda/bin/nvcc ]] && echo /usr/local/cuda/bin/nvcc; }; }

# C++ and CUDA files of the project: tracked, or new and not ignored (everything, where git is not at hand).
cpp_files() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh' | while IFS= read -r f; do [[ -f $f ]] && printf '%s\n' "$f"; done
  else
    find include src apps tests \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -type f | sort
  fi
}
