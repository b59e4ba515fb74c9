"""Validation in training (section 5): loss, perplexity and BLEU on held-out pairs."""

from __future__ import annotations

import torch

from annotated_transformer.config import ModelConfig
from annotated_transformer.fast.decoder import FastDecoder
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.text.batching import TextPairs
from annotated_transformer.text.tokenizer import Tokenizer
from annotated_transformer.translation.evaluation import bleu, exp_of_nll, mean_nll, scorable
from annotated_transformer.translation.translator import Translator


class Validation:
    """What `train` asks of a model by default: valid_nll, valid_ppl and valid_bleu.

    The first is in nats per token, BLEU is that of greedy search. Pairs that the model cannot score
    (`evaluation.within_reach`) are left out once, with a warning. It runs on the model's device,
    unless told another.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokenizer: Tokenizer,
        pairs: TextPairs,
        device: torch.device | None = None,
    ) -> None:
        self.tokenizer, self.device = tokenizer, device
        self.pairs, self.encoded = scorable(config, tokenizer, pairs)

    def __call__(self, model: Transformer) -> dict[str, float]:
        if not self.pairs:
            return {}
        nll = mean_nll(model, self.encoded)
        sources, references = map(list, zip(*self.pairs, strict=True))
        device = self.device or model.embedding.weight.device
        was_training = model.training
        model.eval()
        try:
            search_model = FastDecoder(model) if device.type == "cuda" else None
            translator = Translator(model, self.tokenizer, device, search_model=search_model)
            translations = translator.translate(sources, beam_size=1)
        finally:
            model.train(was_training)
        return {
            "valid_nll": nll,
            "valid_ppl": exp_of_nll(nll),
            "valid_bleu": bleu(translations, references).score,
        }
