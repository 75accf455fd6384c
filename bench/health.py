"""The state of the GPU while it is measured, read from NVML."""

import os
import statistics
from typing import NamedTuple, Sequence

# nvmlClocksEventReasons: what holds the clocks down.
POWER_CAP = 0x4
SLOWDOWNS = 0x8 | 0x20 | 0x40 | 0x80  # hardware, software thermal, hardware thermal, power brake


class Sample(NamedTuple):
    """One reading. sm_clock_mhz; power_w; temperature_c; reasons: NVML's bit mask of what slows the clocks."""

    sm_clock_mhz: int
    power_w: float
    temperature_c: int
    reasons: int


class Monitor:
    """Reads the state of the first GPU that CUDA shows."""

    def __init__(self):
        import pynvml
        import torch

        self._nvml = pynvml
        pynvml.nvmlInit()
        # NVML does not know of CUDA_VISIBLE_DEVICES, but CUDA tells the board's bus address.
        where = torch.cuda.get_device_properties(0)
        address = f"{where.pci_domain_id:08x}:{where.pci_bus_id:02x}:{where.pci_device_id:02x}.0"
        self._device = pynvml.nvmlDeviceGetHandleByPciBusId(address)

    def sample(self) -> Sample:
        nvml, device = self._nvml, self._device
        return Sample(
            nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
            nvml.nvmlDeviceGetPowerUsage(device) / 1e3,
            nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
            nvml.nvmlDeviceGetCurrentClocksEventReasons(device),
        )

    def others(self) -> list[str]:
        """Processes of others at work on the GPU, by name and id."""
        nvml, found = self._nvml, []
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(self._device):
            if process.pid != os.getpid():
                try:
                    name = os.path.basename(nvml.nvmlSystemGetProcessName(process.pid))
                except nvml.NVMLError:  # of another container or user
                    name = "a process"
                found.append(f"{name} ({process.pid})")
        return found


def summary(samples: Sequence[Sample]) -> dict:
    """Of the samples around some batches: the fields of a record."""
    return {
        "sm_clock_mhz": statistics.median(s.sm_clock_mhz for s in samples),
        "power_w": round(max(s.power_w for s in samples), 1),
        "temperature_c": max(s.temperature_c for s in samples),
        "power_capped": any(s.reasons & POWER_CAP for s in samples),
        "throttled": any(s.reasons & SLOWDOWNS for s in samples),
    }
