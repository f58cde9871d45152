#!/usr/bin/env bash
# Speed beside PyTorch's, from one sitting on this machine (CPU): for each workload that both know, our time, theirs, and our floor.
#   scripts/compare_peer.sh [--filter TEXT] [--threads N] [--python PATH]
# Uses Debian's python3-torch on the OpenMP flavour of OpenBLAS, or the PyTorch that PATH imports. us is microseconds for one training step
# (or one op, forward and backward); peer/ours above 1 means that lamina is faster. Leave the machine alone while it runs.
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

filter='' python='' threads=$(cores)
while (($#)); do
  case $1 in
    --filter) filter=${2:?--filter needs a text}; shift ;;
    --threads) threads=${2:?--threads needs a number}; shift ;;
    --python) python=${2:?--python needs a path}; shift ;;
    -h | --help) usage "$0"; exit 0 ;;
    *) status=2 die "unknown option '$1' (see --help)" ;;
  esac
  shift
done

scripts/install_deps.sh --group build
if [[ -z $python ]]; then
  scripts/install_deps.sh --group peer
  python=/usr/bin/python3
fi
scripts/build.sh release

# Debian's alternatives may choose the pthread flavour, which is about 2x slower under OpenMP and would flatter us.
flavour=$(compgen -G '/usr/lib/*/openblas-openmp' | head -n 1 || true)
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
say "ours: bench on $threads threads (the peer follows)"
# The library's own path to OpenBLAS must not be overruled by the peer's.
env -u LD_LIBRARY_PATH build/release/bin/bench --json --threads "$threads" ${filter:+--filter "$filter"} >"$work/ours" || die "bench failed"
"$python" scripts/peer_pytorch.py --threads "$threads" --filter "$filter" >"$work/peer" || die "scripts/peer_pytorch.py failed"

python3 - "$work/ours" "$work/peer" "$blas" <<'PYTHON'
import json
import sys

def read(path):
    rows = [json.loads(line) for line in open(path) if line.startswith("{")]
    return {row["name"]: row for row in rows}

ours, peer, blas = read(sys.argv[1]), read(sys.argv[2]), sys.argv[3]
both = [name for name in ours if name in peer]
print(f"peer: {peer[both[0]]['peer']} ({blas})" if both else "no workload is known to both")
width = max([len(name) for name in both] + [4])
print(f"{'name':{width}}  {'ours us':>11}  {'peer us':>11}  {'peer/ours':>9}  {'floor us':>11}  {'ours/floor':>10}")
for name in both:
    us, floor, theirs = ours[name]["us"], ours[name].get("floor_us") or 0, peer[name]["us"]
    print(f"{name:{width}}  {us:11.1f}  {theirs:11.1f}  {theirs / us:9.2f}  {floor:11.1f}  {us / floor if floor else float('nan'):10.2f}")
slower = [name for name in both if peer[name]["us"] < ours[name]["us"]]
print(f"{len(both)} in all, " + (f"slower than the peer: {', '.join(slower)}" if slower else "none slower than the peer"))
PYTHON
