# Sourced by .ci/run and ci/full: runs a command, and prints what it is and how many seconds it took.
step() {
    printf '\n== %s\n' "$*"
    local start=$SECONDS
    "$@"
    printf '== %s s: %s\n' $((SECONDS - start)) "$*"
}
