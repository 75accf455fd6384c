"""What compilers say of every kernel, without a GPU: registers, spills, shared memory, the instructions that matter.

CUDA goes through NVRTC as on a GPU. Triton's and Pallas' kernels are compiled from what the public functions launch
when they are called on shapes alone. Registers, stack and static shared memory are read from the cubin, spills are
ptxas' own words.
"""

import contextlib
import functools
import importlib
import importlib.util
import math
import multiprocessing
import os
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

from tabulate import tabulate

from crosscheck import backends
from crosscheck.cases import CASES, OPERATORS, Case
from crosscheck.runner import brief
from reference.contract import ArrayInfo, Unsupported, Variant, row_major, scalar

KEY = ("operator", "backend", "variant", "case", "arch", "kernel")  # what makes a row the same row in another run

# What has to be importable to compile, which is not what is needed to run.
PACKAGES = {"cuda": ("cuda.bindings",), "triton": ("torch", "triton"), "pallas": ("jax", "jax_cuda13_plugin")}

ARCHS = ("sm_80", "sm_89", "sm_90a", "sm_100")

# Tensor cores; bulk copies to and from shared memory; asynchronous copies; local memory, where spills go.
INSTRUCTIONS = ("HMMA", "HGMMA", "UTMALDG", "UTMASTG", "LDGSTS", "LDL", "STL")

# Of a multiprocessor: threads, blocks, bytes of shared memory (CUDA C++ programming guide, "Technical
# specifications per compute capability"). All have 65536 registers, handed out to warps in units of 256, and keep
# 1 KiB of shared memory for themselves in every block.
LIMITS = {
    "sm_80": (2048, 32, 167936),
    "sm_89": (1536, 24, 102400),
    "sm_90": (2048, 32, 233472),
    "sm_100": (2048, 32, 233472),
}


@dataclass(frozen=True)
class Job:
    """One kernel to compile: a backend's variant for a case on an architecture of ARCHS."""

    backend: str
    case: Case
    variant: Variant
    arch: str

    @property
    def device(self) -> str:
        """The architecture as a device names its own."""
        return self.arch.removesuffix("a")

    @property
    def target(self) -> str:
        """What is compiled for, as on such a device."""
        return self.variant.target(self.device)


class Kernel(NamedTuple):
    """A compiled kernel. log: ptxas' words on its registers and spills. seconds: what compiling took."""

    cubin: bytes
    log: str
    threads: int
    dynamic_shared_bytes: int
    seconds: float
    name: str = ""  # where the binary has several


def representative(operator: str, dtype: str) -> Case:
    """The largest case of a dtype that is timed, or else checked."""
    own = [c for c in CASES.values() if c.operator == operator and c.dtype == dtype and c.distribution == "normal"]
    timed = [c for c in own if "performance" in c.sets]
    size = lambda c: max(scalar(d).itemsize * math.prod(shape) for shape, d in OPERATORS[operator].outputs(c).values())
    return max((c for c in timed or own if size(c) <= 1 << 32), key=size)


# --- the three frameworks


def compile_cuda(job: Job) -> list[Kernel]:
    from cupy_impl import nvrtc

    operator = OPERATORS[job.case.operator]
    info = lambda spec: ArrayInfo(spec[0], spec[1], row_major(spec[0]), "cuda:0", 0)
    given, keywords = operator.call(job.case, {name: info(spec) for name, spec in operator.arrays(job.case).items()})
    outputs = [info(spec) for spec in operator.outputs(job.case).values()]
    # ``plan``, or ``plan_backward`` for the operator ``<module>_backward``.
    plan = operator.name.replace(operator.module, "plan", 1)
    module = importlib.import_module(f"cupy_impl.{operator.module}")
    launches = getattr(module, plan)(*given, *outputs, variant=job.variant, **keywords)
    kernels = []
    for launch in launches:
        start = time.perf_counter()
        image, log = nvrtc.compile(launch.kernel, job.target, "--ptxas-options=-v")
        seconds = time.perf_counter() - start
        own = _of_function(log, launch.kernel.name)
        kernels.append(Kernel(image, own, math.prod(launch.block), launch.shared_bytes, seconds, launch.kernel.name))
    return kernels


def _of_function(log: str, name: str) -> str:
    """What ptxas says of one kernel."""
    parts = re.split(r"(?=ptxas info\s+: Compiling entry function)", log)
    return "".join(part for part in parts if f"entry function '{name}'" in part)


