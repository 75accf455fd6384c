"""The pages of reading/ in a real browser: nothing cut, overlapping or faint, sections level, keys, and all of it without
JavaScript but the keys.
"""

import shutil
from pathlib import Path

import pytest

from crosscheck.cases import OPERATORS
from reading import site
from reading.sources import Tree

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("index", *OPERATORS)
WIDTHS = (1600, 1000, 400)
SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        own = playwright.chromium.executable_path
        names = ("chromium", "chromium-browser", "google-chrome")
        found = own if Path(own).exists() else next(filter(None, map(shutil.which, names)), None)
        if found is None:
            pytest.skip("no Chromium here: neither playwright's own nor one on PATH")
        running = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    site.build(Tree(ROOT), out, list(OPERATORS))
    return out


@pytest.fixture
def visit(browser, folder):
    """``visit(name)`` opens a page from disk; what it says on the console fails the test."""
    contexts, said = [], []

    def opened(name: str, width: int = 1600, scheme: str = "light", **options):
        context = browser.new_context(viewport={"width": width, "height": 1000}, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("requestfailed", lambda request: said.append(request.url))
        page.goto((folder / f"{name}.html").as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []


# Every text that is on view, with its boxes, colours and what could cut it.
TEXTS = """() => {
  const seen = (e) => e.checkVisibility({checkOpacity: true, checkVisibilityCSS: true});
  const away = (e) => e.closest(".skip, legend") || (e.closest("thead") && getComputedStyle(e.closest("thead")).overflow === "hidden");
  const rgb = (text) => { const c = text.match(/[\\d.]+/g).map(Number); return c.length < 4 ? [...c, 1] : c; };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c[3] === 1) return c;
      if (c[3] > 0) throw new Error("a translucent background");
    }
    throw new Error("no background");
  };
  const light = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((v, w) => v - w); return (y + 0.05) / (x + 0.05); };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, e = node.parentElement;
    if (!node.data.trim() || !seen(e) || away(e) || e.closest("script, style, option")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const style = getComputedStyle(e), color = rgb(e.closest("svg") ? style.fill : style.color);
    const boxes = [...range.getClientRects()].filter((b) => b.width > 0 && b.height > 0)
      .map((b) => [b.left, b.top + scrollY, b.right, b.bottom + scrollY]);
    let low = contrast(color, behind(e));
    if (e.closest(".l")) low = Math.min(low, contrast(rgb(getComputedStyle(e.closest(".l"), "::before").color), behind(e)));
    const stuck = e.closest(".scroll");
    found.push({text: node.data.trim(), boxes, contrast: low, scrolls: stuck !== null && stuck.scrollWidth > stuck.clientWidth});
  }
  for (const e of document.querySelectorAll("select")) {
    const b = e.getBoundingClientRect(), style = getComputedStyle(e);
    const room = document.createElement("canvas").getContext("2d");
    room.font = style.font;
    found.push({text: e.value, boxes: [[b.left, b.top + scrollY, b.right, b.bottom + scrollY]],
      contrast: contrast(rgb(style.color), behind(e)), scrolls: false, needs: room.measureText(e.value).width + 12, has: b.width});
  }
  return {texts: found, wide: document.documentElement.scrollWidth};
}"""


def overlapping(boxes: list[tuple[float, float, float, float, str]]) -> list[tuple[str, str]]:
    """Pairs of texts of which more than a hair's breadth covers each other."""
    pairs, open_boxes = [], []
    for box in sorted(boxes, key=lambda b: b[1]):
        open_boxes = [other for other in open_boxes if other[3] > box[1] + 3]
        for other in open_boxes:
            if min(box[2], other[2]) - max(box[0], other[0]) > 2 and min(box[3], other[3]) - max(box[1], other[1]) > 3:
                pairs.append((other[4], box[4]))
        open_boxes.append(box)
    return pairs


def test_the_check_for_overlaps_sees_one():
    a, b, c = (0, 0, 50, 16, "a"), (0, 18, 50, 34, "b"), (40, 20, 90, 36, "c")
    assert overlapping([c, b, a]) == [("b", "c")]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_no_text_is_cut_faint_or_covered(visit, name, width, scheme):
    found = visit(name, width, scheme).evaluate(TEXTS)
    texts = found["texts"]
    assert len(texts) > 30 and found["wide"] <= width
    faint = {t["text"]: round(t["contrast"], 2) for t in texts if t["contrast"] < 4.5}
    assert not faint
    cut = [t["text"] for t in texts for b in t["boxes"] if not t["scrolls"] and (b[0] < 0 or b[2] > width)]
    cut += [t["text"] for t in texts if t.get("needs", 0) > t.get("has", 0)]
    assert not cut
    assert not overlapping([(*b, t["text"]) for t in texts for b in t["boxes"] if not t["scrolls"]])


CELLS = """() => [...document.querySelectorAll(".cells")].map((row) => [...row.querySelectorAll(".cell")]
  .filter((cell) => cell.checkVisibility()).map((cell) => {
    const box = cell.getBoundingClientRect();
    return [Math.round(box.left), Math.round(box.top + scrollY)];
  }))"""


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_section_is_level_in_all_columns_or_stacked(visit, name, width):
    rows = visit(name, width).evaluate(CELLS)
    assert len(rows) > 4
    for cells in rows:
        beside = {1600: len(cells), 1000: min(2, len(cells)), 400: 1}[width]
        for i in range(0, len(cells), beside):
            lefts, tops = zip(*cells[i : i + beside])
            assert len(set(tops)) == 1 and list(lefts) == sorted(set(lefts))
        assert [top for _, top in cells[::beside]] == sorted({top for _, top in cells})


def test_keys_go_from_step_to_step(visit):
    page = visit("matmul")
    anchors = page.eval_on_selector_all(".steps a", "links => links.map((a) => a.hash)")
    where = "() => [location.hash, document.activeElement.id, document.activeElement.getBoundingClientRect().top]"
    below = page.evaluate("document.querySelector('.bar').offsetHeight")
    for key, there in [
        *(("j", a) for a in [*anchors, anchors[-1]]),
        *(("k", a) for a in anchors[-2::-1]),
        ("k", anchors[0]),
    ]:
        page.keyboard.press(key)
        hash, focused, top = page.evaluate(where)
        assert hash == there == f"#{focused}"
        assert page.get_attribute(f".steps a[href='{there}']", "aria-current") == "step"
        if there != anchors[-1]:  # at the page's end there is nothing to scroll
            assert below <= top < below + 40
        rows = page.evaluate(CELLS)
        assert all(len({top for _, top in cells}) == 1 for cells in rows)


def test_keys_hide_columns_and_those_left_take_the_room(visit):
    page = visit("softmax")
    before = page.locator("#step-load-the-row .cell.triton").bounding_box()["width"]
    page.keyboard.press("2")
    assert not page.locator("#step-load-the-row .cell.cuda").is_visible()
    assert not page.locator("#show-cuda").is_checked()
    assert page.locator("#step-load-the-row .cell.triton").bounding_box()["width"] > before * 1.2
    assert page.locator(".cell.triton >> visible=true").count() == page.locator(".cells").count()
    page.keyboard.press("2")
    assert page.locator("#step-load-the-row .cell.cuda").is_visible()


def test_keys_are_left_to_a_selector(visit):
    page = visit("softmax")
    page.focus("#rung-cuda")
    page.keyboard.press("1")
    assert page.locator("#show-numpy").is_checked()


def rungs_on_view(page, column: str) -> set[str]:
    shown = f".cell.{column} [data-rung]"
    return set(
        page.eval_on_selector_all(shown, "all => all.filter((e) => e.checkVisibility()).map((e) => e.dataset.rung)")
    )


@pytest.mark.parametrize("scripts", [True, False])
def test_a_rung_is_chosen_and_a_column_hidden(visit, scripts):
    page = visit("matmul", java_script_enabled=scripts)
    assert rungs_on_view(page, "cuda") == {"cuda.9_persistent"}
    page.select_option("#rung-cuda", "1_naive")
    assert rungs_on_view(page, "cuda") == {"cuda.1_naive"}
    assert rungs_on_view(page, "pallas") == {"pallas.persistent"}
    assert (
        page.locator("#step-store .cell.cuda .with >> visible=true").inner_text().startswith("With activation: cuda/")
    )
    page.uncheck("#show-triton")
    assert rungs_on_view(page, "triton") == set() and rungs_on_view(page, "cuda") == {"cuda.1_naive"}
    assert page.locator(".keys").is_visible() == scripts


def test_without_scripts_anchors_lead_to_the_steps(visit):
    page = visit("rmsnorm", java_script_enabled=False)
    page.click(".steps a >> nth=3")
    assert page.url.endswith("#step-scale-and-store")
    assert 0 <= page.locator("#step-scale-and-store").bounding_box()["y"] < 500


@pytest.mark.parametrize("scheme, other", [("light", "dark"), ("dark", "light")])
def test_colours_are_the_system_s_or_chosen(visit, scheme, other):
    page = visit("softmax", scheme=scheme)
    ground = "getComputedStyle(document.body).backgroundColor"
    first = page.evaluate(ground)
    page.check(f"#theme-{scheme}")
    assert page.evaluate(ground) == first
    page.check(f"#theme-{other}")
    chosen = page.evaluate(ground)
    assert chosen != first
    page.reload()
    assert page.evaluate(ground) == chosen and page.is_checked(f"#theme-{other}")
    page.click("text=Vector add")
    page.wait_for_url("**/vector_add.html")  # and its stylesheet
    assert page.evaluate(ground) == chosen
    page.check("#theme-auto")
    assert page.evaluate(ground) == first


@pytest.mark.parametrize("name", PAGES)
def test_what_a_reader_hears(visit, name):
    page = visit(name)
    levels = page.eval_on_selector_all("h1, h2, h3, h4", "all => all.map((e) => Number(e.tagName[1]))")
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(b - a <= 1 for a, b in zip(levels, levels[1:]))
    named = "all => all.filter((e) => !(e.labels?.length || e.getAttribute('aria-label'))).length"
    assert page.eval_on_selector_all("input, select, svg[role=img], [role=region], nav, form", named) == 0
    assert (
        page.eval_on_selector_all("svg:not([role=img]):not([aria-hidden=true]), img:not([alt])", "all => all.length")
        == 0
    )
    assert page.get_attribute("html", "lang") == "en" and page.title()
    ids = page.eval_on_selector_all("[id]", "all => all.map((e) => e.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(visit, folder, name):
    page = visit(name)
    for link in set(page.eval_on_selector_all("a", "all => all.map((a) => a.getAttribute('href'))")):
        file, _, anchor = link.partition("#")
        assert not file or (folder / file).exists(), link
        assert not anchor or page.locator(f"[id='{anchor}']").count() == 1, link
