"""Benchmarks of pynotify against named peers.

    python -m bench                     # calls, throughput, fanout, idle, latency, generation,
                                        # guest, pubsub, arrays, bridge, topics, celery,
                                        # websocket, abandoned
    python -m bench --only throughput   # one of them; may be repeated
    python -m bench --quick             # a look, not a figure
    python -m bench native              # the C programs of bench/native, after `make bench-native`

The peers: pyzmq PUB/SUB over ipc without a high-water mark (the fastest Python peer we know that
delivers to many), `posix_ipc.MessageQueue` (the fastest to wake a sleeping process), and for scale
`multiprocessing.Pipe`, `multiprocessing.Queue`, Redis when a redis-server is on PATH, PostgreSQL
when a DSN is given.

How it is measured

* Ours and the peer run in alternating passes of one run, the order turns round after every pair,
  and a figure is the ratio pair by pair: median [min .. max].  The machine need not be quiet,
  but the extremes say how quiet it was.
* The same payloads for each: 100 bytes, each with its number.  Each receiver counts them and
  checks the last number in every timed pass, and all bytes of a pass that is not timed.
* Processes are started, connected and warmed up before the first timed pass.  A rate counts from
  the first send until the last receiver has everything, so that buffering earns no credit.

What the peers do less or more than we do

* pyzmq has no transactions, no common order of several senders, and with the high-water mark
  switched off its memory is unbounded; with the default one (1,000) it silently drops more than
  half.  It sends from a thread of its own and may put many messages in one system call: on two
  CPUs four threads share the work.  It needs no shared segment and also crosses hosts.
* `posix_ipc.MessageQueue` and `multiprocessing.Pipe` know one receiver, no channels, no sender.
  The queue is 10 deep, what Linux allows a user.
* `multiprocessing.Queue` pickles, and `put()` returns before anything is sent.
* `multiprocessing.Value` is a number and a lock; a process that dies with the lock keeps it.
* Redis and PostgreSQL are servers: a round trip for each message, and they do much else.

A bar that is missed prints "below"; nothing here fails.
"""
