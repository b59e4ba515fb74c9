"""Another model's vocabulary of the same size: the weights know other words by its numbers."""

import attack

from annotated_transformer.checkpoint.weights import save_weights
from annotated_transformer.data.tokenizer import Tokenizer
from toys import text_pairs


def make(folder):
    tokenizer = attack.toy_tokenizer()
    model = attack.small_model(dtype=attack.torch.float32, **attack.MODEL.to_dict())
    save_weights(folder / "model.safetensors", model, metadata={"tokenizer": tokenizer.sha256})
    other = Tokenizer.train([side for pair in text_pairs(7, 200) for side in pair], 280)
    other.save(folder / "tokenizer.model")


def trusting(folder):
    tokenizer, written = Tokenizer.load(folder / "tokenizer.model"), attack.toy_tokenizer()
    text = tokenizer.decode(written.encode("deaf head"))
    return f"translates {text!r} where somebody wrote 'deaf head'"
