"""The records: JSON files that only `pytest tests/golden --record` writes."""

from __future__ import annotations

import hashlib
import json
import platform
from functools import cache
from pathlib import Path
from typing import Any


class Records:
    """Compares what was observed with what was recorded, or records it."""

    def __init__(self, directory: Path, *, writing: bool) -> None:
        self.directory, self.writing = directory, writing

    def check(self, name: str, part: str, observed: Any) -> None:
        """`part` of the record `name` must be what was observed; JSON makes lists of tuples."""
        observed = json.loads(json.dumps(observed))
        record = self.read(name)
        if self.writing:
            record[part] = observed
            self._write(name, record)
            return
        assert part in record, f"{part} is not in the record {name}; pytest tests/golden --record writes it"
        assert observed == record[part]

    def check_bits(self, name: str, part: str, observed: Any, where: str) -> bool:
        """The same for what depends on the CPU and on absolute paths; False where this machine has no record."""
        kind = f"{cpu_kind()} in {where}"
        if not self.writing and part not in self.read(name).get(kind, {}):
            return False
        bits = dict(self.read(name).get(kind, {}))
        if self.writing:
            self.check(name, kind, bits | {part: observed})
        else:
            assert json.loads(json.dumps(observed)) == bits[part]
        return True

    def check_shape(self, name: str, part: str, observed: Any) -> None:
        """The same for the shapes of documents, by file."""
        recorded = self.read(name).get(part, {})
        if self.writing or observed.keys() != recorded.keys():
            self.check(name, part, observed)
            return
        differing = {key: [observed[key], recorded[key]] for key in recorded if not agree(observed[key], recorded[key])}
        assert differing == {}, "observed, recorded"

    def read(self, name: str) -> dict[str, Any]:
        path = self.directory / f"{name}.json"
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return read

    def _write(self, name: str, record: dict[str, Any]) -> None:
        text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False)
        (self.directory / f"{name}.json").write_text(text + "\n", encoding="utf-8")


@cache
def cpu_kind() -> str:
    """Kernels differ by instruction set and by the release of torch: so may the last bit of a loss."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    described = [line for line in lines if line.startswith(("flags", "Features", "model name", "cpu family"))]
    flags = hashlib.sha256("\n".join(sorted(set(described))).encode()).hexdigest()[:12]
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {flags}, torch {torch.__version__}"


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def shape(documents: list[Any]) -> Any:
    """The keys of JSON documents of one kind, with the types that were seen under each; null says nothing of a type."""
    if documents and all(isinstance(document, dict) for document in documents):
        keys = sorted({key for document in documents for key in document})
        return {key: shape([document[key] for document in documents if key in document]) for key in keys}
    lists = [document for document in documents if isinstance(document, list)]
    if lists:
        return [shape([item for document in lists for item in document])]
    return sorted({_type(document) for document in documents if document is not None})


def _type(value: Any) -> str:
    if isinstance(value, bool | str | dict):
        return type(value).__name__
    return "number"


def agree(observed: Any, recorded: Any) -> bool:
    """Whether two shapes have the same keys, and no key two types. Where only null was seen, no type is known."""
    if isinstance(observed, dict) and isinstance(recorded, dict):
        return observed.keys() == recorded.keys() and all(agree(observed[key], recorded[key]) for key in recorded)
    if not observed or not recorded:
        return True
    if isinstance(observed, list) and isinstance(recorded, list) and not isinstance(recorded[0], str):
        return not isinstance(observed[0], str) and agree(observed[0], recorded[0])
    return bool(observed == recorded)


def resolved(schema: Any, definitions: dict[str, Any]) -> Any:
    """A JSON schema without its prose and without the names of its definitions, which are those of classes."""
    if isinstance(schema, list):
        return [resolved(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return resolved(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    left_out = {"description", "title", "$defs", "$schema"}
    return {
        key: {name: resolved(item, definitions) for name, item in value.items()}
        if key == "properties"
        else resolved(value, definitions)
        for key, value in schema.items()
        if key not in left_out
    }
