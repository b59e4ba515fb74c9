"""A head's share is the weight that the model gave to the word in question,
and answers are counted by kind."""

import pytest
import torch
from torch.testing import assert_close

from annotated_transformer.config import ModelConfig
from annotated_transformer.data.batching import make_batch
from annotated_transformer.data.tokenizer import Tokenizer
from annotated_transformer.extras.attention_views.record import record_attention
from annotated_transformer.model.transformer import Transformer
from lab.experiments.figures_3_to_5 import attention_shares
from lab.experiments.figures_3_to_5.attention_shares import answers, encode, links, prepare, shares
from lab.experiments.figures_3_to_5.controlled_corpus import sentences, text_pairs


def tokenizer():
    return Tokenizer.train([text for pair in text_pairs("train")[:6000] for text in pair], 1400)


def model():
    torch.manual_seed(0)
    return Transformer(ModelConfig(vocab_size=1400, N=2, d_model=12, d_ff=16, h=3)).eval()


def words_of(sentence, link):
    """What a link joins, in words: the row's word (a decoder's row predicts
    it) and those of the keys."""
    side = sentence.english if link.attention != "decoder" else sentence.german
    shift = 0 if link.attention != "decoder" else 1
    row = (sentence.english if link.attention == "encoder" else sentence.german)[link.row]
    keys, rival = ([side[i - shift].text for i in places] for places in (link.keys, link.rival))
    return row.text, keys, rival


def output_of(net, tokens, sentence):
    """The batch of one sentence, the model's logits and its weights."""
    batch = make_batch([encode(tokens, sentence.texts)])
    with torch.no_grad(), record_attention(net) as weights:
        return batch, net(batch.source, batch.target_in)[0], weights


def test_links_join_the_pronoun_and_the_noun_that_it_refers_to():
    checked = set()
    for sentence in sentences("test"):
        if not sentence.template.startswith("fit"):
            continue
        words = sentence.texts[0].split()
        nouns = [word.text for word in sentence.english if word.tag == "NOUN"]
        big = words[-2] in ("big", "thick", "wide", "long")
        antecedent, distractor = nouns if big else nouns[::-1]
        found = links(sentence)
        (link,) = found["pronoun to antecedent, encoder"]
        assert words_of(sentence, link) == ("it", [antecedent], [distractor])
        assert link.visible == len(words) + 1
        (link,) = found["pronoun to antecedent, decoder"]
        er, (noun, article), (other, _) = words_of(sentence, link)
        german = sentence.texts[1].split()
        assert er == german[link.row] in ("er", "sie", "es") and link.visible == link.row + 1
        before = german.index(noun)
        assert article in german[max(before - 2, 0) : before]
        assert {noun, other} == {word.text for word in sentence.german if word.tag == "NOUN"}
        checked.add(big)
    assert checked == {True, False}


@pytest.mark.slow
def test_links_join_a_verb_and_its_distant_particle():
    found = [(sentence, links(sentence)) for sentence in sentences("test")]
    far = [(sentence, each) for sentence, each in found if "verb to particle, encoder" in each]
    assert len(far) > 300
    for sentence, each in far:
        (link,) = each["verb to particle, encoder"]
        verb, (particle,), _ = words_of(sentence, link)
        assert verb in ("put", "took", "picked", "brought")
        assert particle in ("away", "down", "back", "along", "out", "up")
        assert link.keys[0] - link.row >= 3
        (link,) = each["particle to verb, decoder"]
        particle, *_ = words_of(sentence, link)
        assert particle in ("weg", "hin", "zurück", "mit", "heraus", "auf", "aus")
        assert sentence.german[link.keys[0] - 1].tag == "VERB" and link.keys[0] <= link.row


@pytest.mark.slow
def test_shares_are_the_models_own_weights_batch_by_batch(monkeypatch):
    monkeypatch.setattr(attention_shares, "BATCH", 3)  # padding differs from batch to batch
    chosen, net, tokens = sentences("test")[:3000:400], model(), tokenizer()
    found = shares(net, prepare(tokens, chosen))
    places = {
        "encoder": "encoder.layers.{}.self_attention",
        "decoder": "decoder.layers.{}.self_attention",
        "cross": "decoder.layers.{}.cross_attention",
    }
    for number, sentence in enumerate(chosen):
        *_, weights = output_of(net, tokens, sentence)
        for name, each in links(sentence).items():
            by_hand = torch.zeros(2, 3).double()
            for link in each:
                for layer in range(2):
                    head_weights = weights[places[link.attention].format(layer)][0, :, link.row]
                    by_hand[layer] += head_weights[:, list(link.keys)].sum(-1)
            assert_close(found[name].weight[number], by_hand, atol=1e-6, rtol=1e-5)
            assert found[name].n_links[number] == len(each)
            even = sum(len(link.keys) / link.visible for link in each)
            assert_close(found[name].even[number].item(), even)


@pytest.mark.slow
def test_every_target_word_is_asked_for_once_and_in_its_kind():
    tokens, chosen = tokenizer(), [*sentences("test")[:900:90], *sentences("valid")[:20]]
    prepared = prepare(tokens, chosen)
    found = answers(model(), prepared)
    for number, sentence in enumerate(chosen):
        n_pronouns = sum(word.role == "pronoun" for word in sentence.german)
        assert found["pronoun"][number, 1] == n_pronouns == bool(sentence.gender)
        assert sum(found[kind][number, 1] for kind in found) == len(sentence.german) + 1


@pytest.mark.slow
def test_an_answer_is_right_where_the_largest_logit_is_the_words():
    tokens, chosen, net = tokenizer(), sentences("test")[:40:4], model()
    found = answers(net, prepare(tokens, chosen))
    for number, sentence in enumerate(chosen):
        batch, logits, _ = output_of(net, tokens, sentence)
        right = (logits.argmax(-1) == batch.target_out[0]).tolist()
        where = next(i for i, word in enumerate(sentence.german) if word.role == "pronoun")
        assert found["pronoun"][number, 0] == right[where]
        assert sum(each[number, 0] for each in found.values()) == sum(right)
