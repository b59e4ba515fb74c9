# %% [markdown]
# # 6.1 Machine translation
#
# *Section 6.1 of the paper {cite}`vaswani2017attention`: a model is trained, its last checkpoints are averaged, a beam
# search finds its translations, and BLEU scores them.*
#
# The paper's model read 4.5 million sentence pairs on eight GPUs for twelve hours. You train the same model, smaller,
# on 36,524 pairs of everyday sentences on one core of a laptop, in two minutes. Sizes, dropout and the factor of the
# learning rate are changed; the rest is the paper's recipe: one shared vocabulary, batches by token count, Adam with the
# warm-up schedule, label smoothing, averaging, beam search with a length penalty. What comes out is a **weak**
# translator, and this chapter says how weak. Beside it stands the **book's model**, which had the same data, and hours
# instead of minutes, so that you see what more training does.
#
# When you have read this chapter you can
#
# - train a Transformer on two lists of sentences, and read its log;
# - average checkpoints and say what changes;
# - follow a beam search by its scores, and compute one by hand;
# - report a BLEU score that someone else can compare with;
# - draw whom the decoder looks at, with the axes the right way round.
#
# On a laptop the whole chapter takes some five minutes. Numbers of a training run vary a
# little from machine to machine; where a claim rests on them, a cell asserts a bound with room for that.

# %%
import json
import math
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch.testing import assert_close

# %%
from annotated_transformer import (
    ModelConfig, Tokenizer, TrainConfig, Transformer, Translator, average_checkpoints, beam_search, bleu,
    corpus, greedy_search, load_model, noam_learning_rate, perplexity, record_attention, token_batches,
    train)
from annotated_transformer.checkpoint import load_tensors, step_checkpoints
from annotated_transformer.looking.visualization import plot_attention, show, use_style
from annotated_transformer.text.batching import encode_pairs
from annotated_transformer.text.parallel_text import fold
from annotated_transformer.translation.search import length_penalty

use_style()

# %% [markdown]
# ## The corpus
#
# **Question.** What does the model learn from, and may we trust a score on it?
#
# The default corpus comes from [Tatoeba](https://tatoeba.org), a collection of everyday sentences that volunteers
# write and translate {cite}`tatoeba`. Credit: **Tatoeba contributors, tatoeba.org, CC BY 2.0 FR**.

# %%
splits = {split: corpus.load("tatoeba-en-de", split) for split in corpus.SPLITS}
train_pairs, valid_pairs, test_pairs = splits.values()
for split, pairs in splits.items():
    print(f"{split:6}{len(pairs):7,} pairs")
for english, german in train_pairs[:4]:
    print(f"  {english}  |  {german}")

# %% [markdown]
# The sentences are short, and many are nearly the same: *Tom* is in one pair of ten. That makes a trap. If "Tom is
# late." were in the training data with one translation and in the test data with another, the test would reward
# memory. So pairs that share a sentence on either side, case and punctuation aside, form a group, and a group lies
# in one split as a whole.
#
# **Check.** No test sentence, on either side, occurs in the training data.

# %%
for side, language in enumerate(("English", "German")):
    seen = {fold(pair[side]) for pair in train_pairs}
    leaked = sum(fold(pair[side]) in seen for pair in test_pairs)
    print(f"{language}: {leaked} of {len(test_pairs)} are in the training data")
    assert leaked == 0
words = [len(english.split()) for english, _ in train_pairs]
toms = sum("Tom" in english for english, _ in train_pairs)
print(f"mean length {sum(words) / len(words):.1f} words")
print(f"Tom is in {toms / len(train_pairs):.0%}")

# %% [markdown]
# ## One vocabulary for both languages
#
# **Question.** What are the model's symbols?
#
# Byte-pair encoding {cite}`sennrich2016neural` starts from single characters and merges the pair that occurs most
# often, again and again, until the vocabulary is full. Frequent words become one token, rare ones come apart. The
# paper has one vocabulary of about 37,000 tokens for both languages. This corpus is small and the training short, so
# ours has 2,000: a token that is rarer than that would hardly be seen in two minutes.
#
# It is learned from the **training split only**. A vocabulary that has seen the test sentences has seen the
# future: their rare words would come out as whole tokens.

# %%
sentences = (sentence for pair in train_pairs for sentence in pair)
tokenizer = Tokenizer.train(sentences, vocab_size=2000)
english, german = test_pairs[0]
for sentence in (english, german):
    ids = tokenizer.encode(sentence)
    print(sentence, "->", tokenizer.pieces(ids))
    assert tokenizer.decode(ids) == sentence

