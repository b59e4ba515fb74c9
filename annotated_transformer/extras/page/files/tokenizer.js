// Text to ids and back, as SentencePiece does it (section 5.1).
//
// A text is normalised, every space becomes the mark "▁", and one more stands before the text, so
// that a word is spelt the same wherever it stands. Then the characters are put together into
// pieces of the vocabulary. A character that is in no piece becomes its bytes in UTF-8, for which
// the vocabulary has 256 ids: so no text is unknown. Half of a surrogate pair, which is no
// character, becomes U+FFFD.

const SPACE = "\u2581";
const NORMAL = 1,
  UNKNOWN = 2,
  CONTROL = 3,
  USER_DEFINED = 4,
  BYTE = 6; // SentencePiece's own numbers

class Normalizer {
  // The rule (NFKC) comes with the tokenizer, compiled: it does not depend on the browser's Unicode.
  // It is a trie of byte strings as a double array, and the texts that replace them, each ended by
  // a zero byte. `symbols`, the longest first, are left as they are.
  constructor(rule, symbols) {
    const size = rule.length ? new DataView(rule.buffer, rule.byteOffset).getUint32(0, true) : 0;
    const trie = rule.slice(4, 4 + size);
    this.trie = new Uint32Array(trie.buffer, 0, size / 4);
    this.texts = rule.subarray(4 + size);
    this.symbols = symbols.map((symbol) => new TextEncoder().encode(symbol));
  }

  normalize(text) {
    const bytes = new TextEncoder().encode(text),
      out = [];
    for (let start = 0; start < bytes.length;) {
      const symbol = this.symbols.find((one) => one.every((byte, i) => byte === bytes[start + i]));
      const [length, other] = symbol ? [symbol.length, -1] : this.longest(bytes, start);
      if (other < 0) {
        for (let i = 0; i < length; i++) out.push(bytes[start + i]);
      } else {
        for (let i = other; this.texts[i]; i++) out.push(this.texts[i]);
      }
      start += length;
    }
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(out));
  }

  // The longest string of the trie that `bytes` have at `start`: its length, and where in `texts`
  // its replacement begins. Where there is none: the length of the character, and -1.
  //
  // A node is 32 bits. The node after byte b is at (node's place ^ node's offset) ^ b, and is a
  // true one if its lowest 8 bits are b again; where a string ends, bit 8 is set, and the node
  // after byte 0 has the value.
  longest(bytes, start) {
    const { trie } = this;
    let found = [characterLength(bytes[start]), -1];
    if (!trie.length) return found;
    const offset = (unit) => (unit >>> 10) << ((unit & 0x200) >>> 6);
    let place = offset(trie[0]);
    for (let i = start; i < bytes.length; i++) {
      place ^= bytes[i];
      const unit = trie[place];
      if ((unit & 0x800000ff) !== bytes[i]) break;
      place ^= offset(unit);
      if (unit & 0x100) found = [i + 1 - start, trie[place] & 0x7fffffff];
    }
    return found;
  }
}

// The bytes of a character in UTF-8, by its first.
const characterLength = (byte) => (byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4);

class Tokenizer {
  // `data` has the kind ("bpe" or "unigram"), pieces, scores and types; `rule` is the normaliser's.
  constructor(data, rule) {
    this.pieces = data.pieces;
    this.types = data.types;
    this.scores = Float64Array.from(data.scores);
    this.ids = new Map(); // of the pieces that text is made of
    this.byteIds = [];
    this.backId = this.pieces.indexOf("<2source>"); // -1: the model knows one direction
    this.pieces.forEach((piece, id) => {
      if (data.types[id] === BYTE) this.byteIds[parseInt(piece.slice(3, 5), 16)] = id;
      if (data.types[id] === NORMAL || data.types[id] === USER_DEFINED) this.ids.set(piece, id);
    });
    const symbols = this.pieces.filter((_, id) => data.types[id] === USER_DEFINED);
    this.symbols = symbols.sort((one, two) => two.length - one.length);
    this.normalizer = new Normalizer(rule, this.symbols);
    this.longestPiece = 0; // in a loop: Math.max(...) has an argument a piece, too many for the stack
    for (const piece of this.ids.keys())
      this.longestPiece = Math.max(this.longestPiece, piece.length);
    this.split = data.kind === "unigram" ? unigramPieces : bytePairPieces;
  }

  encode(text) {
    if (!text) return [];
    const spaced = (SPACE + this.normalizer.normalize(text)).replaceAll(" ", SPACE);
    const ids = [];
    for (const piece of this.split(this, spaced)) {
      if (this.ids.has(piece)) ids.push(this.ids.get(piece));
      else for (const byte of new TextEncoder().encode(piece)) ids.push(this.byteIds[byte]);
    }
    return ids;
  }

  // The mark that stands before every text is taken away, special ids are silent.
  decode(ids) {
    let text = "",
      atStart = true,
      bytes = [];
    const flush = () => {
      if (bytes.length) text += textOf(bytes);
      bytes = [];
    };
    for (const id of ids) {
      if (this.types[id] === BYTE) {
        bytes.push(this.byteIds.indexOf(id));
        continue;
      }
      flush();
      if (text) atStart = false;
      if (this.types[id] === CONTROL) continue;
      let piece = this.types[id] === UNKNOWN ? " \u2047 " : this.pieces[id];
      if (atStart && piece.startsWith(SPACE)) [piece, atStart] = [piece.slice(1), false];
      text += piece.replaceAll(SPACE, " ");
    }
    flush();
    return text;
  }
}

