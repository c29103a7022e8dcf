"""Facts about the GPUs: from NVML, or nvidia-smi where there are no NVML bindings, and from the CUDA driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import GH200Error
from ..memory.driver import BindingsMissing, DeviceAttribute, Driver
from ..memory.family import Family, Platform, platform_of
from .machine import Machine, Ran, found_in

SMI_SECONDS = 10.0
SMI_FIELDS = ("index", "name", "driver_version", "compute_cap", "memory.total", "memory.used", "uuid")
MIB = 1 << 20
ADDRESSING_MODES = {0: "NONE", 1: "HMM", 2: "ATS"}


@dataclass(frozen=True)
class Gpu:
    """One GPU; None where no source says."""

    index: int
    name: str
    compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    addressing_mode: str | None = None
    numa_node: int | None = None
    c2c_enabled: bool | None = None
    c2c_links: int | None = None
    c2c_links_active: int | None = None
    attributes: dict[str, int] = field(default_factory=dict)
    uuid: str | None = None
    cuda_number: int | None = None

    @property
    def reports_coherence(self) -> bool:
        """Whether any source reports how this GPU reaches memory."""
        return bool(self.attributes) or self.addressing_mode is not None

    @property
    def coherent(self) -> bool:
        """Whether CPU and GPU share page tables."""
        uses_host_tables = self.attributes.get("pageable_memory_access_uses_host_page_tables") == 1
        return self.addressing_mode == "ATS" or uses_host_tables

    @property
    def platform(self) -> Platform:
        """What the machine is: by CUDA's attributes, and by NVML where CUDA was not asked or page tables are off."""
        found = platform_of(self.attributes)
        beside = self.addressing_mode == "ATS" or bool(self.c2c_links)
        return found if found.family is not Family.DISCRETE or not beside else Platform(Family.COHERENT, self.numa_node)


@dataclass(frozen=True)
class Gpus:
    """All GPUs, their source, and the problem of each other source; `asked_cuda` is whether CUDA could be queried."""

    devices: tuple[Gpu, ...] = ()
    source: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    usable: int | None = None
    visible_devices: str | None = None
    kernel_driver: str | None = None
    hung: bool = False
    asked_cuda: bool = True
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def family(self) -> Family:
        """Of the first GPU: those of one machine are alike."""
        return self.devices[0].platform.family if self.devices else Family.NONE

    @property
    def least_memory(self) -> int:
        """Bytes of the smallest one; 0 where this process may use none."""
        hidden = self.visible_devices == "" or self.usable == 0
        return 0 if hidden else min((gpu.memory_bytes or 0 for gpu in self.devices), default=0)


def read_gpus(machine: Machine) -> Gpus:
    """nvidia-smi goes first: where it hangs, NVML and the driver would hang this process too, beyond any time limit."""
    smi = run_smi(machine, f"--query-gpu={','.join(SMI_FIELDS)}")
    gpus = Gpus(
        visible_devices=machine.environ.get("CUDA_VISIBLE_DEVICES"),
        # The kernel module's own first line: proof of a GPU's driver where nothing else can be asked.
        kernel_driver=found_in(machine.root / "proc/driver/nvidia/version", r"(.+)"),
    )
    if smi.hung:
        return replace(gpus, hung=True, asked_cuda=False, problems={"nvidia-smi": smi.problem})
    problems: dict[str, str] = {}
    found, version = _from_nvml(machine.nvml(), problems)
    source = "NVML"
    if not found:
        found, version = _from_smi(smi, problems)
        source = "nvidia-smi"
    driver = machine.driver()
    if isinstance(driver, GH200Error):
        problems["CUDA driver"] = f"{driver.what}{f' ({driver.why})' if driver.why else ''}"
        gpus = replace(gpus, asked_cuda=not isinstance(driver, BindingsMissing))
    else:
        source = source if found else "CUDA driver"
        found = _with_attributes(found, driver)
        cuda = f"{driver.version // 1000}.{driver.version % 1000 // 10}"
        gpus = replace(gpus, usable=driver.device_count, cuda_version=cuda)
    return replace(
        gpus, devices=tuple(found), source=source if found else None, driver_version=version, problems=problems
    )


def run_smi(machine: Machine, query: str) -> Ran:
    """Run nvidia-smi with one query."""
    return machine.run(("nvidia-smi", query, "--format=csv,noheader,nounits"), SMI_SECONDS, machine.environ)


def smi_rows(smi: Ran) -> Iterator[list[str]]:
    """None where it did not answer."""
    for line in smi.output.splitlines() if smi.code == 0 else ():
        yield [cell.strip() for cell in line.split(",")]


