#!/bin/bash
# Two nodes of eight GPUs under Slurm, from one requeue to the next until the run has ended:
#     sbatch docs/examples/slurm.sh runs/esm2_650m recipes/esm2_650m.toml 'data.sources=["uniref50.fasta.gz"]'
#SBATCH --job-name=zymogen
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1      # one launcher a node; it starts a process for each GPU
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@300      # five minutes before the time is over, this script gets SIGTERM
#SBATCH --requeue                # Slurm starts the same command again where a node fails, too
#SBATCH --open-mode=append

set -euo pipefail
cd "${SLURM_SUBMIT_DIR}"
source .venv/bin/activate
run=$1
shift
records() { { wc -l <"${run}/attempts.jsonl"; } 2>/dev/null || echo 0; } # a start and its end are a line each
before=$(records)

address=$(scontrol show hostnames "${SLURM_JOB_NODELIST}" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000)) # two jobs may share a node
grace=240
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${grace} # launchers wait so long for the processes to which they pass SIGTERM on
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK}" # since Slurm 22.05, srun does not inherit --cpus-per-task
# export GLOO_SOCKET_IFNAME=ib0 NCCL_SOCKET_IFNAME=ib0 # the network between the nodes; see docs/howto/cluster.md

state() { squeue --noheader --jobs="${SLURM_JOB_ID}" --format=%T || :; } # COMPLETING: somebody cancelled the job

# srun answers SIGTERM by killing all tasks at once, and Slurm drops a signal to a step that does not run yet.
signal_tasks() {
    until [[ -n $(squeue --noheader --steps="${SLURM_JOB_ID}.0" 2>/dev/null) ]]; do
        kill -0 "${step}" 2>/dev/null || return 0
        sleep 1
    done
    [[ $(state) == COMPLETING ]] || scancel --signal=TERM "${SLURM_JOB_ID}" || : # Slurm itself signals cancelled tasks
}
stopped='' step='' # a signal may come before the step has a number
trap 'stopped=yes; [[ -z ${step} ]] || signal_tasks' TERM
srun --kill-on-bad-exit=1 bash -c '
    trap "" USR1 # scancel --signal=USR1 saves and trains on; it would kill the launcher
    exec accelerate launch --config_file accelerate_configs/hsdp.yaml \
        --num_machines "${SLURM_NNODES}" --machine_rank "${SLURM_NODEID}" \
        --num_processes "$((SLURM_NNODES * SLURM_GPUS_ON_NODE))" \
        --parallelism_config_dp_replicate_size "${SLURM_NNODES}" \
        --parallelism_config_dp_shard_size "${SLURM_GPUS_ON_NODE}" \
        --main_process_ip "$0" --main_process_port "$1" --mixed_precision bf16 \
        -m pretrain "${@:2}"' "${address}" "${port}" "$@" "run.directory=${run}" "run.grace_s=${grace}" &
step=$! early=${stopped}
[[ -z ${early} ]] || signal_tasks
until wait "${step}" || ! kill -0 "${step}" 2>/dev/null; do :; done # a signal ends a wait before the step ends

# Launchers end with 1 whatever happened: the run itself knows, once the last of its processes has ended.
status=0
python -m pretrain.inspect attempts "${run}" --last --wait 120 || status=$?
if [[ $(records) -eq ${before} ]]; then # it ended before the run began, and what was said is of an earlier start
    status=$([[ ${stopped} ]] && echo 75 || echo 1)
fi
case ${status} in
70 | 71 | 75) # the run itself refuses a start that only repeats a failure
    if [[ $(state) != COMPLETING ]]; then exec scontrol requeue "${SLURM_JOB_ID}"; fi ;;
esac
exit "${status}"
