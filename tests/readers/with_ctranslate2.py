"""CTranslate2 reads a folder: greedy translations of lines, without PyTorch.

A list of questions on standard input, of answers on standard output, both JSON.
"""

import json
import sys

import ctranslate2
import sentencepiece


def answered(asked):
    pieces = sentencepiece.SentencePieceProcessor(model_file=asked["pieces"])
    translator = ctranslate2.Translator(asked["folder"], compute_type="float32", intra_threads=1)
    found = translator.translate_batch(pieces.encode(asked["lines"], out_type=str), beam_size=1)
    assert "torch" not in sys.modules
    return [pieces.decode(each.hypotheses[0]) for each in found]


print(json.dumps([answered(asked) for asked in json.load(sys.stdin)]))
