"""The four columns: what is cut where, what must match, what the commands say, and that a build gives the same bytes."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from crosscheck.cases import OPERATORS
from reading import operators, site, terminal
from reading.__main__ import main
from reading.listing import shown
from reading.results import Results
from reading.roofline import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, draw
from reading.sources import Bad, Excerpt, Tree, excerpts

ROOT = Path(__file__).resolve().parent.parent
NOTES = "reading/notes/softmax.toml"


@pytest.fixture(scope="module")
def loaded():
    tree = Tree(ROOT)
    return {name: operators.load(tree, name) for name in operators.names(tree)}


@pytest.fixture
def copy(tmp_path):
    """A tree of its own to spoil: ``copy.edit(path, text, replacement)``."""
    for folder in ("reference", "cuda", "cupy_impl", "triton_impl", "pallas_impl", "reading/notes"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "host"))
    return Copy(tmp_path)


class Copy:
    def __init__(self, root: Path):
        self.root = root

    def edit(self, path: str, text: str, replacement: str) -> None:
        file = self.root / path
        source = file.read_text()
        assert source.count(text) == 1, f"{text!r} is {source.count(text)} times in {path}"
        file.write_text(source.replace(text, replacement))

    def error(self, operator: str = "softmax") -> str:
        """The one line that loading it ends with."""
        with pytest.raises(Bad) as caught:
            operators.load(Tree(self.root), operator)
        assert "\n" not in str(caught.value)
        return str(caught.value)


# What is there


def test_every_operator_has_a_page(loaded):
    assert set(loaded) == set(OPERATORS)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_column_has_every_step_or_says_why(loaded, name):
    operator = loaded[name]
    assert {c.name for c in operator.columns} | set(operator.missing) == set(operators.COLUMNS)
    for column in operator.columns:
        for rung in column.rungs:
            for step in operator.steps:
                assert bool(rung.pieces.get(step.name)) != bool(operator.why_absent(step, rung)), (rung.key, step.name)


@pytest.mark.parametrize("name", OPERATORS)
def test_steps_come_in_the_reference_s_order(loaded, name):
    (rung,) = loaded[name].columns[0].rungs
    lines = [rung.pieces[step.name][0].excerpt.first for step in loaded[name].steps if step.name in rung.pieces]
    assert lines == sorted(lines)


@pytest.mark.parametrize("name", OPERATORS)
def test_every_header_has_its_four_parts(loaded, name):
    for column in loaded[name].columns[1:]:
        for rung in column.rungs:
            assert tuple(rung.header) == ("contract", "mapping", "traffic", "limits"), rung.files[0]


def test_every_marker_of_the_kernels_is_on_a_page(loaded):
    tree = Tree(ROOT)
    files = [*ROOT.glob("cuda/**/*.cu*"), *ROOT.glob("triton_impl/*.py"), *ROOT.glob("pallas_impl/*.py")]
    there = set()
    for file in files:
        path = file.relative_to(ROOT).as_posix()
        found = [(path, s.marker) for f in tree.source(path).functions for s in f.sections]
        assert len(found) == sum(" --- " in line and line.strip()[0] in "/#" for line in file.read_text().splitlines())
        there |= set(found)
    on_pages = {m for o in loaded.values() for m in o.markers if not m[0].startswith("reference/")}
    assert there == on_pages, sorted(there ^ on_pages)


# How sources are cut


def section_lines(source, name):
    (function,) = (f for f in source.functions if f.name == name)
    return [(s.steps, [line.number for line in s.lines]) for s in function.sections]


def test_sections_of_cuda(tmp_path):
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda/a.cu").write_text(
        "// A header.\n"
        "//\n"
        "// contract  one line\n"
        "// limits    two\n"
        "//           lines\n"
        "\n"
        "struct Pair {\n"
        "    float x = {};\n"
        "    // Of both.\n"
        "    __device__ float sum() const\n"
        "    {\n"
        "        // --- add\n"
        '        asm("{ }");  // }\n'
        "        return x;\n"
        "    }\n"
        "};\n"
        'extern "C" __global__ __launch_bounds__(BLOCK)\n'
        "void kernel(int n)\n"
        "{\n"
        "    const auto load = [&](int i) {\n"
        "        // --- load, --- add\n"
        "        return Pair().sum();\n"
        "    };\n"
        "\n"
        "    // --- store\n"
        "    out[n] = load(n);\n"
        "}\n"
    )
    source = Tree(tmp_path).source("cuda/a.cu")
    assert source.header == {"contract": "one line", "limits": "two lines"}
    assert [(f.name, f.is_kernel, f.is_method) for f in source.functions] == [
        ("sum", False, True),
        ("kernel", True, False),
    ]
    assert section_lines(source, "sum") == [(("add",), [13, 14, 15])]
    assert section_lines(source, "kernel") == [(("load", "add"), [22, 23, 24]), (("store",), [26, 27])]
    assert source.functions[0].lines[0].text.strip() == "// Of both."
    assert [line.number for line in source.outside()] == [6, 7, 8, 16]


def test_a_local_name_is_no_helper_of_that_name(tmp_path):
    (tmp_path / "pallas_impl").mkdir()
    (tmp_path / "pallas_impl/rows.py").write_text(
        "class Ring:\n    def fetch(self):\n        # --- load\n        pass\n"
    )
    (tmp_path / "pallas_impl/a.py").write_text(
        "from pallas_impl import rows\n"
        "from pallas_impl.rows import Ring as R\n"
        "def helper(x):\n    return x\n"
        "def a(x, fetch):\n    fetch(x)\n"
        "def b(x):\n    x.fetch(helper(rows.load(x)), R)\n"
        "def c(helper):\n    helper()\n"
    )
    uses = {f.name: f.uses for f in Tree(tmp_path).source("pallas_impl/a.py").functions}
    assert uses["a"] == () and uses["c"] == ()
    assert set(uses["b"]) == {
        (None, "fetch"),
        ("pallas_impl/a.py", "helper"),
        ("pallas_impl/rows.py", "load"),
        ("pallas_impl/rows.py", "Ring"),
    }


def test_a_step_is_read_in_a_helper_too(loaded):
    pallas = lambda operator: {
        rung.name: rung for column in loaded[operator].columns if column.name == "pallas" for rung in column.rungs
    }
    (piece,) = pallas("softmax")["one_read"].pieces["maximum of the row"]
    assert "functools.reduce(jnp.maximum" in piece.excerpt.lines[0].text
    assert {p.excerpt.path for p in pallas("softmax")["one_read"].pieces["load the row"]} == {"pallas_impl/softmax.py"}
    places = [p.excerpt.path for p in pallas("rmsnorm")["prefetched"].pieces["load the row"]]
    assert set(places) == {"pallas_impl/rmsnorm.py", "pallas_impl/rows.py"}


def test_a_section_of_two_steps_is_shown_once(loaded):
    (cuda,) = (c for c in loaded["matmul"].columns if c.name == "cuda")
    first = cuda.rungs[0]
    assert [p.steps for p in first.pieces["activation"]] == [("activation", "store"), ("activation",)]
    assert first.pieces["store"] == first.pieces["activation"][:1]
    page = site.pages(Tree(ROOT), ["matmul"])["matmul.html"]
    assert page.count(f"<figcaption>{first.pieces['store'][0].excerpt.place}<") == 1


def test_variants_are_read_through_stars_and_modules():
    tree = Tree(ROOT)
    found = tree.variants("cupy_impl/matmul.py", "matmul")
    assert list(found)[:2] == ["1_naive", "2_tiles"] and list(found)[-1] == "11_split"
    assert list(tree.variants("triton_impl/rmsnorm.py", "rmsnorm_backward"))[0] == "split_backward"


def listed(text: str, path: str = "cuda/a.cuh") -> list[str]:
    """As it is shown, in place of what it was set in by."""
    (excerpt,) = excerpts(path, Tree.lines(path, text))
    return ["".join(t for _, t in line.tokens) for line in shown(excerpt)]


def test_a_listing_is_moved_to_the_left():
    text = (
        "    #pragma\n".replace("    #pragma", "#pragma unroll")
        + "        f(a,  // first\n          b);       // (N,)\n"
    )
    assert listed(text) == ["#pragma unroll", "f(a,  // first", "  b);  // (N,)"]


def test_what_is_aligned_far_to_the_right_comes_back():
    text = (
        "    function_name_that_is_long(int a,\n"
        + 31 * " "
        + "int b,\n"
        + 31 * " "
        + "int c)\n    {\n#pragma x\n        g();\n"
    )
    assert listed(text) == [
        "function_name_that_is_long(int a,", "        int b,", "        int c)", "{", "#pragma x", "    g();",
    ]  # fmt: skip


# What does not match


def test_a_misspelt_marker(copy):
    copy.edit("triton_impl/softmax.py", "    # --- load the row\n    x = ()", "    # --- load teh row\n    x = ()")
    line = (copy.root / "triton_impl/softmax.py").read_text().splitlines().index("    # --- load teh row") + 1
    assert copy.error().startswith(f"triton_impl/softmax.py:{line}: step is 'load teh row'; near it: load the row")


def test_a_misspelt_marker_in_a_helper(copy):
    copy.edit("pallas_impl/matmul_tiles.py", "# --- load A and B", "# --- load A und B")
    assert "has no section 'load A and B'" in copy.error("matmul")


@pytest.mark.parametrize(
    "written", ["//--- maximum of the row", "// -- maximum of the row", "// ---maximum of the row"]
)
def test_what_was_meant_as_a_marker(copy, written):
    copy.edit("cuda/softmax/4_registers.cu", "// --- maximum of the row", written)
    assert copy.error() == f"cuda/softmax/4_registers.cu:38: {written!r} is no marker; accepted: // --- words"


def test_a_missing_marker(copy):
    copy.edit("cuda/softmax/3_warp.cu", "    // --- divide and store\n", "")
    assert copy.error() == (
        "cuda/softmax/3_warp.cu: 3_warp has no section 'divide and store'; mark it, or say why under its absent in "
        "reading/notes/softmax.toml"
    )


def test_a_reason_for_what_is_there(copy):
    copy.edit(NOTES, '[[step]]\nname = "load the row"', '[[step]]\nabsent = { triton = "no" }\nname = "load the row"')
    assert copy.error() == (
        "reading/notes/softmax.toml: step 'load the row' is absent in triton.online, and triton_impl/softmax.py has it"
    )


@pytest.mark.parametrize(
    "absent, said",
    [
        ('tritn = "why"', "reading/notes/vector_add.toml: absent of 'the tail' is 'tritn'; near it: triton"),
        ('"cuda.9" = "why"', "reading/notes/vector_add.toml: absent of 'the tail' is 'cuda.9'; near it: cuda"),
        (
            'triton.vector_add = "why"',
            "reading/notes/vector_add.toml: absent has triton without a reason; accepted: words",
        ),
        ('cuda = " "', "reading/notes/vector_add.toml: absent has cuda without a reason; accepted: words"),
    ],
)
def test_reasons_of_nobody(copy, absent, said):
    there = 'numpy = "arrays end where they end"'
    copy.edit("reading/notes/vector_add.toml", there, f"{there}, {absent}")
    assert copy.error("vector_add").startswith(said)


def test_a_column_that_is_missing(copy):
    (copy.root / "pallas_impl/softmax.py").unlink()
    assert copy.error() == (
        "reading/notes/softmax.toml: there is no pallas_impl/softmax.py; say why under [absent], pallas = ..."
    )
    copy.edit(NOTES, "[cuda]\n", '[absent]\npallas = "not built"\n\n[cuda]\n')
    operator = operators.load(Tree(copy.root), "softmax")
    assert operator.missing == {"pallas": "not built"} and len(operator.columns) == 3


def test_a_column_that_is_there_and_declared_missing(copy):
    copy.edit(NOTES, "[cuda]\n", '[absent]\ntriton = "not built"\n\n[cuda]\n')
    assert "has triton under [absent], and triton_impl/softmax.py is there: take it away" in copy.error()


@pytest.mark.parametrize(
    "path, text, replacement, said",
    [
        ("cuda/softmax/1_naive.cu", "// --- load the row\n", "// --- load the row\n    // --- maximum of the row\n",
         "cuda/softmax/1_naive.cu:19: section 'load the row' has no code before the next marker"),
        ("cuda/softmax/1_naive.cu", "        return;\n    }\n", "        return;\n",
         "cuda/softmax/1_naive.cu:18: the brace that opens here is never closed"),
        ("cuda/softmax/1_naive.cu", "        return;\n    }\n", "        return;\n    }}}\n",
         "cuda/softmax/1_naive.cu:23: a closing brace too many"),
        ("triton_impl/softmax.py", "def _online(", "def _online((", "triton_impl/softmax.py:"),
        ("triton_impl/softmax.py", "def _online(", "def _onlin(",
         "triton_impl/softmax.py has no function _online for its variant online"),
        ("reference/softmax.py", "\nContract\n", "\nContrct\n", "reference/softmax.py has no 'Contract' in its docstring"),
        (NOTES, 'shown = "resident"', 'shown = "residnt"', "triton.shown is 'residnt'; near it: resident"),
        (NOTES, 'title = "Softmax"', 'titel = "Softmax"', "has 'titel'; accepted: title, "),
        (NOTES, 'title = "Softmax"', "title = 3", "title is 3; accepted: a str"),
        (NOTES, 'title = "Softmax"\n', "", "has no title"),
        (NOTES, 'title = "Softmax"', 'title = "Softmax', "reading/notes/softmax.toml: "),
        (NOTES, 'name = "maximum of the row"', 'name = "load the row"', "step 'load the row' is there twice"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown(copy, path, text, replacement, said):
    copy.edit(path, text, replacement)
    assert said in copy.error()


# Figures


def rows_of(file: str, part: str, **wanted) -> list[dict]:
    document = json.loads((ROOT / "bench/results" / file).read_text())
    return [row for row in document[part] if all(row[key] == value for key, value in wanted.items())]


def cell(table, head: str, first) -> object:
    (line,) = (line for line in table.lines if line[0] == first)
    return line[table.heads.index(head)]


def test_agreement_is_the_result_file_s():
    (table,) = Results(ROOT).agreement("vector_add")
    assert table.file == "bench/results/h200/crosscheck.json"
    own = rows_of("h200/crosscheck.json", "rows", operator="vector_add", backend="cuda", dtype="float16")
    passed = sum(row["verdict"] == "pass" for row in own)
    assert cell(table, "float16", "CUDA") == ("0", f"{passed} of {len(own)}")
    assert cell(table, "float32", ("cupy", "cupy.add"))[0] == "∞"
    assert any("cupy: inaccurate in" in remark for remark in table.remarks)


def test_times_are_the_result_file_s():
    (table,) = Results(ROOT).times("vector_add")
    assert table.file == "bench/results/h200/vector_add.json"
    (row,) = rows_of("h200/vector_add.json", "records", backend="triton", case="vector_add-float32-67108864")
    assert cell(table, "Triton", "float32-67108864") == (
        f"{row['device_us']:.1f} µs",
        f"{100 * row['roof_fraction']:.0f} %",
    )


def test_the_compile_report_is_the_result_file_s():
    (table,) = Results(ROOT).compiled("matmul")
    own = rows_of(
        "compile_sm90a.json", "rows", operator="matmul", backend="cuda", variant="9_persistent", verdict="pass"
    )
    registers = sorted({row["registers"] for row in own})
    assert cell(table, "registers", ("CUDA", "9_persistent")) == " – ".join(map(str, registers))
    assert "HGMMA" in cell(table, "instructions", ("CUDA", "9_persistent"))


def test_the_fastest_of_several_is_named(tmp_path):
    folder = tmp_path / "bench/results"
    folder.mkdir(parents=True)
    document = json.loads((ROOT / "bench/results/h200/vector_add.json").read_text())
    record = document["records"][0] | {"backend": "cuda", "variant": "slow", "device_us": 9.0}
    flagged = record | {"variant": "fast", "device_us": 1234.0, "flags": ["power_capped"]}
    failed = record | {"variant": "broken", "device_us": None}
    record["device_us"] = 2345.6
    (folder / "a.json").write_text(json.dumps(document | {"records": [record, flagged, failed]}))
    (table,) = Results(tmp_path).times("vector_add")
    assert table.lines[0][1] == ("1 234.0 µs", f"{100 * record['roof_fraction']:.0f} %, fast")
    assert table.remarks == ("CUDA: power capped in float32-65536",)


def test_the_roofline_stays_in_its_frame():
    data = Results(ROOT).roofline("vector_add")
    assert len(data.points) == len(rows_of("h200/vector_add.json", "records", operator="vector_add"))
    picture = draw(data, 'a "label"')
    assert 'aria-label="a &quot;label&quot;"' in picture and draw(data, 'a "label"') == picture
    circles = [tuple(map(float, m)) for m in re.findall(r'<circle class="cuda" cx="([\d.]+)" cy="([\d.]+)"', picture)]
    assert len(circles) == sum(p.backend == "cuda" for p in data.points)
    assert all(LEFT < x < WIDTH - RIGHT and TOP < y < HEIGHT - BOTTOM for x, y in circles)


def test_without_result_files_the_sources_are_shown(copy):
    pages = site.pages(Tree(copy.root), ["softmax"])
    assert "There are no result files here" in pages["index.html"]
    assert pages["softmax.html"].count("There is no result file of this yet") == 3
    assert "team_reduce" in pages["softmax.html"] and "<svg" not in pages["softmax.html"]


@pytest.mark.parametrize("text", ["{", '{"schema": 99}', "[]"])
def test_a_spoilt_result_file(copy, text):
    (copy.root / "bench/results").mkdir(parents=True)
    (copy.root / "bench/results/a.json").write_text(text)
    with pytest.raises(Bad, match="^bench/results/a.json is no result file"):
        site.pages(Tree(copy.root), ["softmax"])


# The commands


def test_a_build_gives_the_same_bytes_in_time(tmp_path):
    found = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        begin = time.monotonic()
        command = [sys.executable, "-m", "reading", "--out", out]
        subprocess.run(
            command, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed}, check=True, stdout=subprocess.DEVNULL
        )
        assert time.monotonic() - begin < 10
        found.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert found[0] == found[1]
    assert set(found[0]) >= {"index.html", "style.css", "step.js", *(f"{name}.html" for name in OPERATORS)}


def test_no_framework_is_imported(tmp_path):
    code = (
        "import sys; from reading.__main__ import main; assert main(['--out', sys.argv[1]]) == 0; "
        "sys.exit(', '.join({'torch', 'triton', 'jax', 'cupy', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "out"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def run(capsys, *argv) -> tuple[int, str]:
    status = main([str(word) for word in argv])
    captured = capsys.readouterr()
    return status, captured.err if status else captured.out


def test_an_operator_that_there_is_not(capsys, tmp_path):
    assert run(capsys, "--op", "softmx", "--out", tmp_path / "out") == (
        2,
        "python -m reading: --op is 'softmx'; near it: softmax\n",
    )
    status, text = run(capsys, "show", "matmull")
    assert status == 2 and "near it: matmul" in text
    assert not (tmp_path / "out").exists()


def test_a_step_that_there_is_not(capsys):
    status, text = run(capsys, "show", "softmax", "--step", "subtract the maximum")
    assert status == 2 and text.startswith(
        "python -m reading: --step is 'subtract the maximum'; near it: maximum of the row"
    )


def test_a_directory_that_is_not_ours(capsys, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    status, text = run(capsys, "--op", "softmax", "--out", tmp_path)
    assert status == 2 and "has other things in it; accepted: an empty directory, or --force" in text
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert run(capsys, "--op", "softmax", "--out", tmp_path, "--force")[0] == 0
    assert (tmp_path / "mine.txt").read_text() == "mine" and (tmp_path / "softmax.html").exists()
    status, text = run(capsys, "--op", "softmax", "--out", tmp_path / "mine.txt")
    assert status == 2 and "which is no directory" in text


def test_what_is_no_longer_built_goes(capsys, tmp_path):
    out = tmp_path / "new/site"
    assert run(capsys, "--op", "vector_add", "softmax", "--out", out) == (0, f"{out / 'index.html'}\n")
    (out / "kept.txt").write_text("")
    assert run(capsys, "--op", "softmax", "--out", out)[0] == 0
    names = {path.name for path in out.iterdir()}
    assert names == {"index.html", "softmax.html", "style.css", "step.js", "reading.manifest", "kept.txt"}
    assert "vector_add.html" not in (out / "index.html").read_text()


def printed(operator, step, width: int) -> list[str]:
    console = Console(width=width, highlight=False, record=True, file=open(os.devnull, "w"))
    terminal.show(operator, step, console)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_the_terminal_stacks_or_not_by_its_width(loaded):
    titles = ["NumPy", "CUDA, 4_registers", "Triton, resident", "Pallas, one_read"]
    wide = printed(loaded["softmax"], "maximum of the row", 240)
    (beside,) = (line for line in wide if line.startswith("NumPy"))
    assert beside.split("  ")[0] == "NumPy" and all(title in beside for title in titles)
    narrow = printed(loaded["softmax"], "maximum of the row", 80)
    assert [line for line in narrow if line in titles] == titles
    for lines in (wide, narrow):
        assert any("m = team_reduce<TEAM>(m, Max(), maxima);" in line for line in lines)
        assert not any("divide and store" in line for line in lines)


def test_the_terminal_says_why_a_step_is_absent(loaded):
    lines = printed(loaded["vector_add"], "the tail", 80)
    assert "No such step: arrays end where they end." in lines


def test_without_a_step_all_are_printed(loaded):
    lines = printed(loaded["vector_add"], None, 80)
    assert [line for line in lines if line.startswith("Vector add: ")] == [
        f"Vector add: {step.name}" for step in loaded["vector_add"].steps
    ]


def test_a_place_names_its_lines():
    (excerpt,) = excerpts("a.py", Tree.lines("a.py", "\nx = 1\n\ny = 2\n\n"))
    assert isinstance(excerpt, Excerpt) and excerpt.place == "a.py:2-4"
