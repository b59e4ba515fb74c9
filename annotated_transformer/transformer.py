"""The Transformer (section 3, Figure 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from annotated_transformer.attention import padding_mask
from annotated_transformer.config import ModelConfig, require
from annotated_transformer.dropout import Dropout
from annotated_transformer.embedding import SharedEmbedding, positions_of
from annotated_transformer.stacks import Decoder, Encoder, LayerCache


@dataclass
class DecodingState:
    """B sentences with W hypotheses each, all decoded up to the same position.

    The caches hold T tokens of each sentence, those of all its hypotheses, as a prefix tree. `target_mask` is 0 where
    token t is in hypothesis w (an ancestor, or its newest) and minus infinity elsewhere; it is None as long as a
    sentence has only ever had one hypothesis.
    """

    caches: list[LayerCache]
    memory_mask: Float[Tensor, "B 1 1 S"] | None  # 0 and, at padding, minus infinity; None without it
    target_mask: Float[Tensor, "B 1 W T"] | None = None
    position: int = 0

    def advance(self, n_hypotheses: int) -> None:
        """Before a step: one more position, and each hypothesis sees its own new token. ConfigError if W is another."""
        mask = self.target_mask
        require(n_hypotheses == (1 if mask is None else mask.size(2)), "a step takes the hypotheses that reorder made")
        self.position += 1
        if mask is not None:
            own = mask.new_full((n_hypotheses, n_hypotheses), -torch.inf).fill_diagonal_(0)
            self.target_mask = torch.cat([mask, own.expand(len(mask), 1, -1, -1)], dim=3)

    def reorder(self, parents: Int[Tensor, "B W"]) -> None:
        """Hypothesis (b, w) continues what was hypothesis (b, parents[b, w]); W may change.

        Only the mask changes, unless the buffers are full: then tokens that are in no hypothesis are forgotten. Not so
        on a GPU, where the host would have to wait to hear how many they are: there the next step makes room for all.
        """
        b, n_hypotheses = parents.shape
        if self.target_mask is None:
            if n_hypotheses == 1:
                return
            self.target_mask = self.caches[0].memory_keys.new_zeros(b, 1, 1, self.caches[0].length)
        rows = torch.arange(b, device=parents.device)[:, None]
        self.target_mask = self.target_mask[rows, :, parents].transpose(1, 2)
        if b and self.caches[0].room < n_hypotheses and parents.device.type == "cpu":
            self._forget(self.target_mask)

    def _forget(self, target_mask: Float[Tensor, "B 1 W T"]) -> None:
        """Drop tokens that are in no hypothesis; of a sentence with more of them some stay, masked."""
        is_needed = (target_mask == 0).any(dim=2)[:, 0]
        n_kept = int(is_needed.sum(dim=1).max())
        positions = is_needed.byte().argsort(dim=1, descending=True, stable=True)[:, :n_kept]
        self.target_mask = target_mask.gather(3, positions[:, None, None].expand(-1, -1, target_mask.size(2), -1))
        for cache in self.caches:
            cache.forget_all_but(positions)

    def keep(self, sentences: Int[Tensor, "kept"]) -> None:
        """Drop every sentence but these, with all its hypotheses."""
        for cache in self.caches:
            cache.keep(sentences)
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask[sentences]
        if self.target_mask is not None:
            self.target_mask = self.target_mask[sentences]


def added_mask(mask: Bool[Tensor, "B 1 1 S"], dtype: torch.dtype) -> Float[Tensor, "B 1 1 S"] | None:
    """What is added to scores instead: 0 where `mask` is True, else minus infinity.

    None if all of it is True; a GPU, for whose answer the host would have to wait, is not asked.
    """
    is_visible = mask.device.type == "cpu" and bool(mask.all())
    return None if is_visible else torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)


class Transformer(nn.Module):
    """The encoder-decoder of Figure 1, from token ids to logits.

    Both sides share one vocabulary and one embedding matrix, which is also the projection before the softmax. Ids are
    padded on the right with `config.pad_id`; a sentence needs at least one real token. The target's own padding
    needs no mask: it comes after every real position, which causal attention cannot see.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = SharedEmbedding(config.vocab_size, config.d_model)
        self.positions = positions_of(config)
        self.dropout = Dropout(config.p_drop)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self._initialize()

    def _initialize(self) -> None:
        """Zero biases and Glorot's uniform values (Glorot and Bengio 2010); the paper leaves both open.

        The authors' code has plain Glorot values, which `initialization="glorot"` gives. The default, "scaled", makes
        the matrices on the way through a sub-layer (W_V, W_O, W_1, W_2) smaller by (8N)^(-1/4), so that at first the
        residual path dominates; without it post-norm hardly learns in its first thousand steps (Wang et al. 2022,
        "DeepNet", use this factor for the same reason).
        """
        small = (8 * self.config.N) ** -0.25 if self.config.initialization == "scaled" else 1.0
        for name, parameter in self.named_parameters():
            if name.startswith(("encoder.", "decoder.")) and parameter.dim() == 2:
                gain = small if name.split(".")[-2] in ("W_V", "W_O", "W_1", "W_2") else 1.0
                nn.init.xavier_uniform_(parameter, gain)
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)

    def embed(self, tokens: Int[Tensor, "B L"], start: int = 0) -> Float[Tensor, "B L D"]:
        """Dropout(E[tokens] * sqrt(d_model) + positions), the first token at position `start` (3.4, 3.5, 5.4)."""
        return self.dropout(self.embedding(tokens) + self.positions(tokens.size(1), start))

    def source_mask(self, source: Int[Tensor, "B S"]) -> Bool[Tensor, "B 1 1 S"]:
        return padding_mask(source, self.config.pad_id)

    def encode(
        self, source: Int[Tensor, "B S"], mask: Bool[Tensor, "B 1 1 S"] | None = None
    ) -> Float[Tensor, "B S D"]:
        """The encoder's output, one vector for each source token ("memory"). `mask` defaults to the padding's."""
        return self.encoder(self.embed(source), self.source_mask(source) if mask is None else mask)

    def decode(
        self,
        target_in: Int[Tensor, "B T"],
        memory: Float[Tensor, "B S D"],
        memory_mask: Bool[Tensor, "B 1 1 S"] | None,
    ) -> Float[Tensor, "B T D"]:
        """The decoder's output for target tokens that are shifted right: position i has seen tokens 0 to i."""
        return self.decoder(self.embed(target_in), memory, memory_mask)

    def logits(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """x E^T: the scores whose softmax is the distribution of the next token."""
        return self.embedding.logits(x)

    def forward(self, source: Int[Tensor, "B S"], target_in: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        """Logits of the token after each position of `target_in`, given the source and the target up to there."""
        mask = self.source_mask(source)
        return self.logits(self.decode(target_in, self.encode(source, mask), mask))

    def start(self, source: Int[Tensor, "B S"]) -> DecodingState:
        """Encode the source once; the state before the first step, with one (empty) hypothesis a sentence.

        The mask's minus infinities are made here, once for all layers and steps; without padding there may be no mask.
        """
        real = self.source_mask(source)
        memory = self.encode(source, real)
        return DecodingState(self.decoder.start(memory), added_mask(real, memory.dtype))

    def step(self, tokens: Int[Tensor, "B W"], state: DecodingState) -> Float[Tensor, "B W V"]:
        """Extend every hypothesis by one token; logits of the token after it.

        Equal to `forward` at that position, from keys and values cached in `state`, which is updated. The first
        token is bos_id, of one hypothesis; then W is what the last `reorder` made it.
        """
        n_hypotheses = tokens.size(1)
        x = self.embed(tokens.reshape(-1, 1), start=state.position).view(-1, n_hypotheses, self.config.d_model)
        state.advance(n_hypotheses)
        return self.logits(self.decoder.step(x, state.caches, state.target_mask, state.memory_mask))
