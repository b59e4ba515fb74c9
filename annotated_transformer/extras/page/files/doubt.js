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
  const isKept = (word) => {
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
    return capitalised.every((part) => translated.has(part) || hasName(target, part.toLowerCase()));
  };
  return [...text.matchAll(WORD)].filter(([word]) => !isKept(word)).map(([word]) => word);
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
