"""The main job: a million notifications between processes, two of them killed, and the audit.

`python -m pynotify.demo` sends the lines of the interpreter's standard library through one
segment, one channel per top-level module, and lets Spark judge the latency logs that every
process wrote.

    source     the input: which files there are, and their lines
    workload   the transactions that a notifier makes of them
    ledger     what the processes tell the parent, through pynotify itself
    workers    the processes: notifiers, listeners, idle listeners
    stage      forks, kills and replaces them; what came of it
    faults     BREAK=...: what a broken engine would have logged
    spark      the Spark job over the logs
    verdict    the Spark job's report and the parent's accounts, judged
    tables     what is printed
    progress   the bar
    interrupts Ctrl-C
    cli        options and exit status
"""
