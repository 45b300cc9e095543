// lib/pq's listener on a gateway that is stopped and started again: it connects again by itself.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/lib/pq"
)

func main() {
	dsn := fmt.Sprintf("host=%s port=%s user=me dbname=default sslmode=disable", os.Args[1], os.Args[2])
	listener := pq.NewListener(dsn, 10*time.Millisecond, 100*time.Millisecond, nil)
	if err := listener.Listen("a"); err != nil {
		panic(err)
	}
	fmt.Println("listening")
	for heard := range listener.Notify {
		if heard == nil { // "a lost connection was re-established"
			fmt.Println("again")
		} else {
			fmt.Println(heard.Extra)
			if heard.Extra == "\"end\"" {
				return
			}
		}
	}
}