# %% [markdown]
# The sign ▁ stands for a space. Nothing is lost: `decode` gives the sentence back.
#
# ## Batches of similar length
#
# **Question.** How many sentences does one step see?
#
# The paper counts tokens, not sentences: about 25,000 on each side of a batch, in pairs of similar length (section
# 5.1). Sentences of one batch are filled up with padding to the longest, and computing on padding is waste. Here is
# the share of real tokens on the target side for batches of at most 320 tokens a side, grouped by length, and for
# batches of 50 pairs as they come.

# %%
encoded = encode_pairs(tokenizer, train_pairs, max_length=100)
batches = list(token_batches(encoded, max_tokens=320, seed=1))
n_real = sum(batch.n_tokens for batch in batches)
grouped = n_real / sum(batch.target_out.numel() for batch in batches)

lengths = [len(target) + 1 for _, target in encoded]
rows = [lengths[start : start + 50] for start in range(0, len(lengths), 50)]
as_they_come = n_real / sum(max(row) * len(row) for row in rows)
print(f"{len(batches)} batches an epoch")
print(f"real target tokens: grouped {grouped:.1%}, as they come {as_they_come:.1%}")
assert grouped > 0.95 > as_they_come

# %% [markdown]
# A step sees 36,524 / 1,830 pairs on average, which is close to 20: more of short sentences, fewer of long ones.
#
# ## The model
#
# **Question.** How small is small?
#
# The letters are those of Table 3. `tiny` is a preset; two layers instead of three, and half of its widths, make it faster
# still. Dropout is off: in less than one pass over the data nothing is learned by heart, and a step without
# dropout is faster. The book's model, which saw each pair some forty times as often, had 0.3 in its first stage.

# %%
config = ModelConfig.tiny(tokenizer.vocab_size, N=2, d_model=64, d_ff=256, p_drop=0.0)
base = ModelConfig.base(vocab_size=37_000)
for name in ("N", "d_model", "d_ff", "h", "d_k", "p_drop", "vocab_size"):
    ours, papers = getattr(config, name), getattr(base, name)
    print(f"{name:11}{ours:7}   paper's base {papers:7}")
n_parameters = sum(p.numel() for p in Transformer(config).parameters())
print(f"{n_parameters:,} parameters, the paper's base has 65 million")

# %% [markdown]
# ## Training
#
# **Question.** What happens in one step, and how often?
#
# One step takes a batch, computes the label-smoothed loss {cite}`szegedy2016rethinking` of every target token given
# the source and the tokens before it, and lets Adam {cite}`kingma2015adam` change all weights. The learning rate of
# step $s$ is set before the step:
#
# $$
# \text{rate}(s) = f \cdot d_{\mathrm{model}}^{-0.5} \cdot \min(s^{-0.5},\; s \cdot \text{warmup}^{-1.5})
# $$ (translation-rate)
#
# With $f = 1$ and 4,000 warm-up steps this is equation 3 of the paper. A run of 1,500 small steps has no time for
# 4,000 of them, so ours warms up in 200, and $f = 0.5$ keeps the peak where the run is stable. The code of one
# step, as the package runs it:

# %%
from annotated_transformer import TrainingRun

show(TrainingRun.step)

# %% [markdown]
# The loss is a *sum* over tokens, divided once by the number of real target tokens of all batches in the step. A
# mean taken per batch would weigh a token in a short batch more than one in a long batch.
#
# Now train, for two minutes or less on a quiet core. Every 750 steps the model translates the validation split, greedily, and its BLEU goes to the log. Every
# 50 steps the weights are saved; the last twenty files are kept, to average later.

# %% tags=["nbval-ignore-output"]
run = Path(tempfile.mkdtemp()) / "tatoeba"
train_config = TrainConfig(
    train_steps=1500, max_tokens=320, warmup_steps=200, lr_factor=0.5,
    log_every=50, validate_every=750, checkpoint_every=50, keep_checkpoints=20,
)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = train(config, train_config, tokenizer, train_pairs, valid_pairs, run, device=device).to("cpu")
lines = (run / "log.jsonl").read_text().splitlines()
log = [json.loads(line) for line in lines]
steps = [record for record in log if "loss" in record]
validated = [record for record in log if "valid_ppl" in record]
for record in validated:
    print("step {step}: perplexity {valid_ppl:.2f}, BLEU {valid_bleu:.1f}".format(**record))

# %% [markdown]
# ## Reading the log
#
# **Question.** Did it learn, and was the rate what we asked for?
#
# **Check.** Every logged rate is equation {eq}`translation-rate`, from the first step on, and the loss has fallen from
# that of a guess among 2,000 tokens, $\ln 2000 = 7.6$ nats, to less than 4.

# %%
for record in steps:
    rate = noam_learning_rate(record["step"], config.d_model, 200, factor=0.5)
    assert record["rate"] == rate
