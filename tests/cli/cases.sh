# shellcheck shell=bash
# Cases that a bash script tells one by one. It is sourced from the project's root and ends with `tell_all`:
#
#   tell NAME STATUS    says and counts whether a case passed: its status is 0
#   tell_all            the last line, N passed, N failed, 0 skipped; fails if a case did
#   digest_of FILE      of a training run, from what it said
#
# `work` is a folder that is gone afterwards.
passed=0 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tell() {
    if [[ $2 -eq 0 ]]; then
        passed=$((passed + 1))
        echo "passed: $1"
    else
        failed=$((failed + 1))
        echo "FAILED: $1"
    fi
}

tell_all() {
    echo "$passed passed, $failed failed, 0 skipped"
    [[ $failed -eq 0 ]]
}

digest_of() { sed -n 's/^digest //p' "$1"; }
