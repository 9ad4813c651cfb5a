"""The text of a batch script: what Slurm runs on the first node of a job."""

from __future__ import annotations

import re

# Why it is as it is, from Slurm's sources and manuals:
# - SIGTERM to srun kills the tasks at once ("forcing job termination"), so scancel passes the warning on to them.
# - The warning is SIGUSR1, and to this script only: scancel and preemption send SIGTERM, and are to end the job.
# - srun returns the highest code of all tasks: 1 or 2 of one would be lost beside 75 of the others.
# - scontrol requeue keeps the job's number, so the count of restarts is kept in a file of that number.
_TEXT = r"""#!/bin/bash
@OPTIONS@

# Written by trainer.launch --target=slurm. Submit it with: sbatch FILE
@SETUP@
set -u
command=(@COMMAND@)
export ROLES="@ROLES@"  # of each task, by its rank

# host:port of each task, by its rank
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=@PORT@
addresses=
rank=0
while [ "$rank" -lt @TASKS@ ]; do
    addresses+=" ${hosts[rank / @PER_NODE@]}:$((port + rank % @PER_NODE@))"
    rank=$((rank + 1))
done
export ADDRESSES="$addresses"

# What each task runs: it finds out which one it is, and runs the command.
# shellcheck disable=SC2016
task='
read -ra roles <<< "$ROLES"; read -ra addresses <<< "$ADDRESSES"
role=${roles[SLURM_PROCID]} index=0 cluster=
for name in chief worker ps; do
    hosts=
    for i in "${!roles[@]}"; do
        [ "${roles[i]}" = "$name" ] || continue
        hosts+="${hosts:+, }\"${addresses[i]}\""
        if [ "$name" = "$role" ] && [ "$i" -lt "$SLURM_PROCID" ]; then index=$((index + 1)); fi
    done
    if [ -n "$hosts" ]; then cluster+="${cluster:+, }\"$name\": [$hosts]"; fi
done
unset TF_CONFIG
if [ "${#roles[@]}" -gt 1 ]; then
    export TF_CONFIG="{\"cluster\": {$cluster}, \"task\": {\"type\": \"$role\", \"index\": $index}}"
fi
alone=@ALONE@ ended="" restarts=0
trap "ended=yes" TERM  # which the command gets, too, and saves
"$@"; code=$?
# An asynchronous worker that was killed comes back while the others go on; with 75 the whole job has ended.
while [ "$alone $role" = "yes worker" ] && [ "$code" -gt 128 ] && [ -z "$ended" ] && [ "$restarts" -lt @RESTARTS@ ]; do
    restarts=$((restarts + 1))
    echo "worker $index ended with code $code; restart $restarts of @RESTARTS@" >&2
    sleep 1
    "$@"; code=$?
done
case $code in 1|2) code=$((code + 200));; esac  # higher than any other: srun returns the highest
if [ "$alone" = yes ]; then  # the chief says how the job ended
    if [ "$role" = chief ]; then
        scancel --signal=TERM "$SLURM_JOB_ID.$SLURM_STEP_ID"  # a worker may be coming back, and wait for it
    elif [ "$code" -lt 200 ]; then
        code=0
    fi
fi
exit "$code"
'

stopped=
trap 'interrupted=yes stopped=limit; scancel --signal=TERM "$SLURM_JOB_ID"' USR1  # the time limit is near
trap 'interrupted=yes stopped=cancelled' TERM  # which the tasks got, too
srun @SRUN@ bash -c "$task" task "${command[@]}" &
step=$!
code=75
while :; do
    interrupted=
    wait "$step"; status=$?
    if [ "$status" -ne 127 ]; then code=$status; fi  # 127: it was waited for already
    [ -n "$interrupted" ] || break
done

case $code in
    0) rm -f "@NAME@-$SLURM_JOB_ID.restarts"; exit 0;;
    201|202) exit $((code - 200));;  # bad data or a bad flag: they would be bad again
esac
if [ "$stopped" = cancelled ]; then exit "$code"; fi
if [ "$stopped" = limit ]; then
    restarts=0  # it came that far
else
    restarts=$(($(cat "@NAME@-$SLURM_JOB_ID.restarts" 2>/dev/null || echo 0) + 1))
fi
if [ "$restarts" -gt @RESTARTS@ ]; then
    echo "a process ended with code $code; no restart is left of @RESTARTS@ (--max_restarts)" >&2
    exit "$code"
fi
echo "$restarts" > "@NAME@-$SLURM_JOB_ID.restarts"
scontrol requeue "$SLURM_JOB_ID"
exit 75
"""


def fill(**parts: str) -> str:
    """Returns the script with its parts in place of their names."""
    return re.sub(r"@([A-Z_]+)@", lambda match: parts[match[1]], _TEXT)
