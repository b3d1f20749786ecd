"""The toy pair, loaded once for all tests of this folder."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from specviz.models.causal import CausalModel
from specviz.models.toy import FOLDER

torch.set_num_threads(1)  # tiny tensors: a second thread only waits


@pytest.fixture(scope="session")
def toy_target() -> CausalModel:
    return CausalModel(AutoModelForCausalLM.from_pretrained(FOLDER / "target"))


@pytest.fixture(scope="session")
def toy_draft() -> CausalModel:
    return CausalModel(AutoModelForCausalLM.from_pretrained(FOLDER / "draft"))
