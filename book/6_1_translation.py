# %% [markdown]
# # 6.1 Machine translation
#
# *Section 6.1 of the paper {cite}`vaswani2017attention`: a model is trained, its last checkpoints are averaged, a beam
# search finds its translations, and BLEU scores them.*
#
# The paper's model read 4.5 million sentence pairs on eight GPUs for twelve hours. In this chapter we train the same
# model, smaller, on 36,524 pairs of everyday sentences, on one core of a laptop and in two minutes. We change the
# sizes, the dropout, the batch, the number of steps, and the learning rate's factor and warm-up, and take the initial
# values of the preset `tiny`; the rest is the paper's recipe. What comes out is a weak translator, and we measure how
# weak. Alongside it we use the **book's model** (in `book/model`), which was trained for hours instead of minutes.
#
# After this chapter you can train a Transformer on two lists of sentences, average checkpoints, follow a beam search by
# its scores, report a BLEU score that someone else can compare with, say whether a difference of two scores is more
# than chance, and name what BLEU cannot see. The numbers of our training run vary a little from machine to machine, so
# the cells that print them assert a bound.

# %% tags=["remove-cell"]
import copy
import json
import math
import textwrap
import time
from functools import partial
from pathlib import Path

import torch
from torch.testing import assert_close

# %% tags=["remove-cell"]
from annotated_transformer import (
    ModelConfig, Tokenizer, Transformer, Translator, beam_search, bleu, chrf, corpus, greedy_search, load_model,
    noam_learning_rate, perplexity, record_attention)
from lab.display import Table, use_style
from lab.pictures import translation as translation_pictures
from lab.training_loop import batches_of, fit, summed_loss
from annotated_transformer.data.batching import encode_pairs
from annotated_transformer.data.parallel_text import fold
from annotated_transformer.decoding.evaluation import bleu_counts, bleu_from_counts
from annotated_transformer.decoding.search import length_penalty
from annotated_transformer.extras.visitors import for_visitors

use_style()

# %% [markdown]
# ## The sentences, and why we may trust a score on them
#
# Our corpus comes from [Tatoeba](https://tatoeba.org), a collection of everyday sentences that volunteers write and
# translate {cite}`tatoeba`. Credit: **Tatoeba contributors, tatoeba.org, CC BY 2.0 FR**. Many of them are nearly the
# same, and that makes a trap: if *Tom is late.* were in the training data with one translation and in the test data
# with another, the test would reward memory. So all pairs that share a sentence, on either side, case and punctuation
# aside, lie in one split together.

# %%
splits = {split: corpus.load("tatoeba-en-de", split) for split in corpus.SPLITS}
train_pairs, valid_pairs, test_pairs = splits.values()
print(", ".join(f"{len(pairs):,} {split}" for split, pairs in splits.items()),
      "pairs")
for side, language in enumerate(("English", "German")):
    seen = {fold(pair[side]) for pair in train_pairs}
    leaked = sum(fold(pair[side]) in seen for pair in test_pairs)
    print(f"{language}: {leaked} of {len(test_pairs)} test sentences are in "
          "the training data")
    assert leaked == 0

# %% [markdown]
# From these pairs we learn one vocabulary for both languages, as the paper does
# ([chapter 5.1](5_1_data_and_batching.ipynb) explains byte-pair encoding and batches). Ours has 2,000 tokens instead of
# 37,000, since two minutes of training would hardly see a rarer one. We learn it from the training split alone, so that
# no rare word of the test set slips in as a whole token.

# %%
tokenizer = Tokenizer.train((text for pair in train_pairs for text in pair),
                            vocab_size=2000)
for sentence in test_pairs[0]:
    print(sentence, "->",
          " ".join(tokenizer.pieces(tokenizer.encode(sentence))))

# %% [markdown]
# ## A small model, trained for two minutes
#
# The letters are those of Table 3. `tiny` is a preset, and we halve its widths to make it faster still. We switch
# dropout off: in less than one epoch it cannot memorise anything.

# %%
config = ModelConfig.tiny(tokenizer.vocab_size, N=2, d_model=64, d_ff=256,
                          p_drop=0.0)
base = ModelConfig.base(vocab_size=37_000)
for name in ("N", "d_model", "d_ff", "h", "d_k", "p_drop", "vocab_size"):
    ours, theirs = getattr(config, name), getattr(base, name)
    print(f"{name:11}{ours:7}   paper's base {theirs:7}")
ours, theirs = (sum(p.numel() for p in Transformer(c).parameters())
                for c in (config, base))
print(f"{ours:,} parameters; base with 37,000 tokens {theirs / 1e6:.1f} "
      "million (the paper prints 65: see 6.2)")

# %% [markdown]
# Now we train with the loop of [chapter 5.2](5_2_training.ipynb), 1,500 steps of 320 tokens. The rate follows the
# paper's equation 3 ([chapter 5.3](5_3_optimizer.ipynb)) with a warm-up of 200 steps in place of 4,000. Every 50 steps
# we measure the loss on 300 validation pairs, and put the weights aside: thirty **checkpoints**, some of which we
# average afterwards.

# %% tags=["nbval-ignore-output"]
train_ids, valid_ids = (encode_pairs(tokenizer, pairs, max_length=100)
                        for pairs in (train_pairs, valid_pairs))