def compile_triton(job: Job) -> list[Kernel]:
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import get_ptxas  # torch.compile sets Triton on another one than its own
    from triton.runtime.jit import JITFunction
    from triton.tools.tensor_descriptor import TensorDescriptor

    from triton_impl import tensors

    target = GPUTarget("cuda", int(job.device[3:]), 32)
    types = {
        torch.float32: "fp32",
        torch.float16: "fp16",
        torch.bfloat16: "bf16",
        torch.int32: "i32",
        torch.int64: "i64",
    }
    kernels = []

    def compile_instead(self, *args, grid, warmup, **keywords):
        """In the place of JITFunction.run: the kernel that would be launched."""
        names = {p.name: p for p in self.params}
        values = dict(zip(names, args)) | {k: v for k, v in keywords.items() if k in names}
        options = {k: v for k, v in keywords.items() if k not in names}
        signature, constants, attributes = {}, {}, {}
        for i, (name, parameter) in enumerate(names.items()):
            value = values[name]
            if parameter.is_constexpr:
                signature[name], constants[name] = "constexpr", value
                continue
            if isinstance(value, torch.Tensor):
                signature[name] = f"*{types[value.dtype]}"
            elif isinstance(value, TensorDescriptor):
                signature[name] = f"tensordesc<{types[value.base.dtype]}{value.block_shape}>"
            elif isinstance(value, float):
                signature[name] = "fp32"
            else:
                signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if isinstance(value, torch.Tensor) or isinstance(value, int) and value % 16 == 0:
                attributes[(i,)] = [["tt.divisibility", 16]]
        source = triton.compiler.ASTSource(self, signature, constants, attributes)
        start = time.perf_counter()
        built = triton.compile(source, target=target, options=options)
        seconds = time.perf_counter() - start
        log = ptxas(built.asm["ptx"], get_ptxas(target.arch).path)
        kernels.append(Kernel(built.asm["cubin"], log, 32 * built.metadata.num_warps, built.metadata.shared, seconds))

    operator = OPERATORS[job.case.operator]
    arrays = {
        name: torch.empty(shape, dtype=getattr(torch, d), device="meta")
        for name, (shape, d) in operator.arrays(job.case).items()
    }
    given, keywords = operator.call(job.case, arrays)
    function = getattr(importlib.import_module(f"triton_impl.{operator.module}"), operator.name)
    with contextlib.ExitStack() as patched:
        for owner, name, value in (
            (JITFunction, "run", compile_instead),
            (tensors, "PLATFORM", "meta"),
            (tensors, "arch", lambda tensor: job.device),
            (tensors, "on_device", lambda tensor: contextlib.nullcontext()),
        ):
            patched.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        function(*given, variant=job.variant.name, **keywords)
    return kernels


def compile_pallas(job: Job) -> list[Kernel]:
    import jax
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    from pallas_impl import arrays

    description = Path(__file__).with_name("h200.txt").read_text()
    topology = topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=description)
    place = SingleDeviceSharding(topology.devices[0])
    operator = OPERATORS[job.case.operator]
    structs = {
        name: jax.ShapeDtypeStruct(shape, scalar(d), sharding=place)
        for name, (shape, d) in operator.arrays(job.case).items()
    }
    function = getattr(importlib.import_module(f"pallas_impl.{operator.module}"), operator.name)

    def call(traced):
        given, keywords = operator.call(job.case, traced)
        return function(*given, variant=job.variant.name, **keywords)

    real = arrays.arch
    arrays.arch = lambda array, interpret: job.device
    try:
        with tempfile.TemporaryDirectory() as dump:
            os.environ["MOSAIC_GPU_DUMP_TO"] = dump
            jax.clear_caches()
            start = time.perf_counter()
            with _quiet():  # Mosaic GPU would disassemble what it dumps and does not find the tool
                jax.jit(call).trace(structs).lower(lowering_platforms=("cuda",)).compile()
            seconds = time.perf_counter() - start
            found = sorted(Path(dump).glob("*.ptx"))
            texts = [(p.read_text(), p.with_suffix(".resources.txt").read_text()) for p in found]
    finally:
        arrays.arch = real
        del os.environ["MOSAIC_GPU_DUMP_TO"]
    kernels = []
    for ptx, resources in texts:
        with tempfile.TemporaryDirectory() as scratch:
            image = Path(scratch) / "kernel.cubin"
            log = ptxas(ptx, tool("ptxas"), image)
            threads = math.prod(int(n) for n in re.search(r"\.(?:reqntid|maxntid) ([\d, ]+)", ptx)[1].split(","))
            shared = int(re.search(r"smem_scratch_bytes=(\d+)", resources)[1])
            kernels.append(Kernel(image.read_bytes(), log, threads, shared, seconds))
    return kernels


