// pgx on a gateway: what it hears of its own, and an error's SQLSTATE.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, fmt.Sprintf("host=%s port=%s user=me dbname=default", os.Args[1], os.Args[2]))
	must(err)
	exec := func(statement string, arguments ...interface{}) {
		_, err := conn.Exec(ctx, statement, arguments...)
		must(err)
	}
	exec("LISTEN a")
	exec("SELECT pg_notify('a', $1)", "alone")
	tx, err := conn.Begin(ctx)
	must(err)
	exec("NOTIFY a, 'never'")
	must(tx.Rollback(ctx))
	tx, err = conn.Begin(ctx)
	must(err)
	exec("NOTIFY a, 'in a transaction'")
	must(tx.Commit(ctx))
	var failed *pgconn.PgError
	_, err = conn.Exec(ctx, "SELECT * FROM t")
	if !errors.As(err, &failed) {
		log.Fatal(err)
	}
	said := []string{failed.Code}
	exec("NOTIFY a, 'end'")
	for said[len(said)-1] != "end" {
		heard, err := conn.WaitForNotification(ctx)
		must(err)
		said = append(said, heard.Payload)
	}
	must(json.NewEncoder(os.Stdout).Encode(said))
}
