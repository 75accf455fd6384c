// Keys, the current step, and a choice of colours that outlives the page. Without this all is there, but for the keys.
"use strict";

const root = document.documentElement;
root.classList.add("js");

for (const input of document.querySelectorAll(".theme input")) {
  try {
    input.checked = input.id === (localStorage.getItem("theme") ?? "theme-auto");
    input.addEventListener("change", () => localStorage.setItem("theme", input.id));
  } catch {
    // Where nothing may be stored the choice is this page's.
  }
}

const links = [...document.querySelectorAll(".steps a")];
const steps = links.map((link) => document.getElementById(link.hash.slice(1)));
const bar = document.querySelector(".bar");

function measure() {
  const sticks = bar && getComputedStyle(bar).position === "sticky";
  root.style.setProperty("--bar", `${sticks ? bar.offsetHeight : 0}px`);
}

/** The step whose top is the last one above a third of the window; -1 before the first. */
function current() {
  return steps.findLastIndex((step) => step.getBoundingClientRect().top < window.innerHeight / 3);
}

function mark() {
  const here = current();
  links.forEach((link, i) => (i === here ? link.setAttribute("aria-current", "step") : link.removeAttribute("aria-current")));
}

function go(to) {
  const step = steps[Math.max(0, Math.min(to, steps.length - 1))];
  step.scrollIntoView({ behavior: "instant" });
  step.focus({ preventScroll: true, focusVisible: true });
  history.replaceState(null, "", `#${step.id}`);
  mark();
}

/** Where j and k go from: the step that has the focus, or else the one on view. */
function from() {
  const focused = steps.findIndex((step) => step.contains(document.activeElement));
  return focused >= 0 ? focused : current();
}

if (steps.length) {
  measure();
  mark();
  window.addEventListener("resize", measure);
  window.addEventListener("scroll", mark, { passive: true });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select, input[type=text]")) {
      return;
    }
    const boxes = document.querySelectorAll(".columns input");
    if (event.key === "j") {
      go(from() + 1);
    } else if (event.key === "k") {
      go(from() - 1);
    } else if (boxes[event.key - 1]) {
      boxes[event.key - 1].click();
      measure();
    } else {
      return;
    }
    event.preventDefault();
  });
}
