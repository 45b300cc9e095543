// A client of the soak, on pgx: it notifies, and checks what all others send.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v4"
)

func main() {
	ctx, name := context.Background(), os.Args[3]
	conn, err := pgx.Connect(ctx, fmt.Sprintf("host=%s port=%s user=me dbname=default", os.Args[1], os.Args[2]))
	if err != nil {
		log.Fatal(err)
	}
	if _, err = conn.Exec(ctx, "LISTEN soak"); err != nil {
		log.Fatal(err)
	}
	last := map[string]int{}
	for number := 1; ; number++ {
		if _, err = conn.Exec(ctx, "SELECT pg_notify('soak', $1)", fmt.Sprintf("%s %d", name, number)); err != nil {
			log.Fatal(err)
		}
		for last[name] != number {
			heard, err := conn.WaitForNotification(ctx)
			if err != nil {
				log.Fatal(err)
			}
			var sender string
			var text int
			fmt.Sscanf(heard.Payload, "%s %d", &sender, &text)
			if before, known := last[sender]; known && text != before+1 {
				fmt.Printf("broken %s: %d after %d\n", sender, text, before)
				os.Exit(3)
			}
			last[sender] = text
		}
	}
}
