"""The way of every vLLM node from its command line to "all ranks have loaded", leader or headless.

Node 0 opens the meeting point and waits; the others look for it. Everyone then reads the weights and says
how much cache is left; the smallest pool is everybody's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from .checkpoint import CheckpointError
from .node import Node, digest
from .rendezvous import Group, Leader, Link, PeerLost, Refused, join
from .vllm_flags import Serve
from .vllm_log import log, progress, say
from .vllm_start import (
    Model,
    StartFailure,
    announce_loaded,
    announce_ranks,
    core_name,
    fail_by_fault,
    measure,
    worker_name,
)

TORCH_TIMEOUT = 600  # seconds, torch's own default when no flag is given
HANDSHAKE_TIMEOUT = 300  # seconds a headless data-parallel node waits for its front end
ENGINE_READY_TIMEOUT = 600  # VLLM_ENGINE_READY_TIMEOUT_S
WAITING_LOG = 10  # seconds between the lines of a front end that waits


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a node knows once its weights are in place."""

    pool_tokens: int
    identity: str


def group_of(serve: Serve, model: Model, node: Node) -> Group:
    """This node as the others see it."""
    parallel = node.parallel
    sizes = (parallel.tensor, parallel.pipeline, parallel.data, parallel.experts_whole, parallel.nodes)
    return Group(parallel.node, parallel.nodes, digest(*sizes, model.max_len, model.config))


def announce_start(serve: Serve, node: Node) -> None:
    """The lines of engine core and workers before they meet."""
    parallel, (host, port) = node.parallel, serve.meeting_point
    local = len(parallel.local_ranks)
    address = f"tcp://{host}:{port}" if parallel.nodes > 1 else "file://TMP"
    core = core_name(parallel)
    log(
        core,
        "multiproc_executor.py:153",
        f"DP group leader: node_rank={parallel.node}, node_rank_within_dp=0, master_addr={host}, "
        f"mq_connect_ip={own_address() or host} (local), world_size={parallel.world}, "
        f"local_world_size={local}",
    )
    for place, rank in enumerate(parallel.local_ranks):
        log(
            "Worker",
            "parallel_state.py:1906",
            f"world_size={parallel.world} rank={rank.number} local_rank={place} "
            f"distributed_init_method={address} backend=nccl",
        )


def own_address() -> str | None:
    """The address that the node was told to use."""
    return os.environ.get("VLLM_HOST_IP") or None


def listen_address(host: str) -> str:
    """Where node 0 opens the meeting point: its own address, the one everybody was given, else all."""
    if own := own_address():
        return own
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return "0.0.0.0"


async def gather(serve: Serve, group: Group, node: Node) -> Leader | None:
    """Node 0: wait for the others; None when there are none. StartFailure when they do not come in time."""
    if group.nodes == 1:
        return None
    node.phase("rendezvous")
    leader = Leader(group, say)
    host, port = serve.meeting_point
    try:
        await leader.listen(listen_address(host), port)
    except OSError as error:
        raise StartFailure("config", f"torch.distributed.DistNetworkError: {error}") from None
    node.state["joined"] = lambda: group.nodes - leader.missing
    by_fault = node.faults.active("F14")
    limit = float(by_fault["s"]) if by_fault and "s" in by_fault else _leader_limit(serve)
    chatter = asyncio.create_task(_say_who_is_missing(leader, node)) if serve.spans_by_data else None
    try:
        await leader.gather(node.settings.scaled(limit))
    except TimeoutError:
        message = _nobody_came(serve, node, group.nodes - leader.missing, limit)
        await leader.close()
        raise StartFailure("config", message) from None
    finally:
        if chatter:
            chatter.cancel()
    return leader


def _leader_limit(serve: Serve) -> float:
    if serve.spans_by_data:
        return float(os.environ.get("VLLM_ENGINE_READY_TIMEOUT_S") or ENGINE_READY_TIMEOUT)
    return float(serve.flags.distributed_timeout_seconds or TORCH_TIMEOUT)


