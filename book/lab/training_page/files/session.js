// In a worker, or in the page where there is none: trains while it is told to, and reports.

const [N_HELD_OUT, HELD_OUT_SEED] = [200, 2017];
const CHECK_EVERY = 50; // steps
const TURN = 150; // milliseconds of training between two reports

function serve(report) {
  const heldOut = drawWords(new Generator(HELD_OUT_SEED), N_HELD_OUT, true, LONGEST);
  let trainer,
    milliseconds,
    right,
    timer = 0,
    watched = heldOut[0];

  // What can be seen of the model now.
  const state = () => ({
    steps: trainer.steps,
    seconds: milliseconds / 1000,
    right,
    of: heldOut.length,
    isRunning: timer > 0,
    samples: heldOut
      .slice(0, 5)
      .map((word) => ({ word: lettersOf(word), says: lettersOf(trainer.answer(word)) })),
    look: {
      word: lettersOf(watched),
      says: lettersOf(trainer.answer(watched)),
      ...trainer.look(watched),
    },
  });
  const pause = () => {
    clearTimeout(timer);
    timer = 0;
  };
  // An error ends the training, and is told.
  const orTell = (work) => {
    try {
      work();
    } catch (error) {
      pause();
      report({ error: String(error) });
    }
  };
  // Some steps; then other messages have their turn.
  const turn = () => {
    const began = performance.now(),
      losses = [];
    do losses.push(trainer.step());
    while (trainer.steps % CHECK_EVERY && performance.now() - began < TURN);
    if (trainer.steps % CHECK_EVERY === 0) right = trainer.countRight(heldOut);
    milliseconds += performance.now() - began;
    const isSolved = trainer.steps % CHECK_EVERY === 0 && right === heldOut.length;
    timer = isSolved ? 0 : setTimeout(orTell, 0, turn);
    report({ losses, isSolved, ...state() });
  };
  const does = {
    begin: ({ settings }) => {
      pause();
      trainer = new Trainer(settings);
      milliseconds = right = 0;
    },
    go: () => {
      timer ||= setTimeout(orTell, 0, turn);
    },
    pause,
    watch: ({ word }) => {
      watched = idsOf(word);
    },
  };
  return (message) =>
    orTell(() => {
      does[message.does](message);
      report({ losses: [], isBegin: message.does === "begin", isSolved: false, ...state() });
    });
}
