// Below each page that the search finds: the sections that hold the words, each with the words in their sentence.
// COURSE_SECTIONS, from sections.js, is a list of [page, anchor, title, text].
document.addEventListener("DOMContentLoaded", () => {
  const SHOWN = 4; // sections a page
  const AROUND = 70; // characters before and after the first word found
  const words = (new URLSearchParams(location.search).get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
  const results = document.querySelector("#search-results");
  if (!words.length || !results) return;
  const stems = words.map((word) => (word.length > 4 ? word.replace(/(ies|es|s)$/, "") : word));

  function score(section) {
    const title = section[2].toLowerCase();
    const text = section[3].toLowerCase();
    let sum = 0;
    for (const stem of stems) {
      const found = text.split(stem).length - 1;
      if (!found && !title.includes(stem)) return 0;
      sum += Math.min(found, 5) + (title.includes(stem) ? 10 : 0);
    }
    return sum;
  }

  function excerpt(text) {
    const at = Math.max(0, text.toLowerCase().indexOf(stems.find((stem) => text.toLowerCase().includes(stem)) || ""));
    const start = at <= AROUND ? 0 : text.indexOf(" ", at - AROUND) + 1;
    const end = at + AROUND >= text.length ? text.length : text.lastIndexOf(" ", at + AROUND + 20);
    return (start ? "… " : "") + text.slice(start, end) + (end < text.length ? " …" : "");
  }

  function below(link) {
    const page = link.getAttribute("href").split("#")[0].split("?")[0];
    const found = COURSE_SECTIONS.filter((section) => section[0] === page && section[2] !== link.textContent)
      .map((section) => [score(section), section])
      .filter((pair) => pair[0] > 0)
      .sort((a, b) => b[0] - a[0])
      .slice(0, SHOWN);
    const list = document.createElement("ul");
    list.className = "found-sections";
    for (const [, [, anchor, title, text]] of found) {
      const item = list.appendChild(document.createElement("li"));
      const entry = item.appendChild(document.createElement("a"));
      entry.href = `${page}#${anchor}`;
      entry.textContent = title;
      item.append(` ${excerpt(text)}`);
    }
    return list;
  }

  const done = new Set(); // pages: one that is found for its title and for its text is listed twice
  function complete() {
    for (const link of results.querySelectorAll("ul.search > li > a")) {
      const page = link.getAttribute("href").split("#")[0].split("?")[0];
      if (done.has(page)) continue;
      done.add(page);
      link.closest("li").append(below(link));
    }
  }
  new MutationObserver(complete).observe(results, { childList: true, subtree: true });
  complete();
});
