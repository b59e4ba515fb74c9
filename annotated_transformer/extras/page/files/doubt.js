// What to doubt: numbers and names that a translation has lost, as `annotated_transformer/extras/visitors/doubt.py`
// finds them, and a text of which the model has never read the like.

const SPELT_OUT = {
  en: "zero one two three four five six seven eight nine ten eleven twelve",
  de: "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
};
// The forms of numbers that have several; three times is dreimal.
const INFLECTED = { ein: "ein(?:s|e|en|em|er|es|mal)?", one: "one|once", two: "two|twice" };
const MIN_IN_COMPOUND = 5; // letters of a name
// Python's \w, \s? and \b.
const LETTER = "[\\p{L}\\p{N}_]";
const SPACE_OR_NONE =
  "[\\t-\\r\\x1c- \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]?";
const END = `(?:(?<=${LETTER})(?!${LETTER})|(?<!${LETTER})(?=${LETTER}))`;
const WORD = new RegExp(
  `(?:(?<!${LETTER})[-\u2212](?=[0-9]))?${LETTER}+(?:[.:,@/+-]+${LETTER}+)*`,
  "gu",
);
// The end of an address or of a file's name, in small letters; not every full stop is one.
const ADDRESS = new RegExp(
  `(?![0-9])${LETTER}\\.(?:com|org|net|info|edu|gov|eu|io|uk|us|de|at|ch|fr|es|pdf|txt|html|jpg|png)${END}`,
  "u",
);
const NEGATIVE = new RegExp(`(?:[-\u2212]|minus )${SPACE_OR_NONE}([0-9]+)${END}`, "gu");
const THOUSANDS = /(?<=[0-9])[.,](?=[0-9]{3}(?![0-9]))/g;
const LETTERS = /[\p{L}\p{Nl}\p{No}]{3,}/gu;
// A word with a capital after one of these is a name, whatever else it may be: Herr Bäcker.
const TITLES = new Set("Mr Mrs Ms Miss Dr Herr Herrn Frau Fräulein Familie".split(" "));
const GERMAN_ENDINGS = ["innen", "en", "er", "es", "em", "in", "e", "n", "s"];
const MIN_STEM = 5; // letters of a word before its ending: Müller is not Müll with an ending
const MIN_END = 4; // letters of the last word of a compound
// What follows or precedes a number, and the words for it in both languages.
const UNITS = { $: /dollar/, "£": /pound|pfund/, "€": /euro/, "%": /per ?cent|prozent/ };
const PRICE = new RegExp(`([$£€%])${SPACE_OR_NONE}[0-9]|[0-9]${SPACE_OR_NONE}([$£€%])`, "gu");
const EMOJI = /[\u2600-\u27bf\u{1f1e6}-\u{1f1ff}\u{1f300}-\u{1faff}]/gu;

// Words that training translates, as `doubt.TranslatedWords`: what else has a capital is a name.
class TranslatedWords {
  constructor(words = [], language = "") {
    this.words = new Set(words);
    this.language = language;
  }

  get size() {
    return this.words.size;
  }

  has(word) {
    if (this.words.has(word) || this.language !== "de") return this.words.has(word);
    const letters = [...word];
    for (let start = 0; start < Math.max(1, letters.length - MIN_END + 1); start += start ? 1 : 3) {
      const [first, ...rest] = letters.slice(start);
      const part = start ? first.toUpperCase() + rest.join("").toLowerCase() : word;
      if (this.words.has(part)) return true;
      for (const ending of GERMAN_ENDINGS) {
        const stem = part.slice(0, part.length - ending.length);
        if (part.endsWith(ending) && [...stem].length >= MIN_STEM && this.words.has(stem))
          return true;
      }
    }
    return false;
  }
}

// exp(log P / n) for n tokens, the end counted: the geometric mean of their probabilities.
const meanProbability = ({ logP, tokens }) => Math.exp(logP / (tokens.length + 1));

