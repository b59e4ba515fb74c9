// Runs the engine of a training page in Node: node training_engine.js FOLDER < jobs > answers.
// A job is a line of JSON, {do, ...}, and so is its answer.
const fs = require("fs"),
  path = require("path"),
  vm = require("vm");
const folder = process.argv[2];
for (const name of ["engine.js", "reference.js", "parts.js", "views.js"]) {
  vm.runInThisContext(fs.readFileSync(path.join(folder, name), "utf8"), { filename: name });
}
const engine = makeEngine();
const trainerOf = (settings) =>
  new engine.Trainer({ ...trainingReference.settings, seed: 1, ...settings });
const valuesOf = (trainer, of) =>
  Object.fromEntries(
    [...trainer.model.parameters].map(([name, tensor]) => [name, [...of(tensor)]]),
  );

const jobs = {
  numbers: ({ seed, n }) => {
    const generator = new engine.Generator(seed);
    return Array.from({ length: n }, () => [
      generator.next(),
      generator.below(26),
      generator.normal(),
    ]);
  },
  words: ({ seed, n, heldOut, length }) =>
    engine.drawWords(new engine.Generator(seed), n, heldOut, length),
  initial: ({ settings }) => valuesOf(trainerOf(settings), ({ values }) => values),
  gradients: ({ settings, words }) => {
    const trainer = trainerOf(settings),
      loss = trainer.lossOf(engine.reversalBatch(words));
    return { loss, grads: valuesOf(trainer, ({ grads }) => grads) };
  },
  losses: ({ settings, steps }) => {
    const trainer = trainerOf(settings);
    return Array.from({ length: steps }, () => trainer.step());
  },
  // What the model says of words after some steps: exact or not, letter by letter, and where it looks.
  after: ({ settings, steps, words }) => {
    const trainer = trainerOf(settings);
    for (let i = 0; i < steps; i++) trainer.step();
    return {
      right: words.map((word) => trainer.countRight([word])),
      says: words.map((word) => trainer.answer(word)),
      look: trainer.look(words[0]),
      values: valuesOf(trainer, ({ values }) => values),
    };
  },
  // Trains until all of the held-out words of 8 letters are right. The seconds are the processor's,
  // which a busy machine does not stretch as it does the clock's.
  solve: ({ settings, steps }) => {
    const began = process.cpuUsage(),
      start = performance.now(),
      trainer = trainerOf(settings);
    const heldOut = engine.drawWords(
      new engine.Generator(engine.HELD_OUT_SEED),
      engine.N_HELD_OUT,
      true,
      8,
    );
    let right = 0;
    while (trainer.steps < steps && right < heldOut.length) {
      trainer.step();
      if (trainer.steps % engine.CHECK_EVERY === 0) right = trainer.countRight(heldOut);
    }
    const { user, system } = process.cpuUsage(began);
    return {
      right,
      of: heldOut.length,
      steps: trainer.steps,
      seconds: (user + system) / 1e6,
      clock: (performance.now() - start) / 1000,
    };
  },
  difference: ({ one, other }) => largestDifference(one, other),
};
for (const line of fs.readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const job = JSON.parse(line);
  process.stdout.write(JSON.stringify(jobs[job.do](job)) + "\n");
}
