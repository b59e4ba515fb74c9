// A model of one's own: the folder that is dropped on the page or chosen, handed to the engine.
const ownModel = (() => {
  // The files of what was dropped: of a folder those directly in it.
  const dropped = async ({ items, files }) => {
    const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean),
      folder = entries.find(({ isDirectory }) => isDirectory);
    if (!folder) return { name: "", files: [...files] };
    const reader = folder.createReader(),
      found = [];
    for (;;) {
      // comes a hundred at a time
      const some = await new Promise((...hands) => reader.readEntries(...hands));
      if (!some.length) break;
      found.push(...some.filter(({ isFile }) => isFile));
    }
    return {
      name: folder.name,
      files: await Promise.all(
        found.map((entry) => new Promise((...hands) => entry.file(...hands))),
      ),
    };
  };

  const listen = (ask, onOpened) => {
    const box = part("own"),
      say = (line) => {
        part("own-said").textContent = line;
      };
    const open = async (finding) => {
      try {
        const { name, files } = await finding.catch(() => {
          throw new Error(
            "this browser opens no folder that is dropped on a page from a disk: choose it with the button",
          );
        });
        part("progress").hidden = false;
        say("The model is read and rounded.");
        const began = performance.now();
        const facts = await ask({ ask: "open", files, name }, (share) => {
          part("progress").value = share;
        });
        say(
          `The model is here: it was read and rounded in ${((performance.now() - began) / 1000).toFixed(1)} s.`,
        );
        await onOpened(facts);
      } catch (error) {
        say(`This model stays outside: ${error.message}.`);
      } finally {
        part("progress").hidden = true;
        part("progress").value = 0;
      }
    };
    const mark = (isOver) => box.toggleAttribute("data-over", isOver);
    addEventListener("dragover", (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      mark(true);
    });
    addEventListener("dragleave", () => mark(false));
    addEventListener("drop", (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      mark(false);
      open(dropped(event.dataTransfer));
    });
    part("choose").addEventListener("click", () => part("folder").click());
    part("folder").addEventListener("change", async () => {
      const all = [...part("folder").files],
        inFolder = all.filter(({ webkitRelativePath: path }) => path.split("/").length <= 2);
      part("folder").value = "";
      if (all.length)
        open(Promise.resolve({ name: all[0].webkitRelativePath.split("/")[0], files: inFolder }));
    });
  };
  return { listen };
})();
