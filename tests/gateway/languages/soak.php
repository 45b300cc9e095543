<?php
// A client of the soak, on PHP's pgsql: it notifies, and checks what all others send.
[, $host, $port, $name] = $argv;
$conn = pg_connect("host=$host port=$port user=me dbname=default");
pg_query($conn, 'LISTEN soak');
$last = [];
for ($number = 1; ; $number++) {
    pg_query_params($conn, "SELECT pg_notify('soak', $1)", ["$name $number"]);
    do {
        while (($heard = pg_get_notify($conn, PGSQL_ASSOC)) === false) {
            $read = [pg_socket($conn)];
            $none = null;
            stream_select($read, $none, $none, null);
            pg_consume_input($conn);
        }
        [$sender, $text] = explode(' ', $heard['payload']);
        if (isset($last[$sender]) && (int) $text !== $last[$sender] + 1) {
            echo "broken $sender: $text after {$last[$sender]}\n";
            exit(3);
        }
        $last[$sender] = (int) $text;
    } while ($sender !== $name || (int) $text !== $number);
}
