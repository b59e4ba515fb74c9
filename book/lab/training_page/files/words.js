// What the model is to learn, and chance from a seed: reversal.py draws the same.

const [PAD, BOS, EOS, FIRST_LETTER, N_LETTERS] = [0, 1, 2, 3, 26];
const VOCAB_SIZE = FIRST_LETTER + N_LETTERS;
const LONGEST = 8; // letters of a word

// Numbers that look random, from a seed of 32 bits (the generator Mulberry32).
class Generator {
  constructor(seed) {
    this.state = seed >>> 0;
  }

  // Uniform in [0, 1).
  next() {
    this.state = (this.state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(this.state ^ (this.state >>> 15), this.state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
  }

  // A whole number from 0 to n - 1, each as likely as the others.
  below(n) {
    return Math.floor(this.next() * n);
  }

  // Normal, mean 0 and variance 1 (Box and Muller 1958).
  normal() {
    const radius = Math.sqrt(-2 * Math.log(1 - this.next()));
    return radius * Math.cos(2 * Math.PI * this.next());
  }
}

// One word in eight is never trained on: whether the model reverses those shows what it has learned.
function isHeldOut(word) {
  let remainder = 0;
  for (const id of word) remainder = (31 * remainder + id) % 65521;
  return remainder % 8 === 0;
}

// The ids of a word of `length` letters, or else of 1 to 8: the larger of two draws, since there is
// more to learn of long words.
function drawWord(generator, heldOut, length = 0) {
  for (;;) {
    const n = length || 1 + Math.max(generator.below(LONGEST), generator.below(LONGEST)),
      word = [];
    for (let i = 0; i < n; i++) word.push(FIRST_LETTER + generator.below(N_LETTERS));
    if (isHeldOut(word) === heldOut) return word;
  }
}

function drawWords(generator, n, heldOut, length) {
  return Array.from({ length: n }, () => drawWord(generator, heldOut, length));
}

const idsOf = (text) => [...text].map((letter) => letter.charCodeAt(0) - 97 + FIRST_LETTER);
const lettersOf = (ids) => ids.map((id) => String.fromCharCode(id - FIRST_LETTER + 97)).join("");

// Words and what the decoder reads and is to say: the outputs, shifted right by one (section 3.1).
// All sentences stand below one another, without padding; `spans` has the first row of each, and the
// end. Each row has its position in its sentence.
function batchOf(sources, targets) {
  return {
    source: rowsOf(sources.map((word) => [...word, EOS])),
    targetIn: rowsOf(targets.map((word) => [BOS, ...word])),
    targetOut: targets.flatMap((word) => [...word, EOS]),
  };
}

function rowsOf(sentences) {
  const spans = [0];
  for (const sentence of sentences) spans.push(spans[spans.length - 1] + sentence.length);
  return {
    ids: sentences.flat(),
    positions: sentences.flatMap((sentence) => sentence.map((_, i) => i)),
    spans,
  };
}

const reversed = (word) => [...word].reverse();
const reversalBatch = (words) => batchOf(words, words.map(reversed));
