#!/bin/sh
# Counts the statistics of a model with all processes of a job:
#   torchrun --no-python --nproc-per-node 4 examples/clusters/stats.sh SOURCE DIRECTORY
#   srun --ntasks 4 examples/clusters/stats.sh SOURCE DIRECTORY          (Slurm)
#   command: [examples/clusters/stats.sh, SOURCE, DIRECTORY]             (Kubernetes, in an indexed job that also sets
#                                                                        JOB_COMPLETIONS in the environment)
# All processes see DIRECTORY. After the job, `weightfs combine DIRECTORY/*.part` prints the statistics. A job whose
# processes were killed is started again: parts that are there are not counted again.
set -eu
rank=${RANK:-${SLURM_PROCID:-${JOB_COMPLETION_INDEX:?no job has started this process}}}
size=${WORLD_SIZE:-${SLURM_NTASKS:-${JOB_COMPLETIONS:?}}}
part=$2/$((rank + 1)).part

if [ ! -e "$part" ]; then
    weightfs stats "$1" --json --part $((rank + 1))/"$size" > "$part.$$"
    mv "$part.$$" "$part"
fi
