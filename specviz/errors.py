"""The errors a person may see. Each message says what is wrong and what to do next."""


class SpecVizError(Exception):
    """Base of every error whose message is fit to be shown as it is."""


class SettingsError(SpecVizError):
    """A setting (K, temperature, prompt, length, ...) is outside what the engine can do."""


class PairError(SpecVizError):
    """A pair is unknown, or its target and drafter do not fit each other."""


class FetchError(SpecVizError):
    """Weights could not be downloaded, verified, converted or stored."""


class TraceError(SpecVizError):
    """A trace file is foreign, truncated, hostile or from a newer version."""


class MemoryBudgetError(SpecVizError):
    """A model, cache or run would not fit the memory of its device."""


class NotFiniteError(SpecVizError):
    """A model's weights or logits are NaN or infinite, so that there is nothing to draw from."""


class PluginError(SpecVizError):
    """A drafter of one's own (FILE.py:CLASS) cannot be loaded, fails, or breaks the protocol."""
