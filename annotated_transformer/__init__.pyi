from annotated_transformer.checkpoint.averaging import (
    average_checkpoints as average_checkpoints,
)
from annotated_transformer.checkpoint.directory import load_model as load_model, save as save
from annotated_transformer.config import (
    DecodeConfig as DecodeConfig,
    ModelConfig as ModelConfig,
    TrainConfig as TrainConfig,
)
from annotated_transformer.data import corpus as corpus
from annotated_transformer.data.batching import (
    Batch as Batch,
    make_batch as make_batch,
    token_batches as token_batches,
)
from annotated_transformer.data.tokenizer import Tokenizer as Tokenizer
from annotated_transformer.decoding.evaluation import (
    bleu as bleu,
    chrf as chrf,
    perplexity as perplexity,
)
from annotated_transformer.decoding.search import (
    Hypothesis as Hypothesis,
    beam_search as beam_search,
    greedy_search as greedy_search,
    rerank as rerank,
)
from annotated_transformer.decoding.translator import Translator as Translator
from annotated_transformer.errors import ConfigError as ConfigError
from annotated_transformer.extras.attention_views.record import (
    record_attention as record_attention,
)
from annotated_transformer.model.attention import (
    MultiHeadAttention as MultiHeadAttention,
    attention_weights as attention_weights,
    causal_mask as causal_mask,
    padding_mask as padding_mask,
    scaled_dot_product_attention as scaled_dot_product_attention,
)
from annotated_transformer.model.embedding import (
    SharedEmbedding as SharedEmbedding,
    positional_encoding as positional_encoding,
)
from annotated_transformer.model.feed_forward import (
    PositionwiseFeedForward as PositionwiseFeedForward,
)
from annotated_transformer.model.stacks import (
    AddNorm as AddNorm,
    Decoder as Decoder,
    DecoderLayer as DecoderLayer,
    Encoder as Encoder,
    EncoderLayer as EncoderLayer,
)
from annotated_transformer.model.transformer import Transformer as Transformer
from annotated_transformer.training.loop import train as train
from annotated_transformer.training.loss import (
    label_smoothed_cross_entropy as label_smoothed_cross_entropy,
)
from annotated_transformer.training.optimizer import (
    make_adam as make_adam,
    noam_learning_rate as noam_learning_rate,
)
from annotated_transformer.training.run import TrainingRun as TrainingRun

__version__: str
