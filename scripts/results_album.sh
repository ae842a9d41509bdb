#!/usr/bin/env bash
# How many photos a captioner needs (results/album/): experiment=small_album on the first 60, 200 and 500
# training photos of Flickr8k, five captions each, scored on its first 300 dev photos. Further arguments go to every
# `seqtool train`.
#     bash scripts/results_album.sh FLICKR8K threads=2 model.encoder.weights=WEIGHTS
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ ! -d .venv ] || export PATH="$PWD/.venv/bin:$PATH"
flickr8k=$1
shift
mkdir -p results/album runs/album

captions() { # LIST NUMBER: the captions of the first photos of a list
    head -n "$2" "$flickr8k/$1" | tr -d '\r' | awk -F'[#\t]' 'NR == FNR { photos[$1] = 1; next } $1 in photos' - "$flickr8k/Flickr8k.token.txt"
}

captions Flickr_8k.devImages.txt 300 > runs/album/dev.txt
for photos in 60 200 500; do
    [ ! -e "results/album/$photos.json" ] || continue
    captions Flickr_8k.trainImages.txt $photos > "runs/album/$photos.txt"
    seqtool train experiment=small_album run="album-$photos" data.directory="$flickr8k/Images" \
        data.train="runs/album/$photos.txt" data.valid=runs/album/dev.txt data.test=runs/album/dev.txt "$@"
    seqtool eval checkpoint="runs/album-$photos" split=test format=json > "runs/album/$photos.json"
    mv "runs/album/$photos.json" "results/album/$photos.json"
done