@contextlib.contextmanager
def _quiet():
    """What C++ code writes on stderr goes nowhere."""
    saved = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


COMPILERS = {"cuda": compile_cuda, "triton": compile_triton, "pallas": compile_pallas}


# --- what the binaries say


@functools.cache
def tool(name: str) -> str:
    """cuobjdump or ptxas: a toolkit's, or those in the packages nvidia-cuda-nvcc and triton."""
    places = [None, "/usr/local/cuda/bin"]
    for package, inside in (("nvidia.cu13", "bin"), ("triton", "backends/nvidia/bin")):
        spec = importlib.util.find_spec(package) if importlib.util.find_spec(package.partition(".")[0]) else None
        places += [str(Path(root) / inside) for root in (spec.submodule_search_locations if spec else ())]
    for place in places:
        if found := shutil.which(name, path=place):
            return found
    raise Unsupported(f"{name} was found neither on PATH nor in the packages nvidia-cuda-nvcc and triton")


def ptxas(ptx: str, program: str, image: Path | None = None) -> str:
    """What the ptxas at the path ``program`` says of a PTX text, and its cubin at ``image``."""
    version = re.search(r"\.target (\w+)", ptx)[1]
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "kernel.ptx"
        source.write_text(ptx)
        command = [program, "-v", f"-arch={version}", str(source)]
        done = subprocess.run(
            [*command, "-o", str(image or Path(scratch) / "kernel.cubin")], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"ptxas: {done.stderr.strip().splitlines()[0]}")
        return done.stderr


