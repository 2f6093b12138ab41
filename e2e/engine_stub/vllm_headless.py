"""``vllm serve --headless``: a node without HTTP.

As recorded: when its leader is gone it stays for ever, silent, and SIGTERM does not end it; only SIGKILL
does. With its leader alive SIGTERM ends it with code 0, and the leader loses it.
"""

from __future__ import annotations

import asyncio

from .node import Node, Terminated
from .rendezvous import Link, PeerLost
from .settings import Settings
from .vllm_flags import Serve
from .vllm_group import announce_start, find_leader, group_of, load
from .vllm_log import log, say
from .vllm_start import StartFailure, check_model, check_parallel, report_failure, worker_name

HANG_LOG = 60.0


async def run_headless(serve: Serve, node: Node) -> int:
    """Take part in the group until the end; returns the exit code."""
    try:
        model = check_model(serve, "MainProcess")
        check_parallel(serve, model.facts, node)
        _announce(serve, node)
        link: Link = await node.unless_terminated(find_leader(serve, group_of(serve, model, node), node))
    except StartFailure as failure:
        return report_failure(failure, node.parallel)
    except Terminated:
        _say_shutdown(node)
        return 0
    try:
        await node.unless_terminated(link.expect("start"))
        loaded = await node.unless_terminated(load(serve, model, node))
        link.send("loaded", pool=loaded.pool_tokens, identity=loaded.identity)
        await node.unless_terminated(link.expect("serve"))
        node.phase("serve")
        await node.unless_terminated(link.lost.wait())
    except StartFailure as failure:
        return report_failure(failure, node.parallel)
    except Terminated:
        _say_shutdown(node)
        return 0
    except PeerLost:
        pass
    finally:
        link.close()
    return await _orphaned(node)


def _announce(serve: Serve, node: Node) -> None:
    host, port = serve.meeting_point
    version = node.settings.vllm_version
    if serve.spans_by_data:
        local = node.parallel.data // node.parallel.nodes
        log(
            "MainProcess",
            "serve.py:239",
            f"Launching {local} data parallel engine(s) in headless mode, with head node address "
            f"tcp://{host}:{port}.",
        )
    else:
        log(
            "MainProcess",
            "arg_utils.py:2472",
            f"Inferred data_parallel_rank 0 from node_rank {node.parallel.node}",
        )
        log(
            "MainProcess",
            "serve.py:224",
            f"Launching vLLM (v{version}) headless multiproc executor, with head node address {host}:{port} "
            "for torch.distributed process group.",
        )
    announce_start(serve, node)


async def _orphaned(node: Node) -> int:
    """The leader is gone: say what a SIGTERM makes the real one say, and stay."""
    node.state["orphaned"] = True
    if node.faults.active("F20") is not None:
        await _complain(node.settings)
    await node.terminate.wait()
    _say_shutdown(node)
    await asyncio.Event().wait()
    raise AssertionError("only SIGKILL ends an orphaned node")


async def _complain(settings: Settings) -> None:
    while True:
        say(
            "[c10d] recvValue failed on SocketImpl: Connection was likely closed. "
            "Did the remote server shutdown or crash?"
        )
        await asyncio.sleep(max(1.0, settings.scaled(HANG_LOG)))


def _say_shutdown(node: Node) -> None:
    ranks = node.parallel.local_ranks
    log(
        "MainProcess",
        "multiproc_executor.py:479",
        f"[shutdown] Executor: waiting for worker exit count={len(ranks)}",
    )
    for rank in ranks:
        log(
            worker_name(node.parallel, rank),
            "multiproc_executor.py:843",
            "Parent process exited, terminating worker queues",
        )
