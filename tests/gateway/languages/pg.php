<?php
// PHP's pgsql extension on a gateway: what it hears of its own, and an error's SQLSTATE.
[$host, $port] = [$argv[1], $argv[2]];
$conn = pg_connect("host=$host port=$port user=me dbname=default");
pg_query($conn, 'LISTEN a');
pg_query_params($conn, "SELECT pg_notify('a', $1)", ['alone']);
pg_query($conn, 'BEGIN');
pg_query($conn, "NOTIFY a, 'never'");
pg_query($conn, 'ROLLBACK');
pg_query($conn, 'BEGIN');
pg_query($conn, "NOTIFY a, 'in a transaction'");
pg_query($conn, 'COMMIT');
pg_send_query($conn, 'SELECT * FROM t');
$said = [pg_result_error_field(pg_get_result($conn), PGSQL_DIAG_SQLSTATE)];
pg_get_result($conn);
pg_query($conn, "NOTIFY a, 'end'");
$socket = pg_socket($conn);
do {
    while (($heard = pg_get_notify($conn, PGSQL_ASSOC)) === false) {
        $read = [$socket];
        $none = null;
        stream_select($read, $none, $none, 10);
        pg_consume_input($conn);
    }
    $said[] = $heard['payload'];
} while ($heard['payload'] !== 'end');
echo json_encode($said), "\n";
