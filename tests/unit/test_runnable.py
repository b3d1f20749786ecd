"""Models that SpecViz cannot run are refused from config.json alone."""

import json

import pytest

from specviz.errors import FetchError
from specviz.loader import model_folder
from specviz.loader.runnable import check_before_download, check_runs


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "deepseek_v3", "kv_lora_rank": 512},
        {"model_type": "opt"},
        {"model_type": "new", "kv_lora_rank": 16},
        {"model_type": "gemma2", "attn_logit_softcapping": 50.0},
        {"model_type": "falcon", "alibi": True},
    ],
)
def test_models_that_cannot_run_are_refused_from_their_config_alone(config, tmp_path):
    with pytest.raises(FetchError, match="SpecViz cannot run"):
        check_runs(config, "it")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(FetchError, match="SpecViz cannot run"):
        model_folder.inspect(tmp_path)


def test_an_architecture_that_cannot_be_counted_is_refused_before_its_download():
    with pytest.raises(FetchError, match="cannot run"):
        check_before_download({"model_type": "phi3"}, "it")
    check_before_download({"model_type": "qwen3"}, "it")
