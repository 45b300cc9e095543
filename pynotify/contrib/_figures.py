"""What a segment tells of itself: names, attributes and words of its figures."""

from __future__ import annotations

#: Metric (counters get "_total"), attribute of EngineStat, help.
COUNTERS = (
    ("pynotify_commits", "commits", "Transactions with an effect."),
    (
        "pynotify_notifications_committed",
        "notifications",
        "Notifications left after collapsing duplicates, heard or not.",
    ),
    (
        "pynotify_notifications_collapsed",
        "collapsed",
        "Notifications left out as duplicates within their transaction.",
    ),
    ("pynotify_wakeups_sent", "signals_sent", "Signals sent to wake a listener."),
    (
        "pynotify_wakeups_suppressed",
        "signals_elided",
        "Signals not sent because the listener was awake or already signalled.",
    ),
    (
        "pynotify_wakeups_unsent",
        "signals_unsent",
        "Signals that could not be sent; their listeners wake up late.",
    ),
    ("pynotify_wakeups_useful", "wakeups_useful", "Wake-ups after which something was found."),
    ("pynotify_wakeups_useless", "wakeups_useless", "Wake-ups after which nothing was found."),
    (
        "pynotify_log_records_dropped",
        "log_records_dropped",
        "Records that a latency log had no room for.",
    ),
    (
        "pynotify_log_files_recycled",
        "log_files_recycled",
        "Files of latency logs removed to make room.",
    ),
    ("pynotify_slot_writes", "slot_writes", "Writes to other backends' slots."),
    ("pynotify_recoveries", "recoveries", "Repairs after a process died in a commit."),
    ("pynotify_evictions", "evictions", "Times that the slowest listener lost its place."),
    ("pynotify_spilled_pages", "spilled_pages", "Pages of 8 KiB written to files."),
    (
        "pynotify_handler_reinstalls",
        "handler_reinstalls",
        "Signal handlers found replaced and installed again.",
    ),
)
GAUGES = (
    ("pynotify_queue_usage_ratio", "queue_usage", "Part of the queue in use, 0 to 1."),
    ("pynotify_queue_pages", "queue_pages", "Pages of 8 KiB in the shared ring."),
    ("pynotify_max_queue_pages", "max_queue_pages", "The same with those that may go to files."),
    ("pynotify_channels", "channels", "Channels and patterns in the channel table."),
    ("pynotify_patterns", "patterns", "Patterns that are listened to."),
    ("pynotify_subscriptions", "subscriptions", "Pairs of a backend and a channel or pattern."),
)
#: The same of GatewayStat.
GATEWAY_COUNTERS = (
    ("pynotify_gateway_connections", "accepted", "Connections of clients."),
    (
        "pynotify_gateway_refused_connections",
        "refused",
        "Of these: by user, database or protocol, or since no slot was free.",
    ),
    (
        "pynotify_gateway_received_notifications",
        "received",
        "Notifications from clients, committed or not.",
    ),
    ("pynotify_gateway_delivered_notifications", "delivered", "Notifications to clients."),
    (
        "pynotify_gateway_unreadable_notifications",
        "unreadable",
        "Notifications left out, since their payload is no UTF-8 text.",
    ),
)
GATEWAY_GAUGES = (
    ("pynotify_gateway_clients", "clients", "Clients that are connected."),
    ("pynotify_gateway_listens", "listens", "Channels listened to, each for each client."),
    ("pynotify_gateway_slow_clients", "slow", "Clients that do not read what waits for them."),
)
#: The same of BackendStat.
BACKEND_GAUGES = (
    (
        "pynotify_backend_lag_bytes",
        "lag_bytes",
        "Bytes of the queue from the first entry the backend still has to read to its head.",
    ),
    ("pynotify_backend_asleep", "asleep", "1 when the backend sleeps until it is woken."),
    ("pynotify_backend_channels", "channels", "Channels that the backend listens to."),
    (
        "pynotify_backend_in_transaction",
        "in_transaction",
        "1 when the backend has a transaction open.",
    ),
)
#: The same of TopicStats.
TOPIC_COUNTERS = (
    ("pynotify_topic_messages", "message_count", "Messages published."),
    ("pynotify_topic_message_bytes", "message_bytes", "Bytes of their bodies."),
    ("pynotify_topic_dropped", "dropped", "Messages that the topic's bounds dropped."),
    ("pynotify_topic_expired", "expired", "Messages that expired in the topic."),
    ("pynotify_topic_corrupt", "corrupt", "Records on disk that could not be read."),
)
TOPIC_GAUGES = (
    ("pynotify_topic_depth", "depth", "Messages that no channel has yet."),
    ("pynotify_topic_unfinished", "unfinished", "Messages that some channel still has."),
    ("pynotify_topic_paused", "paused", "1 when the topic is paused."),
    ("pynotify_topic_memory_bytes", "memory", "Bytes of topic_memory that it has."),
    ("pynotify_topic_max_memory_bytes", "max_memory", "Bytes of topic_memory that it may have."),
    ("pynotify_topic_disk_bytes", "disk_bytes", "Bytes on disk of what has no room in memory."),
    ("pynotify_topic_max_disk_bytes", "max_disk_bytes", "Bytes on disk that it may have."),
    ("pynotify_topic_default_ttl_seconds", "default_ttl", "Set for messages without a ttl."),
)
#: And of ChannelStats.
CHANNEL_COUNTERS = (
    ("pynotify_topic_channel_messages", "message_count", "Messages that came."),
    ("pynotify_topic_channel_finished", "finished", "Messages finished."),
    ("pynotify_topic_channel_requeued", "requeued", "Times a consumer requeued one."),
    ("pynotify_topic_channel_timed_out", "timed_out", "Deliveries that timed out."),
    ("pynotify_topic_channel_dead_lettered", "dead_lettered", "Messages given up."),
    ("pynotify_topic_channel_dropped", "dropped", "Messages that were never delivered."),
    ("pynotify_topic_channel_expired", "expired", "Messages that expired."),
)
CHANNEL_GAUGES = (
    ("pynotify_topic_channel_depth", "depth", "Messages ready."),
    ("pynotify_topic_channel_in_flight", "in_flight", "Messages in flight."),
    ("pynotify_topic_channel_deferred", "deferred", "Messages deferred."),
    ("pynotify_topic_channel_paused", "paused", "1 when the channel is paused."),
    ("pynotify_topic_channel_max_attempts", "max_attempts", "Set for its consumers, 0: no limit."),
    ("pynotify_topic_channel_msg_timeout_seconds", "msg_timeout", "Set for its consumers."),
)
