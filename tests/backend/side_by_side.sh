# shellcheck shell=bash disable=SC2154
# Programs that run beside each other and are told one after the other, each with its whole output, in the order in which
# they were started. For bash scripts that set `logs`, a folder, and `limit`, the seconds that a program may take:
#
#   lane NAME PLACES                    no more than PLACES programs of this lane run at a time
#   start LANE TELLER NAME COMMAND...   starts a program as soon as there is a place for it
#   tell                                waits for what was started, calls TELLER NAME LOG STATUS for each, and counts
#
# What was counted is in passed, failed, skipped, and in words in failures and skips.
passed=0 failed=0 skipped=0
failures=() skips=()
names=() tellers=() processes=()
declare -A lanes
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

pass() { passed=$((passed + 1)); echo "passed: $1"; }
fail() { failed=$((failed + 1)); failures+=("$1"); echo "FAILED: $1"; }
skip() { skipped=$((skipped + 1)); skips+=("$1"); echo "skipped: $1"; }

log_of() { echo "$logs/${1//[ \/]/-}.log"; }

# A lane is a pipe with a byte for each place that is free.
lane() { # lane NAME PLACES
    local pipe=$logs/$1.lane file
    rm -f "$pipe"
    mkfifo "$pipe"
    exec {file}<>"$pipe"
    rm "$pipe"
    printf '%*s' "$2" '' >&"$file"
    lanes[$1]=$file
}

in_lane() { # in_lane LANE LOG COMMAND...
    local place=${lanes[$1]} log=$2 child status=0
    shift 2
    IFS= read -r -N 1 -u "$place" _
    SECONDS=0
    timeout --kill-after=3 "$limit" "$@" >"$log" 2>&1 </dev/null &
    child=$!
    trap 'kill "$child"' TERM
    wait "$child" || status=$?
    echo "$SECONDS" >"$log.seconds"
    printf ' ' >&"$place"
    return "$status"
}

start() { # start LANE TELLER NAME COMMAND...
    local log
    log=$(log_of "$3")
    rm -f "$log" "$log.seconds"
    in_lane "$1" "$log" "${@:4}" &
    processes+=($!) tellers+=("$2") names+=("$3")
}

tell() {
    local i log status
    for i in "${!names[@]}"; do
        log=$(log_of "${names[i]}")
        status=0
        wait "${processes[i]}" || status=$?
        echo "== ${names[i]}, $(cat "$log.seconds") s"
        "${tellers[i]}" "${names[i]}" "$log" "$status"
    done
    names=() tellers=() processes=()
}

# What timeout says of a program that it had to end is an exit status as well.
ended() { # ended STATUS
    case $1 in
        124 | 137) echo "exit status $1, or ended after $limit s" ;;
        *) echo "exit status $1" ;;
    esac
}

# A program that prints its cases and, last, "N passed, N failed, N skipped".
tell_counts() { # tell_counts NAME LOG STATUS
    local line
    cat "$2"
    if [[ ! $(tail -n 1 "$2") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
        fail "$1: $(ended "$3") and no counts"
        return
    fi
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
    skipped=$((skipped + BASH_REMATCH[3]))
    if [[ ${BASH_REMATCH[2]} -gt 0 ]]; then
        failures+=("$1: ${BASH_REMATCH[2]} failed, see $2")
    elif [[ $3 -ne 0 ]]; then
        fail "$1: $(ended "$3")"
    fi
    while IFS= read -r line; do
        skips+=("$1: $line")
    done < <(sed -nE 's/^skipped: //p; s/^(.*: skipped: .*)$/\1/p' "$2")
}

# What it all came to, ending with the counts; succeeds only if nothing failed.
tell_all() {
    echo
    if [[ ${#skips[@]} -gt 0 ]]; then
        printf 'skipped: %s\n' "${skips[@]}"
    fi
    if [[ ${#failures[@]} -gt 0 ]]; then
        printf 'FAILED: %s\n' "${failures[@]}"
    fi
    echo "$passed passed, $failed failed, $skipped skipped"
    [[ $failed -eq 0 ]]
}
