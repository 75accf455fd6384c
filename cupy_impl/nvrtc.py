"""``cuda/*.cu`` to cubins with NVRTC, which needs no GPU, and a cache of them on disk."""

from pathlib import Path

from cupy_impl.launches import SOURCES, Launch, cached, compile_error, include_directories, sources, title


def options(launch: Launch, target: str) -> tuple[str, ...]:
    """NVRTC's options for a launch on the architecture ``target``, ``"sm_90"``."""
    return (
        "-std=c++17",
        f"-arch={target}",
        *(f"-D{name}={value}" for name, value in launch.defines),
        *(f"-I{path}" for path in include_directories()),
    )


def cubin(launch: Launch, target: str) -> Path:
    """The file with a launch's kernel for ``target``, compiled if no process has compiled it before.

    Raises CompileError.
    """
    from cuda.bindings import nvrtc

    def ok(answer: tuple):
        status, *values = answer
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise RuntimeError(f"NVRTC: {status.name}")
        return values[0] if values else None

    flags = options(launch, target)
    status, *version = nvrtc.nvrtcVersion()

    def build(path: Path) -> None:
        source, name = (SOURCES / launch.source).read_bytes(), title(SOURCES / launch.source).encode()
        program = ok(nvrtc.nvrtcCreateProgram(source, name, 0, [], []))
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
        log = bytearray(ok(nvrtc.nvrtcGetProgramLogSize(program)))
        ok(nvrtc.nvrtcGetProgramLog(program, log))
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise compile_error(launch, f"NVRTC ({status.name})", flags, log.rstrip(b"\0").decode())
        image = bytearray(ok(nvrtc.nvrtcGetCUBINSize(program)))
        ok(nvrtc.nvrtcGetCUBIN(program, image))
        ok(nvrtc.nvrtcDestroyProgram(program))
        path.write_bytes(image)

    texts = [path.read_text() for path in sources(launch)]
    return cached(launch.kernel, ".cubin", build, *map(str, version), *flags, *texts)
