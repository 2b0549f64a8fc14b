#!/bin/bash
# A report in a browser: a page of a million steps and 512 ranks with hostile names, opened by Chromium without a window at
# two widths. Its console stays silent, no name becomes code, every curve and square is drawn, the page is under 10 MB.
# Prints sizes and seconds, and leaves screenshots to look at. Needs Debian's chromium.
#
#   tests/peers/report_page.sh [BIN_DIR [FOLDER]]       default: build/release/bin, a new folder below build/peers
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
shardrun=$(readlink -f "${1:-$root/build/release/bin}")/shardrun
mkdir -p "$root/build/peers"
work=${2:-$(mktemp -d "$root/build/peers/report.XXXXXX")}
run=$work/runs/hostile/1
mkdir -p "$run"
cd "$work"

awk 'BEGIN {
  srand(7)
  for (step = 1; step <= 1000000; ++step)
    printf "{\"step\":%d,\"loss\":%.6f,\"learning_rate\":%.6g,\"grad_norm\":%.4f,\"tokens_per_second\":%.1f,\"step_seconds\":%.4f,\"attempt\":0}\n",
      step, 2 + 9 / (1 + step / 2e4) + rand() / 5, 3e-4 * (1 - step / 1e6), 0.5 + rand(), 9e4 + 1e4 * rand(), 0.3 + rand() / 50
}' >"$run/metrics.jsonl"
evil='</script><script>document.title="taken"</script><img src=x onerror=alert(1)>'
cat >"$run/job.toml" <<TOML
name = "hostile"  # $evil
TOML
jq -n --arg evil "$evil" '{format_version: 1, name: $evil, id: "1", scheduler: "local", status: "failed", verdict: $evil, exit_code: 1,
  world_size: 512, nodes: [range(64) | "n\(.)" + (if . == 3 then $evil else "" end)],
  batch: {global_batch: 512, micro_batch: 1, gradient_accumulation: 1, data_parallel: 512},
  attempts: [{attempt: 0, started: 1, ended: 9, nodes: ["n0"], verdict: $evil, first_cause: null, also_lost: [], stragglers: []}],
  metrics: {steps: 1000000, checkpoint: $evil, versions: {}, first_barrier_seconds: 1, flops_per_token: 1, full_flops_per_token: 1, utilization: [], peak_memory_bytes: [range(512) | 1e9 + . * 1e6 | floor], tokens_per_second: 95000,
    step_seconds: {p50: 0.31, p99: 0.33}},
  versions: {}}' >"$run/record.json"

mkdir "$run/attempt_0"
jq -nc 'range(512) | {format_version: 1, global_rank: ., node: "n\(. / 8 | floor)", ended: 9, exit_code: (if . == 3 then 1 else 0 end), signal: null,
  peer_lost: false, stopped_on_request: false, peak_memory_bytes: (1e9 + . * 1e6 | floor), out_of_memory: null, last_words: "",
  steps_seconds: 310000, waiting_seconds: (31000 + 900 * (. % 64))}' |
  awk -v folder="$run/attempt_0" '{ print >(folder "/n" int((NR - 1) / 8) ".exits") }'

begin=$EPOCHREALTIME
"$shardrun" report "$run" -o "$work/report.html" >/dev/null
echo "written in $(bc <<<"$EPOCHREALTIME - $begin") s, $(stat -c %s report.html) bytes"
[ "$(stat -c %s report.html)" -lt 10000000 ]

browse() { # browse WORDS...: Chromium with a profile of its own; what it logs goes to stderr
  chromium --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --enable-logging=stderr "$@"
}
browse --dump-dom about:blank >/dev/null 2>&1  # makes the profile
for page in about:blank "file://$work/report.html"; do
  begin=$EPOCHREALTIME
  browse --dump-dom "$page" >dom.html 2>log
  echo "$page: opened in $(bc <<<"$EPOCHREALTIME - $begin") s"
done
curves=$(grep -o 'class="curve' dom.html | wc -l) squares=$(grep -o '<button' dom.html | wc -l)
echo "$curves curves, $squares squares"
[ "$curves" -eq 5 ] && [ "$squares" -eq 512 ]
grep -q '<title>taken' dom.html && { echo "a name became code"; exit 1; }
for size in 1200,2200 390,3400; do
  browse --virtual-time-budget=2000 --hide-scrollbars --window-size=$size --screenshot="$work/report-${size%,*}.png" "file://$work/report.html" >/dev/null 2>>log
done
grep 'CONSOLE' log && { echo "the console is not silent"; exit 1; }
echo "the console is silent; screenshots: $work/report-1200.png $work/report-390.png"
