#!/usr/bin/env bash
# Train environments x seeds x algorithms, several runs at a time. Runs that are done are skipped and those that are
# not are resumed, so the same command goes on after Ctrl-C or a crash.
#
#     scripts/sweep.sh                                     # the paper's study: 6 environments, 10 seeds, 4 algorithms
#     scripts/sweep.sh --env-ids "Hopper-v4 Reacher-v4" --seeds "0 1 2" --algos "smose sac-m" --jobs 2
#     scripts/sweep.sh --seeds 0 --dry-run                 # the commands, one per line, nothing started
#     scripts/sweep.sh --algos smose -- --total-timesteps 100000 --eval-every 5000
#
#   --env-ids "E..."  environments (default: the paper's six)
#   --seeds "S..."    seeds (default: 0 to 9)
#   --algos "A..."    any of smose sac-s sac-m sac-l (default: all four)
#   --jobs N          runs at a time (default: the number of cores)
#   --python PY       the Python that runs the trainers (default: python)
#   --dry-run         print the commands and start nothing
#   -- FLAGS          what follows goes to every trainer
#
# Runs are written to ./runs, their output to ./runs/logs. scripts/sweep.py does the same on a cluster.

here=$(cd "$(dirname "$0")" && pwd)
env_ids="Walker2d-v4 Hopper-v4 Ant-v4 HalfCheetah-v4 Reacher-v4 Swimmer-v4"
seeds="0 1 2 3 4 5 6 7 8 9"
algos="smose sac-s sac-m sac-l"
jobs=$(getconf _NPROCESSORS_ONLN)
python=python
dry_run=

die() {
    echo "error: $1" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
    --env-ids | --seeds | --algos)
        flag=$1 list=${1#--}
        list=${list/-/_}
        words=
        while [ $# -gt 1 ] && [ "${2#-}" = "$2" ]; do
            words="$words $2"
            shift
        done
        [ -n "${words// /}" ] || die "$flag needs at least one word, e.g. $0 $flag \"${!list}\""
        printf -v "$list" '%s' "$words"
        ;;
    --jobs | --python)
        [ $# -gt 1 ] || die "$1 needs a value; see $0 --help"
        printf -v "${1#--}" '%s' "$2"
        shift
        ;;
    --dry-run) dry_run=yes ;;
    --)
        shift
        break
        ;;
    -h | --help)
        sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    *) die "unknown option $1; see $0 --help (the trainers' own flags follow after --)" ;;
    esac
    shift
done
case $jobs in '' | *[!0-9]* | 0*) die "--jobs $jobs is not a number of runs; write e.g. --jobs 2" ;; esac
command -v "$python" >/dev/null || die "$python is not a program; give --python the path of a Python with PyTorch"
"$python" -c "import tyro" 2>/dev/null || die "$python lacks the packages of requirements.txt; activate their environment"

# One line per run: its command, or a comment that says why there is nothing to do.
plan() {
    "$python" "$here/sweep.py" --dry-run --env-ids "$1" --algos "$2" --seeds "$3" --python "$python" -- "${flags[@]}"
}

flags=("$@")
planned=$(plan "$env_ids" "$algos" "$seeds") || exit 2
if [ -n "$dry_run" ]; then
    echo "$planned"
    exit 0
fi
mkdir -p runs/logs || exit 2

# Training goes on unseen when nobody reads the output any more (`| head -1`).
trap '' PIPE
say() {
    echo "$1" 2>/dev/null
    return 0
}

done=0 skipped=0 failed=0
pids=() titles=() logs=()

# Takes the runs that have ended off the list, which is short: as long as --jobs.
reap() {
    local i status line env algo seed
    for i in "${!pids[@]}"; do
        kill -0 "${pids[$i]}" 2>/dev/null && continue
        wait "${pids[$i]}"
        status=$?
        if [ $status -eq 0 ]; then
            done=$((done + 1))
            read -r env algo seed <<<"${titles[$i]}"
            line=$(plan "$env" "$algo" "$seed")
            say "done: ${titles[$i]}: ${line#* is done: }"
        else
            failed=$((failed + 1))
            echo "failed: ${titles[$i]}: exit code $status: $(tail -n 1 "${logs[$i]}") (see ${logs[$i]})" >&2
        fi
        unset "pids[$i]" "titles[$i]" "logs[$i]"
    done
    return 0
}

# A signal ends `wait` at once, but not a `sleep` in the foreground.
pause() {
    sleep 1 &
    wait $!
}

stop() {
    trap '' INT TERM
    say "stopping: every running trainer writes a checkpoint first"
    [ ${#pids[@]} -eq 0 ] || kill -TERM "${pids[@]}" 2>/dev/null
    wait
    say "stopped with $done done, $skipped skipped, $failed failed; the same command goes on from here"
    exit 130
}
trap stop INT TERM

# Plans the run once more, since hours may have passed, and becomes its trainer in the background.
start() {
    local line log
    line=$(plan "$@") || exit 2
    if [ "${line#\#}" != "$line" ]; then
        skipped=$((skipped + 1))
        say "skipped: ${line#\# }"
        return
    fi
    log=${line##* > }
    line=${line%  \# *}
    say "started: $1 $2 $3"
    echo "# $line" >>"$log"
    eval "exec $line" >>"$log" 2>&1 </dev/null &
    pids+=($!) titles+=("$1 $2 $3") logs+=("$log")
}

while IFS= read -r line; do
    read -r env algo seed _ <<<"${line##*\# }"
    if [ "${line#\#}" != "$line" ]; then
        skipped=$((skipped + 1))
        say "skipped: ${line#\# }"
        continue
    fi
    while reap && [ ${#pids[@]} -ge "$jobs" ]; do pause; done
    start "$env" "$algo" "$seed"
done <<<"$planned"
while reap && [ ${#pids[@]} -gt 0 ]; do pause; done

say "$done done, $skipped skipped, $failed failed"
[ $failed -eq 0 ]
