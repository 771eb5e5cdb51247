"""`plumbline work`: the workers of one machine, where database, broker and web server run elsewhere."""

from __future__ import annotations

import argparse
import os

from plumbline_web.up.command import parse_count, say
from workers.cli import BROKEN, Subcommands
from workers.queues import CPU, GPU


def add_work(commands: Subcommands) -> None:
    """Add `work`."""
    parser = commands.add_parser("work", help="run workers on this machine; DATABASE_URL and REDIS_URL say for whom")
    parser.add_argument("queues", nargs="+", choices=(CPU, GPU), help="cpu, gpu or both")
    parser.add_argument("--workers", type=parse_count, default=1, metavar="N", help="on the CPU (default: 1)")
    parser.set_defaults(run=run_work)


def run_work(options: argparse.Namespace) -> int:
    """Serve queues until someone asks for the end: 0; 2 where a worker fails for good.

    One process a GPU for `gpu`, or the CPU where there is none; and one for what only this machine can do, such as
    ending what a dead worker has left. Their output goes to this process's own.
    """
    from plumbline_web.up.interrupts import Interrupts
    from plumbline_web.up.programs import describe_control, describe_runners, list_gpus
    from plumbline_web.up.supervisor import ServiceFailed, StopAsked, Supervisor

    interrupts = Interrupts()
    supervisor = Supervisor(
        mark=f"work {os.getpid()}",
        logs=None,
        say=say,
        stop_asked=interrupts.stop_asked,
        in_a_hurry=interrupts.in_a_hurry,
    )
    queues = tuple(dict.fromkeys(options.queues))
    runners = describe_runners(queues, workers=options.workers, gpus=list_gpus() if GPU in queues else ())
    try:
        supervisor.start(describe_control(), *runners)
        while True:
            supervisor.tick()
    except StopAsked:
        return 0
    except ServiceFailed as error:
        say("work", str(error))
        return BROKEN
    finally:
        supervisor.stop_but()
