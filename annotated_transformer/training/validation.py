"""Validation in training (section 5): loss, perplexity and BLEU on held-out pairs."""

from __future__ import annotations

import torch

from annotated_transformer.config import ModelConfig
from annotated_transformer.data.batching import TextPairs
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.decoding.evaluation import (
    bleu_counts,
    bleu_from_counts,
    bleu_tokenizer,
    evaluation_mode,
    exp_of_nll,
    mean_nll,
    scorable,
)
from annotated_transformer.decoding.translator import Translator
from annotated_transformer.fast.decoder import search_model_for
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.training.processes import ALONE, Processes


class Validation:
    """What `train` measures by default: valid_nll, valid_ppl and valid_bleu.

    valid_nll is in nats per token, BLEU is that of greedy search. Pairs that the model cannot score
    (`evaluation.within_reach`) are left out once, with a warning. It runs on the model's device
    unless `device` names another. Of several `processes` each measures its share of the pairs; the
    numbers are those of all pairs.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer,
        pairs: TextPairs,
        device: torch.device | None = None,
        processes: Processes = ALONE,
    ) -> None:
        self.tokenizer = tokenizer
        self.device = device
        self.processes = processes
        self.pairs, self.encoded = scorable(config, tokenizer, processes.share(pairs))
        # That of all references: a sentence alone, or a process's share, may suggest another one.
        self.bleu_tokenizer = bleu_tokenizer([target for _, target in pairs])

    def __call__(self, model: Transformer) -> dict[str, float]:
        sums = torch.zeros(12, dtype=torch.float64)  # nats, tokens, the ten counts of BLEU
        if self.pairs:
            n_tokens = sum(len(target) + 1 for _, target in self.encoded)
            sums[:2] = torch.tensor([n_tokens * mean_nll(model, self.encoded), n_tokens])
            for texts in zip(*self._translated(model), strict=True):
                sums[2:] += torch.tensor(bleu_counts(*texts, self.bleu_tokenizer))
        nats, n_tokens, *counts = self.processes.total(sums).tolist()
        if not n_tokens:
            return {}
        nll = nats / n_tokens
        score = bleu_from_counts(list(map(round, counts)))
        return {"valid_nll": nll, "valid_ppl": exp_of_nll(nll), "valid_bleu": score}

    def _translated(self, model: Transformer) -> tuple[list[str], list[str]]:
        """Greedy translations of the sources, and the references."""
        sources, references = map(list, zip(*self.pairs, strict=True))
        device = self.device or model.embedding.weight.device
        with evaluation_mode(model):
            # A CPU would spend more time on the copies of the weights than it saves.
            on_gpu = device.type == "cuda"
            search_model = search_model_for(model, torch.float32) if on_gpu else None
            translator = Translator(model, self.tokenizer, device, search_model=search_model)
            return translator.translate(sources, beam_size=1), references