first, last = steps[0], steps[-1]
assert math.log(2000) > first["nll"] > 4 and last["nll"] < 3.8
assert validated[-1]["valid_ppl"] < 60
peak = noam_learning_rate(200, config.d_model, 200, factor=0.5)
print(f"a guess costs {math.log(2000):.1f} nats; the rate peaks at {peak:.2e}")

# %% mystnb={"image": {"alt": "Two line charts over 1,500 training steps. Left: the loss in nats per token falls steeply in the first thousand steps and slowly after; the smoothed loss lies above the unsmoothed one, and the two validation points lie between the two. Right: the learning rate rises in a straight line for 200 steps and falls with the inverse square root of the step."}, "figure": {"caption": "Left: loss of the training batches, with and without smoothing, and of the validation split. Right: the learning rate of every hundredth step.", "name": "fig-training"}} tags=["nbval-ignore-output"]
figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 2.8), layout="constrained")
x = [record["step"] for record in steps]
left.plot(x, [record["loss"] for record in steps], label="training, smoothed")
left.plot(x, [record["nll"] for record in steps], "--", label="training")
points = [(record["step"], record["valid_nll"]) for record in validated]
left.plot(*zip(*points, strict=True), "o", label="validation")
left.set(xlabel="step", ylabel="nats a token", ylim=(0, None))
left.legend()
right.plot(x, [record["rate"] for record in steps])
right.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
plt.show()

# %% [markdown]
# The smoothed loss stays above the other. A part $\varepsilon_{ls}$ of its target is spread over the whole
# vocabulary, and a model that has learned something gives most of those tokens a far smaller probability than the
# right one. The validation points and the dashed line are both unsmoothed. They part as the model comes back to
# sentences that it has seen before: some of what it learns from them holds for them alone.
#
# ## Averaging checkpoints
#
# **Question.** The rate is still high when the run ends, and the weights jump about a good place. Can we have the
# place itself?
#
# The paper averages the last 5 checkpoints, written ten minutes apart (base), or the last 20 (big). The mean of the
# weights is one model, which costs nothing more to run:
#
# $$
# \bar\theta = \frac{1}{K} \sum_{k=1}^{K} \theta_k
# $$ (checkpoint-average)
#
# **Check.** One matrix, by hand.

# %% tags=["row-H6"]
averaged = average_checkpoints(run, last=5)
files = step_checkpoints(run)[-5:]
name = "embedding.weight"
by_hand = sum(load_tensors(file)[0][name].double() for file in files) / 5
packages = load_tensors(averaged / "model.safetensors")[0][name]
assert_close(packages.double(), by_hand, rtol=0, atol=1e-7)
print(f"averaged {files[0].stem} to {files[-1].stem}")

# %% [markdown]
# How many? More checkpoints reach further back, to weights that knew less. Here are the last one alone, the mean of
# the last five, and of the last twenty, the oldest of which is from step 550 of 1,500.

# %% tags=["nbval-ignore-output", "row-X7"]
of_twenty = average_checkpoints(run, last=20, out=run.with_name("twenty"))
translator = Translator.from_checkpoint(averaged)
valid_ids = encode_pairs(tokenizer, valid_pairs, max_length=100)
ppl = {1: perplexity(model, valid_ids), 5: perplexity(translator.model, valid_ids),
       20: perplexity(Translator.from_checkpoint(of_twenty).model, valid_ids)}
for n_checkpoints, value in ppl.items():
    print(f"mean of the last {n_checkpoints:2}: validation perplexity {value:.2f}")
assert ppl[5] < ppl[1]

# %% [markdown]
# Five help. Whether twenty help more depends on how fast the model still learns: in a run as short as this one the
# oldest of them are behind. The paper's last twenty lie close together: if they too are ten minutes apart, they span
# some four percent of its run ([the chapter on Table 2](6_1_results.ipynb)).

# %% [markdown]
# ## Beam search
#
# **Question.** The model gives the probability of a *next* token. How do we find a good *sentence*?
#
# Greedy search takes the most probable token at every step. A good sentence may begin with a less probable token, so
# beam search keeps the best few beginnings, the **beam**, and extends them all. The paper keeps 4, and ranks what it
# finds by the score of {cite:t}`wu2016google`:
#
# $$
# \text{score}(y) = \frac{\log P(y \mid x)}{lp(|y|)}, \qquad
# lp(n) = \left(\frac{5 + n}{6}\right)^{\alpha}, \qquad \alpha = 0.6
# $$ (beam-score)
#
# $\log P$ is a sum of negative numbers, one for each token, so without the division short sentences would win. The
# search ends at the length of the source + 50 tokens at the latest, and earlier when nothing alive can still win.
#
# **Check.** The four best translations of one sentence: each score is its $\log P$ over the penalty of its length
# (which counts the end of the sentence), and $\log P$ is what one forward pass over the finished sentence gives.

