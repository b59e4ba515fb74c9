"""Training (section 5): batches to loss to weights; validated, logged, saved and resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint.weights import load_weights, tensor_shapes, without_weights
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.errors import require
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.text.batching import TextPairs
from annotated_transformer.text.shards import Shards
from annotated_transformer.training import state
from annotated_transformer.training.distributed.processes import ALONE, Processes
from annotated_transformer.training.epochs import TrainingPairs
from annotated_transformer.training.interrupts import Interrupts
from annotated_transformer.training.log import TrainingLog
from annotated_transformer.training.mishaps import out_of_memory, out_of_memory_in_a_save
from annotated_transformer.training.run import TrainingRun
from annotated_transformer.training.run_directory import (
    begin_run,
    kept_from_others,
    remove_temporaries,
)

if TYPE_CHECKING:
    from annotated_transformer.text.tokenizer import Tokenizer

Validate = Callable[[Transformer], dict[str, float]]
"""From a model in training to numbers about it, by name. It leaves the model as it was."""


def train(
    model_config: ModelConfig,
    train_config: TrainConfig,
    tokenizer: Tokenizer,
    train_pairs: TextPairs | Shards,
    valid_pairs: TextPairs,
    out: str | Path,
    *,
    validate: Validate | None = None,
    device: torch.device | str = "cpu",
    resume: bool = False,
    init: str | Path | None = None,
    progress: bool = True,
    tensorboard: str | Path | None = None,
    corpus: str = "",
    processes: Processes = ALONE,
) -> Transformer:
    """Train a model on text pairs, or on shards of them, and return it, ready to decode.

    The checkpoint directory `out` is written on the way. Every `log_every` steps a line goes to
    `out`/log.jsonl: step, loss and nll (nats a real target token), rate, tokens_per_s (real target
    tokens); in float16 also skipped, the number of steps that were left out so far because a
    gradient overflowed, and the scale. With validation there is also a line with valid_nll,
    valid_ppl and valid_bleu (greedy search), or with what `validate(model)` gives. What is not
    finite is null. `progress` shows the same on standard error. `resume` continues a run from its
    last checkpoint, on the same pairs with the same tokenizer, and, on the CPU, ends with the
    weights that an uninterrupted run would have (unless `bpe_dropout` is on, whose draws differ
    from process to process). `init` begins with the weights of another run.

    The state is saved before every validation, so that nothing is lost if that fails. Ctrl-C waits
    for the end of a step, and for nothing else; the run is saved before KeyboardInterrupt is
    raised. Pairs longer than `max_length` tokens, or with an empty side, are left out of the
    training data. Raises ConfigError when nothing is left, when `out` already holds a run and
    `resume` is not set, when there is nothing to resume, and when the tokenizer, the pairs or the
    settings are not those of the run; where another process trains in `out`; where memory is out;
    and where `MOST_SKIPPED` steps in a row had to be skipped. A state that is damaged, of another
    model or not to be read is passed over, aloud, for the one before.

    `processes` are those that `distributed.processes.joined` gives under torchrun: each calls this
    with the same arguments, and the run is that of one process, save for what dropout drops. They
    stop together, whichever gets a signal; the first one writes; each validates a part of the
    pairs, and calls a `validate` of one's own.
    """
    out = Path(out)
    checkpoint.require_same_vocabulary(tokenizer, model_config, out if resume else init)
    learned = model_config.positions == "learned" and not resume
    require(
        not learned or train_config.max_length <= model_config.max_len,
        "max_length must not exceed max_len, where learned positions end, got "
        f"{train_config.max_length} and {model_config.max_len}",
    )
    if resume:
        saved = state.agreed_state(model_config, out, processes)
    elif init:
        path = Path(init) / "model.safetensors"
        without_weights(model_config, tensor_shapes(path), path)
        before = checkpoint.read_model_config(init)  # whose settings may be changed on purpose
        initial = checkpoint.trained_weights(init, before, tokenizer)
    pairs = TrainingPairs(train_config, tokenizer, train_pairs, processes)
    train_config = pairs.config
    run = TrainingRun(model_config, train_config, device, processes=processes)
    run.fingerprint, run.vocabulary = pairs.fingerprint, tokenizer.sha256
    same = f"{run.fingerprint} {run.vocabulary} {model_config} {train_config}"
    processes.require_same(same, "settings and training pairs")
    with kept_from_others(out, processes):
        if resume:
            if processes.is_first:
                remove_temporaries(out)
            state.restore(run, out, saved)
            corpus = corpus or checkpoint.read_config(out).get("corpus", "")
        else:
            if processes.is_first:
                begin_run(out)
            if init:
                load_weights(run.model, initial, path)
        extra = {"train": train_config.to_dict(), "corpus": corpus}
        if processes.is_first:
            checkpoint.write_directory(out, model_config, tokenizer, extra)

        def is_due(every: int) -> bool:
            return run.steps == train_config.train_steps or run.steps % every == 0

        def save(to_average: bool = False) -> None:
            with out_of_memory_in_a_save(out, run):
                state.save(run, out, to_average)

        if validate is None and valid_pairs:
            from annotated_transformer.training.validation import Validation

            add_up = processes.total if processes.n > 1 else None
            validate = Validation(
                model_config, tokenizer, processes.share(valid_pairs), add_up=add_up
            )
        agree = processes.any if processes.n > 1 else None
        with TrainingLog(run, out, tensorboard, progress) as log, Interrupts(agree) as signals:
            batches = run.batches(pairs)
            try:
                while True:
                    due = run.steps > log.validated and is_due(train_config.validate_every)
                    if validate is not None and due:
                        with log.paused():
                            log.write(validate(run.model))
                    if run.steps == train_config.train_steps:
                        break
                    drawn = [next(batches) for _ in range(train_config.accumulate)]
                    with signals.held():
                        with out_of_memory(drawn, train_config):
                            sums = run.step(drawn)
                        log.add(*sums)
                        if is_due(train_config.log_every):
                            log.write_means()
                        if is_due(train_config.checkpoint_every):
                            save(to_average=True)
                        elif validate is not None and is_due(train_config.validate_every):
                            save()
            except KeyboardInterrupt:
                if run.saved_steps < run.steps and not signals.broke_in:
                    with signals.held():
                        save()
                raise
        return run.model.eval()
