#!/bin/bash
@OPTIONS@

# Written by trainer.launch --target=slurm. Submit it with: sbatch FILE
@VARIABLES@
@SETUP@
set -u
command=(@COMMAND@)
export ROLES="@ROLES@"  # roles of the tasks, by rank
model_dir=@MODEL_DIR@
restarts_file="@NAME@-$SLURM_JOB_ID.restarts"  # how many, and the newest checkpoint then
export BEATS="$model_dir/launch/heartbeats/slurm.json"
mkdir -p "$model_dir/launch/heartbeats" && rm -f "$BEATS"

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
if [ "$SLURM_PROCID" -eq 0 ]; then export STEPFEED_HEARTBEAT="$BEATS"; else unset STEPFEED_HEARTBEAT; fi
has_stepped() { grep -q "\"made\": [1-9]" "$BEATS" 2> /dev/null; }
alone=@ALONE@ ended="" restarts=0
trap "ended=yes" TERM  # the command gets it, too, and saves
"$@"; code=$?
# An asynchronous worker that was killed comes back while the others continue; with 75 the whole job has ended.
while [ "$alone $role" = "yes worker" ] && [ "$code" -gt 128 ] && [ -z "$ended" ] && [ "$restarts" -lt @RESTARTS@ ] \
    && has_stepped; do
    restarts=$((restarts + 1))
    echo "worker $index ended with code $code; restart $restarts of @RESTARTS@" >&2
    sleep 1
    "$@"; code=$?
done
case $code in  # higher than any other: srun returns the highest
    1|2) code=$((code + 200));;
    126|127) code=$((code + 77));;
esac
# The others would wait for this one; at their start, until --join_timeout. They save, if they can, and end.
ends_all=
if [ "$code" -gt 200 ] && [ -z "$ended" ] && [ "${#roles[@]}" -gt 1 ]; then ends_all=yes; fi
if [ "$alone" = yes ]; then  # the chief says how the job ended
    if [ "$role" = chief ]; then
        ends_all=yes  # a worker may be coming back, and wait for it
    elif [ "$code" -lt 200 ]; then
        code=0
    fi
fi
if [ -n "$ends_all" ]; then scancel --signal=TERM "$SLURM_JOB_ID.$SLURM_STEP_ID"; fi
exit "$code"
'

stopped=
trap 'interrupted=yes stopped=limit; scancel --signal=TERM "$SLURM_JOB_ID"' USR1  # the time limit is near
trap 'interrupted=yes stopped=cancelled' TERM  # the tasks got it, too
srun @SRUN@ bash -c "$task" task "${command[@]}" &
step=$!
code=
while :; do
    interrupted=
    wait "$step"; status=$?
    if [ "$status" -ne 127 ] || [ -z "$code" ]; then code=$status; fi  # 127 later: it was waited for already
    [ -n "$interrupted" ] || break
done

newest=-1  # checkpoint
for file in "$model_dir"/ckpt-*.index; do
    number=${file##*/ckpt-}; number=${number%.index}
    case $number in *[!0-9]*) continue;; esac  # no checkpoint, or the pattern itself, which nothing matches
    if [ "$number" -gt "$newest" ]; then newest=$number; fi
done
left="no checkpoint is saved"
if [ "$newest" -ge 0 ]; then left="$model_dir/ckpt-$newest is saved"; fi
end() {  # code, why
    echo "$2; $left" >&2
    exit "$1"
}

case $code in
    0) rm -f "$restarts_file"; exit 0;;
    201|202) end $((code - 200)) "a process ended with code $((code - 200)), which says that it would fail again";;
    203|204) code=$((code - 77));;
esac
case $code in
    126|127) end "$code" "a command could not be run (code $code): see --setup, and python in PATH on each node";;
esac
if [ "$stopped" = cancelled ]; then end "$code" "the job was cancelled (code $code)"; fi
if [ ! -e "$restarts_file" ] && ! grep -q '"made": [1-9]' "$BEATS" 2> /dev/null; then
    end "$code" "the job ended with code $code${stopped:+ at the time limit} before its first step, and is not requeued"
fi
read -r restarts saved 2> /dev/null < "$restarts_file" || restarts=0 saved=-1
if [ "$newest" -gt "${saved:-0}" ]; then restarts=0; fi  # there is progress since then
if [ "$stopped" != limit ] || [ "$newest" -le "${saved:-0}" ]; then restarts=$((restarts + 1)); fi
if [ "$restarts" -gt @RESTARTS@ ]; then
    end "$code" "the job ended with code $code after @RESTARTS@ restarts (--max_restarts) without a new checkpoint"
fi
echo "$restarts $newest" > "$restarts_file"
echo "the job ended with code $code, and is requeued (restart $restarts of @RESTARTS@); $left" >&2
scontrol requeue "$SLURM_JOB_ID"
exit 75
