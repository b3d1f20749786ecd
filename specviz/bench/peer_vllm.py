"""vLLM as a child process with one JSON line per call, for an environment with vLLM and possibly without SpecViz.

    python peer_vllm.py FOLDER DTYPE TOKENS ROWS SETTING

SETTING: compiled, vLLM's own default, which falls back to eager where nothing can compile; or eager.

The first line of output is {"version": ..., "setting": "compiled" or "eager"}. Then a line of JSON in,
{"prompts": [[ids]], "tokens": n, "eos": [ids that end a text]}, gives one out, {"texts": [[ids]],
"rate": tokens per second}. Decoding is greedy, whatever the model's generation config asks for.
"""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    """Serve until the input ends."""
    folder, dtype, tokens, rows = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    setting = sys.argv[5]
    # libraries print what they like: the answers keep the real output for themselves
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    import vllm

    def load(eager: bool):
        return vllm.LLM(
            folder,
            dtype=dtype,
            max_model_len=tokens,
            max_num_seqs=rows,
            enforce_eager=eager,
            enable_prefix_caching=False,
            disable_log_stats=False,
            generation_config="vllm",  # not the model's own, which may ask for penalties
            seed=0,
        )

    try:
        model = load(setting == "eager")
    except Exception:  # whatever torch's compiler says where there is no C++ compiler
        if setting == "eager":
            raise
        setting, model = "eager", load(True)

    def tell(answer: dict) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    tell({"version": vllm.__version__, "setting": setting})
    for line in sys.stdin:
        asked = json.loads(line)
        prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]

        def decode(most: int, prompts=prompts, eos=asked["eos"]):
            settings = vllm.SamplingParams(
                temperature=0.0, repetition_penalty=1.0, stop_token_ids=eos, max_tokens=most, detokenize=False
            )
            started = time.perf_counter()
            found = model.generate(prompts, settings, use_tqdm=False)
            return found, time.perf_counter() - started

        found, spent = decode(asked["tokens"])
        texts = [list(f.outputs[0].token_ids) for f in found]
        metrics = [getattr(f, "metrics", None) for f in found]
        left = sum(map(len, texts)) - len(texts)
        first = [getattr(m, "first_token_ts", 0.0) for m in metrics]
        if all(first):
            seconds = max(getattr(m, "last_token_ts", 0.0) for m in metrics) - min(first)
        else:  # the seconds of a single token, which are those of prefill, are subtracted
            seconds = spent - decode(1)[1]
        tell({"texts": texts, "rate": left / seconds if left > 0 and seconds > 0 else None})


if __name__ == "__main__":
    main()