# %% tags=["nbval-ignore-output"]
source = torch.tensor([[*tokenizer.encode("I have to go home."), config.eos_id]])
best = beam_search(translator.model, source, beam_size=4, alpha=0.6, n_best=4)[0]
for tokens, score, log_p in best:
    lp = length_penalty(len(tokens) + 1, 0.6)
    print(f"{score:7.3f} = {log_p:7.3f} / {lp:.3f}   {tokenizer.decode(tokens)}")
    assert_close(score, log_p / lp)
    target = torch.tensor([[config.bos_id, *tokens, config.eos_id]])
    with torch.inference_mode():
        logits = translator.model(source, target[:, :-1])
    log_p_T = logits[0].log_softmax(-1).gather(-1, target[0, 1:, None])
    assert_close(log_p_T.sum().item(), log_p, rtol=1e-4, atol=1e-3)

# %% [markdown]
# A beam of 1 is greedy search, sentence by sentence. A beam search that drops a finished hypothesis, or counts
# lengths in two ways, fails this test.

# %%
for english, _ in test_pairs[:50]:
    source = torch.tensor([[*tokenizer.encode(english), config.eos_id]])
    beam_1 = beam_search(translator.model, source, beam_size=1)[0][0]
    assert beam_1.tokens == greedy_search(translator.model, source)[0]
print("beam 1 and greedy search agree on 50 sentences")

# %% [markdown]
# **Code.** A step computes the logits of the next token of every hypothesis, from keys and values of the tokens before
# it, which are kept in a cache. The hypotheses of a sentence have their beginnings in common, so together they are a
# *tree*, and the cache holds the tree: each token once, in the order in which they came. A mask says which of them are in
# which hypothesis, just as the causal mask says which positions a query may see. So nothing moves when a hypothesis
# branches or is given up; with a row of its own for each hypothesis, every child would need a copy of all that its
# parent had. The cell goes through two steps, with numbers instead of words: after the second, 10 has two children, and
# 11 has been given up.
#
# ```
# bos ─┬─ 10 ─┬─ 20
#      │      └─ 21
#      ├─ 11
#      └─ 12 ─── 22
# ```

# %%
first, second = torch.tensor([[10, 11, 12]]), torch.tensor([[20, 21, 22]])
with torch.inference_mode():
    state = translator.model.start(source)
    translator.model.step(torch.tensor([[config.bos_id]]), state)
    state.reorder(torch.tensor([[0, 0, 0]]))  # all three continue the only one
    translator.model.step(first, state)
    state.reorder(torch.tensor([[0, 0, 2]]))
    logits = translator.model.step(second, state)

print("in the cache:              bos 10 11 12 20 21 22")
continues = (state.target_mask == 0)[0, 0].int().tolist()
for tokens, row in zip(("10 20", "10 21", "12 22"), continues):
    print(f"hypothesis {tokens} continues " + " ".join(f"{seen:2}" for seen in row))
assert continues == [[1, 1, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 1, 0], [1, 0, 0, 1, 0, 0, 1]]

# %% [markdown]
# No hypothesis has a 1 below 11: it is still there, and no query sees it, until the cache is full and forgets it.
#
# **Check.** A hypothesis gets the logits that it would get alone, from one forward pass over its own tokens.

# %%
for w, tokens in enumerate(([10, 20], [10, 21], [12, 22])):
    with torch.inference_mode():
        alone = translator.model(source, torch.tensor([[config.bos_id, *tokens]]))
    assert_close(logits[:, w], alone[:, -1], rtol=1e-3, atol=1e-3)
print("three hypotheses of one step, and three forward passes: the same logits")

# %% [markdown]
# **Break it.** Take the penalty away ($\alpha = 0$), or make it far too strong, and look at the lengths.

# %% tags=["nbval-ignore-output", "row-E13"]
sources = [english for english, _ in test_pairs]
references = [german for _, german in test_pairs]
outputs = {alpha: translator.translate(sources[:200], alpha=alpha) for alpha in (0.0, 0.6, 4.0)}
n_words = {alpha: sum(len(line.split()) for line in lines) for alpha, lines in outputs.items()}
for alpha, lines in outputs.items():
    score = bleu(lines, references[:200]).score
    print(f"alpha {alpha}: {n_words[alpha] / 200:.2f} words a sentence, BLEU {score:.1f}")
print(f"references: {sum(len(line.split()) for line in references[:200]) / 200:.2f} words")
assert n_words[0.0] <= n_words[0.6] <= n_words[4.0]

