"""``moe-gateway-agent``: the processes of a gateway pod beside Envoy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path

import click

from moe_operator.gateway.address import Address
from moe_operator.gateway.boot import prepare


class AddressParam(click.ParamType[Address]):
    """HOST:PORT on the command line."""

    name = "host:port"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        """Parse, or fail with what is wrong."""
        if isinstance(value, Address):
            return value
        try:
            return Address.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


_ADDRESS = AddressParam()
_DIRECTORY = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def main() -> None:
    """Keep one Envoy in step with the operator's intent."""
    _log_as_json()


@main.command()
@click.option("--xds", type=_DIRECTORY, required=True, help="Directory shared with Envoy.")
@click.option("--intent", type=_FILE, required=True, help="Mounted copy of the intent.")
@click.option("--listen", "address", type=_ADDRESS, required=True, help="Where Envoy serves clients.")
@click.option("--admin", type=_ADDRESS, required=True, help="Where Envoy's admin interface listens.")
def init(xds: Path, intent: Path, address: Address, admin: Address) -> None:
    """Write everything Envoy needs to start, then end."""
    prepare(xds, intent, address, admin)


@main.command()
@click.option("--xds", type=_DIRECTORY, required=True, help="Directory shared with Envoy.")
@click.option("--intent", type=_FILE, required=True, help="Mounted copy of the intent.")
@click.option("--config-map", required=True, metavar="NAMESPACE/NAME", help="ConfigMap to watch.")
@click.option("--admin", type=_ADDRESS, required=True, help="Envoy's admin interface.")
@click.option("--listen", "address", type=_ADDRESS, required=True, help="Where this agent answers.")
@click.option("--own", type=_ADDRESS, required=True, help="Where it answers its own pod: on loopback.")
@click.option(
    "--service-account", type=_DIRECTORY, required=True, help="Directory with the pod's token and ca.crt."
)
def run(
    xds: Path,
    intent: Path,
    config_map: str,
    admin: Address,
    address: Address,
    own: Address,
    service_account: Path,
) -> None:
    """Follow the intent and answer for Envoy until told to stop."""
    from moe_operator.gateway.running import serve  # pulls in what `init` must not wait for
    from moe_operator.gateway.watch import ApiServer, WatchFailed

    if config_map.count("/") != 1:
        raise click.BadParameter("must be NAMESPACE/NAME", param_hint="--config-map")
    try:
        api = ApiServer.of_this_pod(service_account)
        asyncio.run(_until_told(serve(xds, intent, api, config_map, admin, address, own)))
    except (WatchFailed, OSError) as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.option("--agent", type=_ADDRESS, required=True, help="Where the agent answers its own pod.")
def drain(agent: Address) -> None:
    """Let the clients of this pod finish: the hook that ends a gateway."""
    import httpx

    from moe_operator.gateway.drain import ask

    try:
        click.echo(ask(agent))
    except httpx.HTTPError as error:
        raise click.ClickException(f"the agent did not drain: {error!r}") from error


async def _until_told(work: Coroutine[None, None, None]) -> None:
    task = asyncio.create_task(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _log_as_json() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
