# Sourced by .ci/run and ci/full: runs a command, and prints what it is; then, on standard error, how many seconds it took,
# and how many percent of a core it used: on two cores, far below 200 means that the command waited.
step() {
    printf '\n== %s\n' "$*"
    local what="$*"
    local TIMEFORMAT="== %0R s, %P %%: ${what//%/%%}"
    time "$@"
}
