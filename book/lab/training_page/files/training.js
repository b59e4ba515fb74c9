// The page: tells the engine when to train, and shows what it reports.
(() => {
  const { settings, seed, losses: ofPyTorch, book } = trainingReference;
  const darkness = matchMedia("(prefers-color-scheme: dark)");
  const setTheme = () => {
    document.documentElement.dataset.theme = darkness.matches ? "dark" : "light";
  };
  darkness.addEventListener("change", setTheme);
  setTheme();

  // The engine, in a worker that is made from its own text; where there can be none, in the page,
  // which then does again what it was told to.
  const told = [];
  const send = startEngine(
    (report) => receive(report),
    () => told,
  );
  const tell = (message) => {
    told.push(message);
    send(message);
  };

  let losses = [],
    wantsToRun = false,
    rows = 0;
  const chosenSeed = () => Math.floor(Number(part("seed").value)) || seed;
  const compared = () => (chosenSeed() === seed && part("positions").checked ? ofPyTorch : []);
  const cell = (name, text, properties = {}) => make(name, properties, text);
  const addNumbers = ({ steps, right, of }) => {
    if (steps % 50 || steps / 50 === rows || !steps) return;
    rows = steps / 50;
    const mean = losses.slice(-50).reduce((sum, loss) => sum + loss, 0) / 50;
    part("numbers").tBodies[0].append(
      make(
        "tr",
        {},
        cell("th", String(steps), { scope: "row" }),
        cell("td", mean.toFixed(4)),
        cell("td", `${right} of ${of}`),
      ),
    );
  };
  const showCurve = () => {
    drawCurve(part("curve"), losses, compared());
    const most = largestDifference(losses, compared());
    part("difference").textContent =
      losses.length && compared().length
        ? `So far this page differs from it by at most ${most.toFixed(7)} nats.`
        : "";
  };
  const showSamples = (samples) => {
    part("samples").tBodies[0].replaceChildren(
      ...samples.map(({ word, says }) => {
        const isRight = [...word].reverse().join("") === says;
        return make(
          "tr",
          {},
          cell("th", word, { scope: "row" }),
          cell("td", says || "–"),
          cell("td", isRight ? "yes" : "no"),
        );
      }),
    );
  };
  const nameButton = () => {
    part("go").textContent = wantsToRun ? "Pause" : losses.length ? "Go on" : "Train";
  };
  const inSeconds = ({ steps, seconds }) => `${steps} steps, ${seconds.toFixed(1)} seconds`;
  const receive = (report) => {
    if (report.error) {
      wantsToRun = false;
      part("said").textContent = part("spoken").textContent = `This did not work: ${report.error}`;
      return nameButton();
    }
    if (report.isBegin) {
      [losses, rows] = [[], 0];
      part("numbers").tBodies[0].replaceChildren();
    }
    if (losses.length + report.losses.length !== report.steps) return; // of a run that was given up
    losses.push(...report.losses);
    addNumbers(report);
    showCurve();
    showSamples(report.samples);
    drawMaps(part("maps"), report.look);
    part("says").textContent = `The model says ${report.look.says || "nothing"}.`;
    part("right").textContent =
      `${report.right} of ${report.of} words of 8 letters are reversed exactly.`;
    part("said").textContent = losses.length
      ? `${inSeconds(report)}, loss ${losses[losses.length - 1].toFixed(4)}.`
      : "";
    if (report.isSolved) {
      wantsToRun = false;
      part("said").textContent = part("spoken").textContent =
        `Solved after ${inSeconds(report)}: all ${report.of} held-out words of 8 letters are reversed exactly.`;
    }
    nameButton();
    document.documentElement.dataset.ready = report.isRunning ? "training" : "paused";
  };

  const begin = () => {
    told.length = 0;
    part("spoken").textContent = "";
    tell({
      does: "begin",
      settings: { ...settings, seed: chosenSeed(), positions: part("positions").checked },
    });
    watch();
    if (wantsToRun) tell({ does: "go" });
  };
  const watch = () => {
    const word = part("word")
      .value.toLowerCase()
      .replace(/[^a-z]/g, "");
    if (word) tell({ does: "watch", word });
  };
  part("go").addEventListener("click", () => {
    wantsToRun = !wantsToRun;
    tell({ does: wantsToRun ? "go" : "pause" });
    part("spoken").textContent = wantsToRun ? "Training." : "Paused.";
    nameButton();
  });
  part("again").addEventListener("click", begin);
  for (const id of ["seed", "positions"]) part(id).addEventListener("change", begin);
  part("word").addEventListener("input", watch);
  part("form").addEventListener("submit", (event) => event.preventDefault());
  addEventListener("resize", showCurve);
  part("word").value = "reversal";
  linkChapters(book);
  begin();
})();
