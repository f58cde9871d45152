#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test; the last line is "N passed, N failed".
#   scripts/test.sh [--preset release|ci|debug|cuda] [options of ctest, e.g. -R ops, or -L cuda_emulated]
# debug runs the suite under ASan and UBSan; cuda runs it on the GPU too, or says that there is none.
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

preset=release
case ${1:-} in
  --preset) preset=${2:?--preset needs a name}; shift 2 ;;
  -h | --help) usage "$0"; exit 0 ;;
esac
folder=build/$preset
[[ $preset == ci ]] && folder=build/release

scripts/install_deps.sh --group build
scripts/build.sh "$preset"

# One at a time: the tests use all cores themselves.
log=$folder/test.log
result=0
ctest --test-dir "$folder" --output-on-failure --no-tests=error "$@" 2>&1 | tee "$log" | grep -vE '^(Internal ctest|Test project|[[:space:]]*Start +[0-9]+:|$)' || result=${PIPESTATUS[0]}

summary=$(grep -E '^[0-9]+% tests passed, [0-9]+ tests failed out of [0-9]+' "$log" | tail -n 1) || die "ctest ended without a summary; see $root/$log"
read -r failed total < <(sed -E 's/.*passed, ([0-9]+) tests failed out of ([0-9]+).*/\1 \2/' <<<"$summary")
say "$((total - failed)) passed, $failed failed"
((result == 0 && failed == 0))
