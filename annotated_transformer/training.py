"""Training (section 5): batches to loss to weights, validated, logged, saved, and resumed where it stopped."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from annotated_transformer import checkpoint
from annotated_transformer.batching import (
    Batch,
    TextPairs,
    TokenPair,
    concatenated,
    encode_pairs,
    fingerprint,
    token_batches,
)
from annotated_transformer.config import ModelConfig, TrainConfig, require
from annotated_transformer.interrupts import Interrupts
from annotated_transformer.loss import label_smoothed_cross_entropy, linear_cross_entropy
from annotated_transformer.packing import (
    Packing,
    Packings,
    packed_decode,
    packings_where_they_pay,
)
from annotated_transformer.precision import without_cudnn_attention
from annotated_transformer.training_log import TrainingLog
from annotated_transformer.training_state import RunState
from annotated_transformer.transformer import Transformer

if TYPE_CHECKING:
    from annotated_transformer.tokenizer import Tokenizer


def train(
    model_config: ModelConfig,
    train_config: TrainConfig,
    tokenizer: Tokenizer,
    train_pairs: TextPairs,
    valid_pairs: TextPairs,
    out: str | Path,
    *,
    device: torch.device | str = "cpu",
    resume: bool = False,
    init: str | Path | None = None,
    progress: bool = True,
    tensorboard: str | Path | None = None,
    corpus: str = "",
) -> Transformer:
    """Train a model on text pairs, write the checkpoint directory `out` and return the model, ready to decode.

    Every `log_every` steps a line goes to `out`/log.jsonl: step, loss and nll (nats a real target token),
    rate, tokens_per_s (real target tokens); in float16 also skipped, the number of steps that were left
    out so far because a gradient overflowed, and the scale; with validation also valid_nll, valid_ppl
    and valid_bleu (greedy search). What is not finite is null. `progress` shows the same on standard
    error. `resume` continues a run from its last checkpoint, on the same pairs with the same tokenizer,
    and, on the CPU, ends with the weights that an uninterrupted run would have (unless `bpe_dropout` is
    on, whose draws differ from process to process). `init` begins with the weights of another run.

    The state is saved before every validation, so that nothing is lost if that fails. Ctrl-C waits for
    the end of a step, and for nothing else; the run is saved before KeyboardInterrupt is raised. Pairs
    longer than `max_length` tokens, or with an empty side, are left out of the training data. Raises
    ConfigError when nothing is left, when `out` already holds a run and `resume` is not set, when there
    is nothing to resume, and when the tokenizer, the pairs or the settings are not those of the run.
    """
    out = Path(out)
    checkpoint.require_same_vocabulary(tokenizer, model_config, out if resume else init)
    learned = model_config.positions == "learned" and not resume
    require(not learned or train_config.max_length <= model_config.max_len,
            "max_length must not exceed max_len, where learned positions end, got "
            f"{train_config.max_length} and {model_config.max_len}")
    run = _Run(model_config, train_config, out, torch.device(device))
    run.fingerprint = fingerprint(train_pairs)
    state_file = out / "training.safetensors"
    if resume:
        require(state_file.exists(), f"nothing to resume in {out}: it has no training.safetensors")
        run.restore(state_file)
        corpus = corpus or checkpoint.read_config(out).get("corpus", "")
    else:
        checkpoint.begin_run(out)
        if init:
            weights = Path(init) / "model.safetensors"
            checkpoint.load_weights(run.model, checkpoint.load_tensors(weights)[0], weights)
    extra = {"train": train_config.to_dict(), "corpus": corpus}
    checkpoint.write_directory(out, model_config, tokenizer, extra)

    pairs: list[TokenPair] = []

    def epoch_pairs(epoch: int) -> list[TokenPair]:
        seed, max_length = train_config.seed * 100_003 + epoch, train_config.max_length
        if not pairs or train_config.bpe_dropout:
            pairs[:] = encode_pairs(tokenizer, train_pairs, max_length, train_config.bpe_dropout, seed)
            require(bool(pairs), f"no training pair has 1 to {max_length} tokens on each side")
        joined = concatenated(pairs, train_config.concatenate, random.Random(f"{seed} concatenate"))
        return pairs + [(x, y) for x, y in joined if max(len(x), len(y)) < max_length]

    def is_due(every: int) -> bool:
        return run.step == train_config.train_steps or run.step % every == 0

    valid_pairs = _within_reach(model_config, tokenizer, valid_pairs)
    with TrainingLog(run, tensorboard, progress) as log, Interrupts() as signals:
        batches = run.batches(epoch_pairs)
        try:
            while True:
                if run.step and is_due(train_config.validate_every) and log.validated < run.step:
                    with log.paused():
                        log.write(validate(run.model, tokenizer, valid_pairs, run.device))
                if run.step == train_config.train_steps:
                    break
                drawn = [next(batches) for _ in range(train_config.accumulate)]
                with signals.held():
                    log.add(*run.update(drawn))
                    if is_due(train_config.log_every):
                        log.write_means()
                    if is_due(train_config.checkpoint_every):
                        run.save(state_file)
                    elif valid_pairs and is_due(train_config.validate_every):
                        run.save(state_file, to_average=False)
        except KeyboardInterrupt:
            if run.saved_step < run.step and not signals.broke_in:
                with signals.held():
                    run.save(state_file, to_average=False)
            raise
    return run.model.eval()


def _within_reach(config: ModelConfig, tokenizer: Tokenizer, pairs: TextPairs) -> TextPairs:
    """The validation pairs that the model can score; a warning says how many it cannot."""
    from annotated_transformer.evaluation import within_reach

    return [pairs[i] for i in within_reach(config, _encoded(tokenizer, pairs))] if pairs else pairs


def _encoded(tokenizer: Tokenizer, pairs: TextPairs) -> list[TokenPair]:
    sides = (tokenizer.encode_batch(list(texts)) for texts in zip(*pairs, strict=True))
    return list(zip(*sides, strict=True))


def validate(
    model: Transformer, tokenizer: Tokenizer, pairs: TextPairs, device: torch.device
) -> dict[str, float]:
    """Loss in nats a token, perplexity, and BLEU of greedy search, on held-out text pairs."""
    from annotated_transformer.evaluation import bleu, exp_of_nll, mean_nll
    from annotated_transformer.inference import InferenceModel
    from annotated_transformer.translation import Translator

    if not pairs:
        return {}
    nll = mean_nll(model, _encoded(tokenizer, pairs))
    sources, references = map(list, zip(*pairs, strict=True))
    model.eval()
    try:
        searched = InferenceModel(model) if device.type == "cuda" else None
        translator = Translator(model, tokenizer, device, searched=searched)
        translations = translator.translate(sources, beam_size=1)
    finally:
        model.train()
    score = bleu(translations, references).score
    return {"valid_nll": nll, "valid_ppl": exp_of_nll(nll), "valid_bleu": score}


class _Run(RunState):
    """A run with its step: from batches to gradients to weights."""

    def __init__(
        self, model_config: ModelConfig, config: TrainConfig, out: Path, device: torch.device
    ) -> None:
        super().__init__(model_config, config, out, device)
        self.packs = self.eager_cpu = device.type == "cpu" and not config.compile
        self.forward = torch.compile(self._forward, dynamic=True) if config.compile else self._forward

    def _packings(self, batch: Batch) -> Packings | None:
        """Made on the host, where the batch is: a GPU, or a compiled graph, cannot be asked where the padding is."""
        if not self.packs:
            return None
        if self.eager_cpu:
            return packings_where_they_pay(self.model, batch.source, batch.target_in)
        pad_id = self.model.config.pad_id
        return Packing(batch.source != pad_id).to(self.device), Packing(batch.target_in != pad_id).to(self.device)

    def _forward(self, batch: Batch, packings: Packings | None) -> tuple[Tensor, Tensor]:
        model, eps_ls, pad_id = self.model, self.config.eps_ls, self.model.config.pad_id
        if packings is None:
            logits, target_out = model(batch.source, batch.target_in), batch.target_out
            return label_smoothed_cross_entropy(logits, target_out, eps_ls, pad_id)
        x_RD, positions_R = packed_decode(model, batch.source, batch.target_in, packings)
        target_R = batch.target_out.flatten()[positions_R]
        if self.eager_cpu:
            return linear_cross_entropy(x_RD, model.embedding.weight, target_R, eps_ls, pad_id)
        return label_smoothed_cross_entropy(model.logits(x_RD), target_R, eps_ls, pad_id)

    def batches(self, epoch_pairs: Callable[[int], list[TokenPair]]) -> Iterator[Batch]:
        """Epoch after epoch, from where the counters stand; `epoch_pairs` gives an epoch's pairs."""
        ids = {name: getattr(self.model.config, name) for name in ("pad_id", "bos_id", "eos_id")}
        while True:
            for batch in token_batches(
                epoch_pairs(self.epoch), self.config.max_tokens, seed=self.config.seed,
                epoch=self.epoch, start=self.n_batches, multiple_of=self.multiple_of, **ids
            ):
                self.n_batches += 1
                yield batch
            self.epoch, self.n_batches = self.epoch + 1, 0

    def update(self, batches: list[Batch]) -> tuple[Tensor, Tensor, int]:
        """One Adam step on the mean loss over all real target tokens of `batches`: summed loss, nll, and tokens.

        The rate is set before the step, and the first step is step 1 (section 5.3). In float16 the loss
        is scaled, and a step whose gradients overflow changes neither weights nor Adam's state.
        """
        n_tokens = sum(batch.n_tokens for batch in batches)
        sums = torch.zeros(2, device=self.device)
        half = self.dtype != torch.float32
        with without_cudnn_attention():
            for batch in batches:
                with torch.autocast(self.device.type, dtype=self.dtype, enabled=half):
                    loss, nll = self.forward(batch.to(self.device), self._packings(batch))
                self.scaler.scale(loss / n_tokens).backward()
                sums += torch.stack([loss.detach(), nll.detach()])
        self.step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        if self.config.clip_norm:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.position = self.epoch, self.n_batches
        return sums[0], sums[1], n_tokens
