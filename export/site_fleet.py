"""Publish a kit of a site to the doors of its fleet, or change a rollout, as a job that the console shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edge.errors import FleetError, UsageError
from edge.kit import format as kits
from export.fleet import contents as library
from export.fleet.contents import Contents
from export.fleet.keys import from_pem
from export.fleet.overview import rollout_sentence
from export.fleet.repository import Repository, opened
from trainer.site import fleet, trail
from trainer.site.folder import Site
from trainer.site.jobs import Job
from trainer.site.kits import get_kit

KIND = "fleet"
SIGNING, PUBLISHING = "signing", "publishing to the fleet"


@dataclass(frozen=True, kw_only=True)
class Change:
    """What to change for one group. Exactly one of `kit` and `stopped` is set."""

    site: Site
    group: str
    kit: str = ""
    """Name of a kit of the site."""
    share: float | None = None
    """The share of the doors that take the kit; None: the present one, and all doors for another kit."""
    stopped: bool | None = None
    """Stop or resume the rollout."""
    private_key: bytes | None = field(default=None, repr=False)
    """Of the group, PEM, if it is not in the folder of keys. It is never written."""

    def __post_init__(self) -> None:
        if bool(self.kit) == (self.stopped is not None) or (self.share is not None and not self.kit):
            raise UsageError(
                "Name a kit, or stop or resume the rollout.", "Use --kit, with or without --share, --stop or --resume."
            )

    @property
    def options(self) -> Mapping[str, Any]:
        """What the job says about the change."""
        return {"group": self.group, "kit": self.kit, "share": self.share, "stopped": self.stopped}


def carry_out(change: Change, job: Job, *, who: str) -> str:
    """Sign and publish the change. Return a sentence."""
    settings = fleet.load(change.site)
    job.stage(SIGNING)
    with opened(settings.repo) as repository:
        found = Contents(repository, change.group)
        signer = _signer(repository, found, change.private_key)
        if change.kit:
            data = kits.read_kit_bytes(get_kit(change.site, change.kit).path)
            library.set_kit(found, data, kits.parse(data), share=change.share)
        else:
            library.change_rollout(found, stopped=change.stopped)
        sentence = f"{change.group}: {rollout_sentence(found.rollout())}."
        is_changed = found.submit()
        if is_changed and signer is not None:
            repository.add_signature(found.role, signer)
        job.stage(PUBLISHING)
        if waiting := [one.role for one in repository.publish()]:
            raise FleetError(f"The change waits for signatures of {', '.join(waiting)}.", "Use `edge-export fleet sign`.")
    with change.site.database() as database:
        trail.record(database, who, "publish to fleet", change.group, sentence)
    job.finish(sentence)
    return sentence


def _signer(repository: Repository, found: Contents, private_key: bytes | None) -> Any:
    """Return what signs with the key of the group. None: the keys of the folder are enough."""
    if private_key is None:
        if not repository.can_sign(found.role):
            problem = f"The private key of the group {found.group} is not on this computer."
            raise FleetError(problem, "Choose its file: --key FILE.")
        return None
    signer = from_pem(private_key)
    if signer.public_key.keyid not in repository.targets().get_delegated_role(found.role).keyids:
        raise FleetError(f"This is not the key of the group {found.group}.", "Choose the file of keys/group-NAME.")
    return signer
