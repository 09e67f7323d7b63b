#!/bin/sh
# Writes a model as BF16 with all processes of a job:
#   torchrun --no-python --nproc-per-node 4 examples/clusters/bf16.sh SOURCE DIRECTORY
#   srun --ntasks 4 examples/clusters/bf16.sh SOURCE DIRECTORY           (Slurm)
#   command: [examples/clusters/bf16.sh, SOURCE, DIRECTORY]              (Kubernetes, in an indexed job that also sets
#                                                                        JOB_COMPLETIONS in the environment)
# All processes see DIRECTORY. After the job, the index makes the shards a model:
#   weightfs combine DIRECTORY/*.part > DIRECTORY/model.safetensors.index.json && rm DIRECTORY/*.part
# A job whose processes were killed is started again: parts that are there are not written again.
set -eu
rank=${RANK:-${SLURM_PROCID:-${JOB_COMPLETION_INDEX:?no job has started this process}}}
size=${WORLD_SIZE:-${SLURM_NTASKS:-${JOB_COMPLETIONS:?}}}
part=$2/$((rank + 1)).part

mkdir -p "$2"
if [ ! -e "$part" ]; then
    weightfs export --dtype bf16 --shard-size "${SHARD_SIZE:-5GB}" --force --part $((rank + 1))/"$size" "$1" "$2" \
        > "$part.$$"
    mv "$part.$$" "$part"
fi
