#!/usr/bin/env bash
# Runs every fuzz target for so many seconds, one after the other; see README.md.
#
#     fuzz/run.sh SECONDS [TARGET...]
#
# Exits with 1 if a target found something; the input is then in fuzz/artifacts.
set -uo pipefail
cd "$(dirname "$0")"

seconds=${1:?usage: run.sh SECONDS [TARGET...]}
shift
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    targets=(packet clock flow reusable_decoder unit elf lines demangle truth x86)
    targets+=(python-{packets,events,perfdata,trace,recording,settings,scenario,reused_decoder,api_calls,files})
    targets+=(python-{option_values,gdb})
fi
python=../.venv/bin/python
[ -x "$python" ] || python=python3

"$python" python/seeds.py || exit
failed=()
for target in "${targets[@]}"; do
    echo "== $target"
    case $target in
    python-*)
        "$python" python/run_target.py "${target#python-}" "$seconds"
        ;;
    *)
        command -v cargo-fuzz >/dev/null || { echo "cargo-fuzz is not installed: left out"; continue; }
        mkdir -p "corpus/$target"
        # No address sanitizer: it needs a nightly toolchain, and there is no unsafe code to watch.
        cargo fuzz run --fuzz-dir . --sanitizer none "$target" "corpus/$target" "kept/$target" -- \
            -max_total_time="$seconds" -max_len=8192 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 -verbosity=0
        ;;
    esac || failed+=("$target")
done

if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}"
    exit 1
fi
