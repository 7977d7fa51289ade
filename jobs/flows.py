"""From row to process and back on this host: what stands between the intent to start or end an attempt and its receipt.

A ``Supervisor`` lives for one tick. It keeps nothing that rows and job directories do not say, so any tick can take over.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings

from core.home import Home
from core.models import Host
from jobs import steps
from jobs.models import Attempt
from jobs.planning import Ended
from jobs.process import control, identity, receipts, spawner
from jobs.states import ATTEMPT_ON_HOST, AttemptState, Cause
from workspaces.models import Checkout
from workspaces.states import CheckoutState

log = logging.getLogger("forge.jobs")

ORDER_LIMIT_S = 5.0  # for the spawner to take one order

_CAUSES = {
    "exited": Cause.EXITED,
    "signalled": Cause.CRASHED,
    "launch_error": Cause.LAUNCH_ERROR,
    "deadline": Cause.DEADLINE,
    "cancelled": Cause.CANCELLED,
    "never_started": Cause.NEVER_STARTED,
}


class Supervisor:
    """Starts, watches and ends the attempts of one host. Knows no transaction: what it sees, the caller records."""

    def __init__(self, host: Host, home: Home) -> None:
        self.host, self.home = host, home
        self._live: dict[int, Attempt] = {}  # on this host and not ended, as far as this tick knows
        self._unrecorded: dict[int, dict[str, Any]] = {}  # started, and nobody has recorded it yet
        self._spawner: spawner.Spawner | None = None

    # --- launching ----------------------------------------------------------------------------------------------------

    def launch(self, attempts: Collection[Attempt]) -> list[tuple[int, Ended]]:
        """Hand attempts that are starting to the spawner; those without a process need one, the others are left alone.

        Returns: ends of those that can never start
        """
        if not attempts:
            return []
        orders: dict[Path, Attempt] = {}
        refused: list[tuple[int, Ended]] = []
        checkouts = _checkouts_of(attempts)
        for attempt in attempts:
            self._live[attempt.pk] = attempt
            checkout = checkouts.get(attempt.subject)
            if attempt.job.own_checkout and (checkout is None or checkout.state != CheckoutState.READY):
                if checkout is not None and checkout.state == CheckoutState.FAILED:
                    refused.append((attempt.project_id, Ended(attempt.pk, Cause.NOT_PREPARED, evidence=checkout.error)))
                continue
            jobdir = self._jobdir(attempt.pk)
            jobdir.mkdir(mode=0o700, parents=True, exist_ok=True)
            receipts.write_spec(jobdir, self._spec(attempt, checkout))
            orders[jobdir] = attempt
        for jobdir in orders:
            self._order(str(jobdir))
        return refused

    def _order(self, jobdir: str) -> None:
        """Hand one job directory over without waiting for its start. Raises: SpawnerUnavailable."""
        if self._spawner is None:
            self._spawner = spawner.Spawner(self.home.root)
        give_up_at = time.monotonic() + ORDER_LIMIT_S
        while True:
            try:
                return self._spawner.order(jobdir)
            except BlockingIOError:  # the kernel queues some ten orders; the shims are taking them
                if time.monotonic() > give_up_at:
                    raise spawner.SpawnerUnavailable(home=str(self.home.root)) from None
                room = select.poll()
                room.register(self._spawner.socket, select.POLLOUT)
                room.poll(ORDER_LIMIT_S * 1000)

    def hear_answers(self) -> None:
        """Take note of starts that the shims report. A lost report costs a look at the next full pass.

        An order given twice, since a full pass came between the first and its start, is answered as already started or ended.
        """
        if self._spawner is None:
            return
        for jobdir, launched in self._spawner.answers():
            attempt = self._live.get(int(Path(jobdir).name))
            if attempt is None:
                continue
            if launched.outcome is spawner.Outcome.STARTED:
                if receipt := _believed(receipts.read_started, self._jobdir(attempt.pk)):
                    self._unrecorded[attempt.pk] = _identity(receipt)
            elif launched.outcome in (spawner.Outcome.BAD_SPEC, spawner.Outcome.FAILED):
                log.warning("%s was not started: %s %s", attempt, launched.outcome, launched.detail)

    @property
    def answers_fd(self) -> int | None:
        """Readable when a shim has reported."""
        return self._spawner.socket.fileno() if self._spawner else None

    def _spec(self, attempt: Attempt, checkout: Checkout | None) -> receipts.Spec:
        job, fence = attempt.job, steps.fence_of(attempt)
        environment = {name: os.environ[name] for name in settings.FORGE_PASS_ENV if name in os.environ}
        environment |= {
            **job.env,
            "FORGE_JOB": str(job.pk),
            "FORGE_ATTEMPT_NUMBER": str(attempt.number),
            "FORGE_ATTEMPT_KEY": steps.attempt_key(attempt.pk, fence.token),
        }
        return receipts.Spec(
            job=job.pk,
            attempt=attempt.pk,
            fence=receipts.Fence(fence.grant_id, fence.token),
            argv=tuple(job.argv),
            env=environment,
            cwd=checkout.path if checkout else attempt.project.workspace,
            stdin=job.stdin or None,
            deadline_boottime=attempt.deadline_boottime,
            grace_s=job.grace_s,
            output_cap=job.output_limit,
            marker=self._marker(attempt.pk),
            wake_dir=str(self.home.wake_dir),
            sweep_dir=checkout.path if checkout else None,
        )

    def _jobdir(self, attempt_id: int) -> Path:
        return self.home.jobs / str(attempt_id)

    def _marker(self, attempt_id: int) -> str:
        return f"{self.home.root}:{attempt_id}"

    # --- watching -----------------------------------------------------------------------------------------------------

    def look_at(self, attempt_ids: Iterable[int]) -> list[tuple[int, Ended]]:
        """Ends among the attempts that were said to have ended; a word for nothing costs one look."""
        return list(self._ends(attempt for pk in attempt_ids if (attempt := self._live.get(pk)) is not None))

    def look_at_all(self) -> list[tuple[int, Ended]]:
        """Read rows and job directories anew: the pass that finds whatever no wake-up told of.

        Adopts what lives, ends what has ended, launches what has no process yet, ends what is to be ended.
        """
        rows = Attempt.objects.select_related("job", "project").filter(host=self.host, state__in=ATTEMPT_ON_HOST)
        self._live = {attempt.pk: attempt for attempt in rows.order_by("pk")}
        ended = list(self._ends(list(self._live.values())))
        gone = {end.attempt_id for _, end in ended}
        waiting = [
            attempt
            for attempt in self._live.values()
            if attempt.state == AttemptState.STARTING and attempt.pk not in gone and attempt.pk not in self._unrecorded
        ]
        idle = [attempt for attempt in waiting if not identity.lock_is_held(self._jobdir(attempt.pk))]
        late = [attempt for attempt in idle if _is_late(attempt)]
        ended += self._give_up(late)
        ended += self.launch([attempt for attempt in idle if attempt not in late])
        ended += self.stop([attempt for attempt in self._live.values() if attempt.state == AttemptState.STOPPING])
        return ended

    def _ends(self, attempts: Iterable[Attempt]) -> Iterator[tuple[int, Ended]]:
        for attempt in attempts:
            end = self._end_of(attempt)
            if end is not None:
                self._live.pop(attempt.pk, None)
                self._unrecorded.pop(attempt.pk, None)
                yield attempt.project_id, end

    def _end_of(self, attempt: Attempt) -> Ended | None:
        """The end of one attempt, or None while it lives, has not begun, or must be launched again."""
        jobdir = self._jobdir(attempt.pk)
        try:
            if receipt := receipts.read_exit(jobdir):
                return self._ended(attempt, receipt)
            started = receipts.read_started(jobdir)
        except receipts.MalformedReceipt as error:
            return Ended(attempt.pk, Cause.CONTROLLER_LOST, evidence={"message": str(error), "code": error.code})
        if identity.lock_is_held(jobdir):
            if started and attempt.state == AttemptState.STARTING:
                self._unrecorded[attempt.pk] = _identity(started)
            return None
        if receipt := _believed(receipts.read_exit, jobdir):  # it is written before the lock is let go
            return self._ended(attempt, receipt)
        if started is None:
            return None
        return self._end_without_shim(attempt, started)

    def _ended(self, attempt: Attempt, receipt: receipts.Exit) -> Ended:
        seen = self._unrecorded.get(attempt.pk, {})
        if not seen and attempt.pid is None and (started := _believed(receipts.read_started, self._jobdir(attempt.pk))):
            seen = _identity(started)
        return _ended(attempt, receipt, seen)

    def _end_without_shim(self, attempt: Attempt, started: receipts.Started) -> Ended:
        """Its supervisor is gone and left no receipt: nothing of its tree may go on unsupervised, and its outcome is not known."""
        seen = _identity(started)
        if started.command.boot_id != identity.boot_id():
            return Ended(
                attempt.pk,
                Cause.HOST_RESTARTED,
                evidence={"message": "the host was restarted while it ran"},
                identity=seen,
            )
        checkout = Checkout.objects.filter(owner=attempt.subject).first()
        survivors = control.end_without_shim(
            self._jobdir(attempt.pk),
            started=started,
            marker=self._marker(attempt.pk),
            sweep_dir=Path(checkout.path) if checkout else None,
            grace_s=min(float(attempt.job.grace_s), 2.0),
        )
        return Ended(
            attempt.pk,
            Cause.CONTROLLER_LOST,
            survivors=tuple({"pid": s.pid, "start_ticks": s.start_ticks, "command": s.command} for s in survivors),
            evidence={"message": "its supervisor is gone and left no receipt"},
            identity=seen,
        )

    def _give_up(self, attempts: Iterable[Attempt]) -> list[tuple[int, Ended]]:
        """Attempts whose deadline passed before they could start, since their checkout could not be made for so long."""
        return [
            (
                project_id,
                replace(end, cause=Cause.DEADLINE, evidence={**end.evidence, "message": "it could not start in time"}),
            )
            for project_id, end in self.stop(attempts)
        ]

    # --- ending -------------------------------------------------------------------------------------------------------

    def stop(self, attempts: Iterable[Attempt]) -> list[tuple[int, Ended]]:
        """Ask for the end of attempts whose intent is recorded. Those that never began end here and now, under their lock."""
        ended = []
        for attempt in attempts:
            jobdir, fence = self._jobdir(attempt.pk), steps.fence_of(attempt)
            self._live[attempt.pk] = attempt
            try:
                receipt = receipts.write_never_started(
                    jobdir, job=attempt.job_id, attempt=attempt.pk, fence=receipts.Fence(fence.grant_id, fence.token)
                )
            except (identity.LockHeld, receipts.AlreadyStarted):
                control.term(
                    jobdir, fence=receipts.Fence(fence.grant_id, fence.token), grace_s=float(attempt.job.grace_s)
                )
            else:
                self._live.pop(attempt.pk, None)
                ended.append((attempt.project_id, _ended(attempt, receipt, {})))
        return ended

    # --- what the caller still has to record --------------------------------------------------------------------------

    @property
    def is_watching(self) -> bool:
        """Whether any attempt of this host has not ended, as far as this tick knows."""
        return bool(self._live)

    @property
    def has_unrecorded(self) -> bool:
        return bool(self._unrecorded)

    def take_started(self) -> list[tuple[Attempt, dict[str, Any]]]:
        """Starts nobody has recorded yet; once."""
        taken = [(self._live[pk], seen) for pk, seen in self._unrecorded.items() if pk in self._live]
        self._unrecorded.clear()
        return taken

    def close(self) -> None:
        if self._spawner is not None:
            self._spawner.close()
            self._spawner = None


def _is_late(attempt: Attempt) -> bool:
    return attempt.deadline_boottime is not None and attempt.deadline_boottime < time.clock_gettime(time.CLOCK_BOOTTIME)


def _checkouts_of(attempts: Collection[Attempt]) -> dict[str, Checkout]:
    owners = [attempt.subject for attempt in attempts if attempt.job.own_checkout]
    return {checkout.owner: checkout for checkout in Checkout.objects.filter(owner__in=owners)} if owners else {}


def _believed(read: Any, jobdir: Path) -> Any:
    """A receipt, or None where it is damaged: the caller has other evidence."""
    try:
        return read(jobdir)
    except receipts.MalformedReceipt:
        return None


def _identity(started: receipts.Started) -> dict[str, Any]:
    return {
        "boot_id": started.command.boot_id,
        "pid": started.command.pid,
        "start_ticks": started.command.start_ticks,
        "shim_pid": started.shim.pid,
        "started_at": datetime.fromtimestamp(started.started_at, UTC),
    }


def _ended(attempt: Attempt, receipt: receipts.Exit, seen: dict[str, Any]) -> Ended:
    """Believe a receipt only when it is this attempt's, under this attempt's fence."""
    fence = steps.fence_of(attempt)
    if (receipt.job, receipt.attempt, receipt.fence) != (attempt.job_id, attempt.pk, (fence.grant_id, fence.token)):
        return Ended(
            attempt.pk, Cause.CONTROLLER_LOST, evidence={"message": "the exit receipt is of another attempt or fence"}
        )
    evidence: dict[str, Any] = {
        "cause": receipt.cause,
        "swept": receipt.swept,
        "cpu_s": round(receipt.cpu_s, 3),
        "max_rss_kb": receipt.max_rss_kb,
        "output": {name: output.total for name, output in receipt.output.items()},
        "started_at": receipt.started_at,
        "ended_at": receipt.ended_at,
    }
    if receipt.errno_name:
        evidence["message"] = f"the command could not be started: {receipt.errno_name}"
    code = receipt.exit_code
    if code is None and receipt.signal:
        code = -receipt.signal
        evidence["signal"] = (
            signal.Signals(receipt.signal).name if receipt.signal in set(signal.Signals) else receipt.signal
        )
    survivors = tuple({"pid": s.pid, "start_ticks": s.start_ticks, "command": s.command} for s in receipt.survivors)
    if survivors:
        evidence["survivors"] = list(survivors)
    return Ended(
        attempt.pk,
        _CAUSES[receipt.cause],
        exit_code=code,
        survivors=survivors,
        evidence=evidence,
        identity=seen,
        at=datetime.fromtimestamp(receipt.ended_at, UTC),
    )
