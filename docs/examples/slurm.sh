#!/bin/bash
# Two nodes of eight GPUs under Slurm: sbatch docs/examples/slurm.sh recipes/esm2_650m.toml
#SBATCH --job-name=zymogen
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1      # one launcher a node; it starts a process for each GPU
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue                # the same command goes on from the last checkpoint

set -euo pipefail
cd "${SLURM_SUBMIT_DIR}"
source .venv/bin/activate

address=$(scontrol show hostnames "${SLURM_JOB_NODELIST}" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000)) # two jobs may share a node

srun --kill-on-bad-exit=1 bash -c '
    exec accelerate launch --config_file accelerate_configs/hsdp.yaml \
        --num_machines "${SLURM_NNODES}" --machine_rank "${SLURM_NODEID}" \
        --num_processes "$((SLURM_NNODES * SLURM_GPUS_ON_NODE))" \
        --parallelism_config_dp_replicate_size "${SLURM_NNODES}" \
        --parallelism_config_dp_shard_size "${SLURM_GPUS_ON_NODE}" \
        --main_process_ip "$0" --main_process_port "$1" --mixed_precision bf16 \
        -m pretrain "${@:2}"' "${address}" "${port}" "$@"