// The characters of these bytes; each byte that is in none becomes U+FFFD.
function textOf(bytes) {
  let text = "";
  for (let start = 0; start < bytes.length;) {
    const end = start + characterLength(bytes[start]);
    try {
      const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
      text += decoder.decode(Uint8Array.from(bytes.slice(start, end)));
      start = end;
    } catch {
      text += "\ufffd";
      start += 1;
    }
  }
  return text;
}

// The characters of a text; a symbol, which nothing may take apart, counts as one.
function characters(text, symbols) {
  if (!symbols.length) return [...text];
  const found = [];
  for (let start = 0; start < text.length; start += found[found.length - 1].length) {
    const symbol = symbols.find((one) => text.startsWith(one, start));
    found.push(symbol || String.fromCodePoint(text.codePointAt(start)));
  }
  return found;
}

// Byte-pair encoding: of all neighbours that together are a piece, join those of the best score,
// the leftmost of equal ones, until none is left.
function bytePairPieces(tokenizer, text) {
  const parts = characters(text, tokenizer.symbols);
  const frozen = parts.map((part) => tokenizer.symbols.includes(part));
  const after = parts.map((_, i) => i + 1),
    before = parts.map((_, i) => i - 1);
  const pairs = new Heap(
    (one, two) => one.score > two.score || (one.score === two.score && one.left < two.left),
  );
  const offer = (left, right) => {
    if (left < 0 || right >= parts.length || frozen[left] || frozen[right]) return;
    const id = tokenizer.ids.get(parts[left] + parts[right]);
    if (id === undefined) return;
    const length = parts[left].length + parts[right].length;
    pairs.push({ left, right, length, score: tokenizer.scores[id] });
  };
  for (let i = 1; i < parts.length; i++) offer(i - 1, i);
  while (pairs.items.length) {
    const { left, right, length } = pairs.pop();
    if (!parts[left] || !parts[right] || parts[left].length + parts[right].length !== length)
      continue;
    parts[left] += parts[right]; // a pair one of whose sides has changed since is passed over
    parts[right] = "";
    after[left] = after[right];
    if (after[left] < parts.length) before[after[left]] = left;
    offer(before[left], left);
    offer(left, after[left]);
  }
  return parts.filter((part) => part);
}

// Unigram: the pieces whose scores (log probabilities) have the largest sum, by Viterbi's
// algorithm: the best way to each place in the text comes from the best way to an earlier one.
// Sums are kept in 32 bits, as SentencePiece keeps them.
function unigramPieces(tokenizer, text) {
  const { ids, scores, types } = tokenizer;
  const bytesOf = (piece) => new TextEncoder().encode(piece).length;
  let unknown = Infinity;
  for (const id of ids.values())
    if (types[id] === NORMAL) unknown = Math.min(unknown, scores[id] - 10);
  const best = new Float32Array(text.length + 1),
    from = new Int32Array(text.length + 1).fill(-1);
  const offer = (start, end, score) => {
    if (from[end] >= 0 && !(best[start] + score > best[end])) return;
    best[end] = best[start] + score;
    from[end] = start;
  };
  for (let start = 0; start < text.length;) {
    const next = start + String.fromCodePoint(text.codePointAt(start)).length;
    let isKnown = false;
    for (let end = next; end <= Math.min(text.length, start + tokenizer.longestPiece); end++) {
      const piece = text.slice(start, end),
        id = ids.get(piece);
      if (id === undefined) continue;
      const bonus = Math.fround(bytesOf(piece) * 2 ** -126) - 0.1; // of a symbol: better than any other way
      offer(start, end, types[id] === USER_DEFINED ? bonus : scores[id]);
      isKnown ||= end === next;
    }
    if (!isKnown) offer(start, next, unknown);
    start = next;
  }
  const pieces = [];
  for (let end = text.length; end > 0; end = from[end]) pieces.unshift(text.slice(from[end], end));
  return pieces;
}

class Heap {
  // A binary heap: item i is not after items 2i + 1 and 2i + 2, so that the first is before all.
  constructor(isBefore) {
    this.items = [];
    this.isBefore = isBefore;
  }

  push(item) {
    const { items } = this;
    let i = items.push(item) - 1;
    for (let up; i > 0 && this.isBefore(item, items[(up = (i - 1) >> 1)]); i = up)
      items[i] = items[up];
    items[i] = item;
  }

  pop() {
    const { items } = this,
      first = items[0],
      item = items.pop();
    for (let i = 0, down; items.length; i = down) {
      down = 2 * i + 1;
      if (down + 1 < items.length && this.isBefore(items[down + 1], items[down])) down += 1;
      if (down >= items.length || !this.isBefore(items[down], item)) {
        items[i] = item;
        break;
      }
      items[i] = items[down];
    }
    return first;
  }
}
