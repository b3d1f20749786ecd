"""Catalogue of devices by their makers' figures: dense peak FLOPs, bandwidth and memory, each with its source.

Peaks are *dense*: makers print 'with sparsity' figures that are twice as high and that no dense model reaches. For
tensor units they are with 32-bit accumulation, as PyTorch multiplies; GeForce cards do that at half their advertised
rate. fp32 is the ordinary 32-bit rate, not TF32. Where a maker prints no peak it is derived from units x rate x
clock, and `derived` is set. Real programs reach 70 to 95 % of these: measure where you can.

`source` and `published` name the maker's document. The documents themselves were not at hand when the rows were
written: `checked` says which public page, read in November 2026, repeats which of the figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from specviz.errors import SettingsError
from specviz.trace.records import Ceilings

T, G = 1e12, 1e9


@dataclass(frozen=True)
class Device:
    """One device. `peaks`: precision to dense FLOPs per second; `bandwidth` in bytes per second; memory in bytes."""

    name: str
    kind: str
    peaks: Mapping[str, float]
    bandwidth: float
    memory: float
    source: str
    """The maker's document."""
    published: str
    """Its year."""
    derived: str = ""
    """How a peak that the maker does not print was derived; empty: all are printed."""
    checked: str = ""
    """The page that was read to check the figures; empty: none, the row is from memory of its source."""

    @property
    def provenance(self) -> str:
        """Source, date, derivation and check, in words for the screen."""
        parts = [f"{self.source}{f' ({self.published})' if self.published else ''}."]
        if self.derived:
            parts.append(f"Derived: {self.derived}.")
        if self.kind != "own":
            parts.append(
                f"Checked November 2026: {self.checked}."
                if self.checked
                else "Written from memory of that document, not checked since."
            )
        return " ".join(parts)

    def ceilings(self, precision: str = "bf16") -> Ceilings:
        """The roofs by the datasheet. Raises SettingsError for a precision that the device does not have."""
        if precision not in self.peaks:
            raise SettingsError(
                f"{self.name} has no {precision} peak in the catalogue. Choose one of: {', '.join(self.peaks)}."
            )
        peak = self.peaks[precision]
        return Ceilings(
            device=self.name,
            precision=precision,
            bandwidth=self.bandwidth,
            flops=peak,
            bandwidth_spread=(self.bandwidth,) * 2,
            flops_spread=(peak,) * 2,
            measured_at=self.published,
        )


def _tensor(half: float, fp32: float, fp8: float | None = None, bf16: bool = True) -> dict[str, float]:
    peaks = {"bf16": half * T} if bf16 else {}
    peaks |= {"fp16": half * T, "fp32": fp32 * T}
    return peaks | ({"fp8": fp8 * T} if fp8 else {})


_ADA = "tensor cores x 64 multiply-adds a clock (Ada whitepaper) x boost clock of the product page"
_AMPERE = "tensor cores x 64 multiply-adds a clock (GA102 whitepaper) x boost clock of the product page"

