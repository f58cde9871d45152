#!/usr/bin/env bash
# Speed beside PyTorch's, from one sitting on this machine (CPU): for each workload that both know, our time, theirs, and our floor.
#   scripts/compare_peer.sh [--filter TEXT] [--threads N] [--python PATH] [--record]
# Uses Debian's python3-torch on the OpenMP flavour of OpenBLAS, or the PyTorch that PATH imports. us is microseconds for one training step
# (or one op, forward and backward); peer/ours above 1 means that lamina is faster. Leave the machine alone while it runs.
# --record writes the table into docs/performance.md instead of the terminal.
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

filter='' python='' threads=$(cores) record=false
while (($#)); do
  case $1 in
    --filter) filter=${2:?--filter needs a text}; shift ;;
    --threads) threads=${2:?--threads needs a number}; shift ;;
    --python) python=${2:?--python needs a path}; shift ;;
    --record) record=true ;;
    -h | --help) usage "$0"; exit 0 ;;
    *) status=2 die "unknown option '$1' (see --help)" ;;
  esac
  shift
done

if $record && [[ -n $filter ]]; then status=2 die "--record writes the whole table: it does not go with --filter"; fi

scripts/install_deps.sh --group build
if [[ -z $python ]]; then
  scripts/install_deps.sh --group peer
  python=/usr/bin/python3
fi
scripts/build.sh release --target bench

# Debian's alternatives may choose the pthread flavour, which is about 2x slower under OpenMP and would flatter us.
flavour=$(compgen -G '/usr/lib/*/openblas-openmp' | head -n 1 || true)
users_path=${LD_LIBRARY_PATH:-}
export LD_LIBRARY_PATH=$flavour${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} OMP_NUM_THREADS=$threads
blas=$("$python" -c '
import torch
torch.rand(64, 64) @ torch.rand(64, 64)
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
blas = sorted(l for l in libraries if "openblas" in l or "mkl" in l.rsplit("/", 1)[-1] or "/libblas" in l)
print("OpenBLAS, OpenMP" if any("openblas-openmp" in l for l in blas) else "WRONG " + blas[0] if any("openblas-pthread" in l for l in blas)
      else "MKL" if torch.backends.mkl.is_available() else " ".join(blas) or "built in")') || die "$python cannot import torch"
[[ $blas != WRONG* ]] || die "PyTorch runs on the pthread flavour of OpenBLAS (${blas#WRONG }); install libopenblas0-openmp"

work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
say "the peer first, then ours, on $threads threads"
"$python" scripts/peer_pytorch.py --threads "$threads" --filter "$filter" >"$work/peer" || die "scripts/peer_pytorch.py failed"
[[ -s $work/peer ]] || status=2 die "no workload of the peer contains '$filter'"
# The library's own path to OpenBLAS must not be overruled by the peer's.
bench=(env "LD_LIBRARY_PATH=$users_path" build/release/bin/bench --threads "$threads" --compare "$work/peer" ${filter:+--filter "$filter"})
if ! $record; then
  "${bench[@]}"
  exit
fi
"${bench[@]}" --json | tee "$work/ours" || die "not recorded"
python3 - "$work" "$blas" docs/performance.md "$threads" <<'PYTHON'
import datetime
import json
import os
import platform
import re
import subprocess
import sys

work, blas, path, threads = sys.argv[1:]
rows = [json.loads(line) for line in open(f"{work}/ours")]
peer = json.loads(open(f"{work}/peer").readline())["peer"]
model = re.search(r"model name\s*: (.*)", open("/proc/cpuinfo").read())
compiler = subprocess.run(["c++", "--version"], capture_output=True, text=True).stdout.splitlines()[0]
flags = open("/proc/cpuinfo").read()
simd = "AVX-512" if " avx512bw" in flags else "AVX2" if " avx2" in flags else "baseline"
today = datetime.date.today()
lines = [f"{today.day} {today:%B %Y}; {threads} threads on {model.group(1) if model else platform.machine()} ({simd}); {compiler}; "
         f"peer: {peer} ({blas}). Microseconds.", "",
         "| workload | ours | peer | peer/ours | floor | ours/floor |", "|---|---|---|---|---|---|"]
lines += [f"| {r['name']} | {r['us']:.0f} | {r['peer_us']:.0f} | {r['peer_us'] / r['us']:.2f} | {r['floor_us']:.0f} | {r['ratio']:.2f} |" for r in rows]
text = open(path).read()
begin, end = "<!-- compare_peer.sh --record writes from here -->", "<!-- to here -->"
if text.count(begin) != 1 or text.count(end) != 1:
    sys.exit(f"{path}: the two marks of the table are not there")
head, rest = text.split(begin)
with open(f"{path}.partial", "w") as partial:
    partial.write(head + begin + "\n" + "\n".join(lines) + "\n" + end + rest.split(end)[1])
os.replace(f"{path}.partial", path)
print(f"table written to {path}")
PYTHON