// Whether a text in small letters has a number up to 12 as a word of its own.
function hasNumberWord(text, language, number) {
  const word = SPELT_OUT[language].split(" ")[number];
  return new RegExp(`${END}(?:${INFLECTED[word] || `${word}(?:mal)?`})${END}`, "u").test(text);
}

// Whether a text in small letters has a name: as a word, with an s, or, from five letters on, in a compound.
function hasName(text, name) {
  if (!text.includes(name)) return false;
  if (new RegExp(`${END}${name}(?:['’]?s|es)?${END}`, "u").test(text)) return true;
  return (
    [...name].length >= MIN_IN_COMPOUND && new RegExp(`${END}${name}|${name}${END}`, "u").test(text)
  );
}

// A word with a capital letter is a name unless training translates it: `translated`, in which an empty set stands for no names.
// After the words, signs: a unit beside a number, and emoji.
function lostWords(source, translation, to, translated) {
  const [text, target] = [source, translation.toLowerCase()].map((one) =>
    one.replace(THOUSANDS, ""),
  );
  const digits = target.match(/[0-9]+/g) || [],
    negative = new Set([...target.matchAll(NEGATIVE)].map(([, number]) => number));
  const keeps = (number) => {
    const place = digits.indexOf(number);
    if (place >= 0) return Boolean(digits.splice(place, 1));
    const isSmall = String(Number(number)) === number && Number(number) <= 12;
    return isSmall && (!SPELT_OUT[to] || hasNumberWord(target, to, Number(number)));
  };
  const isKept = (word, before) => {
    const small = word.toLowerCase(),
      numbers = word.match(/[0-9]+/g);
    if (word.includes("@") || ADDRESS.test(small)) return target.includes(small);
    if (numbers)
      return (
        (!/^[-\u2212]/.test(word) || negative.has(numbers[0])) &&
        !numbers.map(keeps).includes(false)
      );
    const capitalised = translated.size
      ? (word.match(LETTERS) || []).filter((part) => /^\p{Uppercase}/u.test(part))
      : [];
    return capitalised.every(
      (part) =>
        hasName(target, part.toLowerCase()) || (!TITLES.has(before) && translated.has(part)),
    );
  };
  const words = [...text.matchAll(WORD)].map(([word]) => word);
  const lost = words.filter((word, i) => !isKept(word, words[i - 1]));
  const units = new Set([...text.matchAll(PRICE)].map(([, before, after]) => before || after));
  lost.push(...[...units].filter((unit) => !target.includes(unit) && !UNITS[unit].test(target)));
  const emoji = target.match(EMOJI) || [];
  for (const one of text.match(EMOJI) || []) {
    const place = emoji.indexOf(one);
    if (place < 0) lost.push(one);
    else emoji.splice(place, 1);
  }
  return lost;
}

// What is strange about a text: "script" if the tokenizer has hardly a letter of it, "target" if it looks like the
// language that is translated into, "words" if none of its four words or more is a common one and at most a third of them
// is translated in training, "long" if 999 of 1,000 sentences that were trained on have fewer words; else "".
function strangeness(
  text,
  tokenizer,
  { longest = Infinity, words = ["", ""], translated = new Set() } = {},
) {
  const letters = tokenizer.normalizer.normalize(text).match(/\p{L}/gu) || [];
  if (2 * letters.filter((letter) => !tokenizer.ids.has(letter)).length > letters.length)
    return "script";
  const found = text.toLowerCase().match(/\p{L}+/gu) || [];
  const [own, other] = words
    .map((list) => new Set(list.split(" ")))
    .map((common) => found.filter((word) => common.has(word)).length);
  if (other > own) return "target";
  const nKnown = found.filter(([first, ...rest]) =>
    translated.has(first.toUpperCase() + rest.join("")),
  ).length;
  if (words[0] && found.length > 3 && !own && 3 * nKnown <= found.length) return "words";
  return found.length > longest ? "long" : "";
}