# %% [markdown]
# And the width? A wider beam finds hypotheses of a higher score, on average, because it searches more; whether people
# or BLEU like them better is another question. The time grows with the width.

# %% tags=["nbval-ignore-output", "row-X8"]
mean_score = {}
for beam_size in (1, 2, 4, 8):
    started = time.perf_counter()
    found = [best[0] for best in translator.n_best(sources[:200], n_best=1, beam_size=beam_size)]
    seconds = time.perf_counter() - started
    mean_score[beam_size] = sum(best.score for best in found) / len(found)
    score = bleu([best.text for best in found], references[:200]).score
    print(f"beam {beam_size}: mean score {mean_score[beam_size]:.3f}, BLEU {score:.1f}, {seconds:.0f} s")
assert mean_score[1] < mean_score[4] and mean_score[1] < mean_score[8]

# %% [markdown]
# ## BLEU
#
# **Question.** How good is it?
#
# BLEU {cite}`papineni2002bleu` counts how many runs of one to four words of the output are also in the reference,
# takes the geometric mean of the four shares, and punishes outputs that are too short. It depends on how text is cut
# into words, so that scores from different scripts do not compare. We report sacreBLEU {cite}`post2018call` on plain,
# cased text, **with its signature**: who has the signature can repeat the number.

# %% tags=["nbval-ignore-output"]
systems = {
    "last checkpoint, greedy": Translator(model, tokenizer).translate(sources, beam_size=1),
    "average of 5, greedy": translator.translate(sources, beam_size=1),
    "average of 5, beam 4": translator.translate(sources, beam_size=4, alpha=0.6),
}
scores = {name: bleu(output, references) for name, output in systems.items()}
for name, (score, _) in scores.items():
    print(f"{name:25} BLEU {score:5.2f}")
print(scores["average of 5, beam 4"].signature)

# %% [markdown]
# **Check.** On every machine the score should be at least 2 after these two minutes, and averaging and the beam
# together should not cost more than half a point: with a model as young as this one, the gain that the perplexity above
# shows is within the noise of BLEU on 1,000 sentences.

# %% tags=["row-X3", "row-E14"]
weak = scores["average of 5, beam 4"].score
assert weak >= 2
assert weak > scores["last checkpoint, greedy"].score - 0.5
print(scores["average of 5, beam 4"].signature)

# %% [markdown]
# ## The book's model
#
# **Question.** What would more time have given?
#
# In `book/model/` lies a larger model that was trained for hours on the same training split, by one
# recorded command: `python benchmarks/recipes.py book_model`. Its card and `book/results/book_model.json` tell how.
#
# It was trained in two stages, the second from the average of the first. The first had a dropout of 0.3, against
# learning the small corpus by heart, and after 24,000 steps its score hardly rose any more. The second has the paper's
# 0.1, and another remedy. With `concatenate=1` each epoch has as many pairs again, which are two random pairs joined,
# source to source and target to target {cite}`nguyen2021data`: other neighbours for every word, and more long sentences
# in a corpus that has few. The second stage was run twice, with two seeds. What lies in `book/model/` is the mean of the
# last checkpoints of both runs: models that went on from the same weights may be averaged, too
# {cite}`wortsman2022model`. `LOG.md` tells what else was tried, and what each is worth.

# %%
print(Path("model/README.md").read_text().split("## Settings")[0])
result = json.loads(Path("results/book_model.json").read_text())
record = result["records"][0]
for stage in record["stages"]:
    train_config, p_drop = stage["settings"]["train"], stage["settings"]["model"]["p_drop"]
    print(f"{stage['steps']:6,} steps in {stage['train_seconds'] / 60:3.0f} minutes: seed {stage['seed']}, "
          f"p_drop {p_drop}, concatenate {train_config.get('concatenate', 0):.0f}")
print(result["hardware"])

# %% tags=["nbval-ignore-output"]
book = Translator.from_checkpoint("model")
book_output = book.translate(sources)
book_score = bleu(book_output, references)
print(f"this chapter's model, minutes: BLEU {weak:5.2f}")
print(f"the book's model, longer:      BLEU {book_score.score:5.2f}")
print(book_score.signature)

# %%
assert abs(book_score.score - record["test"]["BLEU"]["score"]) < 0.2
assert book_score.score >= 24
for i in range(8):
    print(sources[i])
    print(f"  reference   {references[i]}\n  book/model  {book_output[i]}")

# %% [markdown]
# Here is what time buys: the BLEU of greedy search on the validation split during this chapter's two minutes, and during
# the first stage of the book's model, as `python benchmarks/recipes.py book_model` recorded it.

