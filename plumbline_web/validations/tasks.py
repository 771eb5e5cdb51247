"""The Celery tasks: ids in, domain called."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any

from celery import shared_task
from celery.signals import worker_init, worker_ready, worker_shutting_down
from django.db import InterfaceError, OperationalError, connection

from plumbline_web.jobs.domain import RUN_JOB
from plumbline_web.validations.sweeping import SWEEP, reap_job, sweep
from plumbline_web.validations.work.heart import stop_file
from workers.devices.listing import list_devices

log = logging.getLogger(__name__)


@shared_task(name=RUN_JOB)
def run_job(job_id: int) -> None:
    """Do one job, unless somebody does it already."""
    # Here, so that the sweeper's worker and beat start without torch.
    from plumbline_web.validations.work.perform import perform

    perform(job_id, worker=f"{socket.gethostname()}:{os.getppid()}", host=socket.gethostname())


@shared_task(name=SWEEP)
def sweep_jobs() -> None:
    """Find jobs whose worker died and jobs whose message was lost."""
    sweep(host=socket.gethostname())


@shared_task(name="plumbline.reap_job")
def reap(job_id: int, token: int) -> None:
    """End what a dead worker left on this machine, then put its job back."""
    reap_job(job_id, token)


@worker_init.connect
def forget_namesake(**_: Any) -> None:
    """A worker that starts is not being stopped."""
    # An earlier worker may have had this one's process number, and died before it could remove its file.
    stop_file(os.getpid()).unlink(missing_ok=True)


@worker_ready.connect
def name_devices(**_: Any) -> None:
    """Say which devices this machine has, so that they are seen before the first run asks for any."""
    from plumbline_web.validations.work.devices import tell_devices

    names = list_devices()
    if not names:
        return
    try:
        tell_devices(socket.gethostname(), names)
    except (OperationalError, InterfaceError) as error:
        log.warning("the devices of this machine are named with its first run (%s)", error)
    finally:
        connection.close()  # the pool processes are forked from this one


@worker_shutting_down.connect
def tell_pool(**_: Any) -> None:
    """Its pool processes give their jobs back."""
    file: Path = stop_file(os.getpid())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
