"""Training (section 5): batches to loss to weights, validated, logged, saved, and resumed where it stopped."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from annotated_transformer import checkpoint
from annotated_transformer.batching import Batch, TextPairs, TokenPair, concatenated, encode_pairs, token_batches
from annotated_transformer.config import ModelConfig, TrainConfig, require
from annotated_transformer.loss import label_smoothed_cross_entropy, linear_cross_entropy
from annotated_transformer.optimizer import make_adam, noam_learning_rate
from annotated_transformer.packing import Packing, Packings, packed_decode, packings_where_they_pay
from annotated_transformer.process import deferred_interrupt, keep_freed_memory
from annotated_transformer.transformer import Transformer

if TYPE_CHECKING:
    from annotated_transformer.tokenizer import Tokenizer

CAN_CHANGE = ("train_steps", "log_every", "validate_every", "checkpoint_every", "keep_checkpoints", "compile")
"""The settings that may differ when a run is resumed; any other would make it another run."""


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

    Every `log_every` steps a line goes to `out`/log.jsonl: step, loss and nll (nats a real target token), rate,
    tokens_per_s (real target tokens); with validation also valid_nll, valid_ppl and valid_bleu (greedy search).
    `progress` shows the same on standard error. `resume` continues a run from its last checkpoint and, on the CPU,
    ends with the weights that an uninterrupted run would have (unless `bpe_dropout` is on, whose draws differ from
    process to process). Ctrl-C finishes the step, saves, and raises KeyboardInterrupt. Pairs longer than `max_length`
    tokens, or with an empty side, are left out of the training data. Raises ConfigError when nothing is left, when
    `out` already holds a run and `resume` is not set, or when there is nothing to resume.
    """
    run = _Run(model_config, train_config, Path(out), torch.device(device))
    state_file = run.out / "training.safetensors"
    if resume:
        require(state_file.exists(), f"nothing to resume in {out}: it has no training.safetensors")
        run.restore(state_file)
        corpus = corpus or checkpoint.read_config(run.out).get("corpus", "")
    else:
        require(not state_file.exists(), f"{out} already holds a run: resume it, or name another directory")
        if init:
            weights = Path(init) / "model.safetensors"
            checkpoint.load_weights(run.model, checkpoint.load_tensors(weights)[0], weights)
    extra = {"train": train_config.to_dict(), "corpus": corpus}
    checkpoint.write_directory(run.out, model_config, tokenizer, extra)

    pairs: list[TokenPair] = []

    def epoch_pairs(epoch: int) -> list[TokenPair]:
        seed, max_length = train_config.seed * 100_003 + epoch, train_config.max_length
        if not pairs or train_config.bpe_dropout:
            pairs[:] = encode_pairs(tokenizer, train_pairs, max_length, train_config.bpe_dropout, seed)
            require(bool(pairs), f"no training pair has 1 to {max_length} tokens on each side")
        joined = concatenated(pairs, train_config.concatenate, random.Random(f"{seed} concatenate"))
        return pairs + [(x, y) for x, y in joined if max(len(x), len(y)) < max_length]

    with _Log(run, tensorboard, progress) as log, deferred_interrupt() as interrupted:
        batches = run.batches(epoch_pairs)
        while run.step < train_config.train_steps:
            loss, nll, n_tokens = run.update([next(batches) for _ in range(train_config.accumulate)])
            log.add(loss, nll, n_tokens)
            last = run.step == train_config.train_steps
            if last or run.step % train_config.log_every == 0:
                log.write()
            if last or run.step % train_config.validate_every == 0:
                log.write(validate(run.model, tokenizer, valid_pairs, run.device))
            stop = bool(interrupted)  # read once: a signal after this line waits for the next step
            if last or stop or run.step % train_config.checkpoint_every == 0:
                run.save(state_file)
            if stop:
                raise KeyboardInterrupt
    return run.model.eval()


def validate(model: Transformer, tokenizer: Tokenizer, pairs: TextPairs, device: torch.device) -> dict[str, float]:
    """Loss in nats a token, perplexity, and BLEU of greedy search, on held-out text pairs."""
    from annotated_transformer.evaluation import bleu, perplexity
    from annotated_transformer.translation import Translator

    if not pairs:
        return {}
    model.eval()
    sources, references = map(list, zip(*pairs, strict=True))
    encoded = zip(tokenizer.encode_batch(sources), tokenizer.encode_batch(references), strict=True)
    ppl = perplexity(model, list(encoded))
    translations = Translator(model, tokenizer, device).translate(sources, beam_size=1)
    score = bleu(translations, references).score
    model.train()
    return {"valid_nll": torch.tensor(ppl).log().item(), "valid_ppl": ppl, "valid_bleu": score}


