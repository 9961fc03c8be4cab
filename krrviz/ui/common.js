// What every panel's script uses; it goes before each of them.

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function button(textContent, onclick = null) {
  return element("button", { type: "button", textContent, onclick });
}

// How light a CSS colour is, from 0 to 1, whatever its notation: paint it and look.
function luminance(color) {
  const context = document.createElement("canvas").getContext("2d");
  context.fillStyle = color;
  context.fillRect(0, 0, 1, 1);
  const [r, g, b] = context.getImageData(0, 0, 1, 1).data;
  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}
