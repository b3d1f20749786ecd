"""The type that training multiplies in: chosen by measured times, kept per machine, and used by every product."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_training import DRAFT_IDS, block_net, corpus, module

from specviz.hardware import facts
from specviz.models.causal import CausalModel
from specviz.training import block, causal, compute_type, features, recipes

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("bf16", "expected"), [(0.5, torch.bfloat16), (0.9, torch.float32), (190.0, torch.float32)])
def test_the_faster_type_is_chosen_and_bfloat16_only_with_a_margin(bf16, expected):
    assert compute_type.training_dtype(lambda t: bf16 if t == torch.bfloat16 else 1.0) == expected


@pytest.mark.parametrize("slow", [torch.float32, torch.bfloat16])
def test_what_was_measured_is_kept_and_not_measured_again(slow, empty_home, monkeypatch):
    timed = []
    monkeypatch.setattr(compute_type, "product_seconds", lambda t: timed.append(t) or (9.0 if t == slow else 1.0))
    compute_type._remembered.cache_clear()
    found = compute_type.training_dtype()
    compute_type._remembered.cache_clear()
    assert compute_type.training_dtype() == found != slow and len(timed) == 2
    [(_, fact)] = facts._all()["training type"].items()
    assert fact["dtype"] == str(found) and fact["seconds"][str(slow)] == 9.0
    compute_type._remembered.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_product_of_training_is_made_in_the_chosen_type(dtype, tmp_path, monkeypatch):
    """Counted by a dispatch mode over gradient steps of both kinds of drafters: no large product of the other
    type occurs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Products(TorchDispatchMode):
        seen: set = set()

        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            if "mm" in str(function) or "linear" in str(function):
                self.seen.add((arguments[-1] if "addmm" in str(function) else arguments[0]).dtype)
            return function(*arguments, **(keywords or {}))

    monkeypatch.setattr(compute_type, "_remembered", lambda key: dtype)
    stock = module()
    features.compute(CausalModel(stock), corpus(24), tmp_path / "s0")
    s = recipes.setting(stock, features.TapStore(tmp_path), DRAFT_IDS)
    with Products() as products:
        recipes.train_block(
            block_net(), s, block.BlockRecipe(rows=2, block_lengths=(4,), slots_per_row=8), lambda at: at.step / 2
        )
        recipes.train_causal(recipes.causal_net(s, (0, 3)), s, causal.CausalRecipe(rows=2), lambda at: at.step / 2)
    assert dtype in products.seen
    if dtype == torch.float32:
        assert torch.bfloat16 not in products.seen


@pytest.mark.slow
def test_a_processor_without_bfloat16_units_trains_in_float32(tmp_path):
    """A child process in which oneDNN may use AVX2 only, as on processors without the units: measured there."""
    code = (
        "from specviz.training import compute_type as c; import torch; torch.set_num_threads(1);"
        "print(c.training_dtype(), c.product_seconds(torch.bfloat16) / c.product_seconds(torch.float32))"
    )
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "SPECVIZ_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    dtype, ratio = done.stdout.split()
    assert dtype == "torch.float32" and float(ratio) > 1 / compute_type.MARGIN
