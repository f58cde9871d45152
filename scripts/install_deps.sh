#!/usr/bin/env bash
# Installs what lamina needs from the distribution (Debian 12 and 13, Ubuntu 24.04); instant and silent when nothing is missing.
#   scripts/install_deps.sh [--group build|plot|check|peer|fashion]... [--list]
# Groups: build (compile, run, test; the default), plot (figures), check (format check of CI), peer (PyTorch, for the comparison of speed),
# fashion (the Fashion-MNIST files). --list prints the packages and installs nothing.
# Needs root or sudo only when something is missing. Exit code 2: no way to become root; 1: installation failed.
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# The one list of dependencies.
declare -A packages=(
  [build]="g++ cmake ninja-build ccache git ca-certificates libopenblas-openmp-dev libhwy-dev zlib1g-dev libfmt-dev nlohmann-json3-dev
           librandom123-dev libcli11-dev catch2 python3 python3-numpy"
  [plot]="python3 python3-numpy python3-matplotlib"
  [check]="clang-format python3"
  [peer]="python3 python3-torch libopenblas0-openmp"
  [fashion]="dataset-fashion-mnist"
)

groups=() list=false
while (($#)); do
  case $1 in
    --group) [[ -n ${2:-} && -n ${packages[$2]:-} ]] || status=2 die "--group: expected one of ${!packages[*]}, got '${2:-}'"
             groups+=("$2"); shift ;;
    --list) list=true ;;
    -h | --help) usage "$0"; exit 0 ;;
    *) status=2 die "unknown option '$1' (see --help)" ;;
  esac
  shift
done
((${#groups[@]})) || groups=(build)
# shellcheck disable=SC2086  # names without spaces, meant to be split
read -ra wanted < <(for g in "${groups[@]}"; do printf '%s\n' ${packages[$g]}; done | sort -u | xargs)
if $list; then printf '%s\n' "${wanted[@]}"; exit 0; fi

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  status=2 die "this system has no apt-get; install by hand what corresponds to: ${wanted[*]}"
fi

missing_packages() {
  local installed
  # shellcheck disable=SC2016
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null | awk '$2 == "installed" {print $1}' | sort -u || true)
  printf '%s\n' "${wanted[@]}" | comm -23 - <(echo "$installed")
}
mapfile -t missing < <(missing_packages)
((${#missing[@]})) || exit 0

command=(apt-get install --yes --no-install-recommends "${missing[@]}")
become=()
if ((EUID != 0)); then
  if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
    become=(sudo)
  else
    status=2 die "packages are missing, and this is not root. Run as root: apt-get update && ${command[*]}"
  fi
fi

log=$(mktemp) && trap 'rm -f "$log"' EXIT
apt() { "${become[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -o Acquire::Retries=3 "$@" >"$log" 2>&1; }

say "installing ${missing[*]}"
# The package lists of a fresh machine may be empty or old: fetch them only when a first try fails.
if ! apt "${command[@]:1}"; then
  apt update || { tail -n 5 "$log" >&2; die "apt-get update failed (above). Is the network there?"; }
  apt "${command[@]:1}" || true
fi
mapfile -t missing < <(missing_packages)
if ((${#missing[@]})); then
  grep -E '^(E|Err):' "$log" >&2 || tail -n 10 "$log" >&2
  die "could not install ${missing[*]}; apt-get's reasons are above. By hand: apt-get update && ${command[*]}"
fi
