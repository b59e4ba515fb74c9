// Greedy and beam search (section 6.1), step for step those of
// `annotated_transformer/decoding/search.py`, for one sentence.
//
// A hypothesis y is scored by log P(y | x) / lp(|y|), where |y| counts the end of the sentence.

// lp(n) = ((5 + n) / 6)^alpha.
const lengthPenalty = (length, alpha) => ((5 + length) / 6) ** alpha;

// Most tokens of an output, its end included: source length + maxExtra.
function lengthLimit({ config }, source, maxExtra) {
  const real = source.filter((id) => id !== config.pad_id && id !== config.eos_id).length;
  const limit = Math.max(1, real + maxExtra);
  return config.positions === "learned" ? Math.min(limit, config.max_len) : limit;
}

function argmax(values) {
  let best = 0;
  for (let i = 1; i < values.length; i++) if (values[i] > values[best]) best = i;
  return best;
}

// The places of the n largest values, best first, the earlier of equal ones first.
function largestOf(values, n) {
  const found = [];
  for (let i = 0; i < values.length; i++) {
    if (found.length === n && !(values[i] > values[found[n - 1]])) continue;
    let place = found.length;
    while (place > 0 && values[i] > values[found[place - 1]]) place -= 1;
    found.splice(place, 0, i);
    if (found.length > n) found.pop();
  }
  return found;
}

function logSoftmax(logits) {
  let largest = -Infinity,
    total = 0;
  for (let i = 0; i < logits.length; i++) largest = Math.max(largest, logits[i]);
  for (let i = 0; i < logits.length; i++) total += Math.exp(logits[i] - largest);
  const shift = largest + Math.log(total);
  return logits.map((logit) => logit - shift);
}

// The most probable token at every step, without the marks of beginning and end.
function greedySearch(model, source, maxExtra = 50) {
  const limit = lengthLimit(model, source, maxExtra),
    tokens = [],
    state = model.start(source);
  for (let token = model.config.bos_id; tokens.length < limit; tokens.push(token)) {
    token = argmax(model.step([token], state)[0]);
    if (token === model.config.eos_id) break;
  }
  return tokens;
}

// The nBest hypotheses { tokens, ps, score, logP }, best first; ps are the tokens' probabilities, the end's included.
//
// The beam has beamSize places, and a hypothesis that has ended keeps its own: of all extensions
// only as many count as there are places left, whether they end or go on. The search is over when
// every place has ended, or when nothing alive can still come among the nBest. `onStep`, if given,
// is told at each step the candidates that count: { parent, token, logP, score, ends }, where parent
// is a place among those candidates of the step before that went on.
//
// It pauses after each step, so that who asked can give it up.
function* beamSearchWithPauses(
  model,
  source,
  { beamSize = 4, alpha = 0.6, nBest = 1, maxExtra = 50, onStep } = {},
) {
  const { bos_id, eos_id } = model.config,
    limit = lengthLimit(model, source, maxExtra);
  const ended = [],
    state = model.start(source);
  let alive = [{ tokens: [], ps: [], logP: 0 }];

  // Log P never rises as a hypothesis grows, and lp is monotone: the best that the first one can
  // still reach is at its next length or at the limit.
  const isDecided = () => {
    if (ended.length < nBest || !alive.length) return false;
    const nthBest = ended.map(({ score }) => score).sort((one, two) => two - one)[nBest - 1];
    const lengths = [alive[0].tokens.length + 1, limit];
    return (
      nthBest >= Math.max(...lengths.map((length) => alive[0].logP / lengthPenalty(length, alpha)))
    );
  };

  while (alive.length) {
    const last = alive.map(({ tokens }) => (tokens.length ? tokens[tokens.length - 1] : bos_id));
    const extensions = [];
    model.step(last, state).forEach((logits, parent) => {
      const logP = logSoftmax(logits);
      for (const token of largestOf(logP, beamSize)) {
        extensions.push({ parent, token, logP: alive[parent].logP + logP[token] });
      }
    });
    const best = largestOf(
      extensions.map(({ logP }) => logP),
      beamSize,
    ).map((i) => extensions[i]);
    const next = [],
      parents = [],
      seen = [];
    for (const { parent, token, logP } of best
      .filter((one) => one.logP > -Infinity)
      .slice(0, beamSize - ended.length)) {
      const { tokens: before, ps: psBefore, logP: logPBefore } = alive[parent],
        length = before.length + 1;
      const tokens = token === eos_id ? before : [...before, token],
        ps = [...psBefore, Math.exp(logP - logPBefore)];
      const ends = token === eos_id || length === limit,
        score = logP / lengthPenalty(length, alpha);
      seen.push({ parent, token, logP, score, ends });
      if (ends) ended.push({ tokens, ps, score, logP });
      else {
        next.push({ tokens, ps, logP });
        parents.push(parent);
      }
    }
    if (onStep) onStep(seen);
    alive = next;
    if (isDecided()) break;
    model.reorder(parents, state);
    yield;
  }
  return ended.sort((one, two) => two.score - one.score).slice(0, nBest);
}

// What a function with pauses returns in the end.
function withoutPauses(work) {
  for (;;) {
    const { done, value } = work.next();
    if (done) return value;
  }
}
const beamSearch = (...asked) => withoutPauses(beamSearchWithPauses(...asked));
