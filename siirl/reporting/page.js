// The only script of the page, which its content policy allows by hash. It shows values and meanings on hover, touch and focus, moves along a
// chart with the arrow keys, gives the focus to what scrolls, and reloads the page of a running job. Texts reach the page as textContent alone.
"use strict";
(() => {
  const help = document.getElementById("help");
  document.documentElement.classList.add("lively");

  for (const chart of document.querySelectorAll(".chart")) {
    const facts = JSON.parse(chart.dataset.chart), tip = chart.querySelector(".tip"), cursor = chart.querySelector(".cursor");
    const svg = chart.querySelector("svg");
    let place = -1;
    const show = (wanted) => {
      place = Math.max(0, Math.min(facts.steps.length - 1, wanted));
      const lines = facts.series.filter((curve) => String(place) in curve.at).map((curve) => `${curve.label}  ${curve.at[place]}`);
      tip.textContent = [`step ${facts.steps[place]}`, ...lines].join("\n");
      tip.classList.add("shown");
      const x = facts.x[place];
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      const left = (x / facts.width) * chart.clientWidth;
      tip.style.left = `${Math.max(0, Math.min(chart.clientWidth - tip.offsetWidth, left < chart.clientWidth / 2 ? left + 12 : left - tip.offsetWidth - 12))}px`;
    };
    const hide = () => {
      tip.classList.remove("shown");
      cursor.setAttribute("x1", -9);
      cursor.setAttribute("x2", -9);
    };
    const nearest = (event) => {
      const box = svg.getBoundingClientRect(), x = ((event.clientX - box.left) / box.width) * facts.width;
      let best = 0;
      facts.x.forEach((at, index) => { if (Math.abs(at - x) < Math.abs(facts.x[best] - x)) best = index; });
      show(best);
    };
    svg.addEventListener("pointermove", nearest);
    svg.addEventListener("pointerdown", nearest);
    svg.addEventListener("pointerleave", hide);
    chart.addEventListener("blur", hide);
    chart.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: place + 1, ArrowLeft: place < 0 ? facts.steps.length - 1 : place - 1, Home: 0, End: facts.steps.length - 1 };
      if (event.key === "Escape") hide();
      if (event.target !== chart || !(event.key in moves)) return;
      event.preventDefault();
      show(moves[event.key]);
    });
  }

  const explain = (event) => {
    const about = event.target.closest ? event.target.closest("[data-help]") : null;
    help.classList.toggle("shown", Boolean(about && about.dataset.help));
    if (!about) return;
    help.textContent = about.dataset.help;
    const box = about.getBoundingClientRect();
    help.style.left = `${Math.max(8, Math.min(innerWidth - help.offsetWidth - 8, box.left))}px`;
    help.style.top = `${box.bottom + help.offsetHeight + 12 < innerHeight ? box.bottom + 6 : Math.max(8, box.top - help.offsetHeight - 6)}px`;
  };
  for (const kind of ["pointerover", "focusin", "click"]) document.addEventListener(kind, explain);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") help.classList.remove("shown"); });
  addEventListener("scroll", () => help.classList.remove("shown"), { passive: true });

  // A region that scrolls is a stop of Tab, so that the arrow keys scroll it; one that fits is none.
  const regions = new ResizeObserver((changes) => changes.forEach(({ target }) => {
    const scrolls = target.scrollWidth > target.clientWidth + 1 || target.scrollHeight > target.clientHeight + 1;
    const attributes = { tabindex: "0", role: "region", "aria-label": target.dataset.region };
    for (const [name, value] of Object.entries(attributes)) scrolls ? target.setAttribute(name, value) : target.removeAttribute(name);
  }));
  for (const region of document.querySelectorAll("[data-region]")) regions.observe(region);

  const every = Number(document.documentElement.dataset.live);
  if (every) setInterval(() => {
    const reads = document.querySelector("details[open]") || getSelection().toString() || document.querySelector(".tip.shown, #help.shown");
    const watches = [...document.querySelectorAll("video")].some((video) => !video.paused);
    if (!document.hidden && !reads && !watches) location.reload();
  }, 1000 * every);
})();
