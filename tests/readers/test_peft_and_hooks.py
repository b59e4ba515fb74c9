"""Three programs that work on a model of transformers work on ours."""

import shutil

import pytest
import torch
from program import answer, answers, needs
from torch.testing import assert_close

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint.directory import load_model
from annotated_transformer.checkpoint.weights import save_weights
from annotated_transformer.extras.attention_views.knock_out import knocked_out
from annotated_transformer.extras.attention_views.record import record_attention
from annotated_transformer.extras.formats.huggingface import export_checkpoint
from annotated_transformer.extras.formats.importing import import_checkpoint
from annotated_transformer.extras.formats.parameter_names import sines_first
from toys import random_tokens, small_model, toy_tokenizer

pytestmark = pytest.mark.slow
SOURCE, TARGET = random_tokens(1, 3, 7, high=280), random_tokens(2, 3, 6, high=280)
ROWS = {"source": SOURCE.tolist(), "target": TARGET.tolist()}


def export(folder, **changes):
    model = small_model(dtype=torch.float32, vocab_size=toy_tokenizer().vocab_size, **changes)
    checkpoint.write_directory(folder / "ours", model.config, toy_tokenizer())
    save_weights(folder / "ours" / "model.safetensors", model)
    return model, export_checkpoint(folder / "ours", folder / "theirs")


@pytest.fixture
def exported(tmp_path):
    return export(tmp_path)


@needs("peft")
def test_peft_trains_and_merges_it_and_it_comes_back(exported, tmp_path):
    model, theirs = exported
    said = answer("with_peft.py", folder=theirs, save=tmp_path / "saved", steps=5, **ROWS)
    assert said["losses"][-1] < said["losses"][0]
    shutil.copy(theirs / "tokenizer.model", tmp_path / "saved")
    import_checkpoint(tmp_path / "saved", tmp_path / "back")
    back, _ = load_model(tmp_path / "back")
    assert back.config == model.config  # LoRA has no biases
    assert_close(back(SOURCE, TARGET), torch.tensor(said["logits"]), atol=1e-5, rtol=0)
    changed = {
        name.split(".")[-2]
        for name, tensor in back.state_dict().items()
        if not torch.equal(tensor, model.state_dict()[name])
    }
    assert changed == {"W_Q", "W_V"}


@needs("nnsight")
@torch.no_grad()
def test_nnsight_reads_and_knocks_out_an_attention(exported):
    model, theirs = exported
    said = answer("with_nnsight.py", folder=theirs, **ROWS)
    attention = model.decoder.layers[1].cross_attention
    kept = []
    handle = attention.register_forward_hook(lambda *call: kept.append(call[-1]))
    model(SOURCE, TARGET)
    handle.remove()
    order = sines_first(model.config.d_model)
    assert_close(torch.tensor(said["cross"]), kept[0][..., order], atol=1e-5, rtol=0)
    with knocked_out(*((attention, head) for head in range(model.config.h))):
        expected = model(SOURCE, TARGET)
    assert_close(torch.tensor(said["without"]), expected, atol=1e-5, rtol=0)


@needs("transformer_lens")
@torch.no_grad()
def test_transformer_lens_reads_a_head_and_takes_it_out(tmp_path):
    exports = [export(tmp_path / norm, norm=norm) for norm in ("post", "pre")]
    asked = [{"folder": theirs, **ROWS} for _, theirs in exports]
    for (model, _), said in zip(exports, answers("with_transformer_lens.py", *asked), strict=True):
        with record_attention(model) as weights:
            logits = model(SOURCE, TARGET)
        with knocked_out((model.decoder.layers[1].cross_attention, 0)):
            without = model(SOURCE, TARGET)
        expected = weights["decoder.layers.1.cross_attention"]
        assert_close(torch.tensor(said["weights"]), expected, atol=1e-5, rtol=0)
        assert_close(torch.tensor(said["logits"]), logits, atol=1e-5, rtol=0)
        assert_close(torch.tensor(said["without"]), without, atol=1e-5, rtol=0)
        assert (without - logits).abs().max() > 1e-3