# %% mystnb={"image": {"alt": "Line chart of validation BLEU over training steps. The book's model rises from 11 at step 2,000 to 20 at step 8,000 and 22 at step 24,000. This chapter's model, at the lower left, has two points below 6 within 1,500 smaller steps."}, "figure": {"caption": "BLEU of greedy search on the validation split. A step of the book's model has 1,024 tokens a side, a step of this chapter's 320, and the models differ in size: the curves show what longer training of a larger model gives, and nothing finer.", "name": "fig-longer-run"}} tags=["nbval-ignore-output"]
longer = record["stages"][0]["validation_log"]
figure, axes = plt.subplots(figsize=(5.5, 2.8), layout="constrained")
for label, points in (("the book's model, first stage", longer), ("this chapter's model", validated)):
    axes.plot([p["step"] for p in points], [p["valid_bleu"] for p in points], "o-", label=label)
axes.set(xlabel="step", ylabel="validation BLEU", xlim=(0, None), ylim=(0, None))
axes.legend()
assert longer[-1]["valid_bleu"] > 3 * validated[-1]["valid_bleu"]
plt.show()

# %% [markdown]
# And the weak model's translations of the same sentences:

# %% tags=["nbval-ignore-output"]
for i in range(8):
    print(f"{sources[i]}\n  this chapter's model  {systems['average of 5, beam 4'][i]}")

# %% [markdown]
# Read them. On the shortest sentences, of which the corpus is full, the two models are close: both know *It is raining*.
# On the long ones they are not. After two minutes a model knows how a German sentence begins and which words belong to
# the topic, and then it invents: the run stored here writes *Es ist ein Tauchen, wenn du es, wenn du nicht zu gehen*. The book's model
# leaves out less: of *I'm trying to explain things to you that I don't understand myself* it lacks one word.
# Both can be fluent and wrong. The better score does not make every sentence better: the book's model turns *exams are
# ruining education* into *es gibt Gerüchte* ("there are rumours"), and it writes *vermutlich vermutlich* ("probably
# probably") and *dummm*. BLEU, with one reference, counts a good translation in other words as partly wrong as well: *Es
# ist sehr heiß heute* is right, and is not the reference. So read outputs, always.
#
# How do these scores stand to the paper's? They do not. The paper's model has 27.3 (base) and 28.4 (big) on the news
# of newstest2014, after 4.5 million pairs, in tokenized BLEU with compounds split; ours reads everyday sentences of
# seven words. A score compares systems on one test set, under one signature, and nothing else.
#
# ## Whom the decoder looks at
#
# **Question.** Where in the source does the model look when it predicts a target token?
#
# In encoder-decoder attention (section 3.2.3) the queries are target positions, and the keys are source positions. So
# the weights of one head are a matrix with a **row for each target token** and a **column for each source token**,
# and each row sums to 1. Row $i$ belongs to the *input* $y_{i-1}$ and serves to predict $y_i$: the first row is that
# of `<s>`, and the label on the right says which token it predicts.

# %%
model, tokenizer = load_model("model")
sentence = "My brother is reading a book in the garden."
source = torch.tensor([[*tokenizer.encode(sentence), model.config.eos_id]])
output = beam_search(model, source)[0][0].tokens
target_in = torch.tensor([[model.config.bos_id, *output]])
with record_attention(model) as weights, torch.inference_mode():
    model(source, target_in)
cross = weights["decoder.layers.2.cross_attention"][0]
assert cross.shape == (model.config.h, target_in.size(1), source.size(1))
assert_close(cross.sum(-1), torch.ones(cross.shape[:2]))
print(sentence, "->", tokenizer.decode(output))

# %% mystnb={"image": {"alt": "Heat map of the mean encoder-decoder attention of the last layer: target tokens down, source tokens across. Five rows have a clearly brightest cell at the matching source token, those that predict Bruder, lies, Buch, Garten and the end; the others are spread or look at the end."}, "figure": {"caption": "Encoder-decoder attention of the book's model, last layer, mean of its heads: a row for each token that is read, with the token that it predicts on the right; a column for each source token.", "name": "fig-cross-attention"}}
ids = source[0].tolist()
read = tokenizer.pieces(target_in[0].tolist())
axes = plot_attention(cross.mean(0), read, tokenizer.pieces(ids))
predicted = axes.secondary_yaxis("right")
next_tokens = tokenizer.pieces([*output, model.config.eos_id])
predicted.set_yticks(range(len(next_tokens)), labels=next_tokens)
predicted.set_ylabel("predicts")
plt.show()

