#!/bin/bash
# A launch of Megatron-LM to try `trimtab import megatron` on: Llama 3 8B on 8 machines of 8 devices.

TP=4
PP=4
LAUNCH=( --nnodes 8 --nproc-per-node 8 )
NETWORK=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --rotary-base 500000
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --vocab-size 128256
    --make-vocab-size-divisible-by 128
)
PARALLELISM=(
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size $PP
    --num-virtual-stages-per-pipeline-rank 2
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --recompute-granularity full
    --recompute-method block
    --recompute-num-layers 1
)
TRAINING=(
    --bf16
    --micro-batch-size 1
    --global-batch-size $(( 32 * PP ))
    --train-iters 100000
    --lr 3e-4
    --min-lr 3e-5
    --lr-decay-style cosine
    --lr-warmup-iters 2000
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --clip-grad 1.0
    --init-method-std 0.01
    --data-path text.jsonl
    --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model llama3/tokenizer.json
    --split 99,1,0
    --save-interval 500
    --log-interval 10
)

torchrun "${LAUNCH[@]}" pretrain_gpt.py "${NETWORK[@]}" "${PARALLELISM[@]}" "${TRAINING[@]}"
