// What the scripts of the page share: an element by its name, and new ones.
const part = (id) => document.getElementById(id);
if (typeof document === "object") part("said").textContent = "The model is loading.";
const make = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
const makeSvg = (name, attributes = {}, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};
const signed = (value, digits) => value.toFixed(digits).replace("-", "\u2212"); // with a true minus

// Each view's link leads to its chapter, where the page knows its book.
const linkChapters = (book) => {
  for (const line of book ? document.querySelectorAll(".chapter") : []) {
    const to = line.firstElementChild;
    to.href = book + to.getAttribute("href");
    to.target = "_top";
    line.hidden = false;
  }
};

// The engine, in a worker that is made from its own text; where there can be none, in the page, which then does
// again what `unanswered` lists. `receive` gets its answers; what is returned sends it a message.
const startEngine = (receive, unanswered) => {
  const inPage = () => {
    const tell = makeEngine().serve((answer) => setTimeout(receive, 0, answer));
    return (message) => setTimeout(tell, 0, message);
  };
  let send;
  try {
    const text = `${makeEngine}
      const tell = makeEngine().serve((answer) => postMessage(answer));
      onmessage = ({ data }) => tell(data);`;
    const worker = new Worker(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
    worker.onmessage = ({ data }) => receive(data);
    worker.onerror = () => {
      worker.terminate();
      send = inPage();
      unanswered().forEach((message) => send(message));
    };
    send = (message) => worker.postMessage(message);
  } catch {
    send = inPage();
  }
  return (message) => send(message);
};