# %% [markdown]
# The weights were recorded from the real forward pass of the finished sentence. The rows that predict *Bruder*, *lies*,
# *Buch* and *Garten* are brightest at *brother*, *reading*, *book* and *garden*. Other rows are not so clear: the one
# that predicts *Mein* looks at *brother* more than at *My*, the one that predicts *ein* has no bright cell at
# all, and those that predict the ending *t* and the full stop look most at `</s>`. A picture like this
# is a hint, not a proof, of what the model uses {cite}`jain2019attention,wiegreffe2019attention`.
#
# ## Your own sentence
#
# Change the sentence and run the cell. The model knows everyday English in short sentences, and no more.

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
# ## Where
#
# | what | module | test |
# |---|---|---|
# | corpora, splits | `annotated_transformer/text/corpus.py` | `tests/text/test_corpus.py` |
# | vocabulary | `annotated_transformer/text/tokenizer.py` | `tests/text/test_tokenizer.py` |
# | batches | `annotated_transformer/text/batching.py` | `tests/text/test_batching.py` |
# | training | `annotated_transformer/training/loop.py` | `tests/training/test_loop.py` |
# | averaging | `annotated_transformer/checkpoint.py` | `tests/test_checkpoint.py` |
# | search | `annotated_transformer/translation/search.py` | `tests/translation/test_search.py` |
# | BLEU, perplexity | `annotated_transformer/translation/evaluation.py` | `tests/translation/test_evaluation.py` |
#
# ## Exercises
#
# ```{exercise} How long is an epoch?
# :label: ex-epoch
#
# From the number of batches above and the 1,500 steps: how many times did the model see each pair?
# ```
#
# ```{solution} ex-epoch
# :class: dropdown
#
# 1,500 / 1,830 = 0.8 times: it has not seen every pair. The paper does not say how long its pairs are: at, say, 28 target tokens a pair, its 100,000
# steps of 25,000 target tokens over 4.5 million pairs are some 20 epochs.
# ```
#
# ```{exercise} Rank by hand
# :label: ex-rank
#
# Two hypotheses: $\log P = -4.0$ with 5 tokens, and $\log P = -4.5$ with 9 (both count the end). Which wins with
# $\alpha = 0$, with 0.6 and with 1?
#
# *Hint*: compute the two penalties first.
# ```
#
# ```{solution} ex-rank
# :class: dropdown
#
# With $\alpha = 0$ the penalties are 1, and the first wins with $-4.0$. With 0.6 they are 1.359 and 1.663, and the
# scores $-2.944$ and $-2.707$: the second wins. With 1, $-2.400$ and $-1.929$: the second again.
# ```

# %% tags=["hide-input"]
for alpha, winner in ((0.0, 0), (0.6, 1), (1.0, 1)):
    ranked = [log_p / length_penalty(n, alpha) for log_p, n in ((-4.0, 5), (-4.5, 9))]
    print(f"alpha {alpha}: {ranked[0]:.3f} and {ranked[1]:.3f}")
    assert ranked.index(max(ranked)) == winner

# %% [markdown]
# ```{exercise} When may the search stop?
# :label: ex-stop
#
# The best finished hypothesis has the score $-2.0$. The best live one has $\log P = -4.8$ at 6 tokens, and the limit is
# 12 tokens. With $\alpha = 0.6$, can it still win?
#
# *Hint*: $\log P$ only falls from here, and the penalty grows with length.
# ```
#
# ```{solution} ex-stop
# :class: dropdown
#
# The best it can do is to lose nothing more and to be as long as allowed: $-4.8 / lp(12)$ with
# $lp(12) = (17/6)^{0.6} = 1.868$, which is $-2.570$. That is below $-2.0$, so the search may stop and loses nothing.
# This is the test that `beam_search` makes.
# ```

# %% tags=["hide-input"]
best_possible = -4.8 / length_penalty(12, 0.6)
print(f"{best_possible:.3f}")
assert best_possible < -2.0

# %% [markdown]
# ```{exercise} Average too much
# :label: ex-average
#
# Average five checkpoints that lie 100 steps apart from the *beginning* of a run. What do you expect, and what do you
# measure?
#
# *Hint*: `TrainConfig(keep_checkpoints=...)` and `average_checkpoints`.
# ```
#
# ```{solution} ex-average
# :class: dropdown
#
# Early weights move fast and in one direction, so their mean is an older model, worse than the last. Averaging
# helps when the weights go round a place instead of towards it: near the end, or at a low rate.
# ```
#
# ```{exercise} Perplexity and smoothing
# :label: ex-perplexity
#
# Train once more with `eps_ls=0.0`. Which of validation perplexity and BLEU gets better? The paper says (5.4) that
# smoothing hurts perplexity and helps BLEU; does your run agree, and is one run enough to tell?
#
# *Hint*: change the seed too, and see how far two runs with the same settings lie apart.
# ```
#
# ```{solution} ex-perplexity
# :class: dropdown
#
# Perplexity without smoothing is lower as a rule, since the model may put all its probability on one token. The
# difference in BLEU is often smaller than that between two seeds at this size: one run cannot tell.
# ```

