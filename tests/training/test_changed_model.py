"""What a researcher changes: the model, its modules, the optimizer, the loss; and what is kept."""

import pytest
import torch
from torch import nn

from annotated_transformer import (
    ConfigError,
    ModelConfig,
    MultiHeadAttention,
    TrainConfig,
    TrainingRun,
    Transformer,
    Translator,
    label_smoothed_cross_entropy,
    load_model,
    make_batch,
    save,
)
from annotated_transformer.decoding.search import beam_search
from annotated_transformer.training.loop import train
from toys import small_model, text_pairs, toy_run_config, toy_tokenizer

BATCH = make_batch([([5, 6], [7]), ([8], [9, 10])])
SIZES = {"N": 1, "d_model": 8, "d_ff": 12, "h": 2}
CONFIG = TrainConfig(warmup_steps=4, lr_factor=1.0)


class Louder(MultiHeadAttention):
    """An attention of a user's own, with a weight more."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.volume = nn.Parameter(torch.tensor(2.0))

    def heads(self, queries, keys, values, mask=None, causal=False):
        return self.volume * super().heads(queries, keys, values, mask, causal)


class Foreign(nn.Module):
    """An attention that knows nothing of ours but its call."""

    def __init__(self):
        super().__init__()
        self.inner = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, memory, mask=None, causal=False):
        return self.inner(x, memory, memory)[0]


def changed(module):
    model = Transformer(ModelConfig(vocab_size=11, **SIZES))
    model.encoder.layers[0].self_attention = module
    return model


@pytest.mark.parametrize("module", [Louder(8, 2), Foreign()], ids=["ours", "foreign"])
def test_every_weight_of_a_changed_model_moves(module):
    model = changed(module)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    run = TrainingRun(config=CONFIG, model=model)
    for _ in range(2):
        run.step([BATCH])
    assert run.model is model
    same = [name for name, weight in model.named_parameters() if weight.equal(before[name])]
    assert all(name.endswith("in_proj_bias") for name in same)


def test_a_model_is_not_exchanged_in_silence():
    model = small_model(dtype=torch.float32)
    run = TrainingRun(config=CONFIG, model=model)
    with pytest.raises(ConfigError, match="a run keeps its model"):
        run.model = small_model()
    model.encoder.layers[0].self_attention = Louder(8, 2)
    with pytest.raises(ConfigError, match=r"does not have encoder.layers.0.self_attention.volume"):
        run.step([BATCH])
    for given in ({}, {"model_config": model.config, "model": model}):
        with pytest.raises(ConfigError, match="give the configuration of a model, or model="):
            TrainingRun(**given)


def test_an_optimizer_keeps_its_rate_and_frozen_weights_stay():
    model = small_model(dtype=torch.float32)
    model.encoder.requires_grad_(requires_grad=False)
    frozen = model.encoder.layers[0].self_attention.W_Q.weight.clone()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.125)
    run = TrainingRun(config=CONFIG, model=model, optimizer=optimizer)
    before = model.decoder.layers[0].self_attention.W_Q.weight.clone()
    run.step([BATCH])
    assert run.rate == optimizer.param_groups[0]["lr"] == 0.125 and run.adam_steps() == 0
    assert model.encoder.layers[0].self_attention.W_Q.weight.equal(frozen)
    assert not model.decoder.layers[0].self_attention.W_Q.weight.equal(before)


def test_a_loss_of_ones_own_is_the_one_that_is_minimised():
    def doubled(logits, target_out):
        loss, nll = label_smoothed_cross_entropy(logits, target_out, eps_ls=0.0)
        return 2 * loss, nll

    runs = [
        TrainingRun(
            config=CONFIG.replace(eps_ls=0.0), model=small_model(dtype=torch.float32), **own
        )
        for own in ({}, {"loss": doubled})
    ]
    (loss, nll, _), (twice, same, _) = (run.step([BATCH]) for run in runs)
    assert twice == pytest.approx(2 * float(loss), rel=1e-5) == pytest.approx(2 * float(nll))
    assert same == pytest.approx(float(nll), rel=1e-5)


def test_a_callback_sees_every_line_of_the_log_and_adds_to_it(tmp_path):
    seen = []

    def callback(step, model, figures):
        seen.append((step, model.training, sorted(figures)))
        return (
            {"norm": float(model.embedding.weight.detach().norm())} if "loss" in figures else None
        )

    model, config = toy_run_config(train_steps=4, log_every=2)
    pairs = text_pairs(1, 60)
    train(
        model, config, toy_tokenizer(), pairs, pairs[:2], tmp_path / "run",
        progress=False, callback=callback,
    )  # fmt: skip
    assert [(step, training) for step, training, _ in seen] == [(2, True), (4, True), (4, True)]
    assert "loss" in seen[0][2] and "valid_bleu" in seen[2][2]
    lines = (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    assert ['"norm"' in line for line in lines] == [True, True, False]


def test_a_saved_model_is_a_checkpoint(tmp_path):
    tokenizer = toy_tokenizer()
    model = Transformer(toy_run_config()[0].replace(vocab_size=tokenizer.vocab_size)).eval()
    assert save(model, tokenizer, tmp_path / "saved") == tmp_path / "saved"
    loaded, same_tokenizer = load_model(tmp_path / "saved")
    assert loaded.config == model.config and same_tokenizer.model_bytes == tokenizer.model_bytes
    for name, tensor in model.state_dict().items():
        assert loaded.state_dict()[name].equal(tensor)
    text = text_pairs(2, 1)[0][0]
    expected = Translator(model, tokenizer).translate([text])
    assert Translator.from_checkpoint(tmp_path / "saved").translate([text]) == expected
    with pytest.raises(ConfigError, match="would be overwritten"):
        save(model, tokenizer, tmp_path / "saved")
    model.encoder.layers[0].self_attention = Louder(8, 2)
    with pytest.raises(ConfigError, match=r"another encoder.layers.0.self_attention.volume: save"):
        save(model, tokenizer, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def hooked(translator):
    attention = translator.model.decoder.layers[0].cross_attention
    attention.register_forward_hook(lambda module, inputs, output: 0 * output)


def exchanged(translator):
    translator.model = small_model(seed=5, vocab_size=280, dtype=torch.float32)


@pytest.mark.parametrize("change", [hooked, exchanged])
def test_a_translator_searches_with_the_model_that_it_shows(tmp_path, change):
    tokenizer = toy_tokenizer()
    save(small_model(vocab_size=280, dtype=torch.float32), tokenizer, tmp_path / "model")
    translator = Translator.from_checkpoint(tmp_path / "model")
    source = torch.tensor([[*tokenizer.encode("a cab fed a bee"), 2]])
    texts = ["a cab fed a bee"]
    before = translator.n_best(texts, n_best=1)
    change(translator)
    [[after]] = translator.n_best(texts, n_best=1)
    [[expected]] = beam_search(translator.model, source)
    assert list(after.tokens) == expected.tokens and after.score == pytest.approx(expected.score)
    assert [[after]] != before
