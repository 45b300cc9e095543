"""What a broker and its routers are configured with, in FastStream's terms."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from faststream import AckPolicy
from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream._internal.logger import DefaultLoggerStorage, LoggerState, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

from pynotify.contrib.faststream._declared import TopicSub
from pynotify.contrib.faststream._session import Session

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.context import ContextRepo

_ID_WIDTH = 10


@dataclass(kw_only=True)
class PynotifyBrokerConfig(BrokerConfig):
    """The broker's session. That of a router is never connected: it takes its broker's."""

    session: Session = field(default_factory=Session)


@dataclass(kw_only=True)
class PynotifySubscriberConfig(SubscriberUsecaseConfig):
    """A subscriber's: its `source` is the name of a channel, or a topic."""

    source: str | TopicSub
    _outer_config: PynotifyBrokerConfig

    @property
    def ack_policy(self) -> AckPolicy:
        """A message of a channel is not answered; one of a topic is rejected when it fails."""
        if isinstance(self.source, str):
            return AckPolicy.MANUAL
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.REJECT_ON_ERROR


@dataclass(kw_only=True)
class PynotifySubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """What AsyncAPI shows of a subscriber."""

    source: str | TopicSub


@dataclass(kw_only=True)
class PynotifyPublisherConfig(PublisherUsecaseConfig):
    """A publisher's."""

    destination: str
    is_topic: bool
    headers: dict[str, str]
    reply_to: str
    _outer_config: PynotifyBrokerConfig


@dataclass(kw_only=True)
class PynotifyPublisherSpecificationConfig(PublisherSpecificationConfig):
    """What AsyncAPI shows of a publisher."""

    destination: str


class _LoggerStorage(DefaultLoggerStorage):
    """The logger "faststream.access.pynotify", with a column for channels and topics."""

    def __init__(self) -> None:
        super().__init__()
        self._width = 4

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Make the column as wide as the longest name."""
        self._width = max(self._width, len(params.get("source", "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """The logger, made on first use."""
        made = self._get_logger_ref()
        if made is None:
            made = get_broker_logger(
                name="pynotify",
                default_context={"source": ""},
                message_id_ln=_ID_WIDTH,
                fmt=(
                    f"%(asctime)s %(levelname)-8s - %(source)-{self._width}s | "
                    f"%(message_id)-{_ID_WIDTH}s - %(message)s"
                ),
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(made)
        return made


def logger_state(logger: LoggerProto | None, log_level: int) -> LoggerState:
    """FastStream's own logger for EMPTY, none for None."""
    return make_logger_state(
        logger=logger, log_level=log_level or logging.INFO, default_storage_cls=_LoggerStorage
    )