class _Run:
    """Model, optimizer and counters: all that a resumed run has to get back."""

    def __init__(self, model_config: ModelConfig, config: TrainConfig, out: Path, device: torch.device) -> None:
        torch.manual_seed(config.seed)
        if device.type == "cpu":
            keep_freed_memory()
        self.config, self.out, self.device = config, out, device
        self.model = Transformer(model_config).to(device).train()
        self.optimizer = make_adam(self.model, config)
        self.step = self.epoch = self.n_batches = 0
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        self.bf16 = config.precision == "bf16" or (config.precision == "auto" and has_bf16)
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
                epoch_pairs(self.epoch), self.config.max_tokens, seed=self.config.seed, epoch=self.epoch,
                start=self.n_batches, **ids
            ):
                self.n_batches += 1
                yield batch
            self.epoch, self.n_batches = self.epoch + 1, 0

    def update(self, batches: list[Batch]) -> tuple[Tensor, Tensor, int]:
        """One Adam step on the mean loss over all real target tokens of `batches`: summed loss, nll, and tokens.

        The rate is set before the step, and the first step is step 1 (section 5.3).
        """
        n_tokens = sum(batch.n_tokens for batch in batches)
        sums = torch.zeros(2, device=self.device)
        for batch in batches:
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
                loss, nll = self.forward(batch.to(self.device), self._packings(batch))
            (loss / n_tokens).backward()
            sums += torch.stack([loss.detach(), nll.detach()])
        self.step += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        if self.config.clip_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return sums[0], sums[1], n_tokens

    @property
    def rate(self) -> float:
        warmup_steps = self.config.warmup_steps
        step = self.step if self.config.warm_up else max(self.step, warmup_steps)
        return noam_learning_rate(step, self.model.config.d_model, warmup_steps, self.config.lr_factor)

    def save(self, path: Path) -> None:
        """The weights to average, the weights to use, and the state to resume from, each file atomically.

        The state comes last: a run that is killed in between goes back one checkpoint and writes the others again.
        """
        checkpoint.save_weights(self.out / "checkpoints" / f"step-{self.step:08d}.safetensors", self.model)
        checkpoint.save_weights(self.out / "model.safetensors", self.model)
        parameters = dict(self.model.named_parameters())
        tensors: dict[str, Tensor] = {f"model.{name}": tensor for name, tensor in parameters.items()}
        for name, parameter in parameters.items():
            for key, value in self.optimizer.state[parameter].items():
                tensors[f"adam.{key}.{name}"] = value
        tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        counters = {"step": self.step, "epoch": self.epoch, "n_batches": self.n_batches}
        metadata = {"counters": json.dumps(counters), "train": json.dumps(self.config.to_dict())}
        checkpoint.save_tensors(path, tensors, metadata)
        for old in checkpoint.step_checkpoints(self.out)[: -self.config.keep_checkpoints]:
            old.unlink()

    def restore(self, path: Path) -> None:
        tensors, metadata = checkpoint.load_tensors(path)
        model_config = ModelConfig.from_dict(checkpoint.read_config(self.out)["model"])
        before = {**model_config.to_dict(), **TrainConfig.from_dict(json.loads(metadata["train"])).to_dict()}
        now = {**self.model.config.to_dict(), **self.config.to_dict()}
        changed = [name for name in now if now[name] != before[name] and name not in CAN_CHANGE]
        require(not changed, f"{self.out} was trained with another {', '.join(changed)}: it cannot go on with this one")
        weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
        checkpoint.load_weights(self.model, weights, path)
        names = [name for name, _ in self.model.named_parameters()]
        keys = ("step", "exp_avg", "exp_avg_sq")
        state = {i: {key: tensors[f"adam.{key}.{name}"] for key in keys} for i, name in enumerate(names)}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": state})
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors and self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random.cuda"], self.device)
        counters = json.loads(metadata["counters"])
        self.step, self.epoch, self.n_batches = counters["step"], counters["epoch"], counters["n_batches"]


class _Log:
    """log.jsonl, the progress bar and TensorBoard; sums stay on the device until a line is written."""

    def __init__(self, run: _Run, tensorboard: str | Path | None, progress: bool) -> None:
        self.run, self.progress, self.tensorboard = run, progress, tensorboard
        self.path = run.out / "log.jsonl"
        if self.path.exists():  # a killed run may have logged steps that its last checkpoint does not have
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= run.step]
            checkpoint.write_atomically(self.path, lambda new: new.write_text("".join(kept), encoding="utf-8"))

    def __enter__(self) -> _Log:
        from tqdm import tqdm

        self.writer = None
        if self.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.tensorboard))
        self.bar = tqdm(total=self.run.config.train_steps, initial=self.run.step, disable=not self.progress,
                        file=sys.stderr, unit="step", mininterval=1.0, dynamic_ncols=True)
        self._reset()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.close()
        if self.writer:
            self.writer.close()

    def _reset(self) -> None:
        self.sums, self.n_tokens, self.since = torch.zeros(2, device=self.run.device), 0, time.perf_counter()

    def add(self, loss: Tensor, nll: Tensor, n_tokens: int) -> None:
        self.sums += torch.stack([loss, nll])
        self.n_tokens += n_tokens
        self.bar.update()

    def write(self, record: dict[str, float] | None = None) -> None:
        """Write `record`, or the means since the last line."""
        if record is None and self.n_tokens:
            loss, nll = (self.sums / self.n_tokens).tolist()
            speed = self.n_tokens / (time.perf_counter() - self.since)
            record = {"loss": loss, "nll": nll, "rate": self.run.rate, "tokens_per_s": speed}
            self.bar.set_postfix({"loss": f"{loss:.3f}", "rate": f"{self.run.rate:.1e}", "tokens/s": f"{speed:.0f}"})
        if record:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": self.run.step, **record}) + "\n")
            for name, value in record.items() if self.writer else ():
                self.writer.add_scalar(name, value, self.run.step)  # type: ignore[union-attr]
        self._reset()
