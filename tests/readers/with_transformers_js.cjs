// transformers.js reads a folder: the ids of texts, and greedy search.
// A list of questions on standard input, of answers on standard output, both JSON.
"use strict";
const { createRequire } = require("module");
const path = require("path");
const fs = require("fs");
const library = createRequire(path.join(process.argv[2], "package.json"))(
  "@huggingface/transformers",
);
const { AutoModelForSeq2SeqLM, AutoTokenizer, env } = library;

async function answered({ folder, texts, extra }) {
  env.allowRemoteModels = false;
  env.localModelPath = `${path.dirname(folder)}/`;
  const name = path.basename(folder);
  const tokenizer = await AutoTokenizer.from_pretrained(name);
  const options = { dtype: "fp32", device: "cpu", session_options: { intraOpNumThreads: 1 } };
  const model = await AutoModelForSeq2SeqLM.from_pretrained(name, options);
  const sources = texts.map((text) => Array.from(tokenizer(text).input_ids.data, Number));
  const greedy = [];
  const order = sources.map((_, i) => i).sort((i, j) => sources[i].length - sources[j].length);
  for (let start = 0; start < order.length; start += 32) {
    const some = order.slice(start, start + 32);
    const inputs = tokenizer(
      some.map((i) => texts[i]),
      { padding: true },
    );
    const max_new_tokens = inputs.input_ids.dims[1] + extra;
    const found = await model.generate({
      ...inputs,
      max_new_tokens,
      num_beams: 1,
      do_sample: false,
    });
    found.tolist().forEach((row, k) => {
      const ids = row.slice(1).map(Number);
      const end = ids.indexOf(model.config.eos_token_id);
      greedy[some[k]] = ids.slice(0, end < 0 ? ids.length : end);
    });
  }
  return { sources, greedy, version: env.version };
}

async function main() {
  const answers = [];
  for (const asked of JSON.parse(fs.readFileSync(0, "utf8"))) answers.push(await answered(asked));
  console.log(JSON.stringify(answers));
}
main().catch((error) => {
  console.error(error);
  process.exit(1);
});