def inspect(kernel: Kernel, device: str) -> dict:
    """The figures of one kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.cubin)
        file.flush()
        usage = subprocess.run(
            [tool("cuobjdump"), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        )
        sass = subprocess.run(
            [tool("cuobjdump"), "-sass", file.name], capture_output=True, text=True, check=True
        ).stdout
    usage = usage.stdout.partition(f"Function {kernel.name}:")[2] if kernel.name else usage.stdout
    used = {name: int(value) for name, value in reversed(re.findall(r"(REG|STACK|SHARED):(\d+)", usage))}
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", kernel.log)
    operations = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z0-9]+)", sass)
    # The system's own part of shared memory, 1 KiB from sm_90 on, is not the kernel's.
    static = used["SHARED"] - (1024 if int(device[3:]) >= 90 and used["SHARED"] >= 1024 else 0)
    return {
        "registers": used["REG"],
        "spill_bytes": sum(map(int, spills)),
        "stack_bytes": used["STACK"],
        "static_shared_bytes": static,
        "dynamic_shared_bytes": kernel.dynamic_shared_bytes,
        "cubin_bytes": len(kernel.cubin),
        "instructions": {name: operations.count(name) for name in INSTRUCTIONS},
        "occupancy": occupancy(device, kernel.threads, used["REG"], static + kernel.dynamic_shared_bytes),
        "compile_s": round(kernel.seconds, 3),
    }


def occupancy(device: str, threads: int, registers: int, shared_bytes: int) -> float:
    """The share of a multiprocessor's threads that such blocks can fill: 0 where none fits."""
    most_threads, most_blocks, most_shared = LIMITS[device]
    warps = -(-threads // 32)
    of_registers = 65536 // (warps * -(-registers * 32 // 256) * 256)
    blocks = min(most_blocks, most_threads // (warps * 32), of_registers, most_shared // (shared_bytes + 1024))
    return blocks * warps * 32 / most_threads


def unmet(expect: Mapping[str, object], figures: Mapping[str, object]) -> list[str]:
    """What a variant's expectations find missing: a number is meant as it stands, ``">0"`` as a comparison."""
    flat = {**figures, **figures["instructions"]}
    wrong = []
    for name, wanted in expect.items():
        comparison, number = re.fullmatch(r"(>|<=)?(\d+)", str(wanted)).groups()
        value, limit = flat[name], int(number)
        if not {">": value > limit, "<=": value <= limit, None: value == limit}[comparison]:
            wrong.append(f"{name} is {value}, expected {wanted}")
    return wrong


def new_row(operator: str, backend: str, variant: str | None, case: str, arch: str) -> dict:
    """A row with nothing in it yet."""
    return {
        "operator": operator,
        "backend": backend,
        "variant": variant,
        "case": case,
        "arch": arch,
        "kernel": 0,
        "verdict": "unsupported",
        "registers": None,
        "spill_bytes": None,
        "stack_bytes": None,
        "static_shared_bytes": None,
        "dynamic_shared_bytes": None,
        "cubin_bytes": None,
        "instructions": {},
        "occupancy": None,
        "compile_s": None,
        "reason": None,
    }


def run(job: Job) -> list[dict]:
    """A row for each kernel that the job's call launches."""
    row = new_row(job.case.operator, job.backend, job.variant.name, job.case.id, job.arch)
    if not job.variant.runs_on(job.device):
        return [
            row | {"reason": f"{job.variant.name} is not for {job.arch}; built here: {', '.join(job.variant.archs)}"}
        ]
    if job.case.dtype not in job.variant.dtypes:
        return [
            row
            | {"reason": f"{job.variant.name} is not for {job.case.dtype}; built here: {', '.join(job.variant.dtypes)}"}
        ]
    try:
        kernels = COMPILERS[job.backend](job)
        rows = []
        for i, kernel in enumerate(kernels):
            figures = inspect(kernel, job.device)
            missing = unmet(job.variant.expect, figures)
            verdict = {"verdict": "fail" if missing else "pass", "reason": "; ".join(missing) or None}
            rows.append(row | {"kernel": i} | figures | verdict)
        return rows
    except Unsupported as refusal:
        return [row | {"verdict": "not run", "reason": str(refusal)}]
    except Exception as error:
        return [row | {"verdict": "fail", "reason": brief(error)}]


def _prepare(scratch: str) -> None:
    # The same with a GPU and without; Triton decides at import whether it compiles, and a cache would hide how long.
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": scratch,
    }


class Ask(NamedTuple):
    """Kernels to compile: a backend's variants (by default all) for a case on an architecture of ARCHS."""

    backend: str
    case: str
    arch: str
    variants: Sequence[str] | None = None


def _share(ask: Ask) -> list[dict]:
    case = CASES[ask.case]
    row = new_row(case.operator, ask.backend, None, case.id, ask.arch) | {"verdict": "not run"}
    missing = [p for p in PACKAGES[ask.backend] if importlib.util.find_spec(p) is None]
    if missing:
        return [row | {"reason": f"{' and '.join(missing)} not installed"}]
    try:
        module = backends.BACKENDS[ask.backend].module(case.operator)
    except Exception as error:
        return [row | {"verdict": "fail", "reason": brief(error)}]
    variants = [v for v in module.VARIANTS[case.operator] if ask.variants is None or v.name in ask.variants]
    return [r for variant in variants for r in run(Job(ask.backend, case, variant, ask.arch))]


def of_representatives(
    operators: Sequence[str],
    chosen: Sequence[str],
    dtypes: Sequence[str],
    archs: Sequence[str],
    variants: Sequence[str] | None = None,
) -> list[Ask]:
    """What to compile of backends for the representative case of every operator and dtype."""
    return [
        Ask(backend, representative(operator, dtype).id, arch, variants)
        for operator in operators
        for backend in chosen
        if backends.BACKENDS[backend].has(operator)
        for dtype in OPERATORS[operator].dtypes
        if dtype in dtypes
        for arch in archs
    ]


def check(asked: Sequence[Ask]) -> list[dict]:
    """The rows of the report, in the order of what is asked."""
    at_once = min(len(asked) or 1, os.cpu_count() or 1)
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as scratch, spawn.Pool(at_once, _prepare, (scratch,)) as pool:
        return [row for rows in pool.map(_share, asked, chunksize=1) for row in rows]


def table(rows: Sequence[dict]) -> str:
    """One line a kernel; instructions that no kernel has are left out."""
    present = [name for name in INSTRUCTIONS if any(row["instructions"].get(name) for row in rows)]
    lines = []
    for row in rows:
        shared = None if row["registers"] is None else f"{row['static_shared_bytes']} + {row['dynamic_shared_bytes']}"
        lines.append(
            {
                "operator": row["operator"],
                "backend": row["backend"],
                "variant": row["variant"] or "",
                "dtype": CASES[row["case"]].dtype,
                "arch": row["arch"],
                "verdict": row["verdict"],
                "registers": row["registers"],
                "spills": row["spill_bytes"],
                "stack": row["stack_bytes"],
                "shared": shared,
                "cubin": row["cubin_bytes"],
                **{name: row["instructions"].get(name) for name in present},
                "occupancy": None if row["occupancy"] is None else f"{100 * row['occupancy']:.0f} %",
                "seconds": None if row["compile_s"] is None else f"{row['compile_s']:.2f}",
            }
        )
    text = tabulate(lines, headers="keys")
    for row in rows:
        if row["reason"]:
            text += f"\n{row['verdict']}: {row['backend']}: {row['reason']} ({row['case']}, {row['arch']})"
    return text
