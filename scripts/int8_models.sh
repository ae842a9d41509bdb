#!/usr/bin/env bash
# Train the models for whose scores results/int8.json says what 8-bit integers cost, and score them; two hours on a core.
#   bash scripts/int8_models.sh MULTI30K FLICKR8K WEIGHTS SHAKESPEARE
# MULTI30K, FLICKR8K: the directories of the data; WEIGHTS: EfficientNet-Lite0's, a .safetensors file; SHAKESPEARE: the
# text. The models are small and trained briefly, each for the minutes given here.
EXTRAS=timm
multi30k=$(realpath "${1:?the directory of Multi30k}") flickr8k=$(realpath "${2:?the directory of Flickr8k}")
weights=$(realpath "${3:?a file of weights}") shakespeare=$(realpath "${4:?a text}")
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
train() { # NAME MINUTES SETTING...
    seqtool train run="int8-$1" train.minutes="$2" train.epochs=null device=cpu threads=1 \
        schedule=inverse_square_root "${@:3}"
}
train rnnsearch 36 experiment=multi30k_bahdanau data.directory="$multi30k" train.batch_size=32 schedule.warmup=400
train transformer 19 experiment=multi30k_transformer data.directory="$multi30k" train.batch_size=1024 optim.lr=0.003 \
    schedule.warmup=400 train.average_last=3
train flickr8k 24 experiment=flickr8k_soft data.directory="$flickr8k" model.encoder.weights="$weights"
train shakespeare 12 experiment=shakespeare_lstm data.train="$shakespeare" schedule.warmup=50 model.dropout=0.1 \
    model.hidden=256 train.batch_size=16
seqtool prepare experiment=scenes_soft data.directory=data/scenes data.seed=1 data.train=10000 data.valid=500 \
    data.test=500  # the pictures of builtin/soft
python scripts/int8_costs.py builtin/words builtin/text builtin/soft,data.directory=data/scenes \
    runs/int8-rnnsearch,split=test runs/int8-transformer,split=test runs/int8-flickr8k,split=valid \
    runs/int8-shakespeare --output results/int8.json
