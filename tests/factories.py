"""One factory per model. A call names only what matters to its test; the rest hangs together."""

# factory_boy ships no annotations for its declarations and does not export them by name; the factories are typed.
# mypy: disable-error-code="attr-defined, no-untyped-call"

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import factory
from django.contrib.auth import get_user_model
from django.contrib.auth.models import User
from django.db.models import F
from factory.django import DjangoModelFactory

from core.models import AccessToken, AttentionItem, CancelIntent, Command, Event, EventCounter, Host, Project
from graphs.models import Artifact, Edge, Graph, Node
from graphs.states import ExecutionMode, GraphState, NodeState
from integration.models import Candidate, Check, Entry
from integration.states import CandidateState, CheckState, EntryState
from jobs.models import Attempt, Job
from jobs.states import AttemptState, JobState, RetryClass
from leases.models import Broker, Claim, Lease, Line, Request, Resource
from leases.states import Access, LeaseState, RequestState, ResourceClass
from workspaces.models import Checkout
from workspaces.states import CheckoutState

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)  # when everything was made, unless a test says otherwise
PASSWORD = "correct horse"


def sha(text: str) -> str:
    """A full object id that looks real and is the same in every run."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class UserFactory(DjangoModelFactory[User]):
    """Somebody who may sign in with ``PASSWORD``."""

    class Meta:
        model = get_user_model()

    username = factory.Sequence(lambda n: f"person{n}")
    password = factory.django.Password(PASSWORD)


class AdminUserFactory(UserFactory):
    is_staff = True
    is_superuser = True


# --- core -----------------------------------------------------------------------------------------------------------


class HostFactory(DjangoModelFactory[Host]):
    class Meta:
        model = Host

    name = factory.Sequence(lambda n: f"host{n}")
    epoch = 1
    boot_id = factory.Faker("uuid4")
    beat_at = NOON
    started_at = NOON


class ProjectFactory(DjangoModelFactory[Project]):
    class Meta:
        model = Project

    name = factory.Sequence(lambda n: f"project{n}")
    workspace = factory.LazyAttribute(lambda o: f"/srv/{o.name}")
    git_dir = factory.LazyAttribute(lambda o: f"{o.workspace}/.git")
    target_ref = "refs/heads/main"
    home_host = factory.SubFactory(HostFactory)
    created_at = NOON


class EventCounterFactory(DjangoModelFactory[EventCounter]):
    """The one row; after a flush of the test database it is gone."""

    class Meta:
        model = EventCounter
        django_get_or_create = ("id",)

    id = 1


class EventFactory(DjangoModelFactory[Event]):
    """An event without its change, numbered as the journal would have numbered it."""

    class Meta:
        model = Event

    at = NOON
    subject = "node:1"
    kind = "node.running"
    actor = "forge"

    @classmethod
    def _create(cls, model_class: type[Event], *args: Any, **kwargs: Any) -> Event:
        counter = EventCounterFactory.create()
        EventCounter.objects.filter(pk=counter.pk).update(last_seq=F("last_seq") + 1)
        counter.refresh_from_db()
        event: Event = super()._create(model_class, *args, **{"seq": counter.last_seq, **kwargs})
        return event


class CommandFactory(DjangoModelFactory[Command]):
    class Meta:
        model = Command

    project = factory.SubFactory(ProjectFactory)
    principal = "person"
    request_id = factory.Sequence(lambda n: f"request-{n}")
    kind = "run"
    digest = factory.LazyAttribute(lambda o: f"sha256:{hashlib.sha256(o.request_id.encode()).hexdigest()}")
    created_at = NOON


class CancelIntentFactory(DjangoModelFactory[CancelIntent]):
    class Meta:
        model = CancelIntent

    subject = factory.Sequence(lambda n: f"node:{n + 1}")
    project = factory.SubFactory(ProjectFactory)
    actor = "person"
    created_at = NOON


class AttentionItemFactory(DjangoModelFactory[AttentionItem]):
    class Meta:
        model = AttentionItem

    key = factory.Sequence(lambda n: f"orphaned:attempt:{n}")
    project = factory.SubFactory(ProjectFactory)
    subject = factory.Sequence(lambda n: f"attempt:{n}")
    code = "attempt_orphaned"
    message = "The worker is gone and left no receipt."
    next_action = "Look at the checkout, then settle the attempt by hand."
    opened_at = NOON


class AccessTokenFactory(DjangoModelFactory[AccessToken]):
    """``AccessTokenFactory.create(raw="abc")`` accepts the bearer token `abc`."""

    class Meta:
        model = AccessToken

    class Params:
        raw = factory.Sequence(lambda n: f"token-{n}")

    digest = factory.LazyAttribute(lambda o: hashlib.sha256(o.raw.encode()).hexdigest())
    label = "laptop"
    owner = factory.SubFactory(UserFactory)
    created_at = NOON


# --- leases ---------------------------------------------------------------------------------------------------------


class BrokerFactory(DjangoModelFactory[Broker]):
    class Meta:
        model = Broker
        django_get_or_create = ("id",)

    id = 1


class ResourceFactory(DjangoModelFactory[Resource]):
    class Meta:
        model = Resource

    resource_class = ResourceClass.PHYSICAL
    key = factory.Sequence(lambda n: f"host0/srv/project/file{n}")


class LineFactory(DjangoModelFactory[Line]):
    """Waiting requests of one project that want the same units."""

    class Meta:
        model = Line

    project = factory.SubFactory(ProjectFactory)
    short_of = factory.SubFactory(ResourceFactory, capacity=1)
    demand = factory.LazyAttribute(lambda o: f"{o.short_of.pk}:1")


class RequestFactory(DjangoModelFactory[Request]):
    class Meta:
        model = Request

    class Params:
        granted = factory.Trait(
            state=RequestState.GRANTED,
            token=factory.Sequence(lambda n: n + 1),
            granted_at=NOON,
        )

    project = factory.SubFactory(ProjectFactory)
    state = RequestState.WAITING
    holder = factory.Sequence(lambda n: f"attempt:{n + 1000}")
    rank = factory.Sequence(lambda n: n)
    created_at = NOON


class ClaimFactory(DjangoModelFactory[Claim]):
    class Meta:
        model = Claim

    request = factory.SubFactory(RequestFactory)
    resource = factory.SubFactory(ResourceFactory)
    access = Access.WRITE
    rank = factory.SelfAttribute("request.rank")
    pending = factory.LazyAttribute(lambda o: o.request.state == RequestState.WAITING and not o.request.suspended)


class LeaseFactory(DjangoModelFactory[Lease]):
    class Meta:
        model = Lease

    request = factory.SubFactory(RequestFactory, granted=True)
    project = factory.SelfAttribute("request.project")
    resource = factory.SubFactory(ResourceFactory)
    access = Access.WRITE
    state = LeaseState.ACTIVE
    token = factory.Sequence(lambda n: n + 1)
    granted_at = NOON
    expires_at = NOON.replace(minute=1)


# --- workspaces and jobs --------------------------------------------------------------------------------------------


class CheckoutFactory(DjangoModelFactory[Checkout]):
    class Meta:
        model = Checkout

    project = factory.SubFactory(ProjectFactory)
    owner = factory.Sequence(lambda n: f"attempt:{n + 5000}")
    path = factory.LazyAttribute(lambda o: f"/srv/home/checkouts/{o.owner.partition(':')[2]}")
    state = CheckoutState.READY
    base = sha("base")
    created_at = NOON


class JobFactory(DjangoModelFactory[Job]):
    class Meta:
        model = Job

    project = factory.SubFactory(ProjectFactory)
    owner = factory.Sequence(lambda n: f"node:{n + 9000}")
    request_id = factory.Sequence(lambda n: f"job-{n}")
    state = JobState.RUNNING
    argv = factory.List(["true"])
    deadline_s = 3600
    grace_s = 10
    output_limit = 10_000_000
    claims = factory.List([])
    retry_class = RetryClass.IDEMPOTENT
    attempts_made = 1
    created_at = NOON


class AttemptFactory(DjangoModelFactory[Attempt]):
    class Meta:
        model = Attempt

    job = factory.SubFactory(JobFactory)
    project = factory.SelfAttribute("job.project")
    number = factory.Sequence(lambda n: n + 1)
    state = AttemptState.RUNNING
    host = factory.SelfAttribute("project.home_host")
    created_at = NOON
    started_at = NOON


# --- graphs ---------------------------------------------------------------------------------------------------------


class GraphFactory(DjangoModelFactory[Graph]):
    class Meta:
        model = Graph

    project = factory.SubFactory(ProjectFactory)
    name = factory.Sequence(lambda n: f"graph{n}")
    state = GraphState.ACTIVE
    execution_mode = ExecutionMode.GATED
    document = factory.LazyAttribute(lambda o: json.dumps({"name": o.name, "nodes": []}, separators=(",", ":")))
    digest = factory.LazyAttribute(lambda o: f"sha256:{hashlib.sha256(o.document.encode()).hexdigest()}")
    revision = factory.Sequence(lambda n: n + 1)
    open_nodes = 1
    actor = "person"
    created_at = NOON


class NodeFactory(DjangoModelFactory[Node]):
    class Meta:
        model = Node

    graph = factory.SubFactory(GraphFactory)
    project = factory.SelfAttribute("graph.project")
    key = factory.Sequence(lambda n: f"node{n}")
    state = NodeState.PENDING
    spec = factory.Dict({})
    position = factory.Sequence(lambda n: n)
    level = 0
    unmet_inputs = 0


class EdgeFactory(DjangoModelFactory[Edge]):
    class Meta:
        model = Edge

    source = factory.SubFactory(NodeFactory)
    graph = factory.SelfAttribute("source.graph")
    target = factory.SubFactory(NodeFactory, graph=factory.SelfAttribute("..source.graph"))
    kind = "success"


class ArtifactFactory(DjangoModelFactory[Artifact]):
    class Meta:
        model = Artifact

    graph = factory.SubFactory(GraphFactory)
    name = factory.Sequence(lambda n: f"artifact{n}")
    artifact_version = 1


# --- integration ----------------------------------------------------------------------------------------------------


class CandidateFactory(DjangoModelFactory[Candidate]):
    """What a succeeded attempt of its owner offers."""

    class Meta:
        model = Candidate

    attempt = factory.SubFactory(AttemptFactory, state=AttemptState.SUCCEEDED, ended_at=NOON)
    project = factory.SelfAttribute("attempt.project")
    owner = factory.SelfAttribute("attempt.job.owner")
    state = CandidateState.SEALED
    title = "A change"
    base = sha("base")
    commit = factory.Sequence(lambda n: sha(f"commit{n}"))
    tree = factory.Sequence(lambda n: sha(f"tree{n}"))
    created_at = NOON


class EntryFactory(DjangoModelFactory[Entry]):
    class Meta:
        model = Entry

    candidate = factory.SubFactory(CandidateFactory)
    project = factory.SelfAttribute("candidate.project")
    owner = factory.SelfAttribute("candidate.owner")
    state = EntryState.QUEUED
    graph_revision = 1
    position = factory.Sequence(lambda n: n)
    target_ref = "refs/heads/main"
    required_checks = factory.List([])
    base = factory.SelfAttribute("candidate.base")
    offered = factory.SelfAttribute("candidate.commit")
    offered_tree = factory.SelfAttribute("candidate.tree")
    created_at = NOON


class CheckFactory(DjangoModelFactory[Check]):
    class Meta:
        model = Check

    entry = factory.SubFactory(EntryFactory)
    project = factory.SelfAttribute("entry.project")
    name = factory.Sequence(lambda n: f"check{n}")
    state = CheckState.WAITING
    commit = factory.SelfAttribute("entry.offered")
