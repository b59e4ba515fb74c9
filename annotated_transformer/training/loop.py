"""Training (section 5): batches to loss to weights; validated, logged, saved and resumed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from filelock import FileLock, Timeout

from annotated_transformer.checkpoint import directory as checkpoint
from annotated_transformer.checkpoint.weights import load_weights, tensor_shapes, without_weights
from annotated_transformer.config import ModelConfig, TrainConfig
from annotated_transformer.data.batching import EncodedCorpus, TextPairs
from annotated_transformer.errors import ConfigError, Terminated, require, say
from annotated_transformer.files import require_writable
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training import state
from annotated_transformer.training.epochs import Augment, TrainingPairs
from annotated_transformer.training.log import Callback, TrainingLog
from annotated_transformer.training.optimizer import require_hardware
from annotated_transformer.training.processes import ALONE, Processes
from annotated_transformer.training.run import TrainingRun
from annotated_transformer.training.validation import Validation

if TYPE_CHECKING:
    from annotated_transformer.data.tokenizer import Tokenizer

Validate = Callable[[Transformer], dict[str, float]]
"""A function that measures a model in training and leaves it unchanged; it returns numbers by
name."""


def train(
    model_config: ModelConfig,
    train_config: TrainConfig,
    tokenizer: Tokenizer,
    train_pairs: TextPairs | EncodedCorpus,
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
    multiple_of: int | None = None,
    processes: Processes = ALONE,
    augmentation: Augment | None = None,
    callback: Callback | None = None,
) -> Transformer:
    """Train a model on text pairs, or on an encoded corpus, and return it, ready to decode.

    The checkpoint directory `out` is written on the way. Every `log_every` steps a line goes to
    `out`/log.jsonl: step, loss and nll (nats per real target token), rate, tokens_per_s (real
    target tokens); in float16 also skipped (the number of steps skipped so far because a gradient
    overflowed) and scale. Validation adds a line with valid_nll, valid_ppl and valid_bleu (greedy
    search), or with what `validate(model)` returns. A value that is not finite is null. The weights
    with the lowest valid_nll stay in `out`/best, and with `patience` the run ends when that no
    longer falls. `progress` says on standard error what is trained, how long it will take, these
    figures, and whether nothing is learned. `resume` continues a run from its last checkpoint, on
    the same pairs with the same tokenizer, in the precision that "auto" meant where it began; on
    the CPU it ends with the weights of an uninterrupted run (unless `bpe_dropout` is on, whose
    draws differ from process to process, or `train_steps` has changed under a schedule that decays
    towards them, of which a line tells).
    `init` begins with the weights of another run. With `multiple_of`, lengths of batches are
    rounded up to a multiple of it (1: not at all) wherever the run is; else on a GPU alone, to 8.

    The state is saved before every validation, so that nothing is lost if that fails. Ctrl-C waits
    for the end of a step at most; the run is saved before KeyboardInterrupt is raised. Pairs longer
    than `max_length` tokens, or with an empty side, are left out of the training data. Raises
    ConfigError when nothing is left, when `out` already holds a run and `resume` is not set, when
    there is nothing to resume, and when the tokenizer, the pairs or the settings are not those of
    the run; where another process trains in `out`; where memory runs out; and where
    `log.MAX_SKIPPED` steps in a row had to be skipped. A state that is damaged, unreadable or of
    another model is skipped with a message, and the one before it is used.

    With `train_config.augment`, the pairs of each epoch are those that `augmentation` makes
    (`extras.visitors.augmentation.Augmentation`).

    `callback(step, model, figures)` is called with each line of the log, on rank 0, and may return
    figures of its own, which the line gets as well.

    `processes` are those that `training.processes.joined` gives under torchrun: each calls this
    with the same arguments, and the run is that of one process, save for what dropout drops. They
    stop together, whichever gets a signal; rank 0 writes; each validates a part of the pairs. A
    `validate` that is passed in is called by every process.

    >>> pairs = [("a cab fed a bee", "eeb a def bac a"), ("a bad bee", "eeb dab a")] * 20
    >>> tokenizer = Tokenizer.train([text for pair in pairs for text in pair], vocab_size=280)
    >>> model_config = ModelConfig.tiny(tokenizer.vocab_size, d_model=16, h=2)
    >>> train_config = TrainConfig(train_steps=4, checkpoint_every=2, max_tokens=512)
    >>> model = train(model_config, train_config, tokenizer, pairs, pairs[:2], "runs/words")
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
        train_config = state.with_precision_of_run(train_config, out)
    elif init:
        path = Path(init) / "model.safetensors"
        without_weights(model_config, tensor_shapes(path), path)
        before = checkpoint.read_model_config(init)  # dropout, say, may differ on purpose
        initial = checkpoint.trained_weights(init, before, tokenizer)
    if not resume:
        require_hardware(train_config.precision, torch.device(device))
    pairs = TrainingPairs(train_config, tokenizer, train_pairs, processes, augmentation)
    run = TrainingRun(model_config, train_config, device, processes=processes)
    run.multiple_of = multiple_of or run.multiple_of
    train_config = run.config
    run.fingerprint = pairs.fingerprint
    run.vocabulary = tokenizer.sha256
    same = f"{run.fingerprint} {run.vocabulary} {model_config} {train_config}"
    processes.require_same(same, "settings and training pairs")
    if validate is None and valid_pairs:
        validate = Validation(model_config, tokenizer, valid_pairs, processes=processes)

    def is_due(every: int) -> bool:
        return run.steps == train_config.train_steps or run.steps % every == 0

    agree = processes.any if processes.n > 1 else None
    with kept_from_others(out, processes):
        if resume:
            state.restore(run, out, saved)
            corpus = corpus or checkpoint.read_config(out).get("corpus", "")
        else:
            if processes.is_first:
                checkpoint.begin_run(out)
            if init:
                load_weights(run.model, initial, path)
        if processes.is_first:
            extra = {"train": train_config.to_dict(), "corpus": corpus}
            checkpoint.write_directory(out, model_config, tokenizer, extra)
        with (
            TrainingLog(run, out, tensorboard, progress, callback) as log,
            Interrupts(agree) as signals,
        ):
            batches = run.batches(pairs)
            try:
                while True:
                    # Validation comes first, so that a resumed run repeats one that failed.
                    due = run.steps > log.validated and is_due(train_config.validate_every)
                    if validate is not None and due:
                        log.write_validation(validate)
                    if run.steps == train_config.train_steps or _has_ended(log):
                        break
                    # Not in a thread, which would take the interpreter from the one that launches
                    # the kernels (LOG.md, "Batches on the host").
                    drawn = [next(batches) for _ in range(train_config.accumulate)]
                    if progress and processes.is_first and run.steps == log.outlook.first:
                        valid = validate.encoded if isinstance(validate, Validation) else []
                        log.outlook.plan(pairs.encoded, valid)
                    with signals.held():
                        log.add(*run.step(drawn))
                        if is_due(train_config.log_every):
                            log.write_means()
                        if is_due(train_config.checkpoint_every):
                            state.save_state(run, out)
                        elif validate is not None and is_due(train_config.validate_every):
                            # Checkpoints to average stay `checkpoint_every` steps apart.
                            state.save_state(run, out, to_average=False)
            except KeyboardInterrupt:
                if run.saved_steps < run.steps and not signals.broke_in:
                    with signals.held():
                        state.save_state(run, out, to_average=False)
                raise
        return run.model.eval()