checkpoints, curve = [], []
def validate(model):
    checkpoints.append(copy.deepcopy(model.state_dict()))
    curve.append(math.log(perplexity(model, valid_ids[:300])))
    return curve[-1]

torch.manual_seed(1)
model = Transformer(config)
rate = partial(noam_learning_rate, d_model=64, warmup_steps=200, factor=0.5)
losses = fit(model, batches_of(train_ids, max_tokens=320), 1500, rate,
             summed_loss, validate, every=50)
print(f"smoothed training loss {losses[0]:.2f} -> {losses[-1]:.2f}; "
      f"validation {curve[0]:.2f} -> {curve[-1]:.2f}")

# %% mystnb={"image": {"alt": "Two line charts over 1,500 training steps. Left: the smoothed training loss in nats per token falls steeply in the first few hundred steps and slowly after, with the noise of single batches; the validation loss, without smoothing, lies below it. Right: the learning rate rises in a straight line for 200 steps and falls with the inverse square root of the step."}, "figure": {"caption": "The loss falls to about half of what a guess costs (dotted). Left: loss of each training batch, smoothed, and of the validation pairs, without smoothing. Right: the learning rate.", "name": "fig-training"}} tags=["nbval-ignore-output", "hide-input"]
translation_pictures.training(curve, losses, rate)
assert len(checkpoints) == 30 and 7 < losses[0] < 12 and losses[-1] < 4.8 and min(curve) < 4

# %% [markdown]
# A guess among 2,000 tokens costs $\ln 2000 = 7.6$ nats; after 1,500 steps the model pays about half of that. The
# smoothed loss stays above the other, since a part of its target is spread over the whole vocabulary ([chapter
# 5.4](5_4_regularization.ipynb)). With a GPU you need not stay this small: the commands of [On a GPU](on_a_gpu.ipynb)
# train a better translator in minutes.
#
# ## Averaging the last checkpoints
#
# When the run ends, the rate is still high, and every batch pushes the weights in another direction. The mean of
# several checkpoints evens these pushes out, and as one set of weights it costs nothing more to run:
#
# $$
# \bar\theta = \frac{1}{K} \sum_{k=1}^{K} \theta_k
# $$ (checkpoint-average)
#
# The paper trains for a fixed number of steps and mentions no early stopping. It takes the mean of the last 5
# checkpoints, written ten minutes apart (base), or of the last 20 (big). More of them reach further back, to weights
# that knew less. How many are best here?

# %% tags=["nbval-ignore-output", "row-X7", "row-H6"]
def average_of_last(k):
    mean, last = Transformer(config).eval(), checkpoints[-k:]
    mean.load_state_dict({name: torch.stack([one[name] for one in last]).mean(0)
                          for name in last[0]})
    return mean

ppl = {k: perplexity(average_of_last(k), valid_ids)
       for k in (1, 2, 3, 5, 8, 12, 20, 30)}
for k in (1, 5, 20):
    print(f"mean of the last {k:2}: validation perplexity {ppl[k]:.2f}")
assert ppl[5] < ppl[1]

# %% mystnb={"image": {"alt": "Line chart of the validation perplexity of the mean of the last 1 to 30 checkpoints. It falls from one checkpoint to about five or eight, and rises again as the mean reaches back to earlier ones."}, "figure": {"caption": "A few checkpoints are better than one, and thirty are worse: validation perplexity of the mean of the last checkpoints, 50 steps apart.", "name": "fig-averaging"}} tags=["nbval-ignore-output", "hide-input"]
translation_pictures.averaging(ppl)
assert ppl[30] > min(ppl.values())

# %% [markdown]
# Five help, in this run and with every seed in [What holds](claims.ipynb). Twenty reach back to step 550 of
# 1,500, when the model was still much worse. The paper's last twenty lie close together: if they too are ten minutes
# apart, they span some four percent of its run ([the chapter on Table 2](6_1_results.ipynb)).
#
# Does this picture of pushes in all directions hold? We compare each move from one of the last ten checkpoints to the
# next with the move after it. Their cosine is near 1 if the weights follow a road, negative if they circle a place, and
# near 0 if each move is independent of the one before.

# %% tags=["nbval-ignore-output"]
flat = torch.stack([torch.cat([w.flatten() for w in one.values()])
                    for one in checkpoints[-10:]])
moves = flat.diff(dim=0)
cosines = torch.cosine_similarity(moves[:-1], moves[1:])
apart = torch.cosine_similarity(moves[:-2], moves[2:])
print(f"mean cosine of successive moves {cosines.mean():.2f}, "
      f"of moves two apart {apart.mean():.2f}")
assert cosines.mean().abs() < 0.3

# %% [markdown]
# It is near 0: on the scale of 50 steps the weights take a random walk, and the progress in the loss is a small drift.
# (Drawn in the two directions in which it differs most, *any* random walk looks like a smooth arc, so such pictures of
# training prove little.)
#
# ## Beam search: from next tokens to a sentence
#
# The model gives the probability of the *next* token, and we want a good *sentence*. **Greedy search** takes the most
# probable token at every step. But a good sentence may begin with a less probable word, so **beam search** keeps the
# best few beginnings, called hypotheses, and extends them all. Its whole idea fits in a dozen lines. Each round, we
# extend every living hypothesis by every token of the vocabulary, add up the log-probabilities, and keep the best of
# all these candidates, four in the paper. One that ends in `</s>` is finished, and keeps its place.

