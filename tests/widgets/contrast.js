// Texts with less contrast than 4.5 to what they stand on (WCAG 2.1, 1.4.3).
// A mixed colour is given in parts of one: "color(srgb 0.9 0.95 1)".
const numbers = (colour) => {
  const parts = colour.match(/[\d.]+/g).map(Number);
  return colour.startsWith("color(") ? parts.map((part, i) => (i < 3 ? 255 * part : part)) : parts;
};
const luminance = (colour) =>
  colour
    .slice(0, 3)
    .map((part) => part / 255)
    .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (node) => {
  for (; node; node = node.parentElement) {
    const colour = numbers(getComputedStyle(node).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
window.poorContrast = (within = "#here") =>
  [...document.querySelectorAll(`${within} *`)]
    .filter((node) => {
      const speaks = [...node.childNodes].some(
        (child) => child.nodeType === Node.TEXT_NODE && child.textContent.trim(),
      );
      if (!speaks || !node.getClientRects().length) return false;
      if (node.closest("[aria-disabled=true], :disabled, .agentnb-spoken, .agentnb-bar-spoken, svg")) return false;
      const [low, high] = [luminance(numbers(getComputedStyle(node).color)), luminance(ground(node))].sort(
        (a, b) => a - b,
      );
      return (high + 0.05) / (low + 0.05) < 4.5;
    })
    .map((node) => `${node.className}: ${node.textContent.slice(0, 40)}`);
