"""From what Envoy tells about requests to numbers, and to the keys that must wait.

Runs beside the requests, never in their path: Envoy tells, the accounts are charged, and when a key's account
falls below zero the filter's list is written anew, which Envoy takes up within milliseconds. Between the end
of an answer and the list that refuses its key lie at most :data:`access_log.FLUSH_SECONDS` and
:data:`SETTLE_SECONDS`. The accounts outlive the agent in a file beside the lists.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from moe_operator.api.intent import Intent
from moe_operator.gateway.access_log import agent_socket
from moe_operator.gateway.connections import accepting
from moe_operator.gateway.discovered import QUOTA, delivered
from moe_operator.gateway.forward_protocol import Malformed, Messages
from moe_operator.gateway.quota import Account, Allowances, Quotas
from moe_operator.gateway.quota_filter import quota_filter
from moe_operator.gateway.request_record import RequestRecord, parse
from moe_operator.gateway.request_stats import RequestStats
from moe_operator.gateway.store import Store

ACCOUNTS = "accounts.json"
SETTLE_SECONDS = 0.1
SAVE_SECONDS = 1.0
READ_BYTES = 1 << 18
BYTES_PER_TOKEN = 4  # until an intent says otherwise

_log = logging.getLogger(__name__)


class Accounting:
    """The ledger of one gateway pod."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.stats = RequestStats()
        self._quotas = Quotas(accounts=_saved(store))
        self._charged: dict[int, tuple[float, int]] = {}  # connection → start of its request, tokens so far
        self._bytes_per_token = BYTES_PER_TOKEN
        self._news = asyncio.Event()
        self.unread = 0  # records that could not be understood
        if intent := store.accepted():
            self.adopt(intent)

    def adopt(self, intent: Intent) -> None:
        """Charge by the allowances of ``intent`` from now on."""
        self._bytes_per_token = intent.limits.bytes_per_token
        self._quotas = replace(self._quotas, allowances=Allowances.of(intent))
        self._news.set()

    def take(self, records: Iterable[RequestRecord], moment: float) -> None:
        """Count and charge."""
        charges: Counter[str] = Counter()
        for record in records:
            self.stats.take(record, moment)
            if record.key_id:
                charges[record.key_id] += self._charge(record)
        if charges:
            self._quotas = self._quotas.charged(charges, moment)
            self._news.set()

    def _charge(self, record: RequestRecord) -> int:
        """Tokens that were not charged for this request before; an estimate that was too high comes back."""
        started, before = self._charged.pop(record.connection, (record.started, 0))
        if started != record.started:
            before = 0
        tokens = record.tokens(self._bytes_per_token)
        if not record.ended:
            self._charged[record.connection] = (record.started, tokens)
        return tokens - before

    def metrics(self) -> Iterator[Metric]:
        """What this agent has counted since it started."""
        yield from self.stats.collect(time.time())
        waiting = len(self._quotas.waiting(time.time()))
        yield GaugeMetricFamily(
            "moe_gateway_keys_waiting", "Keys that have used up their tokens.", value=waiting
        )
        yield CounterMetricFamily(
            "moe_gateway_records_unread",
            "Records of Envoy's log that were not understood.",
            value=self.unread,
        )

    async def keep_settled(self) -> None:
        """Bring every key that must wait into Envoy, until cancelled."""
        saved = 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(SAVE_SECONDS):  # wait_for of Python 3.11 may swallow the end
                    await self._news.wait()
            self._news.clear()
            moment = time.time()
            self._quotas = self._quotas.settled(moment)
            await self._write(QUOTA, delivered(QUOTA, quota_filter(self._quotas.waiting(moment))))
            if moment - saved >= SAVE_SECONDS:
                saved = moment
                await self._write(ACCOUNTS, _text(self._quotas))
            await asyncio.sleep(SETTLE_SECONDS)

    async def _write(self, name: str, text: str) -> None:
        try:
            await asyncio.to_thread(self._store.put, {name: text})
        except OSError as error:  # a full disk may empty again
            _log.error("cannot write", extra={"fields": {"file": name, "error": str(error)}})

    async def listen(self) -> None:
        """Read what Envoy tells, until cancelled; OSError when another agent does."""
        path = f"\0{agent_socket(self._store.xds)}"
        async with accepting(partial(asyncio.start_unix_server, path=path), self._read):
            await asyncio.get_running_loop().create_future()

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        messages = Messages()
        try:
            while data := await reader.read(READ_BYTES):
                self.take(self._parsed(messages.feed(data)), time.time())
        except (ConnectionError, Malformed) as error:
            _log.warning("Envoy's log broke off", extra={"fields": {"error": str(error)}})

    def _parsed(self, found: list[dict[str, str]]) -> list[RequestRecord]:
        records = []
        for each in found:
            try:
                records.append(parse(each["line"]))
            except (KeyError, ValueError) as error:
                self.unread += 1
                _log.error("unknown record", extra={"fields": {"error": str(error)}})
        return records


def _text(quotas: Quotas) -> str:
    return json.dumps({key_id: [account.tokens, account.at] for key_id, account in quotas.accounts.items()})


def _saved(store: Store) -> dict[str, Account]:
    try:
        return {key_id: Account(*values) for key_id, values in json.loads(store.read(ACCOUNTS)).items()}
    except (ValueError, TypeError, AttributeError):  # absent, or written by another version
        return {}