def _from_nvml(nvml: Any, problems: dict[str, str]) -> tuple[list[Gpu], str | None]:
    if isinstance(nvml, str):
        problems["NVML"] = nvml
        return [], None
    try:
        nvml.nvmlInit()
        version = _asked(nvml.nvmlSystemGetDriverVersion)
        return [_nvml_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())], version
    except Exception as error:  # NVML's own error type is only known to the module that may be a fake
        problems["NVML"] = str(error)
        return [], None
    finally:
        _asked(nvml.nvmlShutdown)


def _asked(question: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None: older drivers and other GPUs do not know every question."""
    try:
        answer = question(*arguments)
    except Exception:
        return None
    return answer.decode() if isinstance(answer, bytes) else answer


def _nvml_gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    capability = _asked(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    memory = _asked(nvml.nvmlDeviceGetMemoryInfo, handle)
    node = _asked(lambda: nvml.nvmlDeviceGetNumaNodeId(handle))
    c2c = _asked(lambda: nvml.nvmlDeviceGetC2cModeInfoV(handle))
    links = _field(nvml, handle, "NVML_FI_DEV_C2C_LINK_COUNT", 0)
    states = [_field(nvml, handle, "NVML_FI_DEV_C2C_LINK_GET_STATUS", link) for link in range(links or 0)]
    return Gpu(
        index=index,
        name=str(_asked(nvml.nvmlDeviceGetName, handle)),
        compute_capability=(int(capability[0]), int(capability[1])) if capability else None,
        memory_bytes=int(memory.total) if memory else None,
        memory_used_bytes=int(memory.used) if memory else None,
        addressing_mode=ADDRESSING_MODES.get(_asked(lambda: nvml.nvmlDeviceGetAddressingMode(handle))),
        numa_node=node if node is not None and node >= 0 else None,
        c2c_enabled=bool(c2c.isC2cEnabled) if c2c is not None else None,
        c2c_links=links,
        c2c_links_active=sum(state == 1 for state in states) if links is not None else None,
        uuid=_asked(lambda: nvml.nvmlDeviceGetUUID(handle)),
    )


def _field(nvml: Any, handle: Any, name: str, scope: int) -> int | None:
    def ask() -> int | None:
        value = nvml.nvmlDeviceGetFieldValues(handle, [(getattr(nvml, name), scope)])[0]
        return int(value.value.uiVal) if value.nvmlReturn == 0 else None

    answer: int | None = _asked(ask)
    return answer


def _from_smi(smi: Ran, problems: dict[str, str]) -> tuple[list[Gpu], str | None]:
    if smi.code != 0:
        problems["nvidia-smi"] = smi.problem or smi.last_line
        return [], None
    found, version = [], None
    for cells in smi_rows(smi):
        if len(cells) != len(SMI_FIELDS) or not cells[0].isdigit():
            continue
        version = cells[2]
        major, _, minor = cells[3].partition(".")
        capability = (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None
        total, used = (int(cell) * MIB if cell.isdigit() else None for cell in cells[4:6])
        found.append(Gpu(int(cells[0]), cells[1], capability, total, used, uuid=cells[6]))
    if not found:
        problems["nvidia-smi"] = smi.last_line if smi.output.strip() else "it lists no GPU"
    return found, version


def _with_attributes(found: list[Gpu], driver: Driver) -> list[Gpu]:
    """CUDA and NVML number devices each in a way of their own; a UUID is the same to both."""
    by_index = {gpu.index: gpu for gpu in found}
    by_uuid = {gpu.uuid: gpu.index for gpu in found if gpu.uuid}
    complete = []
    for device in range(driver.device_count):
        uuid = _asked(driver.device_uuid, device)
        index = by_uuid.get(uuid, device)
        gpu = by_index.pop(index, None) or Gpu(device, driver.device_name(device), uuid=uuid)
        attributes = {}
        for attribute in DeviceAttribute:
            value = _asked(driver.device_attribute, attribute, device)
            if value is not None:
                attributes[attribute.name.lower()] = value
        own_node = platform_of(attributes).hbm_node
        node = gpu.numa_node if own_node is None else own_node
        # NVML knows no memory of a GPU that has none of its own.
        memory = gpu.memory_bytes or _asked(lambda device=device: driver.total_memory(device))
        complete.append(replace(gpu, attributes=attributes, numa_node=node, cuda_number=device, memory_bytes=memory))
    return sorted([*complete, *by_index.values()], key=lambda gpu: gpu.index)
