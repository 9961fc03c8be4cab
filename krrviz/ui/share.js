// The button that copies this picture's link. Where the browser gives no clipboard (plain http on
// another machine), the link is shown, chosen, for the person to copy.

export default function ({ parentElement, data }) {
  const root = parentElement.querySelector(".share");
  const [copy, link, told] = ["button", "input", "output"].map((tag) => root.querySelector(tag));
  link.value = new URL(data.page || "./", new URL(".", location.href)) + "?" + data.query;
  copy.onclick = async () => {
    try {
      await navigator.clipboard.writeText(link.value);
      told.textContent = "Copied";
    } catch {
      link.hidden = false;
      link.select();
      told.textContent = "Press Ctrl+C";
    }
    root.dataset.copied = link.value;
    clearTimeout(root.timer);
    root.timer = setTimeout(() => (told.textContent = ""), 4000);
  };
}
