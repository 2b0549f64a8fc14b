# What the cluster tests share; sourced by them inside a virtual cluster. $1 is the folder of the programs.
# shellcheck shell=bash
# shellcheck disable=SC2034  # used by those who source this
bin=$(readlink -f "$1")
source_dir=$(readlink -f "$(dirname "$0")/../..")
work=$(mktemp -d "$PWD/slurm_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit
shardrun=$bin/shardrun

fail() {
  echo "FAILED: ${FUNCNAME[1]}: $*" >&2
  find "$work/runs" \( -name record.json -o -name slurm.out -o -name '*.log' -o -name 'rank_*.err' \) -exec tail -n 15 {} + >&2 2>/dev/null
  tail -n 5 "$VCLUSTER"/slurm*.log >&2
  exit 1
}

# Ends a case that is not over in time, and says what there was then: its process would tell nobody where it waits.
end_late_case() { # CASE SECONDS
  sleep "$2"
  {
    echo "FAILED: $1: not over after $2 s"
    ps -eo pid,ppid,stat,wchan:24,etimes,args --forest
    timeout 20 squeue --long
    timeout 20 sinfo --Node --long
    tail -n 20 "$VCLUSTER"/slurm*.log
  } >&2
  kill -TERM $$
}

now_ms() { date +%s%3N; }
state_of() { scontrol --oneliner show job "$1" | grep -o 'JobState=[A-Z_]*' | cut -d= -f2; }
# Submits and prints the job's id.
submit() { "$shardrun" submit "$@" | sed -n 's/^submitted job \([0-9]*\):.*/\1/p'; }
# until_true SECONDS COMMAND…
until_true() {
  local end=$(($(now_ms) + $1 * 1000))
  shift
  until "$@"; do
    [ "$(now_ms)" -lt "$end" ] || return 1
    sleep 0.05
  done
}
in_state() { [[ "$(state_of "$1")" =~ ^($2)$ ]]; }
is_over() { in_state "$1" 'COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL'; }
has_step() { grep -qs "\"step\":$2," "runs/$1/latest/metrics.jsonl"; }
# The process ids of the supervisors of a global rank.
supervisors_of() {
  local pid parent
  for pid in $(pgrep -x shardrun-rank); do
    grep -qsxz "SLURM_PROCID=$1" "/proc/$pid/environ" || continue  # no pipe, whose writer grep would end early
    parent=$(awk '/^PPid:/{print $2}' "/proc/$pid/status")
    [ "$(cat "/proc/$parent/comm")" = shardrun-rank ] || echo "$pid"  # its program is a shardrun-rank, too
  done
}

# The process id of the program of a supervisor, which has a guard as a child, too. PID
program_of() {
  local child
  for child in $(pgrep -P "$1"); do
    [ "$(cat "/proc/$child/comm" 2>/dev/null)" = rank-guard ] || echo "$child"
  done
}

spec() { # NAME NODES RANKS_PER_NODE PROGRAM_AND_REST
  printf 'name = "%s"\n[resources]\nnodes = %s\nranks_per_node = %s\n%s\n' "$1" "$2" "$3" "$4" >"$1.toml"
}
# The conductor has heard the supervisors of all COUNT ranks of a job's newest run. JOB COUNT
are_heard() {
  [ "$("$shardrun" top "$1" --json | jq '[.ranks[] | select(.state != "not heard" and .state != "?")] | length')" = "$2" ]
}
readonly endless_trainer='[program]
trainer = "llama"
[model]
preset = "llama-1m"
[data]
files = ["/usr/share/common-licenses/GPL-3"]
sequence_length = 64
[optimizer]
steps = 1000000
[logging]
every_steps = 1'
nothing_runs() { ! pgrep -x shardrun-rank >/dev/null; }
verdict_of() { sed -n 's/^  "verdict": "\(.*\)".*/\1/p' "$1"; }

# The holder process of a node, whose namespaces are the node.
holder_of() { cat "$VCLUSTER/$1.holder"; }
on_node() { # NODE COMMAND…
  nsenter --net --mount --uts --target "$(holder_of "$1")" "${@:2}"
}
# The processes of a node, without its holder.
processes_of() {
  local space
  space=$(readlink "/proc/$(holder_of "$1")/ns/net")  # net:[4026532000]
  find /proc/[0-9]*/ns/net -maxdepth 0 -lname "${space//[][]/?}" 2>/dev/null | cut -d/ -f3 | grep -vx "$(holder_of "$1")"
}
power_off() { # NODE…: at once, and as when the cables are pulled first
  local node pids
  for node in "$@"; do ip link set "v${node#n}" down; done
  mapfile -t pids < <(for node in "$@"; do processes_of "$node"; done)
  kill -STOP "${pids[@]}" 2>/dev/null  # no supervisor lives on to tell of its rank's end
  kill -KILL "${pids[@]}" 2>/dev/null
}
power_on() {
  ip link set "v${1#n}" up
  on_node "$1" slurmd -N "$1" -f "$VCLUSTER/slurm.conf" || fail "$1 does not come up again"
  until_true 10 node_is_idle "$1" && return
  # slurmctld may wait minutes for the end of a job that died with the node; this is what an administrator does.
  scontrol update "nodename=$1" state=down reason="came back without its job"
  scontrol update "nodename=$1" state=resume
  until_true 30 node_is_idle "$1" || fail "$1 is not idle again after 40 s, but $(sinfo --noheader --Node --nodes="$1" --format=%T)"
}
node_is_idle() { [ "$(sinfo --noheader --Node --nodes="$1" --format=%t)" = idle ]; }

# Seconds from a moment (ms) to the first step of an attempt.
first_step_after() { # RUN ATTEMPT MS
  sed -n "s/^{\"step\":.*\"time\":\([0-9.]*\),\"attempt\":$2}.*/\1/p" "$1/metrics.jsonl" | head -n 1 |
    awk -v begin="$3" '{ printf "%.2f", $1 - begin / 1000 }'
}
step_of_attempt() { grep -qs "^{\"step\":.*\"attempt\":$2}" "$1/metrics.jsonl"; }
at_most() { awk -v value="$1" -v limit="$2" 'BEGIN { exit !(value != "" && value <= limit) }'; }

# run_cases BIN_DIR [CASE]…: those of the array `cases`, or the named ones. Where all of them were skipped, so is the test.
# shellcheck disable=SC2154
run_cases() {
  local case begin watch status ran=0
  shift
  for case in "$@"; do
    [[ " ${cases[*]} " == *" $case "* ]] || fail "there is no case $case"
  done
  [ $# -gt 0 ] || set -- "${cases[@]}"
  for case in "$@"; do
    begin=$(now_ms)
    end_late_case "$case" $((240 + ${SHARDRUN_HEALTHY_SECONDS:-0})) &
    watch=$!
    "$case"
    status=$?
    # shellcheck disable=SC2046  # itself before its sleep
    kill "$watch" $(pgrep -P "$watch")
    if [ "$status" -eq 77 ]; then
      echo "skipped ${case//_/ }"
      continue
    fi
    ran=$((ran + 1))
    echo "ok ${case//_/ } ($(($(now_ms) - begin)) ms)"
  done
  [ "$ran" -gt 0 ] || exit 77
}
# slow_links NODES RATE: both ends of each node's link carry no more. A small burst: what a link lets through at once after
# it has rested is no part of its rate. TCP is controlled by cubic there, as on most clusters, whatever the host's default is:
# with bbr, which some hosts have, collectives of 8 x 2 ranks took up to half as long again.
slow_links() {
  local node
  for ((node = 1; node <= $1; node++)); do
    tc qdisc replace dev "v$node" root tbf rate "$2" burst 128k limit 8m || fail "no tbf"
    on_node "n$node" tc qdisc replace dev eth0 root tbf rate "$2" burst 128k limit 8m || fail "no tbf on n$node"
    on_node "n$node" ip route change 10.77.0.0/24 dev eth0 proto kernel scope link src "10.77.0.$node" congctl cubic ||
      fail "no cubic on n$node"
  done
}

# Whether the CPUs give at least 85 % of the most that they were seen to give: other machines may have their cores meanwhile.
most_share=0 loud=0 repeated=0
is_quiet() {
  local share
  share=$("$bin/cpu_share") || fail "no cpu_share"
  [ "$share" -le "$most_share" ] || most_share=$share
  [ $((100 * share)) -ge $((85 * most_share)) ]
}
wait_until_quiet() { # a minute at most
  local try
  for ((try = 0; try < 60; ++try)); do
    is_quiet && is_quiet && return
    sleep 1
  done
  loud=$((loud + 1))
}
# on_quiet_cpus COMMAND…: begins when they are, and once more, three times in all, when they no longer are at its end.
on_quiet_cpus() {
  local try
  for try in 1 2 3; do
    wait_until_quiet
    "$@"
    is_quiet && is_quiet && return
    [ "$try" -eq 3 ] || repeated=$((repeated + 1))
  done
  loud=$((loud + 1))
}
