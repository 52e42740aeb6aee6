# The settings of bigscience-workshop/bigscience train/tr11-176B-ml/tr11-176B-ml.slurm, and nothing else of it.
export CUDA_LAUNCH_BLOCKING=1
export NCCL_ASYNC_ERROR_HANDLING=1
SETTINGS=" \
    --tensor-model-parallel-size 4 \
    --pipeline-model-parallel-size 12 \
    --pp-partition-method 'type:transformer|embedding' \
    --num-layers 70 \
    --hidden-size 14336 \
    --num-attention-heads 112 \
    --seq-length 2048 \
    --max-position-embeddings 2048 \
    --micro-batch-size 2 \
    --rampup-batch-size 192 16 9_765_625 \
    --global-batch-size 2048 \
    --train-samples 220_000_000 \
    --tokenizer-type PretrainedFromHF \
    --tokenizer-name-or-path bigscience-catalogue-data-dev/byte-level-bpe-tokenizer-no-norm-250k-whitespace-and-eos-regex-alpha-v3-dedup-lines-articles \
    --init-method-std 0.0048 \
    --embed-layernorm \
    --sync-tp-duplicated-parameters \
    --bf16 \
    --seed 42 \
    --position-embedding-type alibi \
    --checkpoint-activations \
    --abort-on-unmet-fused-kernel-constraints \
    --kill-switch-path $six_ALL_CCFRWORK/code/tr11-176B-ml/Megatron-DeepSpeed/kill-switch-tr11-176B-exp1 \
    --pad-vocab-size-to 250880 \
    --optimizer adam \
    --adam-beta1 0.9 \
    --adam-beta2 0.95 \
    --adam-eps 1e-8 \
    --lr 6e-5 \
    --min-lr 6e-6 \
    --lr-decay-style cosine \
    --lr-decay-samples 200_000_000 \
    --lr-warmup-samples 183_105 \
    --clip-grad 1.0 \
    --weight-decay 1e-1 \
    --exit-duration-in-mins 5990 \
    --log-interval 1 \
    --save-interval 100 \
    --eval-interval 1000 \
    --eval-iters 1 \
    --tensorboard-dir $six_ALL_CCFRSCRATCH/checkpoints/tr11-176B-ml/tr11-176B-ml-logs/tensorboard/main \
    --tensorboard-queue-size 5 \
    --log-timers-to-tensorboard \
    --log-batch-size-to-tensorboard \
    --log-validation-ppl-to-tensorboard \
    --save $six_ALL_CCFRSCRATCH/checkpoints/tr11-176B-ml/checkpoints/main \
    --load $six_ALL_CCFRSCRATCH/checkpoints/tr11-176B-ml/checkpoints/main \
    --train-weighted-split-paths-path $six_ALL_CCFRWORK/code/tr11-176B-ml/Megatron-DeepSpeed/data/train-splits.txt \
    --valid-weighted-split-paths-path $six_ALL_CCFRWORK/code/tr11-176B-ml/Megatron-DeepSpeed/data/valid-splits.txt \
    --num-workers 2 \
    --valid-num-workers 0 \
    --data-impl mmap \
    --distributed-backend nccl \
    --deepspeed \
    --deepspeed_config './ds_config.$SLURM_JOB_ID.json' \
    --zero-stage 0 \
    --deepspeed-activation-checkpointing \
"
LAUNCHER="python -u -m torch.distributed.run --nproc_per_node 8 --nnodes 24 --rdzv_endpoint '$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1):6000' --rdzv_backend c10d --max_restarts 0 --tee 3 --node_rank $SLURM_PROCID"
srun bash -c "$LAUNCHER pretrain_gpt.py $SETTINGS"
