// What to doubt: numbers and names that a translation has lost, as `annotated_transformer/extras/visitors/doubt.py`
// finds them, and a text of which the model has never read the like.

const SPELT_OUT = {
  en: "zero one two three four five six seven eight nine ten eleven twelve",
  de: "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
};
const WORD = /[\p{L}\p{N}_]+(?:[.:,@/+-]+[\p{L}\p{N}_]+)*/gu;

const LETTERS = /[\p{L}\p{Nl}\p{No}]{3,}/gu;

// exp(log P / n) for n tokens, the end counted: the geometric mean of their probabilities.
const meanProbability = ({ logP, tokens }) => Math.exp(logP / (tokens.length + 1));

// A word with a capital letter is a name unless training translates it: `translated`, in which an empty set stands for no names.
function lostWords(source, translation, to, translated) {
  const [text, said] = [source, translation.toLowerCase()].map((one) => one.replace(/(?<=[0-9])[.,](?=[0-9]{3}(?![0-9]))/g, ""));
  const digits = said.match(/[0-9]+/g) || [], inWords = (SPELT_OUT[to] || "").split(" ");
  const keeps = (number) => {
    const place = digits.indexOf(number);
    if (place >= 0) return Boolean(digits.splice(place, 1));
    return String(Number(number)) === number && Number(number) <= 12 && said.includes(inWords[Number(number)] || "");
  };
  const isKept = (word) => {
    if (/@|[\p{L}_]\.[\p{L}\p{N}_]{2}/u.test(word)) return said.includes(word.toLowerCase());
    const numbers = word.match(/[0-9]+/g);
    if (numbers) return !numbers.map(keeps).includes(false);
    const capitalised = translated.size ? (word.match(LETTERS) || []).filter((part) => /^\p{Lu}/u.test(part)) : [];
    return capitalised.every((part) => translated.has(part) || said.includes(part.toLowerCase()));
  };
  return [...text.matchAll(WORD)].filter(([word]) => !isKept(word)).map(([word]) => word);
}

// What is strange about a text: "script" if the tokenizer has hardly a letter of it, "target" if it looks like the
// language that is translated into, "words" if none of its four words or more is a common one and at most a third of them
// is translated in training, "long" if 999 of 1,000 sentences that were trained on have fewer words; else "".
function strangeness(text, tokenizer, { longest = Infinity, words = ["", ""], translated = new Set() } = {}) {
  const letters = tokenizer.normalizer.normalize(text).match(/\p{L}/gu) || [];
  if (2 * letters.filter((letter) => !tokenizer.ids.has(letter)).length > letters.length) return "script";
  const found = text.toLowerCase().match(/\p{L}+/gu) || [];
  const [own, other] = words.map((list) => found.filter((word) => list.split(" ").includes(word)).length);
  if (other > own) return "target";
  const nKnown = found.filter(([first, ...rest]) => translated.has(first.toUpperCase() + rest.join(""))).length;
  if (words[0] && found.length > 3 && !own && 3 * nKnown <= found.length) return "words";
  return found.length > longest ? "long" : "";
}