# %%
book = Translator.from_checkpoint("model")
text = "I have bought a new umbrella."
(_, bos, eos), V = book.model.config.special_ids, book.model.config.vocab_size
source = torch.tensor([[*book.tokenizer.encode(text), eos]])
print(f"{V:,} tokens; bos is {bos}, eos is {eos}; the source is",
      source.tolist())

# %%
@torch.inference_mode()
def plain_beam_search(source, width=4):
    alive, ended, rounds = [([], 0.0)], [], []
    while alive and len(rounds) < source.size(1) + 50:
        target_in = torch.tensor([[bos, *tokens] for tokens, _ in alive])
        logits = book.model(source.expand(len(alive), -1), target_in)[:, -1]
        total = logits.log_softmax(-1) + torch.tensor([[p] for _, p in alive])
        best = total.flatten().topk(width - len(ended))  # V places for each
        found = zip(best.values.tolist(), best.indices.tolist())
        rounds.append([(alive[i // V][0] + [i % V], p) for p, i in found])
        ended += [one for one in rounds[-1] if one[0][-1] == eos]
        alive = [one for one in rounds[-1] if one[0][-1] != eos]
    return ended, rounds
print(f"{len(plain_beam_search(source)[0])} finished hypotheses")

# %%
ended, rounds = plain_beam_search(source)
print("after three rounds:")
for tokens, log_p in rounds[2]:
    print(f"{log_p:8.3f}  {' '.join(book.tokenizer.pieces(tokens))}")

# %% mystnb={"image": {"alt": "A beam search drawn as a tree from left to right. Each column is a round with at most four tokens, those that lead to the best ending on top, each joined by a line to the hypothesis that it extends. Hypotheses that are given up end without a successor. The finished ones end in a box with their score; the path of the winner is drawn thick."}, "figure": {"caption": "The beam on *I have bought a new umbrella.*: a column for each round, at most four hypotheses, those that lead to the best ending on top. Boxes are endings with their score; the thick path is the winner.", "name": "fig-beam"}} tags=["hide-input"]
score = {tuple(tokens): log_p / length_penalty(len(tokens), 0.6) for tokens, log_p in ended}
translation_pictures.beam(book, score, rounds)

# %% [markdown]
# Here is the same search on a sentence of yours (on the web page of this chapter):
#
# ```{translator} beam
# :text: I have bought a new umbrella.
# ```
#
# How do we rank finished hypotheses of different lengths? $\log P$ is a sum of negative numbers, one per token, so by
# itself it favours short sentences. The paper takes the score of {cite:t}`wu2016google`, which divides by a **length
# penalty**:
#
# $$
# \text{score}(y) = \frac{\log P(y \mid x)}{lp(|y|)}, \qquad
# lp(n) = \left(\frac{5 + n}{6}\right)^{\alpha}, \qquad \alpha = 0.6
# $$ (beam-score)
#
# The search ends at the length of the source + 50 tokens at the latest, and earlier once nothing alive can still win.
# Our dozen lines and the package's search find the same four sentences:

# %%
best = beam_search(book.model, source, beam_size=4, alpha=0.6, n_best=4)[0]
for tokens, total, log_p in best:
    lp = length_penalty(len(tokens) + 1, 0.6)
    print(f"{total:7.3f} = {log_p:7.3f} / {lp:.3f}   "
          f"{book.tokenizer.decode(tokens)}")
    assert_close(total, score[(*tokens, eos)], rtol=1e-4, atol=1e-4)

# %% mystnb={"image": {"alt": "Line chart of the length penalty over lengths from 1 to 40 for alpha 0, 0.6 and 1: constant at 1, rising slowly to 3.4, and rising in a straight line to 7.5."}, "figure": {"caption": "The length penalty. With $\\alpha = 0$ it does nothing, with $\\alpha = 1$ the score of a long sentence is nearly proportional to the mean per token, and the paper's 0.6 lies between.", "name": "fig-penalty"}} tags=["hide-input"]
translation_pictures.penalty()

# %% tags=["hide-cell"]
averaged = average_of_last(5)
for english, _ in test_pairs[:50]:
    one = torch.tensor([[*tokenizer.encode(english), config.eos_id]])
    beam_1 = beam_search(averaged, one, beam_size=1)[0][0]
    assert beam_1.tokens == greedy_search(averaged, one)[0]
print("a beam of 1 and greedy search agree on 50 sentences")

# %% [markdown]
# ### What a step keeps from the steps before
#
# Our dozen lines run the whole decoder again for every new token. The package has a **cache of keys and values**, which
# are computed once per token; its method `step` takes one new token per hypothesis and returns the logits after it,
# with the same decoder layers. The hypotheses of a sentence share their beginnings, so the cache holds each token once,
# as a tree, and a mask says which tokens belong to which hypothesis. Nothing is copied when a hypothesis branches or is
# given up. Here are two steps, with numbers for words: after the second, 10 has two children, and 11 has been given up.

# %%
first, second = torch.tensor([[10, 11, 12]]), torch.tensor([[20, 21, 22]])
with torch.inference_mode():
    state = book.model.start(source)
    book.model.step(torch.tensor([[bos]]), state)
    state.reorder(torch.tensor([[0, 0, 0]]))  # all three continue the only one
    book.model.step(first, state)
    state.reorder(torch.tensor([[0, 0, 2]]))
    logits = book.model.step(second, state)
continues = (state.target_mask == 0)[0, 0].int().tolist()
print("in the cache:              bos 10 11 12 20 21 22")
for tokens, row in zip(("10 20", "10 21", "12 22"), continues):
    print(f"hypothesis {tokens} continues", *(f"{seen:2}" for seen in row))

# %% mystnb={"image": {"alt": "Left, a small tree: bos has the children 10, 11 and 12; 10 has the children 20 and 21, and 12 has the child 22; 11 has none and is grey. Right, the mask as a grid: the three hypotheses down, the seven cached tokens across; each row is filled at the tokens on its path from bos, and the column of 11 is empty."}, "figure": {"caption": "Left: the cached tokens as a tree. Right: the mask that lets each hypothesis see the tokens on its own path; 11 is seen by none.", "name": "fig-cache"}} tags=["hide-input"]
translation_pictures.cache(continues)

# %% tags=["hide-cell"]
assert continues == [[1, 1, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 1, 0], [1, 0, 0, 1, 0, 0, 1]]
for w, tokens in enumerate(([10, 20], [10, 21], [12, 22])):
    with torch.inference_mode():
        alone = book.model(source, torch.tensor([[bos, *tokens]]))
    assert_close(logits[:, w], alone[:, -1], rtol=1e-3, atol=1e-3)
print("each hypothesis gets the logits that one forward pass over its own tokens gives")

# %% [markdown]
# ### How wide, and how strong a penalty?
#
# A wider beam searches more and finds hypotheses of a higher score, in a time that grows with the width. BLEU need not
# agree. We try it on 200 test sentences with our own weak model.

# %% tags=["nbval-ignore-output", "row-X8"]
sources = [english for english, _ in test_pairs]
references = [german for _, german in test_pairs]
translator, mean_score = Translator(averaged, tokenizer), {}
for beam_size in (1, 2, 4, 8):
    started = time.perf_counter()
    found = translator.n_best(sources[:200], n_best=1, beam_size=beam_size)
    found = [best for [best] in found]
    seconds = time.perf_counter() - started
    mean_score[beam_size] = sum(best.score for best in found) / len(found)
    reached = bleu([best.text for best in found], references[:200]).score
    print(f"beam {beam_size}: mean score {mean_score[beam_size]:.3f}, "
          f"BLEU {reached:.1f}, {seconds:.0f} s")
assert mean_score[1] < mean_score[4] and mean_score[1] < mean_score[8]

# %% tags=["nbval-ignore-output", "row-E13"]
outputs = {alpha: translator.translate(sources[:200], alpha=alpha)
           for alpha in (0.0, 0.6, 4.0)}
n_words = {alpha: sum(len(line.split()) for line in lines)
           for alpha, lines in outputs.items()}
for alpha, lines in outputs.items():
    reached = bleu(lines, references[:200]).score
    print(f"alpha {alpha}: {n_words[alpha] / 200:.2f} words per sentence, "
          f"BLEU {reached:.1f}")
wanted = sum(len(line.split()) for line in references[:200])
print(f"references: {wanted / 200:.2f} words")
assert max(n_words[0.0], n_words[0.6]) < n_words[4.0]

# %% [markdown]
# The mean score rises with the width, BLEU hardly changes (on 200 sentences a difference of one BLEU is within chance,
# as the next section measures), and only an $\alpha$ of 4 makes the outputs longer. With much wider beams translations
# even get *worse*, the **beam's curse** {cite}`koehn2017six`. The better search finds what the model really prefers,
# and that is too short {cite}`murray2018correcting`: {cite:t}`stahlberg2019nmt` searched to the very end, and for more
# than half of their test sentences the most probable translation was the empty one.

# %% [markdown]
# ## BLEU, with its signature
#
# BLEU {cite}`papineni2002bleu` counts which share of the output's runs of one to four words are also in the reference,
# takes the geometric mean of the four shares, and multiplies it by a **brevity penalty** where the outputs are shorter
# than the references ([by hand in the next chapter](6_1_results.ipynb)). It depends on how text is cut into words, so
# we can compare scores of one script only. We report sacreBLEU {cite}`post2018call` on plain, cased text, with its
# signature, by which anyone can repeat the number. For two files the command is `sacrebleu references.de -i output.de`.

# %% tags=["nbval-ignore-output", "row-X3", "row-E14"]
last = Translator(average_of_last(1), tokenizer)
systems = {
    "last checkpoint, greedy": last.translate(sources, beam_size=1),
    "average of 5, greedy": translator.translate(sources, beam_size=1),
    "average of 5, beam 4": translator.translate(sources, beam_size=4)}
scores = {name: bleu(output, references) for name, output in systems.items()}
for name, (reached, _) in scores.items():
    print(f"{name:25} BLEU {reached:5.2f}")
print(scores["average of 5, beam 4"].signature)
weak = scores["average of 5, beam 4"].score
assert weak >= 2 and weak > scores["last checkpoint, greedy"].score - 0.5

# %% [markdown]
# On every machine our two minutes should reach a BLEU of 2 at least. The average and the beam seem to add a little
# each. Is that more than chance?
#
# (section-bootstrap)=
# ### Is one system better than another?
#
# Other test sentences would have given other scores. The **paired bootstrap** {cite}`koehn2004statistical` imitates
# other test sets: it draws as many sentences with replacement, scores both systems on the *same* drawn sentences, and
# repeats that a thousand times. What makes a sentence hard for both cancels in the difference. Corpus BLEU comes from
# sums of ten counts per sentence, so we count once and only redo the sums (sacreBLEU's option is `--paired-bs`):

# %%
def paired_bootstrap(ours, theirs, references, times=1000):
    """The BLEU difference of two systems: its 2.5, 50 and 97.5 percentiles."""
    a, b = (torch.tensor([*map(bleu_counts, lines, references)])
            for lines in (ours, theirs))
    def score(counts, rows):
        return bleu_from_counts(counts[rows].sum(0).tolist())

    draws = torch.randint(len(a), (times, len(a)),
                          generator=torch.Generator().manual_seed(0))
    differences = torch.tensor([score(a, rows) - score(b, rows)
                                for rows in draws])
    return differences.quantile(torch.tensor([0.025, 0.5, 0.975])).tolist()
print("a system against itself:", paired_bootstrap(*[references[:50]] * 3))

# %% tags=["nbval-ignore-output"]
names = list(systems)
for better, worse in ((names[1], names[0]), (names[2], names[1])):
    low, middle, high = paired_bootstrap(systems[better], systems[worse],
                                         references)
    print(f"{better:22} minus {worse:24} {middle:+.2f} BLEU "
          f"(95 %: {low:+.2f} to {high:+.2f})")
    assert low < middle < high

# %% [markdown]
# An interval that excludes 0 says that these two *models* differ on such sentences. It says nothing about another
# training run with another seed, which [chapter 6.2](6_2_variations.ipynb) adds. Here a difference below about half a
# BLEU could not be told from chance; many published gains are smaller.
#
# (section-beyond-bleu)=
# ### What BLEU cannot see
#
# BLEU looks for equal words and ignores what they mean. Here are two translations of *He has not read the book*, for
# the reference *Er hat das Buch nicht gelesen.*

# %%
reference = ["Er hat das Buch nicht gelesen."]
remarks = {
    "Er hat das Buch jetzt gelesen.": "he has read it now: wrong",
    "Das Buch hat er nicht gelesen.": "the same, in another order: right",
    "Er hat dieses Buch nicht gelesen.": "this book: nearly right"}
of_lines = [bleu([line], reference).score for line in remarks]
for score, (line, remark) in zip(of_lines, remarks.items()):
    letters = chrf([line], reference).score
    print(f"BLEU {score:5.1f}  chrF {letters:5.1f}  {line}  ({remark})")
assert of_lines[0] > of_lines[1]

# %% [markdown]
# BLEU prefers the opposite to the truth in another order. **chrF** {cite}`popovic2015chrf` counts runs of *letters*
# instead of words; it forgives an ending or a compound, which suits German, and does not know meaning either. **COMET**
# {cite}`rei2020comet` and **MetricX** {cite}`juraska2024metricx` are themselves trained Transformers: from source,
# output and reference they predict the score that a person would give. They agree with people far better, and the
# shared task on metrics of 2022 was titled *Stop Using BLEU* {cite}`freitag2022results`. They have weaknesses of their
# own: a score without a unit, other versions that cannot be compared, blindness for some wrong numbers and names, and a
# bias towards systems that were tuned for them. Today one reports chrF or BLEU with the signature **and** a learned
# metric with its exact model, and asks people where it matters. `comet-score -s input.en -t output.de -r references.de`
# scores with COMET, after a download of two gigabytes; this book has not run it.
#
# If a metric knows better than the model's probability, why not *search* with it? **Minimum Bayes risk** decoding (MBR)
# {cite}`kumar2004minimum,eikema2020map` takes, among several candidates, the one that is on average most similar to all
# of them: it asks for the consensus instead of the mode. We use chrF as similarity, and the book's model:

# %% tags=["nbval-ignore-output"]
def consensus(candidates):
    """The text with the highest mean chrF against all other candidates."""
    texts = [candidate.text for candidate in candidates]
    def utility(one):
        return sum(chrf([one], [other]).score for other in texts)
    return max(texts, key=utility)
candidates = book.n_best(sources[:100], n_best=6, beam_size=6)
chosen = {"beam": [best.text for best, *_ in candidates],
          "MBR": [consensus(some) for some in candidates]}
for name, lines in chosen.items():
    words, letters = (score(lines, references[:100]) for score in (bleu, chrf))
    print(f"{name:5} BLEU {words.score:.1f}, chrF {letters.score:.1f}")
low, _, high = paired_bootstrap(chosen["MBR"], chosen["beam"], references[:100])
print(f"BLEU of MBR minus beam, 95 %: {low:+.1f} to {high:+.1f}")
assert low < high

# %% [markdown]
# A search favours its own measure, so one does not evaluate with the metric that one searched with; the interval says
# whether BLEU has changed by more than chance. With a thousand samples as candidates and a learned metric,
# {cite:t}`freitag2022high` found translations that people prefer to the beam's although the model thinks them less
# likely, at hundreds of times the cost.
#
# One question needs no metric: are the numbers and names of the source still there? (A word with a capital is a name
# unless training translates it.) For people who type into the page, `for_visitors` wraps the translator: where the best
# has lost a number or a name, it searches again with a beam four times as wide, and takes what has lost the fewest. The
# model often repeats a double digit:

# %%
asked = ["I haven't seen Tom since 1988.", "Mr. Fitzgerald lives there."]
typed = for_visitors(book)
for text in asked:
    [[best]] = book.n_best([text], n_best=1)
    [[kept]] = typed.n_best([text], n_best=1)
    print(f"best {best.score:.2f}  {best.text}")
    print(f"kept {kept.score:.2f}  {kept.text}")
    assert kept.score < best.score and not kept.lost

# %% [markdown]
# [LOG.md](https://github.com/annotated-transformer/annotated-transformer/blob/main/LOG.md) counts what that brings.
#
# ## What hours instead of minutes buy
#
# The model in `book/model` was trained by one recorded command, on a larger corpus of the same kind, without every pair
# that shares a sentence, on either side, with our validation or test split. Its card and its result file tell the
# settings and the time.

# %%
card = Path("model/README.md").read_text()
result = json.loads(Path("results/visitors.json").read_text())
record, width = result["records"][0], book.model.config.d_model
by_alpha = record["by_alpha"]
print(textwrap.fill(card.split("## Trained on")[0].strip(), 80))
for stage in record["stages"]:
    train, minutes = stage["settings"]["train"], stage["train_seconds"] / 60
    peak = train["lr_factor"] / math.sqrt(width * train["warmup_steps"])
    print(f"{stage['steps']:6,} steps in {minutes:.0f} minutes, highest rate "
          f"{peak:.1e}, concatenate {train.get('concatenate', 0):.0f}")
for one in by_alpha["valid"]:
    print(f"validation, alpha {one['alpha']}: BLEU {one['BLEU']:.2f}")
for found in (record["test"], by_alpha["test"]):
    print(f"test, alpha {found['alpha']}: BLEU {found['BLEU']['score']:.2f}, "
          f"brevity penalty {found['brevity_penalty']:.3f}")

# %% [markdown]
# The paper chose $\alpha$ on its development set, so we may too; the last line is the test score of the $\alpha$ that
# is best on our validation split. The highest rate is one at which attention stays spread over several keys
# ([5.3](5_3_optimizer.ipynb)). A `concatenate` of 1 adds to every pair of an epoch another one that is two random pairs
# joined, source to source and target to target {cite}`nguyen2021data`: every word meets other neighbours, and the model
# sees more long sentences. Each stage ends with an average, which after a rate of 0 brings
# nothing. [LOG.md](https://github.com/annotated-transformer/annotated-transformer/blob/main/LOG.md) tells what we tried.

# %% tags=["nbval-ignore-output"]
book_output = book.translate(sources)
book_score = bleu(book_output, references)
ours, theirs = (sum(len(line.split()) for line in lines)
                for lines in (book_output, references))
print(f"the book's model: BLEU {book_score.score:5.2f}, "
      f"its outputs have {ours / theirs:.2f} of the references' words")
print(f"this chapter's:   BLEU {weak:5.2f}")
print(book_score.signature)
assert abs(book_score.score - record["test"]["BLEU"]["score"]) < 0.2

# %% tags=["nbval-ignore-output"]
lines = zip(sources, references, book_output, systems["average of 5, beam 4"])
assert len(book_output) == len(references)
Table(("source", "reference", "hours", "minutes"), list(lines)[:6])

# %% [markdown]
# Let us read them. On the short ones the book's model is mostly right. Ours begins like a German sentence, and then
# leaves the source or the grammar; on longer ones it repeats itself and invents. Both models can be fluent and wrong,
# and BLEU, with one reference, counts a good translation in other words as partly wrong. So always read the outputs.
#
# Can we compare these scores with the paper's 27.3 and 28.4? BLEU compares systems on one test set under one signature,
# and here both differ: the paper translates the news of newstest2014, and we translate everyday sentences of seven
# words.
#
# ## Where the decoder looks
#
# In encoder-decoder attention (section 3.2.3) the queries are target positions, and the keys are source positions. So
# the weights of a head are a matrix with a row for each target token and a column for each source token, and every row
# sums to 1. (We draw the mean of the last layer's heads.) A row belongs to the token that the decoder has just read,
# and serves to predict the next one: the labels on the right say which.

# %%
model, tokenizer = load_model("model")
sentence = "My brother is reading a book in the garden."
source = torch.tensor([[*tokenizer.encode(sentence), model.config.eos_id]])
output = beam_search(model, source)[0][0].tokens
target_in = torch.tensor([[model.config.bos_id, *output]])
with record_attention(model) as weights, torch.inference_mode():
    model(source, target_in)
cross = weights[f"decoder.layers.{model.config.N - 1}.cross_attention"][0]
share, key = cross.mean(0).max(-1)
keys = tokenizer.pieces(source[0, key].tolist())
print("predicts, looks at, with the share")
for predicted, looked_at, much in zip(tokenizer.pieces(output), keys, share):
    print(f"{predicted:10}{looked_at:10}{much:.1f}")

# %% mystnb={"image": {"alt": "Heat map of the mean encoder-decoder attention of the last layer: target tokens down, source tokens across. Most rows have one brightest cell, which lies at the source token that matches the predicted one; some are spread over several cells."}, "figure": {"caption": "Most rows are brightest at the word that they are about to translate. Encoder-decoder attention of the book's model, last layer, mean of its heads: a row for each token that is read, with the token that it predicts on the right; a column for each source token.", "name": "fig-translation-attention"}} tags=["hide-input"]
translation_pictures.translation_attention(cross, model, output, source, target_in, tokenizer)
assert {"▁brother", "▁book", "▁garden"} <= set(keys) and torch.allclose(cross.sum(-1), torch.ones(()))

# %% [markdown]
# Each of *brother*, *book* and *garden* is the brightest cell of a row. Other rows may be less clear, and a picture like
# this is a hint, rather than a proof, of what the model uses {cite}`jain2019attention,wiegreffe2019attention`;
# [chapter 7](7_attention_visualizations.ipynb) measures what is lost without a head.
#
# ## Your own sentence
#
# Change the sentence and run the cell. The model knows everyday English in short sentences. For pairs of your own,
# `annotated-transformer new mine.tsv --out mine` trains, scores and builds a page; a model that others have trained,
# such as opus-mt, comes in with [`import`](other_programs.md).

# %%
for translation in book.n_best(["Where is the train station?"], n_best=3)[0]:
    print(f"{translation.score:7.3f}  {translation.text}")

# %% [markdown]
# The same on the command line, for a file of any length:
#
# ```
# annotated-transformer translate book/model < input.en > output.de
# annotated-transformer evaluate book/model --corpus tatoeba-en-de --split test
# ```
#
# :::{dropdown} Where this is
# `book/lab/training_loop.py` is the loop; `annotated_transformer/data/` has corpora, vocabulary and batches,
# `training/loop.py` the package's training, `checkpoint/averaging.py` its averages, `decoding/search.py` the search,
# `decoding/evaluation.py` BLEU and perplexity, `model/decoding_state.py` the cache. The tests lie in the same
# folders of `tests/`; `test_search.py` compares the search with brute force over all sentences of a small vocabulary.
# :::
#
# ## Exercises

# %% [markdown] tags=["exercise"]
# ```{exercise} How long is an epoch?
# :label: ex-epoch
#
# Grouped by length, the corpus makes about 1,800 batches of at most 320 tokens a side. How many times did the model see
# each pair in 1,500 steps?
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-epoch
# :class: dropdown
#
# 1,500 / 1,800 is less than once: it has not seen every pair. The paper does not say how long its pairs are: at, say,
# 28 target tokens a pair, its 100,000 steps of 25,000 target tokens over 4.5 million pairs are some 20 epochs.
# ```

# %% [markdown] tags=["exercise"]
# ```{exercise} Rank by hand
# :label: ex-rank
#
# Two hypotheses: $\log P = -4.0$ with 5 tokens, and $\log P = -4.5$ with 9 (both count the end). Which wins with
# $\alpha = 0$, with 0.6 and with 1?
#
# *Hint*: compute the two penalties first.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-rank
# :class: dropdown
#
# With $\alpha = 0$ the penalties are 1, and the first wins with $-4.0$. With 0.6 they are 1.359 and 1.663, and the
# scores $-2.944$ and $-2.707$: the second wins. With 1, $-2.400$ and $-1.929$: the second again.
# ```

# %% tags=["hide-input", "solution"]
for alpha, winner in ((0.0, 0), (0.6, 1), (1.0, 1)):
    ranked = [log_p / length_penalty(n, alpha) for log_p, n in ((-4.0, 5), (-4.5, 9))]
    print(f"alpha {alpha}: {ranked[0]:.3f} and {ranked[1]:.3f}")
    assert ranked.index(max(ranked)) == winner

# %% [markdown] tags=["exercise"]
# ```{exercise} When may the search stop?
# :label: ex-stop
#
# The best finished hypothesis has the score $-2.0$. The best live one has $\log P = -4.8$ at 6 tokens, and the limit is
# 12 tokens. With $\alpha = 0.6$, can it still win?
#
# *Hint*: $\log P$ only falls from here, and the penalty grows with length.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-stop
# :class: dropdown
#
# The best it can do is to lose nothing more and to be as long as allowed: $-4.8 / lp(12)$ with
# $lp(12) = (17/6)^{0.6} = 1.868$, which is $-2.570$. That is below $-2.0$, so the search may stop and loses nothing.
# This is the test that `beam_search` makes.
# ```

# %% tags=["hide-input", "solution"]
best_possible = -4.8 / length_penalty(12, 0.6)
print(f"{best_possible:.3f}")
assert best_possible < -2.0

# %% [markdown] tags=["exercise"]
# ```{exercise} Average too much
# :label: ex-average
#
# Average five checkpoints that lie 100 steps apart from the *beginning* of a run. What do you expect, and what do you
# measure?
#
# *Hint*: `checkpoints[:5]`.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-average
# :class: dropdown
#
# Early weights move fast and in one direction, so their mean is an older model, worse than the last. Averaging
# helps when the weights go round a place instead of towards it: near the end, or at a low rate.
# ```

# %% [markdown] tags=["exercise"]
# ```{exercise} Perplexity and smoothing
# :label: ex-perplexity
#
# Train once more without smoothing (`partial(summed_loss, eps_ls=0.0)`). Which of validation perplexity and BLEU gets
# better? The paper says (5.4) that smoothing hurts perplexity and helps BLEU; does your run agree, and is one run
# enough to tell?
#
# *Hint*: change the seed too, and see how far two runs with the same settings lie apart.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-perplexity
# :class: dropdown
#
# Perplexity without smoothing is lower, since the model may put all its probability on one token: in the miniature of
# [chapter 6.2](6_2_variations.ipynb) with every seed, at both lengths. The difference in BLEU is often smaller than that between
# two seeds at this size: one run cannot tell.
# ```

# %% [markdown]
# ### Write them yourself
#
# Three exercises ask for functions. `check` calls yours with small inputs and prints one line: that it is right, or
# what is wrong with it, without the answer.

# %% [markdown] tags=["exercise"]
# ```{exercise} The average of models (check 6.1-average)
# :label: ex-write-average
#
# Write `average(weights)`. `weights` is a list of dictionaries, one for each checkpoint, from the name of a weight to
# its tensor; the result is one such dictionary, with the mean of the tensors under each name. The checkpoints must stay
# as they are. Check it with `check("6.1-average", average)`.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# `torch.stack` makes one tensor of several that have the same shape, with a new axis in front.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-write-average
# :class: dropdown
#
# Every checkpoint has the same names, so those of the first will do. The mean is over the checkpoints, not over a
# weight's entries. Adding them up in the first dictionary (`weights[0][name] += ...`) and dividing there would also
# give the mean, and would change a checkpoint.
# ```

# %% tags=["hide-cell", "solution"]
from lab.exercises import check

def my_average(weights):
    return {name: torch.stack([one[name] for one in weights]).mean(dim=0) for name in weights[0]}

check("6.1-average", my_average)
two = [{"W": torch.tensor([1.0, 5.0])}, {"W": torch.tensor([3.0, 9.0])}]
assert my_average(two)["W"].tolist() == [2, 7]
assert two[0]["W"].tolist() == [1, 5]  # still

# %% [markdown] tags=["exercise"]
# ```{exercise} The length penalty (check 6.1-penalty)
# :label: ex-write-penalty
#
# Write `length_penalty(length, alpha)`, by which $\log P$ is divided, from its formula in this chapter. Then say which
# lengths it favours when $\alpha = 0$. Check it with `check("6.1-penalty", length_penalty)`.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# The penalty of length 1 is 1 for every $\alpha$.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-write-penalty
# :class: dropdown
#
# $lp(n) = \left(\frac{5 + n}{6}\right)^{\alpha}$. With $\alpha = 0$ it is 1 for every length, and the score is $\log P$
# itself. That does not treat all lengths alike: every further token makes $\log P$ smaller, so short hypotheses win.
# ```

# %% tags=["hide-cell", "row-E13", "solution"]
def my_length_penalty(length, alpha):
    return ((5 + length) / 6) ** alpha

check("6.1-penalty", my_length_penalty)
for length in (1, 7, 40):
    assert my_length_penalty(length, 0.0) == my_length_penalty(1, 0.6) == 1
    assert math.isclose(my_length_penalty(length, 0.6), length_penalty(length, 0.6))

# %% [markdown] tags=["exercise"]
# ```{exercise} One step of the beam (check 6.1-beam)
# :label: ex-write-beam
#
# Write `beam_step(log_p, scores, beam_size)`, the heart of beam search for one sentence. Entry $(w, t)$ of `log_p` is
# the log-probability of token $t$ after hypothesis $w$, and `scores` has the $\log P$ of each hypothesis so far. Return
# `(parents, tokens, scores)`, three tensors with `beam_size` entries: of the best continuations, best first, the
# hypothesis that is continued, the token that continues it, and the new $\log P$. (Ended hypotheses and the length
# penalty are left out.) Check it with `check("6.1-beam", beam_step)`.
# ```

# %% [markdown]
# ```{admonition} Hint
# :class: dropdown, tip
#
# All continuations of all hypotheses compete in one list. `topk` of the flattened scores finds the best; from a place
# in that list, a division and its remainder lead back to the row and the column.
# ```

# %% [markdown] tags=["solution"]
# ```{solution} ex-write-beam
# :class: dropdown
#
# Probabilities of a continuation multiply, so their logarithms add up. In the flattened scores each hypothesis has a
# stretch of $V$ places: place $i$ belongs to hypothesis $\lfloor i / V \rfloor$ and token $i \bmod V$. In the folded
# cell, the best two continuations both come from hypothesis 0, whose two likely tokens beat all of hypothesis 1:
# taking the best token of each would have missed one.
# ```

# %% tags=["hide-cell", "solution"]
def my_beam_step(log_p, scores, beam_size):
    best = (log_p + scores[:, None]).flatten().topk(beam_size)
    n_tokens = log_p.size(1)
    return best.indices // n_tokens, best.indices % n_tokens, best.values

check("6.1-beam", my_beam_step)
log_p = torch.tensor([[0.5, 0.4, 0.1], [0.3, 0.3, 0.4]]).log()
parents, tokens, scores = my_beam_step(log_p, torch.tensor([0.7, 0.3]).log(), 2)
assert parents.tolist() == [0, 0] and tokens.tolist() == [0, 1]
assert_close(scores.exp(), torch.tensor([0.35, 0.28]))
