"""``cuda/*.cu`` to cubins with NVRTC, which needs no GPU, and a cache of them on disk."""

from pathlib import Path

from cupy_impl.launches import SOURCES, Kernel, cached, compile_error, include_directories, sources


def options(kernel: Kernel, target: str) -> tuple[str, ...]:
    """NVRTC's options for a kernel on the architecture ``target``, ``"sm_90"``."""
    return (
        "-std=c++17",
        f"-arch={target}",
        *(f"-D{name}={value}" for name, value in kernel.defines),
        *(f"-I{path}" for path in include_directories()),
    )


def compile(kernel: Kernel, target: str, *more: str) -> tuple[bytes, str]:
    """A kernel for ``target`` as a cubin, and the compiler's log; more: further options.

    Raises CompileError.
    """
    from cuda.bindings import nvrtc

    def ok(answer: tuple):
        status, *values = answer
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(f"NVRTC: {status.name}")
        return values[0] if values else None

    flags = *options(kernel, target), *more
    text = (SOURCES / kernel.source).read_bytes()
    program = ok(nvrtc.nvrtcCreateProgram(text, kernel.title.encode(), 0, [], []))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    log = bytearray(ok(nvrtc.nvrtcGetProgramLogSize(program)))
    ok(nvrtc.nvrtcGetProgramLog(program, log))
    said = log.rstrip(b"\0").decode()
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise compile_error(kernel, f"NVRTC ({status.name})", flags, said)
    image = bytearray(ok(nvrtc.nvrtcGetCUBINSize(program)))
    ok(nvrtc.nvrtcGetCUBIN(program, image))
    ok(nvrtc.nvrtcDestroyProgram(program))
    return bytes(image), said


def cubin(kernel: Kernel, target: str) -> Path:
    """The file with a kernel for ``target``, compiled if no process has compiled it before.

    Raises CompileError.
    """
    from cuda.bindings import nvrtc

    _, *version = nvrtc.nvrtcVersion()
    texts = [path.read_text() for path in sources(kernel)]
    build = lambda path: path.write_bytes(compile(kernel, target)[0])
    return cached(kernel.name, ".cubin", build, *map(str, version), *options(kernel, target), *texts)
