"""plan and provision look at the bundle that the spec names, before any node is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpunode.core.bundle.manifest import Manifest, lacking
from gpunode.core.errors import GpunodeError
from gpunode.core.model import NodeFacts, PackageWant, Plan, Problem
from gpunode.core.spec import BundleSpec, Spec

if TYPE_CHECKING:
    from gpunode.edge.bundle.verify import Place


class Bundles:
    """Each bundle is read once, and each target's files are compared once."""

    def __init__(self) -> None:
        self._manifests: dict[BundleSpec, tuple[Place, Manifest] | Problem] = {}
        self._whole: dict[tuple[BundleSpec, str], tuple[Problem, ...]] = {}

    def problems(self, facts: NodeFacts, spec: Spec, plan: Plan) -> tuple[Problem, ...]:
        """What is wrong with the spec's bundle for this plan; nothing where no package is to be installed."""
        values = [step.value for step in plan.steps if step.option == "packages"]
        if not values:
            return ()
        if spec.bundle not in self._manifests:
            self._manifests[spec.bundle] = _manifest(spec)
        found = self._manifests[spec.bundle]
        if isinstance(found, Problem):
            return (found,)
        place, manifest = found
        target = _target(facts, manifest)
        wants = [
            PackageWant(name=one["name"], version=one.get("version", ""))
            for value in values
            for one in value["install"]
        ]
        if problems := lacking(manifest, target, wants):
            return problems
        if (spec.bundle, target) not in self._whole:
            self._whole[spec.bundle, target] = tuple(_damage(place, manifest, target))
        return self._whole[spec.bundle, target]


def _target(facts: NodeFacts, manifest: Manifest) -> str:
    """Its key in the manifest; rocky:9.4 is served by rocky:9."""
    exact = f"{facts.distro.key}/{facts.arch}"
    major = f"{facts.distro.key.partition('.')[0]}/{facts.arch}"
    return exact if exact in manifest.targets or major not in manifest.targets else major


def _manifest(spec: Spec) -> tuple[Place, Manifest] | Problem:
    from gpunode.edge.bundle.verify import place_of, read_manifest

    try:
        place = place_of(spec.bundle.path or spec.bundle.url, spec.proxy)
        return place, read_manifest(place, spec.bundle.sha256)[0]
    except GpunodeError as error:
        hint = "set bundle.path to the folder of a copy on this machine" if spec.bundle.url.startswith("file:") else ""
        return Problem(what=f"the bundle: {error.what}", fix=hint or error.fix)


def _damage(place: Place, manifest: Manifest, target: str) -> list[Problem]:
    from gpunode.edge.bundle.verify import damages, refuse_damaged, target_files

    try:
        folder = target.replace(":", "-")
        refuse_damaged(place, damages(place, target_files(manifest, folder), remembered=True))
    except GpunodeError as error:
        return [Problem(what=error.what, fix=error.fix)]
    return []