# %% [markdown]
# ### Write them yourself
#
# Three exercises ask for functions. `check` calls yours with small inputs and prints one line: that it is right, or
# what is wrong with it, without the answer.
#
# ```{exercise} The average of models
# :label: ex-write-average
#
# Write `average(weights)`. `weights` is a list of dictionaries, one for each checkpoint, from the name of a weight to
# its tensor; the result is one such dictionary, with the mean of the tensors under each name. The checkpoints must stay
# as they are. Check it with `check("6.1-average", average)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# `torch.stack` makes one tensor of several that have the same shape, with a new axis in front.
# ```
#
# ```{solution} ex-write-average
# :class: dropdown
#
# Every checkpoint has the same names, so those of the first will do. The mean is over the checkpoints, not over a
# weight's entries. Adding them up in the first dictionary (`weights[0][name] += ...`) and dividing there would also
# give the mean, and would change a checkpoint.
# ```

# %% tags=["hide-cell"]
from annotated_transformer.exercises import check

def my_average(weights):
    return {name: torch.stack([one[name] for one in weights]).mean(dim=0) for name in weights[0]}

check("6.1-average", my_average)
two = [{"W": torch.tensor([1.0, 5.0])}, {"W": torch.tensor([3.0, 9.0])}]
assert my_average(two)["W"].tolist() == [2, 7]
assert two[0]["W"].tolist() == [1, 5]  # still

# %% [markdown]
# ```{exercise} The length penalty
# :label: ex-write-penalty
#
# Write `length_penalty(length, alpha)`, by which $\log P$ is divided, from its formula in this chapter. Then say which
# lengths it favours when $\alpha = 0$. Check it with `check("6.1-penalty", length_penalty)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# The penalty of length 1 is 1 for every $\alpha$.
# ```
#
# ```{solution} ex-write-penalty
# :class: dropdown
#
# $lp(n) = \left(\frac{5 + n}{6}\right)^{\alpha}$. With $\alpha = 0$ it is 1 for every length, and the score is $\log P$
# itself. That does not treat all lengths alike: every further token makes $\log P$ smaller, so short hypotheses win.
# ```

# %% tags=["hide-cell", "row-E13"]
def my_length_penalty(length, alpha):
    return ((5 + length) / 6) ** alpha

check("6.1-penalty", my_length_penalty)
for length in (1, 7, 40):
    assert my_length_penalty(length, 0.0) == my_length_penalty(1, 0.6) == 1
    assert math.isclose(my_length_penalty(length, 0.6), length_penalty(length, 0.6))

# %% [markdown]
# ```{exercise} One step of the beam
# :label: ex-write-beam
#
# Write `beam_step(log_p, scores, beam_size)`, the heart of beam search for one sentence. Entry $(w, t)$ of `log_p` is
# the log-probability of token $t$ after hypothesis $w$, and `scores` has the $\log P$ of each hypothesis so far. Return
# `(parents, tokens, scores)`, three tensors with `beam_size` entries: of the best continuations, best first, the
# hypothesis that is continued, the token that continues it, and the new $\log P$. (Ended hypotheses and the length
# penalty are left out.) Check it with `check("6.1-beam", beam_step)`.
# ```
#
# ```{admonition} Hint
# :class: dropdown, tip
#
# All continuations of all hypotheses compete in one list. `topk` of the flattened scores finds the best; from a place
# in that list, a division and its remainder lead back to the row and the column.
# ```
#
# ```{solution} ex-write-beam
# :class: dropdown
#
# Probabilities of a continuation multiply, so their logarithms add up. In the flattened scores each hypothesis has a
# stretch of $V$ places: place $i$ belongs to hypothesis $\lfloor i / V \rfloor$ and token $i \bmod V$. In the folded
# cell, the best two continuations both come from hypothesis 0, whose two likely tokens beat all of hypothesis 1:
# taking the best token of each would have missed one.
# ```

# %% tags=["hide-cell"]
def my_beam_step(log_p, scores, beam_size):
    best = (log_p + scores[:, None]).flatten().topk(beam_size)
    n_tokens = log_p.size(1)
    return best.indices // n_tokens, best.indices % n_tokens, best.values

check("6.1-beam", my_beam_step)
log_p = torch.tensor([[0.5, 0.4, 0.1], [0.3, 0.3, 0.4]]).log()
parents, tokens, scores = my_beam_step(log_p, torch.tensor([0.7, 0.3]).log(), 2)
assert parents.tolist() == [0, 0] and tokens.tolist() == [0, 1]
assert_close(scores.exp(), torch.tensor([0.35, 0.28]))
