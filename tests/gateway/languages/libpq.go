// lib/pq on a gateway: what its listener hears of its pool, and an error's SQLSTATE.
package main

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/lib/pq"
)

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func run(tx *sql.Tx, err error, statement string) *sql.Tx {
	must(err)
	_, err = tx.Exec(statement)
	must(err)
	return tx
}

func main() {
	dsn := fmt.Sprintf("host=%s port=%s user=me dbname=default sslmode=disable", os.Args[1], os.Args[2])
	listener := pq.NewListener(dsn, time.Second, time.Minute, nil)
	must(listener.Listen("a"))
	db, err := sql.Open("postgres", dsn)
	must(err)
	_, err = db.Exec("SELECT pg_notify('a', $1)", "alone")
	must(err)
	tx, err := db.Begin()
	must(run(tx, err, "NOTIFY a, 'never'").Rollback())
	tx, err = db.Begin()
	must(run(tx, err, "NOTIFY a, 'in a transaction'").Commit())
	_, err = db.Exec("SELECT * FROM t")
	said := []string{string(err.(*pq.Error).Code)}
	_, err = db.Exec("NOTIFY a, 'end'")
	must(err)
	for said[len(said)-1] != "end" {
		said = append(said, (<-listener.Notify).Extra)
	}
	must(json.NewEncoder(os.Stdout).Encode(said))
}
