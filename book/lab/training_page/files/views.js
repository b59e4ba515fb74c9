// What the page draws: the loss as a curve, and the weights of a head as a map.

// `losses` as one line, and `others` beside them as circles, on axes from 0.
function drawCurve(holder, losses, others) {
  const [left, right, top, bottom, height] = [32, 8, 8, 24, 200],
    width = Math.max(holder.clientWidth, 200);
  const nSteps = Math.max(200, losses.length),
    most = Math.max(4, ...others);
  const x = (step) => left + ((width - left - right) * step) / nSteps;
  const y = (loss) => top + (height - top - bottom) * (1 - Math.min(loss, most) / most);
  const tick = (text, attributes) => makeSvg("text", attributes, text);
  const marks = [0, 1, 2, 3, 4].map((loss) =>
    tick(String(loss), { x: left - 6, y: y(loss) + 4, "text-anchor": "end" }),
  );
  for (const share of [0, 0.5, 1]) {
    const anchor = share === 1 ? "end" : share ? "middle" : "start",
      step = Math.round(share * nSteps);
    marks.push(
      tick(share === 1 ? `${step} steps` : String(step), {
        x: x(step),
        y: height - 6,
        "text-anchor": anchor,
      }),
    );
  }
  const every = Math.ceil(losses.length / (width - left)),
    points = [];
  for (let i = 0; i < losses.length; i += every) {
    // the mean of what shares a pixel
    const some = losses.slice(i, i + every),
      mean = some.reduce((sum, loss) => sum + loss, 0) / some.length;
    points.push(`${x(i + some.length / 2).toFixed(1)} ${y(mean).toFixed(1)}`);
  }
  const last = losses.length
    ? `, after ${losses.length} steps ${losses[losses.length - 1].toFixed(3)}`
    : "";
  const circles = others.map((loss, i) =>
    i % 10 ? null : makeSvg("circle", { cx: x(i + 0.5), cy: y(loss), r: 3 }),
  );
  holder.replaceChildren(
    makeSvg(
      "svg",
      { width, height, role: "img", "aria-label": `The loss${last}` },
      makeSvg("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - right}` }),
      ...marks,
      makeSvg("path", { class: "loss", d: points.length ? `M${points.join("L")}` : "" }),
      ...circles.filter(Boolean),
    ),
  );
}

// The largest difference of two curves where there are both.
function largestDifference(losses, others) {
  const n = Math.min(losses.length, others.length);
  return losses
    .slice(0, n)
    .reduce((most, loss, i) => Math.max(most, Math.abs(loss - others[i])), 0);
}

// A map of `weights`, a row for each query and a column for each key.
function drawMap(name, weights, queries, keys) {
  const [cell, edge] = [14, 18],
    size = (n) => edge + cell * n + 1;
  const most = weights
    .map((row, i) => `${queries[i]} at ${keys[row.indexOf(Math.max(...row))]}`)
    .join(", ");
  const parts = [
    makeSvg("rect", {
      class: "frame",
      x: edge,
      y: edge,
      width: cell * keys.length,
      height: cell * queries.length,
    }),
  ];
  keys.forEach((key, i) =>
    parts.push(
      makeSvg("text", { x: edge + cell * (i + 0.5), y: edge - 5, "text-anchor": "middle" }, key),
    ),
  );
  weights.forEach((row, i) => {
    parts.push(
      makeSvg(
        "text",
        { x: edge - 5, y: edge + cell * (i + 0.75), "text-anchor": "end" },
        queries[i],
      ),
    );
    row.forEach((weight, j) =>
      parts.push(
        makeSvg("rect", {
          x: edge + cell * j + 0.5,
          y: edge + cell * i + 0.5,
          width: cell - 1,
          height: cell - 1,
          "fill-opacity": weight.toFixed(3),
        }),
      ),
    );
  });
  return make(
    "figure",
    {},
    make("figcaption", {}, name),
    makeSvg(
      "svg",
      {
        width: size(keys.length),
        height: size(queries.length),
        role: "img",
        "aria-label": `${name}: looks most, ${most}`,
      },
      ...parts,
    ),
  );
}

// All maps of a word: encoder self-attention, then cross-attention.
function drawMaps(holder, { word, encoder, cross }) {
  const letters = [...word],
    source = [...letters, "·"],
    target = [...letters.reverse(), "·"];
  const maps = (name, layers, queries) =>
    layers.flatMap((heads, layer) =>
      heads.map((weights, head) => {
        const place = layers.length > 1 ? `layer ${layer + 1}, ` : "";
        return drawMap(`${name}, ${place}head ${head + 1}`, weights, queries, source);
      }),
    );
  holder.replaceChildren(...maps("Encoder", encoder, source), ...maps("Cross", cross, target));
}
