// What the page can do beyond being read: mark what a line decided, sort tables, colour the mesh by process groups.
// It works on what stands in the page: nothing is loaded, nothing is sent, no text becomes markup.
(() => {
  "use strict";
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  root.classList.add("scripted");

  // A click on a formula marks everything that names its number in data-by; a second click takes the marks away.
  const lines = all("a.line");
  const said = document.getElementById("said");
  const mark = (chosen) => {
    for (const line of lines) {
      if (line === chosen) line.setAttribute("aria-current", "true");
      else line.removeAttribute("aria-current");
    }
    for (const item of all(".marked")) item.classList.remove("marked");
    if (said) said.textContent = chosen ? chosen.dataset.decides : "";
    if (!chosen) return;
    for (const item of all(`[data-by~="${chosen.dataset.line}"]`)) {
      item.classList.add("marked");
      item.closest("details")?.setAttribute("open", "");
    }
  };
  for (const line of lines) {
    line.addEventListener("click", (event) => {
      event.preventDefault();
      mark(line.hasAttribute("aria-current") ? null : line);
    });
  }
  // A chip leads to its line, and marks the rest of what the line decided.
  document.addEventListener("click", (event) => {
    const chip = event.target.closest("a.by");
    if (chip) mark(document.getElementById(chip.hash.slice(1)));
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") mark(null);
  });
  const linked = document.getElementById(location.hash.slice(1));
  if (lines.includes(linked)) mark(linked);

  // A click on the head of a column sorts by it, largest first; a second click turns the order round.
  const words = new Intl.Collator("en", { numeric: true });
  const key = (row, index) => row.cells[index].dataset.value ?? row.cells[index].textContent;
  const compare = (a, b) => {
    const difference = Number(a) - Number(b);
    return Number.isNaN(difference) ? words.compare(a, b) : difference;
  };
  const sort = (head) => {
    const body = head.closest("table").tBodies[0];
    const first = head.classList.contains("number") ? "descending" : "ascending";
    const second = first === "descending" ? "ascending" : "descending";
    const order = head.getAttribute("aria-sort") === first ? second : first;
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...body.rows].map((row) => ({ row, key: key(row, head.cellIndex) }));
    body.append(...rows.sort((a, b) => sign * compare(a.key, b.key)).map((item) => item.row));
  };
  for (const head of all("table[data-sortable] thead th")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(head));
    head.append(button);
  }

  // The mesh: ranks in order of the picture; the last axis varies fastest.
  const picture = document.querySelector(".nodes[data-axes]");
  if (picture) showGroups(picture);

  function showGroups(picture) {
    const axes = picture.dataset.axes.split(" ").map((axis) => {
      const at = axis.lastIndexOf(":");
      return { name: axis.slice(0, at), size: Number(axis.slice(at + 1)) };
    });
    const ranks = all("i", picture);
    const told = document.getElementById("rank-told");
    const asked = document.getElementById("rank-asked");
    const legend = picture.closest("figure").querySelector(".legend");
    const byGroup = ranks.map((rank) => rank.className);
    const colours = 16;
    const place = (rank) => {
      const found = {};
      for (const { name, size } of [...axes].reverse()) {
        found[name] = rank % size;
        rank = Math.floor(rank / size);
      }
      return found;
    };
    const places = ranks.map((_, rank) => place(rank));
    // The process group over one axis: ranks that differ in nothing else.
    const groupOver = (axis, rank) =>
      axes.reduce((sum, { name, size }) => (name === axis ? sum : sum * size + places[rank][name]), 0);
    const chosenAxis = () => document.querySelector("input[name=colour]:checked").value;

    const paint = () => {
      const axis = chosenAxis();
      legend.hidden = Boolean(axis);
      ranks.forEach((square, rank) => {
        square.className = axis ? `c${(groupOver(axis, rank) * 5) % colours}` : byGroup[rank];
      });
      tell();
    };
    const tell = () => {
      const rank = asked.valueAsNumber;
      const axis = chosenAxis();
      const isRank = Number.isInteger(rank) && rank >= 0 && rank < ranks.length;
      const members = ranks.map((_, other) => other).filter((other) =>
        isRank && (axis ? groupOver(axis, other) === groupOver(axis, rank) : byGroup[other] === byGroup[rank]));
      const isMember = new Set(members);
      ranks.forEach((square, other) => {
        square.classList.toggle("asked", isRank && other === rank);
        square.classList.toggle("dim", isRank && !isMember.has(other));
      });
      if (!isRank) {
        told.textContent = "";
        return;
      }
      const at = axes.map(({ name }) => `${name} ${places[rank][name]}`).join(", ");
      const node = ranks[rank].closest(".node").querySelector("small").textContent;
      const list = members.length > 16 ? `${members.slice(0, 16).join(", ")} and ${members.length - 16} more` : members.join(", ");
      told.textContent = `Rank ${rank}: ${at}; ${node}. Its ${axis ? `group over ${axis}` : "rank group"}: ${list}.`;
    };
    for (const radio of all("input[name=colour]")) radio.addEventListener("change", paint);
    asked.addEventListener("input", tell);
    picture.addEventListener("click", (event) => {
      const rank = ranks.indexOf(event.target);
      if (rank < 0) return;
      asked.value = asked.valueAsNumber === rank ? "" : rank;
      tell();
    });
  }
})();
