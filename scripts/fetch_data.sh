#!/usr/bin/env bash
# Puts a data set under data/ and checks it against its SHA-256 sums (of the decompressed files, so that any compression will do).
#   scripts/fetch_data.sh [mnist|fashion|cifar10|shakespeare]      (default: fashion)
# mnist is part of the repository, so it is only checked. fashion comes from the Debian package dataset-fashion-mnist, or, where that is not to be had,
# from the authors' repository (FASHION_MNIST_URL: another address). cifar10 comes from its author's page (CIFAR10_URL: another address of
# cifar-10-binary.tar.gz, 162 MB). shakespeare is one text of 1.1 MB, data/shakespeare/tinyshakespeare.txt, from the repository of char-rnn
# (SHAKESPEARE_URL: another address). Nothing is fetched when the files are there and right, and what is fetched takes their place when it is right.
# Exit code 2: unknown name; 1: files missing or damaged.
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

name=${1:-fashion}
case $name in
  mnist) sums="
ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db train-images-idx3-ubyte
65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5 train-labels-idx1-ubyte
0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7 t10k-images-idx3-ubyte
ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2 t10k-labels-idx1-ubyte" ;;
  fashion) sums="
c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888 train-images-idx3-ubyte
bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9 train-labels-idx1-ubyte
5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b t10k-images-idx3-ubyte
0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34 t10k-labels-idx1-ubyte" ;;
  cifar10) sums="
cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5 data_batch_1.bin
a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed data_batch_2.bin
bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67 data_batch_3.bin
014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48 data_batch_4.bin
755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add data_batch_5.bin
8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b test_batch.bin" ;;
  shakespeare) sums="
86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed tinyshakespeare.txt" ;;
  -h | --help) usage "$0"; exit 0 ;;
  *) status=2 die "expected mnist, fashion, cifar10 or shakespeare, got '$name'" ;;
esac
folder=data/$name
packed=.gz   # what the files' names end in
[[ $name == cifar10 || $name == shakespeare ]] && packed=

# check FOLDER: prints the names of the files that are not there or not right.
check() {
  local sum file
  while read -r sum file; do
    [[ -z $sum ]] && continue
    [[ $(gzip -dcf "$1/$file$packed" 2>/dev/null | sha256sum) == "$sum "* ]] || say "$file$packed"
  done <<<"$sums"
}
done_if_right() {
  [[ -z $(check "$folder") ]] || return 0
  say "$folder: $(wc -w <<<"$sums" | awk '{print $1 / 2}') files, SHA-256 right"
  exit 0
}

# A folder for what is fetched; take: moves it to its place, if it is right.
fetched=$folder/fetched.partial
trap 'rm -rf "$fetched"' EXIT
take() {
  local wrong
  wrong=$(check "$fetched" | xargs)
  if [[ -z $wrong ]]; then
    rm -f "$fetched/archive"
    mv "$fetched"/* "$folder"/
  fi
  [[ -z $wrong ]] || die "wrong SHA-256 after fetching: $wrong; $folder is as it was"
  done_if_right
  die "damaged or missing in $folder: $(check "$folder" | xargs)"
}

done_if_right
if [[ $name == mnist ]]; then
  die "damaged or missing in $folder: $(check "$folder" | xargs); get them back with: git checkout -- $folder"
fi

if [[ $name == cifar10 ]]; then
  command -v curl >/dev/null || die "curl is not here; install it, or put the files of cifar-10-binary.tar.gz into $folder"
  url=${CIFAR10_URL:-https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz}
  mkdir -p "$fetched"
  say "fetching $url"
  curl --fail --silent --show-error --location --retry 3 --output "$fetched/archive" "$url" || die "could not fetch $url"
  tar -xzf "$fetched/archive" -C "$fetched" --strip-components=1 --wildcards '*.bin' || die "$url: not the archive that was expected"
  take
fi

if [[ $name == shakespeare ]]; then
  command -v curl >/dev/null || die "curl is not here; install it, or put the text into $folder/tinyshakespeare.txt"
  url=${SHAKESPEARE_URL:-https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt}
  mkdir -p "$fetched"
  say "fetching $url"
  curl --fail --silent --show-error --location --retry 3 --output "$fetched/tinyshakespeare.txt" "$url" || die "could not fetch $url"
  take
fi

package_folder=/usr/share/datasets/fashion-mnist
if [[ ! -d $package_folder ]]; then
  scripts/install_deps.sh --group fashion || say "no Debian package; trying the authors' repository"
fi
mkdir -p "$fetched"
if [[ -d $package_folder ]]; then
  cp "$package_folder"/*-ubyte.gz "$fetched"/
  [[ -n $(check "$fetched") ]] || take
fi
url=${FASHION_MNIST_URL:-https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion}
command -v curl >/dev/null || die "neither the package dataset-fashion-mnist nor curl is here; install one of them"
for file in $(check "$fetched"); do
  say "fetching $url/$file"
  curl --fail --silent --show-error --location --retry 3 --output "$fetched/$file" "$url/$file" || die "could not fetch $url/$file"
done
take
