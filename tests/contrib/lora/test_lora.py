"""Adapters of peft (LoRA): what is said of their folders, and what they are merged into."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import edit, tiny_copy

from skipbench.config.compose import compose
from skipbench.config.model import adapter_base
from skipbench.errors import SkipbenchError
from skipbench.models.load import load
from skipbench.models.outline import layer_count
from skipbench.runs.fingerprint import weights_sha256

TINY = Path(compose([]).model.path)


def adapter(folder: Path, base: str | None, **more: Any) -> Path:
    """An adapter folder without weights."""
    made = folder / "adapter"
    made.mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": base} | more
    (made / "adapter_config.json").write_text(json.dumps(config))
    return made


def test_an_adapter_whose_base_is_elsewhere(tmp_path: Path) -> None:
    for base, says in [
        ("/gone/llama", r"adapter \(LoRA\) of base_model_name_or_path='/gone/llama' is neither"),
        (None, "names no base_model_name_or_path"),
    ]:
        made = adapter(tmp_path, base)
        with pytest.raises(SkipbenchError, match=says):
            load(str(made))
        shutil.rmtree(made)


def test_an_adapter_is_read_by_its_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = adapter(tmp_path, str(TINY))
    assert adapter_base(str(made)) == str(TINY) and adapter_base(str(TINY)) is None
    assert layer_count(str(made)) == layer_count(str(TINY))
    with pytest.raises(SkipbenchError, match="leave that out"):
        load(str(made), quantization="nf4", engine="reference")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SkipbenchError, match=r"pip install 'skipbench\[lora\]'"):
        load(str(made))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(SkipbenchError, match="without weights"):
        load(str(made))
    (made / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(SkipbenchError, match=r"model\.allow_pickle=true"):
        load(str(made))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, at what peft calls
def test_an_adapter_is_merged(tmp_path: Path) -> None:
    """The logits are those of the base weights plus the adapter's product, by hand."""
    peft = pytest.importorskip("peft", reason="the extra lora")
    base, tokenizer = load(str(TINY))
    rank, alpha = 2, 6
    wanted = {}
    wrapped: Any = peft.get_peft_model(
        load(str(TINY), engine="reference")[0].model,
        peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=["q_proj", "down_proj"]),
    )
    torch.manual_seed(0)
    for name, value in wrapped.named_parameters():
        if "lora_" in name:
            value.data.normal_(std=0.1)
            wanted[name] = value.data.clone()
    made = tmp_path / "adapter"
    wrapped.peft_config["default"].base_model_name_or_path = str(TINY)
    wrapped.save_pretrained(made)
    lm, found = load(str(made))
    assert lm.engine.name == "fused" and len(found) == len(tokenizer)
    assert any(str(made) in note and str(TINY) in note for note in lm.notes())
    start = "base_model.model.model.layers.3.mlp.down_proj.lora_"
    product = wanted[f"{start}B.default.weight"] @ wanted[f"{start}A.default.weight"]
    before = base.model.model.layers[3].mlp.down_proj.weight
    torch.testing.assert_close(
        lm.model.model.layers[3].mlp.down_proj.weight, before + alpha / rank * product
    )
    tokens = tokenizer.encode("Once upon a time")
    for one in (lm, base):
        one.allocate(32)
    with torch.inference_mode():
        logits = lm.prefill(tokens)[0]
        torch.testing.assert_close(
            logits, wrapped(torch.tensor([tokens])).logits[0, -1], rtol=1e-3, atol=1e-3
        )
        assert not torch.allclose(logits, base.prefill(tokens)[0], atol=1e-2)


def test_the_fingerprint_of_an_adapter_is_of_both(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "model")
    made = adapter(tmp_path, str(folder))
    weights = made / "adapter_model.safetensors"
    weights.write_bytes(b"one")
    model = compose(["model=path", f"model.path={made}"]).model
    first = weights_sha256(model)
    weights.write_bytes(b"two")
    second = weights_sha256(model)
    edit(folder / "config.json", use_cache=False)
    assert None not in (first, second) and len({first, second, weights_sha256(model)}) == 3
