# The settings of NVIDIA/Megatron-LM examples/academic_paper_scripts/sc21/run_table_1.sh (530B) with CONFIG.sh and
# SBATCH.sh beside it, and nothing else of them.
#SBATCH --nodes=315
#SBATCH --ntasks-per-node=8
TP=8
PP=35
MEGATRON_EXTRA_PARAMS="--activations-checkpoint-method uniform --num-layers-per-virtual-pipeline-stage 1 "
export MEGATRON_PARAMS=" ${MEGATRON_EXTRA_PARAMS} \
    --tensor-model-parallel-size ${TP} \
    --pipeline-model-parallel-size ${PP} \
    --micro-batch-size 1 \
    --global-batch-size 2520 \
    --num-layers 105 \
    --hidden-size 20480 \
    --num-attention-heads 128 \
    --DDP-impl local \
    --data-path <path to megatron processed data> \
    --vocab-file <path to bpe vocab file> \
    --merge-file <path to bpe merges file> \
    --log-interval 5 \
    --seq-length 2048 \
    --max-position-embeddings 2048 \
    --train-iters 500 \
    --lr-decay-iters 320 \
    --lr 0.0001 \
    --min-lr 0.00001 \
    --lr-decay-style cosine \
    --lr-warmup-fraction 0.01 \
    --split 969,30,1 \
    --eval-iters 100 \
    --eval-interval 1000 \
    --clip-grad 1.0 \
    --fp16 \
    --loss-scale 8192 "
CMD="python -u pretrain_gpt.py ${MEGATRON_PARAMS}"
srun -l sh -c "${CMD}"