def _nobody_came(serve: Serve, node: Node, joined: int, limit: float) -> str:
    if serve.spans_by_data:
        return (
            "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by "
            "slow "
            f"weight loading for large models. Waited {limit:.0f}s (configured by "
            "VLLM_ENGINE_READY_TIMEOUT_S). "
            "To increase the timeout, set the environment variable: VLLM_ENGINE_READY_TIMEOUT_S=<seconds>"
        )
    local = len(node.parallel.local_ranks)
    return (
        f"torch.distributed.DistStoreError: Timed out after {limit + 1:.0f} seconds waiting for clients. "
        f"{joined * local}/{node.parallel.world} clients joined."
    )


async def _say_who_is_missing(leader: Leader, node: Node) -> None:
    local = node.parallel.data // node.parallel.nodes
    while True:
        await asyncio.sleep(node.settings.scaled(WAITING_LOG))
        log(
            "ApiServer_0",
            "utils.py:1455",
            f"Waiting for 0 local, {leader.missing * local} remote core engine proc(s) to connect.",
        )


async def find_leader(serve: Serve, group: Group, node: Node) -> Link:
    """Every other node: connect to node 0. StartFailure when it cannot be found or does not want us."""
    node.phase("rendezvous")
    if node.faults.active("F10") is not None:
        await asyncio.Event().wait()
    if late := node.faults.active("F11"):
        await asyncio.sleep(node.settings.scaled(float(late.get("s", 60))))
    host, port = serve.meeting_point
    limit = HANDSHAKE_TIMEOUT
    if not serve.spans_by_data:
        limit = serve.flags.distributed_timeout_seconds or TORCH_TIMEOUT
    try:
        return await asyncio.wait_for(join(group, host, port, say), node.settings.scaled(limit))
    except Refused as refused:
        raise StartFailure("config", str(refused)) from None
    except TimeoutError:
        by_data = "RuntimeError: Did not receive response from front-end process within 5 minutes"
        by_torch = (
            f"torch.distributed.DistNetworkError: The client socket has timed out after {limit * 1000}ms "
            "while "
            f"trying to connect to ({host}, {port})."
        )
        raise StartFailure("config", by_data if serve.spans_by_data else by_torch) from None


async def load(serve: Serve, model: Model, node: Node) -> Loaded:
    """Read the weights and size the cache; StartFailure when either cannot be done."""
    node.phase("load")
    parallel = node.parallel
    announce_ranks(parallel)
    first = worker_name(parallel, parallel.local_ranks[0])
    log(first, "gpu_model_runner.py:5044", f"Starting to load model {serve.model}...")

    def step(done: int, total: int, elapsed: float) -> None:
        if parallel.node == 0:
            progress(done, total, elapsed)
        fail_by_fault(node, serve, model.max_len, done * 100 / total)

    try:
        seconds = await node.load(Path(serve.model), step)
    except CheckpointError as error:
        raise StartFailure("worker", str(error)) from None
    need, pool = measure(serve, model, node)
    announce_loaded(node, seconds)
    assert node.weights is not None
    node.state["kvPerTokenBytes"] = need.per_token
    return Loaded(pool, node.weights.identity)


async def agree(leader: Leader | None, own: Loaded) -> Loaded:
    """Node 0: the smallest pool of the group, and an identity of all weights; StartFailure if one is lost."""
    if leader is None:
        return own
    try:
        others = await leader.collect("loaded")
    except PeerLost:
        raise StartFailure(
            "worker",
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by "
            "peer. This "
            "is typically caused by a remote worker crashing. Check the logs of the remote worker before "
            "reporting an error.",
        ) from None
    identities = [own.identity, *(str(one["identity"]) for one in others)]
    pool = min(own.pool_tokens, *(int(one["pool"]) for one in others))
    leader.send("serve", pool=pool)
    return Loaded(pool, digest(*identities) if len(set(identities)) > 1 else own.identity)
