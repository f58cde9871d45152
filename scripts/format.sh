#!/usr/bin/env bash
# Formats every C++ file of the project with .clang-format; --check changes nothing and fails when a file would change.
# Versions of clang-format differ in details: 14 decides. With another version --check only gives notice.
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

case ${1:-} in
  -h | --help) usage "$0"; exit 0 ;;
  "" | --check) ;;
  *) status=2 die "unknown option '$1' (see --help)" ;;
esac
tool=$(command -v clang-format-14 || command -v clang-format) || die "clang-format is missing; run scripts/install_deps.sh --group check"
version=$("$tool" --version | sed -E 's/.*version ([0-9]+).*/\1/')
mapfile -t files < <(cpp_files)

if [[ ${1:-} != --check ]]; then
  "$tool" -i "${files[@]}"
  exit
fi
if [[ $version != 14 ]]; then
  say "format: not checked, clang-format 14 is not here (found $version)"
  exit 0
fi
bad=()
for f in "${files[@]}"; do
  "$tool" "$f" | cmp -s - "$f" || bad+=("$f")
done
if ((${#bad[@]})); then
  printf '%s: not formatted\n' "${bad[@]}"
  die "${#bad[@]} of ${#files[@]} files differ; run scripts/format.sh"
fi
say "${#files[@]} files are formatted"
