// What `make lint` asks of the JavaScript: classic scripts of pages and workers, and programs of Node.
import fs from "node:fs";
import js from "@eslint/js";
import globals from "globals";

// The scripts of a page share one scope, so what a file declares at its top is known to the others.
const declarations = /^(?:async )?(?:function\*?|class|const|let) (?:(\w+)|[{[]([^}\]]+)[}\]])/gm;
const shared = {};
// Python writes these: the engine's wrapper, a page's data, and the explorer of extras/page/files/explorer.html.
const written = [
  "explorerTemplate",
  "makeEngine",
  "pageModel",
  "startExplorers",
  "trainingReference",
];
for (const name of written) shared[name] = "readonly";
for (const root of ["annotated_transformer", "book/lab"])
  for (const name of fs.readdirSync(root, { recursive: true }))
    if (name.endsWith(".js"))
      for (const [, single, several] of fs
        .readFileSync(`${root}/${name}`, "utf8")
        .matchAll(declarations))
        for (const word of (single ?? several).split(",")) shared[word.trim()] = "readonly";

export default [
  js.configs.recommended,
  {
    languageOptions: {
      sourceType: "script",
      globals: {
        ...globals.browser,
        ...globals.worker,
        ...globals.commonjs,
        ...globals.node,
        ...shared,
      },
    },
    rules: {
      "no-control-regex": "off", // a text's control characters are what some of our patterns look for
      "no-redeclare": ["error", { builtinGlobals: false }],
      "no-unused-vars": ["error", { vars: "local", args: "none", caughtErrors: "none" }],
    },
  },
];
