// From values to colours: from the paper's colour to ink, or from one ink over paper to another.
const parsed = (hexes) =>
  hexes.split(" ").map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
const STOPS = {
  light: {
    one: SCALE,
    two: parsed("#8f3d06 #d9702b #f4c69f #ffffff #a9c2e8 #3567c8 #122a66"),
  },
  dark: {
    one: parsed("#17171d #1f2a45 #2f4b86 #4f7fd6 #9cc0ff #f3f8ff"),
    two: parsed("#ffd9b0 #f0a064 #7a4a22 #17171d #2f4b86 #7ea6f4 #dbe8ff"),
  },
};
const darkness = matchMedia("(prefers-color-scheme: dark)");

function table(colours) {
  const out = new Uint32Array(256);
  for (let n = 0; n < 256; n++) {
    const place = (n / 255) * (colours.length - 1);
    const first = Math.min(Math.floor(place), colours.length - 2);
    const [red, green, blue] = colours[first].map((a, k) =>
      Math.round(a + (colours[first + 1][k] - a) * (place - first)),
    );
    out[n] = ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  }
  return out;
}
const TABLES = Object.fromEntries(
  Object.entries(STOPS).map(([theme, { one, two }]) => [
    theme,
    { one: table(one), two: table(two) },
  ]),
);
const inks = (signed) => TABLES[darkness.matches ? "dark" : "light"][signed ? "two" : "one"];

// A value as a share of the highest. Root and logarithm raise small values.
const CONTRASTS = {
  linear: (x) => x,
  root: Math.sqrt,
  log: (x) => (x <= 0 ? 0 : Math.max(0, 1 + Math.log10(x) / 4)),
};

// The index of a value's colour, 0 to 255.
function placeOf(value, high, signed, contrast) {
  const share = CONTRASTS[contrast](Math.min(1, Math.abs(value) / (high || 1)));
  return Math.round(signed ? 127.5 + 127.5 * Math.sign(value) * share : 255 * share);
}
// Dark or white letters, whichever are easier to read on a colour.
function inkOn(place, signed) {
  const colour = inks(signed)[place];
  const light = (n) => (((colour >> (8 * n)) & 255) / 255) ** 2.2;
  return 0.21 * light(0) + 0.72 * light(1) + 0.07 * light(2) > 0.24 ? "#1d1d24" : "#ffffff";
}

function paintTile(values, rows, columns, high, signed, contrast) {
  const canvas = element("canvas", { width: columns, height: rows });
  const image = new ImageData(columns, rows);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = inks(signed);
  for (let at = 0; at < pixels.length; at++)
    pixels[at] = colours[placeOf(values[at], high, signed, contrast)];
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

const said = (value, digits = 2) =>
  Math.abs(value) >= 0.995 || value === 0 || Math.abs(value) >= 10 ** -digits
    ? value.toFixed(Math.abs(value) >= 100 ? 0 : digits)
    : value.toPrecision(1);

// The colours from zero to the highest value, with both numbers.
function keyOf(signed, high, contrast) {
  const bar = element("canvas", { width: 128, height: 1, "aria-hidden": "true" });
  const pen = bar.getContext("2d");
  const values = Float32Array.from({ length: 128 }, (_, i) =>
    signed ? i / 63.5 - 1 : i / 127,
  );
  pen.drawImage(paintTile(values, 1, 128, 1, signed, contrast), 0, 0);
  return [signed ? `−${said(high)}` : "0", bar, signed ? `+${said(high)}` : said(high)];
}
