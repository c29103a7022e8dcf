"""Everything known about one upstream before a byte is written: edits, proofs, interfaces, drift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..engine.resolve import Plan, resolve
from ..errors import EXIT_ANCHOR, EXIT_CLEAN, EXIT_DRIFT, AnchorFailed, DriftFound, Rejected
from ..project import Project
from ..proofs.bodies import Body, find_bodies
from ..proofs.interfaces import InterfaceResult, check_interfaces
from ..proofs.placement import Violation
from ..proofs.prove import Proof, check_placements, prove
from ..syntax.tree import Tree
from .drift import REVIEW, Drift, find_drift


@dataclass(frozen=True)
class Assessment:
    """Edits, proofs, interfaces and drift of one upstream."""

    label: str
    version: str
    plan: Plan
    proofs: tuple[Proof, ...]
    interfaces: tuple[InterfaceResult, ...]
    drift: tuple[Drift, ...]
    collisions: tuple[str, ...]
    violations: tuple[Violation, ...] = ()
    bodies: tuple[Body, ...] = ()
    missing_patches: tuple[int, ...] = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """Every reason the fork cannot be built on this upstream."""
        return (
            *(f"{result.edit.key}: {result.detail}" for result in self.plan.failed),
            *(
                f"{proof.edit_key}: proof '{proof.name}' failed: {proof.detail}"
                for proof in self.proofs
                if not proof.ok
            ),
            *(f"{item.where}: {item.name}: {item.detail}" for item in self.interfaces if not item.ok),
            *(f"{body.ours}: stands_for: {body.problem}" for body in self.bodies if body.problem),
            *(f"{path}: upstream has a file of this name, the overlay would replace it" for path in self.collisions),
            *(
                f"patch {number:02d}: the lock knows it, and patches/ has no such file; restore the file, or list the "
                "number under `retired` in the patch that took its place"
                for number in self.missing_patches
            ),
        )

    @property
    def to_review(self) -> tuple[Drift, ...]:
        """Drift that needs a review."""
        return tuple(drift for drift in self.drift if drift.level == REVIEW)

    @property
    def exit_code(self) -> int:
        """The exit code of `check`."""
        if self.failures:
            return EXIT_ANCHOR
        return EXIT_DRIFT if self.to_review or self.violations else EXIT_CLEAN

    def require(self, accept_drift: bool) -> None:
        """Stop here unless the fork can be built and its surroundings were reviewed."""
        if self.failures:
            raise AnchorFailed(
                f"{len(self.failures)} problem(s) with upstream {self.label}; nothing was written",
                where="\n".join(self.failures),
                fix="adapt the patch named above (see docs/REBASING.md): change its anchor, or add an "
                "[[edit.variant]] for the new shape; `./execute_gh200_rebase.sh explain NN` shows the place",
            )
        if self.violations and not accept_drift:
            raise DriftFound(
                f"Every edit landed on {self.label}, but {len(self.violations)} placement contract(s) do not hold; "
                "nothing was written",
                where="\n".join(
                    f"{v.edit_key} ({v.file}:{v.line} of the patched file): {v.what}" for v in self.violations
                ),
                fix="the hook would do nothing or harm there: adapt the edit (anchor, variant or contract); "
                "--accept-drift builds it all the same, to look at",
            )
        if self.to_review and not accept_drift:
            raise DriftFound(
                f"Every edit landed on {self.label}, but {len(self.to_review)} place(s) are not as last reviewed; "
                "nothing was written",
                where="\n".join(f"{d.edit_key} ({d.file}:{d.line}): {d.what}" for d in self.to_review),
                fix="read the places with `explain NN --upstream ...`; then rerun with --accept-drift, "
                "or record them for good with `lock`",
            )

    def as_json(self) -> dict[str, Any]:
        """The facts that --json writes."""
        return {
            "upstream": self.label,
            "version": self.version,
            "exit_code": self.exit_code,
            "edits": [
                {
                    "edit": result.edit.key,
                    "file": result.form.file,
                    "scope": result.form.scope,
                    "verb": result.form.verb,
                    "lines": [hit.line for hit in result.hits],
                    "variant": result.variant,
                    "status": result.status,
                    "detail": result.detail,
                }
                for result in self.plan.results
            ],
            "proofs": {"passed": sum(proof.ok for proof in self.proofs), "total": len(self.proofs)},
            "interfaces": {"passed": sum(item.ok for item in self.interfaces), "total": len(self.interfaces)},
            "drift": [vars(drift) for drift in self.drift],
            "violations": [vars(violation) for violation in self.violations],
            "failures": list(self.failures),
        }


def assess(project: Project, tree: Tree, label: str, version: str) -> Assessment:
    """Resolve, prove and compare with the lock."""
    plan = resolve(project.patches, tree, pristine=True)
    _reject_patched(plan, label)
    overlay = project.overlay
    bodies = find_bodies(project.patches, plan.results, tree)
    return Assessment(
        label=label,
        version=version,
        plan=plan,
        proofs=() if plan.failed else prove(project.patches, tree, plan, overlay),
        interfaces=check_interfaces(project.patches, tree, overlay, plan),
        drift=find_drift(project.lock, version, plan.results, bodies),
        violations=check_placements(tree, plan),
        bodies=bodies,
        missing_patches=_missing_patches(project),
        collisions=tuple(path for path in overlay.paths() if tree.read(path) is not None),
    )


def _missing_patches(project: Project) -> tuple[int, ...]:
    locked = {int(key[:2]) for key in project.lock.edits if key[:2].isdigit() and key[2:3] == "/"}
    known = {number for patch in project.patches for number in (patch.number, *patch.retired)}
    return tuple(sorted(locked - known))


def _reject_patched(plan: Plan, label: str) -> None:
    if not plan.already:
        return
    present = ", ".join(result.edit.key for result in plan.already[:5])
    whole = not plan.half_applied
    raise Rejected(
        f"Upstream {label} is {'already the fork' if whole else 'half patched'}: "
        f"{len(plan.already)} of {len(plan.results)} edits are in it",
        where=present + (" ..." if len(plan.already) > 5 else ""),
        why="patches are applied to a pristine upstream, and only as a whole",
        fix="name the pristine tree: --upstream pypi:VERSION, or git:PATH@REF with the ref the fork was made from",
    )
