"""The Transformer (section 3, Figure 1)."""

from __future__ import annotations

from functools import partial

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from annotated_transformer.config import ModelConfig
from annotated_transformer.errors import ConfigError
from annotated_transformer.model.attention import padding_mask
from annotated_transformer.model.decoding_state import DecodingState, LayerCache, added_mask
from annotated_transformer.model.dropout import Dropout
from annotated_transformer.model.embedding import SharedEmbedding, positions_of
from annotated_transformer.model.stacks import Decoder, Encoder
from annotated_transformer.views import html_table


class Transformer(nn.Module):
    """The encoder-decoder of Figure 1, from token ids to logits.

    Both sides share one vocabulary and one embedding matrix, which is also the projection before
    the softmax. Ids are padded on the right with `config.pad_id`; a sentence needs at least one
    real token. The target's own padding needs no mask: it comes after every real position, which
    causal attention cannot see.

    >>> model = Transformer(ModelConfig.tiny(vocab_size=100))
    >>> source, target_in = torch.tensor([[5, 7, 9, 2]]), torch.tensor([[1, 8, 6]])
    >>> model(source, target_in).shape
    torch.Size([1, 3, 100])
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        zero_id = config.bos_id if config.zero_start else None
        self.embedding = SharedEmbedding(
            config.vocab_size, config.d_model, config.output_bias, zero_id
        )
        self.positions = positions_of(config)
        self.dropout = Dropout(config.p_drop)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.initialize()

    def _repr_html_(self) -> str:
        """Parameters of each part, and the configuration, for Jupyter."""
        counts = {
            name: sum(parameter.numel() for parameter in part.parameters())
            for name, part in (("all", self), *self.named_children())
        }
        rows = [(name, f"{n:,}") for name, n in counts.items() if n]
        return html_table("Transformer: parameters", rows) + self.config._repr_html_()

    def initialize(self) -> None:
        """Zero biases and Glorot's uniform values (Glorot and Bengio 2010).

        The paper leaves both open. The authors' code has plain Glorot values, the default here.
        `initialization="scaled"`, that of the presets tiny and small, makes the matrices on the way
        through a sub-layer (W_V, W_O, W_1, W_2) smaller by (8N)^(-1/4), so that at first the
        residual path dominates and post-norm learns sooner (the factor of Wang et al. 2022,
        "DeepNet"). Without the encoder's self-attention one scaled model lost 0.05 nats a token,
        one with Glorot's values 0.28; they differ in size, corpus and length of training too, so
        that the cause is not settled (LOG.md, "A model whose attention is at work").
        """
        small = (8 * self.config.N) ** -0.25 if self.config.initialization == "scaled" else 1.0
        for name, parameter in self.named_parameters():
            if name.startswith(("encoder.", "decoder.")) and parameter.dim() == 2:
                gain = small if name.split(".")[-2] in ("W_V", "W_O", "W_1", "W_2") else 1.0
                nn.init.xavier_uniform_(parameter, gain)
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)

    def embed(self, tokens: Int[Tensor, "B L"], start: int = 0) -> Float[Tensor, "B L D"]:
        """Dropout(E[tokens] * sqrt(d_model) + positions) (sections 3.4, 3.5 and 5.4).

        The first token is at position `start`.
        """
        return self.dropout(self.embedding(tokens) + self.positions(tokens.size(1), start))

    def source_mask(self, source: Int[Tensor, "B S"]) -> Bool[Tensor, "B 1 1 S"]:
        return padding_mask(source, self.config.pad_id)

    def encode(
        self, source: Int[Tensor, "B S"], mask: Bool[Tensor, "B 1 1 S"] | None = None
    ) -> Float[Tensor, "B S D"]:
        """The encoder's output, one vector for each source token: the "memory".

        `mask` defaults to the padding's.
        """
        return self.encoder(self.embed(source), self.source_mask(source) if mask is None else mask)

    def decode(
        self,
        target_in: Int[Tensor, "B T"],
        memory: Float[Tensor, "B S D"],
        memory_mask: Bool[Tensor, "B 1 1 S"] | None,
    ) -> Float[Tensor, "B T D"]:
        """The decoder's output: position i has seen target tokens 0 to i.

        The target tokens are shifted right by one (section 3.1).
        """
        return self.decoder(self.embed(target_in), memory, memory_mask)

    def logits(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """x E^T: the scores whose softmax is the distribution of the next token."""
        return self.embedding.logits(x)

    def forward(
        self, source: Int[Tensor, "B S"], target_in: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        """Logits of the token after each position of `target_in`.

        Position i is given the source, and the target up to i. Raises ConfigError for another
        number of sources than of targets.
        """
        if source.size(0) != target_in.size(0):  # a single row would be taken for all of the other
            sizes = f"{source.size(0)} and {target_in.size(0)}"
            raise ConfigError(f"source and target_in must have equally many rows, got {sizes}")
        mask = self.source_mask(source)
        return self.logits(self.decode(target_in, self.encode(source, mask), mask))

    def start(self, source: Int[Tensor, "B S"]) -> DecodingState:
        """Encode the source once: the state before the first step.

        It has one hypothesis a sentence, which is empty. The mask's minus infinities are made here,
        once for all layers and steps; without padding there may be no mask.
        """
        real = self.source_mask(source)
        memory = self.encode(source, real)
        caches = [LayerCache.of_memory(layer, memory) for layer in self.decoder.layers]
        return DecodingState(caches, added_mask(real, memory.dtype))

    def step(self, tokens: Int[Tensor, "B W"], state: DecodingState) -> Float[Tensor, "B W V"]:
        """Extend every hypothesis by one token; logits of the token after it.

        Equal to `forward` at that position, from keys and values cached in `state`, which is
        updated. The first token is bos_id, of one hypothesis; then W is what the last `reorder`
        made it.
        """
        n_hypotheses = tokens.size(1)
        x = self.embed(tokens.reshape(-1, 1), start=state.position)
        x = x.view(-1, n_hypotheses, self.config.d_model)
        state.advance(n_hypotheses)
        for layer, cache in zip(self.decoder.layers, state.caches, strict=True):
            attend_memory = partial(cache.attend_memory, mask=state.memory_mask)
            attend_past = partial(
                cache.attend_past, mask=state.target_mask, position=state.position - 1
            )
            x = layer(x, attend_memory, attend_past=attend_past)
        return self.logits(self.decoder.norm(x))