def _has_ended(log: TrainingLog) -> bool:
    """Whether validation has not become better for so long that the run ends, on all processes."""
    if not log.run.config.patience:
        return False
    ended = log.run.processes.from_first(lambda: bytes([log.is_out_of_patience()])) != b"\0"
    if ended and log.progress:
        say(
            f"valid_nll has not improved in {log.run.config.patience} validations: the run ends at "
            f"step {log.run.steps:,}, and {state.BEST}/ has the best weights"
        )
    return ended


class Interrupts:
    """Inside `with Interrupts() as signals:` Ctrl-C and SIGTERM raise KeyboardInterrupt.

    For SIGTERM it is the subclass `errors.Terminated`. Inside `with signals.held():` the first
    signal is deferred to the end of the block. A second one interrupts the block; `broke_in` is
    then true. Only the main thread of a process gets signals; in other threads nothing changes.

    With several processes, `agree` says whether one of them got a signal. Then every signal is
    deferred to the end of a held block, and the processes stop together: torchrun passes Ctrl-C on
    to each, and kills those that do not end.
    """

    def __init__(self, agree: Callable[[bool], bool] | None = None) -> None:
        self.agree = agree
        self.holding = self.waiting = self.broke_in = False
        self.stop: type[KeyboardInterrupt] = KeyboardInterrupt
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        self.stop = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        if self.agree or self.holding and not self.waiting:
            self.waiting = True
            return
        self.broke_in = self.holding
        raise self.stop

    @contextmanager
    def held(self) -> Iterator[None]:
        self.holding = True
        try:
            yield
        finally:
            self.holding = False
        if self.agree:
            self.waiting = self.agree(self.waiting)
        if self.waiting:
            self.waiting = False
            raise self.stop


@contextmanager
def kept_from_others(directory: str | Path, processes: Processes) -> Iterator[None]:
    """Keep other runs from training in `directory` inside the block.

    Rank 0 locks a file there; the lock ends with its process, however that ends. Raises ConfigError
    in all processes where another run holds it.
    """
    path = Path(directory) / ".lock"
    lock = FileLock(path)

    def acquire() -> bytes:
        require_writable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            message = f"another process trains in {directory}: name another directory"
            raise ConfigError(message) from None
        return b""

    processes.from_first(acquire)
    try:
        yield
    finally:
        if lock.is_locked and os.name == "posix":
            path.unlink(missing_ok=True)  # a process that waits finds it gone and tries anew
        lock.release()
