"""The toy pair, loaded once for all tests of this folder."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from specviz.loader.toy import FOLDER
from specviz.models.causal import CausalModel


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tiny tensors: a second thread only waits. Given back afterwards: measured facts are kept by number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def toy_target() -> CausalModel:
    return CausalModel(AutoModelForCausalLM.from_pretrained(FOLDER / "target"))


@pytest.fixture(scope="session")
def toy_draft() -> CausalModel:
    return CausalModel(AutoModelForCausalLM.from_pretrained(FOLDER / "draft"))
