#!/bin/bash
torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py \
  --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --kv-channels 128 \
  --group-query-attention --num-query-groups 4 --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 \
  --moe-grouped-gemm --moe-token-dispatcher-type alltoall --seq-length 16384 --max-position-embeddings 40960 \
  --micro-batch-size 1 --global-batch-size 16 --bf16 --use-distributed-optimizer --swiglu \
  --tensor-model-parallel-size 2 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 \
  --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --untie-embeddings-and-output-weights