DEVICES: tuple[Device, ...] = (
    Device(
        "H100 SXM",
        "GPU",
        _tensor(989.4, 66.9, 1978.9),
        3.35 * T,
        80 * G,
        "NVIDIA H100 Tensor Core GPU datasheet",
        "2023",
        checked="glennklockwood.com/garden/processors/h100 (all but memory size)",
    ),
    Device(
        "H100 PCIe",
        "GPU",
        _tensor(756, 51, 1513),
        2.0 * T,
        80 * G,
        "NVIDIA H100 Tensor Core GPU datasheet",
        "2022",
        checked="archive-lib.hpctech.co.jp/gpuproduct/nvidia-h100.html (all)",
    ),
    Device(
        "H200 SXM",
        "GPU",
        _tensor(989.4, 66.9, 1978.9),
        4.8 * T,
        141 * G,
        "NVIDIA H200 Tensor Core GPU datasheet",
        "2024",
        checked="llmbook.apartsin.com, appendix G (16 and 8 bit, bandwidth, memory)",
    ),
    Device(
        "B200",
        "GPU",
        _tensor(2250, 75, 4500),
        7.7 * T,
        180 * G,
        "NVIDIA Blackwell datasheet, column HGX B200",
        "2025",
        checked="hmc-tech.com, B200 vs L4 (peaks and bandwidth; other pages say 8 TB/s and 192 GB)",
    ),
    Device(
        "A100 40 GB",
        "GPU",
        _tensor(312, 19.5),
        1.555 * T,
        40 * G,
        "NVIDIA A100 Tensor Core GPU datasheet",
        "2020",
        checked="glennklockwood.com/garden/processors/A100 (all)",
    ),
    Device(
        "A100 80 GB SXM",
        "GPU",
        _tensor(312, 19.5),
        2.039 * T,
        80 * G,
        "NVIDIA A100 Tensor Core GPU datasheet",
        "2021",
        checked="glennklockwood.com/garden/processors/A100 (all)",
    ),
    Device(
        "L4",
        "GPU",
        _tensor(121, 30.3, 242.5),
        300 * G,
        24 * G,
        "NVIDIA L4 Tensor Core GPU datasheet",
        "2023",
        checked="hmc-tech.com, B200 vs L4 (bandwidth and memory; it derives other peaks)",
    ),
    Device(
        "L40S",
        "GPU",
        _tensor(362.05, 91.6, 733),
        864 * G,
        48 * G,
        "NVIDIA L40S datasheet",
        "2023",
        checked="mullet.se, L40 and L40S (all)",
    ),
    Device(
        "T4",
        "GPU",
        _tensor(65, 8.1, bf16=False),
        320 * G,
        16 * G,
        "NVIDIA T4 Tensor Core GPU datasheet",
        "2019",
        checked="sysrqmts.com, A100 vs T4 (all)",
    ),
    Device("A10G", "GPU", _tensor(70, 35), 600 * G, 24 * G, "NVIDIA A10G datasheet for AWS", "2022"),
    Device(
        "V100 SXM2",
        "GPU",
        _tensor(125, 15.7, bf16=False),
        900 * G,
        32 * G,
        "NVIDIA V100 Tensor Core GPU datasheet",
        "2020",
    ),
    Device(
        "RTX 3060 12 GB",
        "GPU",
        _tensor(25.5, 12.7),
        360 * G,
        12 * G,
        "NVIDIA GeForce RTX 3060 product page; NVIDIA Ampere GA102 whitepaper",
        "2021",
        _AMPERE,
        checked="sysrqmts.com, RTX 3060 (fp32, bandwidth, memory)",
    ),
    Device(
        "RTX 3090",
        "GPU",
        _tensor(71, 35.6),
        936 * G,
        24 * G,
        "NVIDIA Ampere GA102 whitepaper",
        "2020",
        checked="ctc.archdevil.net (peaks)",
    ),
    Device(
        "RTX 4070",
        "GPU",
        _tensor(58.3, 29.1),
        504 * G,
        12 * G,
        "NVIDIA GeForce RTX 4070 product page; NVIDIA Ada whitepaper",
        "2023",
        _ADA,
        checked="ctc.archdevil.net (peaks), guru3d.com (bandwidth, memory)",
    ),
    Device(
        "RTX 4090",
        "GPU",
        _tensor(165.2, 82.6, 330.3),
        1.008 * T,
        24 * G,
        "NVIDIA Ada GPU architecture whitepaper",
        "2022",
        checked="waredb.com/processor/nvidia-geforce-rtx-4090 (all)",
    ),
    Device(
        "RTX 5090",
        "GPU",
        _tensor(209.5, 104.8, 419),
        1.792 * T,
        32 * G,
        "NVIDIA RTX Blackwell GPU architecture whitepaper",
        "2025",
        checked="spheron.network, RTX 5090 specs (fp32, bandwidth, memory; 16 bit is a quarter of its 838)",
    ),
    Device(
        "RTX 6000 Ada",
        "GPU",
        _tensor(364.2, 91.1, 728.5),
        960 * G,
        48 * G,
        "NVIDIA RTX 6000 Ada Generation datasheet; NVIDIA Ada whitepaper",
        "2022",
    ),
    Device(
        "MI300X",
        "GPU",
        _tensor(1307.4, 163.4, 2614.9),
        5.3 * T,
        192 * G,
        "AMD Instinct MI300X data sheet",
        "2023",
        checked="llmbook.apartsin.com, appendix G (16 and 8 bit, bandwidth, memory)",
    ),
    Device(
        "Apple M2 Max",
        "GPU",
        {"fp16": 13.6 * T, "fp32": 13.6 * T},
        400 * G,
        96 * G,
        "Apple newsroom, M2 Pro and M2 Max (bandwidth, memory)",
        "2023",
        "38 cores x 128 multiply-adds a clock x 1.40 GHz; Apple prints no peak",
    ),
    Device(
        "Apple M4 Max",
        "GPU",
        {"fp16": 16.2 * T, "fp32": 16.2 * T},
        546 * G,
        128 * G,
        "Apple newsroom, M4 Pro and M4 Max (bandwidth, memory)",
        "2024",
        "40 cores x 128 multiply-adds a clock x 1.58 GHz as reviewers report it; Apple prints no peak",
        checked="macrumors.com 2024-10-30 (bandwidth, memory, cores)",
    ),
    Device(
        "Jetson AGX Orin 64 GB",
        "GPU",
        {"fp16": 42.5 * T, "bf16": 42.5 * T, "fp32": 5.3 * T},
        204.8 * G,
        64 * G,
        "NVIDIA Jetson AGX Orin Series technical brief",
        "2022",
        "16 bit: half of the 85 dense INT8 TOPS of the GPU",
        checked="mzph.cn, quoting the brief (fp32, 170 sparse INT8 TOPS)",
    ),
    Device(
        "Ryzen 7 7840U (laptop)",
        "CPU",
        {"fp32": 0.845 * T, "bf16": 1.69 * T},
        89.6 * G,
        64 * G,
        "AMD Ryzen 7 7840U product page (8 cores, 3.3 GHz, two channels of DDR5-5600)",
        "2023",
        "cores x 32 FLOPs a clock (64 in bf16) x base clock",
    ),
    Device(
        "EPYC 9654 (server)",
        "CPU",
        {"fp32": 7.37 * T, "bf16": 14.7 * T},
        460.8 * G,
        1536 * G,
        "AMD EPYC 9004 Series data sheet (96 cores, 2.4 GHz, twelve channels of DDR5-4800)",
        "2022",
        "cores x 32 FLOPs a clock (64 in bf16) x base clock; memory as with 128 GB a channel",
        checked="playcrazygame.com 2021-12-14 and io-tech.fi 2022-11 (cores, channels, bandwidth)",
    ),
    Device(
        "Xeon Platinum 8480+ (server)",
        "CPU",
        {"fp32": 7.17 * T, "bf16": 229 * T},
        307.2 * G,
        1024 * G,
        "Intel Xeon Platinum 8480+ specifications (56 cores, 2.0 GHz, eight channels of DDR5-4800)",
        "2023",
        "cores x 64 FLOPs a clock (2048 in bf16, AMX) x base clock; memory as with 128 GB a channel",
    ),
)


def device(name: str) -> Device:
    """The device of this name. Raises SettingsError with the names there are."""
    for entry in DEVICES:
        if entry.name.lower() == name.strip().lower():
            return entry
    raise SettingsError(
        f"There is no device {name!r} in the catalogue. There are: {', '.join(d.name for d in DEVICES)}."
    )


def own(bandwidth: float, flops: float, memory: float, precision: str = "bf16", name: str = "Your own") -> Device:
    """A device of your own: bytes per second, dense FLOPs per second, bytes. Raises SettingsError for nonsense."""
    for what, value, low, high in (
        ("bandwidth", bandwidth, 1e8, 1e15),
        ("peak", flops, 1e8, 1e19),
        ("memory", memory, 1e6, 1e16),
    ):
        if not math.isfinite(value) or not low <= value <= high:
            raise SettingsError(
                f"A {what} of {value:g} is not believable: give bytes, bytes per second and FLOPs per "
                f"second, from {low:g} to {high:g}."
            )
    return Device(name, "own", {precision: flops}, bandwidth, memory, "typed in", "")
