#!/usr/bin/env bash
# The paper's batch-size experiment (figure 6) on the MNIST files of this repository, from nothing to the figure: installs what is missing, builds,
# trains, prints a table and draws.
#   scripts/reproduce.sh [--paper] [options of mnist_batchsize]
# The quick form is the same with 4 epochs, at most 5 minutes on 2 cores, enough to see which curve lies where. --paper is the full form: 60 epochs
# (about 45 minutes on two AVX-512 cores). Finished runs are skipped, interrupted ones continue where they stopped.
# Results go to runs/mnist_batchsize/quick or .../paper (--out DIR: elsewhere); relative paths start at the root of the repository.
# The options of the program: build/release/bin/mnist_batchsize --help.
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

# What the two forms are, in one place. An option given on the command line replaces the one here.
quick=(--epochs 4 --seeds 1)
paper=(--epochs 60 --seeds 1)

form=quick
defaults=("${quick[@]}")
options=() out=
while (($#)); do
  case $1 in
    --paper) form=paper; defaults=("${paper[@]}") ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    --out=*) out=${1#--out=} ;;
    -h | --help) usage "$0"; exit 0 ;;
    *) options+=("$1") ;;
  esac
  shift
done
out=${out:-runs/mnist_batchsize/$form}
# In front, so that an option whose value was forgotten does not take one of these for it.
for ((i = 0; i < ${#defaults[@]}; i += 2)); do
  [[ " ${options[*]} " == *" ${defaults[i]}"[\ =]* ]] || options=("${defaults[@]:i:2}" "${options[@]}")
done

scripts/install_deps.sh --group build --group plot
scripts/build.sh release --target mnist_batchsize

mkdir -p "$out" || status=2 die "cannot make the folder $out"
# The program's standard output is the table and where the rest is; tee must outlive a Ctrl-C, upon which the program saves first.
result=0
build/release/bin/mnist_batchsize --out "$out" --resume "${options[@]}" | tee -i "$out/table.partial" || result=$?
if ((result)); then
  rm -f "$out/table.partial"
  ((result == 2)) && exit 2 # bad usage or input: the program has said what
  status=$result die "mnist_batchsize ended with code $result; finished runs and checkpoints are kept in $out, and the same command continues"
fi
mv "$out/table.partial" "$out/table.txt"
[[ -s $out/figure.svg && -s $out/figure.png || " ${options[*]} " == *" --no-figure "* ]] || die "the table is in $out/table.txt, but there is no figure (the reason is above)"
say "table               $out/table.txt"
