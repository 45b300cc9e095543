<?php
// PHP's PDO on a gateway: what it hears of its own, and an error's SQLSTATE.
[$host, $port] = [$argv[1], $argv[2]];
$pdo = new PDO("pgsql:host=$host;port=$port;dbname=default;user=me");
$pdo->exec('LISTEN a');
$pdo->prepare("SELECT pg_notify('a', ?)")->execute(['alone']);
$pdo->beginTransaction();
$pdo->exec("NOTIFY a, 'never'");
$pdo->rollBack();
$pdo->beginTransaction();
$pdo->exec("NOTIFY a, 'in a transaction'");
$pdo->commit();
$said = [];
try {
    $pdo->query('SELECT * FROM t');
} catch (PDOException $error) {
    $said[] = $error->getCode();
}
$pdo->exec("NOTIFY a, 'end'");
do {
    $heard = $pdo->pgsqlGetNotify(PDO::FETCH_ASSOC, 10000);
    $said[] = $heard['payload'];
} while ($heard['payload'] !== 'end');
echo json_encode($said), "\n";
